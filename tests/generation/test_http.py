"""One connection to a server in this process: what comes back, what fails, and what is tried again."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("httpx2")

from mio_rag.generation.http import HttpFailure, JsonClient


class Handler(BaseHTTPRequestHandler):
    """Answers with what was asked; keeps count of connections."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/slow":
            self.server.released.wait(5)
        if self.path == "/dies" and self.server.connections == 1:
            self.close_connection = True  # without a word, as a server does that is told to stop
            return
        told = {
            "method": self.command,
            "key": self.headers.get("Authorization"),
            "type": self.headers.get("Content-Type"),
            "body": json.loads(body) if body else None,
        }
        data = b"<html>" if self.path == "/html" else json.dumps(told).encode()
        self.send_response(503 if self.path == "/busy" else 307 if self.path == "/away" else 200)
        if self.path == "/away":
            self.send_header("Location", "/")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.close_connection |= self.path == "/last"

    do_GET = do_POST = _answer

    def log_message(self, *told: Any) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    """Counts its connections."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.connections = 0
        self.released = threading.Event()


@contextmanager
def client(server: Server, seconds: float = 5) -> Iterator[JsonClient]:
    made = JsonClient(f"http://127.0.0.1:{server.server_port}", "secret", seconds, local=True)
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.released.set()
    made.shutdown()
    made.server_close()
    thread.join()


def test_requests_share_one_connection_whatever_the_proxy(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    text = "Zürich \ud83d and \ud800 alone"
    with client(server) as made:
        reply = made.request("POST", "/", {"content": text})
        assert reply["body"] == {"content": text}
        assert (reply["key"], reply["type"]) == ("Bearer secret", "application/json")
        replies: list[Any] = []
        threads = [
            threading.Thread(target=lambda k=k: replies.append(made.request("POST", "/", k)))
            for k in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(reply["body"] for reply in replies) == list(range(6))
        assert made.request("GET", "/")["body"] is None
    assert server.connections == 1


@pytest.mark.parametrize("path", ["/last", "/dies"])
def test_a_connection_that_the_server_let_go_is_opened_again(server: Server, path: str) -> None:
    with client(server) as made:
        assert made.request("GET", path)["method"] == "GET"
        assert made.request("GET", "/")["method"] == "GET"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [("/busy", 503, "HTTP 503"), ("/away", 307, "HTTP 307"), ("/html", 200, "not JSON: b'<html>'")],
)
def test_what_brings_no_json_fails(server: Server, path: str, status: int, why: str) -> None:
    with client(server) as made:
        with pytest.raises(HttpFailure, match=why) as found:
            made.request("GET", path)
        assert found.value.status == status
        assert made.request("GET", "/")["method"] == "GET"  # and the connection goes on


def test_a_reply_that_does_not_come_in_time_fails_and_is_not_asked_for_again(server: Server) -> None:
    with client(server, seconds=0.2) as made, pytest.raises(HttpFailure) as found:
        made.request("GET", "/slow")
    assert found.value.status is None
    assert server.connections == 1


def test_without_a_server_and_once_closed_it_fails(server: Server) -> None:
    with client(server) as made:
        made.request("GET", "/")
    with pytest.raises(HttpFailure, match="closed"):
        made.request("GET", "/")
    with pytest.raises(HttpFailure, match="refused"):
        JsonClient("http://127.0.0.1:9", "secret", local=True).request("GET", "/")
