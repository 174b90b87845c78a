"""Servers for tests: one answers by a function, one fails as it should and records what it has charged."""

import json
import socket
import struct
import threading
import time
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


#: Usage that cannot be true. The reply is good.
USAGES: dict[str, Any] = {
    "negative": {"prompt_tokens": -5000, "completion_tokens": -1},
    "null counts": {"prompt_tokens": None, "completion_tokens": None},
    "none": None,
    "zero": {"prompt_tokens": 0, "completion_tokens": 0},
    "text": {"prompt_tokens": "9", "completion_tokens": True},
    "fractions": {"prompt_tokens": 9.5, "completion_tokens": float("nan")},
    "too large": {"prompt_tokens": 10**30, "completion_tokens": 10**30},
    "no object": [1, 2],
}
#: What comes back once the model has worked on the prompt: body, status.
CHARGED: dict[str, tuple[Any, int]] = {
    "bad JSON": (b'{"choices": [{"mess', 200),
    "deep JSON": (b"[" * 100_000, 200),
    "504": (b"<html>Gateway Timeout</html>", 504),
    "500": (b'{"error": {"message": "exploded"}}', 500),
    "no choices": (b'{"choices": [], "usage": {}}', 200),
    "empty": (b"", 200),
    "null": (b"null", 200),
    "204": (b"", 204),
    "a number": (json.dumps(completion(5)).encode(), 200),
    "reset": (None, 0),
    "timeout": (None, 1),
    "cut short": (None, 2),
}
#: What is refused before the model works: status.
FREE = {"429": 429, "503": 503, "401": 401, "404": 404, "400": 400}

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


class Bill:
    """A model that charges the words of every prompt and the longest reply, also where it then fails.

    fault: number of a chat request, from 0 -> name of a fault, or None for a good reply.
    """

    def __init__(self, fault: Callable[[int], str | None], retry_after: str | None = None) -> None:
        self.charged, self.asked = [0, 0], 0
        self.times: list[float] = []
        self.url = ""
        self._fault, self._lock = fault, threading.Lock()
        self._refusal = {} if retry_after is None else {"Retry-After": retry_after}

    def respond(self, path: str, body: Any) -> tuple[int, Any, dict[str, str]]:
        """As `Respond`."""
        if path == "/apply-template":
            return 200, {"prompt": " ".join(m["content"] for m in body["messages"])}, {}
        if path == "/tokenize":
            return 200, {"tokens": tokenized(body.get("content", ""))}, {}
        words, said = sum(len(m["content"].split()) for m in body["messages"]), len(SAID.split())
        with self._lock:
            name = self._fault(self.asked)
            self.asked += 1
            self.times.append(time.monotonic())
            if name not in FREE:
                self.charged[0] += words
                self.charged[1] += body["max_tokens"] if name in CHARGED else said
        if name in FREE:
            return FREE[name], {"error": {"message": "refused"}}, self._refusal
        if name in CHARGED:
            raw, status = CHARGED[name]
            return status, raw, {}
        good = {"prompt_tokens": words, "completion_tokens": said}
        return 200, completion(usage=good if name is None else USAGES[name]), {}


@contextmanager
def served(fault: Callable[[int], str | None], retry_after: str | None = None) -> Iterator[Bill]:
    """A running server of such a model."""
    bill = Bill(fault, retry_after)
    with serving(bill.respond) as server:
        bill.url = server.url
        yield bill
