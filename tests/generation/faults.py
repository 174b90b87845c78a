"""A server that speaks OpenAI's protocol, fails as told, and knows what it has charged."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["CHARGED", "FREE", "USAGES", "FaultServer", "served"]

SAID = "241 kilometres"


def _reply(text: Any = SAID, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}], **more}


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
    "HTML": (b"<html>hello</html>", 200),
    "no choices": (json.dumps({"choices": [], "usage": {}}).encode(), 200),
    "empty": (b"", 200),
    "null": (b"null", 200),
    "SSE": (b"data: " + json.dumps(_reply()).encode() + b"\n\ndata: [DONE]\n\n", 200),
    "204": (b"", 204),
    "a list": (json.dumps(_reply([{"type": "text", "text": "hi"}])).encode(), 200),
    "reset": (None, 0),
    "timeout": (None, 1),
    "cut short": (None, 2),
}
#: What is refused before the model works: status.
FREE = {"429": 429, "503": 503, "401": 401, "403": 403, "404": 404, "400": 400}


class FaultServer:
    """Charges the words of every prompt and the longest reply, also where it then fails.

    Parameters
    ----------
    fault : callable
        Number of a chat request, from 0 -> name of a fault, or None for a good reply.
    """

    def __init__(self, fault: Callable[[int], str | None], retry_after: str | None = None) -> None:
        self.charged = [0, 0]
        self.asked = 0
        self.times: list[float] = []
        lock, outer, self.done = threading.Lock(), self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/apply-template":
                    self._send(
                        json.dumps({"prompt": " ".join(m["content"] for m in body["messages"])}).encode()
                    )
                elif self.path == "/tokenize":
                    self._send(json.dumps({"tokens": body.get("content", "").split()}).encode())
                else:
                    self._chat(body)

            def _chat(self, body: dict[str, Any]) -> None:
                with lock:
                    name = fault(outer.asked)
                    outer.asked += 1
                    outer.times.append(time.monotonic())
                    words = sum(len(m["content"].split()) for m in body["messages"])
                    if name not in FREE:
                        outer.charged[0] += words
                        outer.charged[1] += body["max_tokens"] if name in CHARGED else len(SAID.split())
                if name in FREE:
                    self._send(b'{"error": {"message": "refused"}}', FREE[name], retry_after)
                elif name in CHARGED:
                    raw, status = CHARGED[name]
                    self._break(status) if raw is None else self._send(raw, status)
                else:
                    good = {"prompt_tokens": words, "completion_tokens": len(SAID.split())}
                    usage = good if name is None else USAGES[name]
                    self._send(json.dumps(_reply(usage=usage)).encode())

            def _break(self, how: int) -> None:
                self.close_connection = True
                if how == 0:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                elif how == 1:
                    outer.done.wait(20)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", "1000")
                    self.end_headers()
                    self.wfile.write(b'{"choices": [')

            def _send(self, raw: bytes, status: int = 200, after: str | None = None) -> None:
                self.send_response(status)
                if after is not None:
                    self.send_header("Retry-After", after)
                if status != 204:
                    self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *given: Any) -> None:
                """Nothing."""

            def finish(self) -> None:
                with suppress(OSError, ValueError):  # the connection was broken on purpose
                    super().finish()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *given: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"


@contextmanager
def served(fault: Callable[[int], str | None], retry_after: str | None = None) -> Iterator[FaultServer]:
    """A running server."""
    made = FaultServer(fault, retry_after)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.done.set()
        made.server.shutdown()
        made.server.server_close()
