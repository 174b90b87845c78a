"""A server for tests, which answers by a function; one that fails in every way is `benchmarks.faults`."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SAID = "241 kilometres"


def tokenized(content: Any) -> list[Any]:
    """The words of a text, or of texts with the number -1 between them, as llama.cpp counts them."""
    parts = content if isinstance(content, list) else [content]
    return [token for part in parts for token in (part.split() if isinstance(part, str) else [part])]


def completion(text: Any = SAID, usage: Any = None, **choice: Any) -> dict[str, Any]:
    """The body of a reply."""
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "message": message, **choice}], "usage": usage}


#: Path, body -> status (or a way to break the connection), body, headers.
Respond = Callable[[str, Any], tuple[int, Any, dict[str, str]]]


class Server:
    """Answers POST and GET by a function; records requests, connections, and how many ran at once."""

    def __init__(self, respond: Respond) -> None:
        self.requests: list[tuple[str, Any, dict[str, str]]] = []
        self.connections = self.running = self.most = 0
        self.released = threading.Event()
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def _answer(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = json.loads(raw) if raw else None
                with lock:
                    outer.requests.append((self.path, body, dict(self.headers)))
                    outer.running += 1
                    outer.most = max(outer.most, outer.running)
                try:
                    status, reply, headers = respond(self.path, body)
                finally:
                    with lock:  # before the reply leaves: the client may ask again the moment it arrives
                        outer.running -= 1
                with suppress(OSError):  # the client may have given up, as the test wants it to
                    self._send(status, reply, headers)

            do_GET = do_POST = _answer

            def _send(self, status: int, reply: Any, headers: dict[str, str]) -> None:
                if status < 100:
                    self.close_connection = True
                if status == 0:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                elif status == 1:
                    outer.released.wait(20)
                else:
                    data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                    self.send_response(200 if status == 2 else status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    if status != 204:
                        self.send_header("Content-Length", "1000" if status == 2 else str(len(data)))
                    self.end_headers()
                    self.wfile.write(b'{"choices": [' if status == 2 else data)

            def log_message(self, *given: Any) -> None:
                """Nothing."""

            def finish(self) -> None:
                with suppress(OSError, ValueError):  # the connection was broken on purpose
                    super().finish()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *given: None  # type: ignore[method-assign]
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.url = f"{self.address}/v1"

    def asked(self) -> list[Any]:
        """Bodies of the requests for a reply."""
        return [body for path, body, _ in self.requests if path.endswith("/chat/completions")]


@contextmanager
def serving(respond: Respond) -> Iterator[Server]:
    """A running server."""
    made = Server(respond)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.released.set()
        made.server.shutdown()
        made.server.server_close()
