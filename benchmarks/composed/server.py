"""A server that speaks OpenAI's protocol, and is as bad as one likes: it fails, it stalls, and it bills.

`python -m benchmarks.composed.server PORT_FILE BILL_FILE` runs it in a process of its own. What it bills is
written after every reply, so that a client's own account can be held against it.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_TOKEN = re.compile(r"\w+|[^\w\s]")


def _tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


class Bill:
    """What was asked and charged, by question."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.prompt = self.completion = self.replies = self.failed = self.stalled = self.asked_again = 0
        self.asked: set[bytes] = set()

    def to_dict(self) -> dict[str, int]:
        """Plain data for JSON."""
        with self.lock:
            return {
                "prompt_tokens": self.prompt,
                "completion_tokens": self.completion,
                "replies": self.replies,
                "failed": self.failed,
                "stalled": self.stalled,
                "asked_again": self.asked_again,
            }

    def carry_on(self, told: Mapping[str, int]) -> None:
        """Begin with what another has billed."""
        self.prompt, self.completion = told["prompt_tokens"], told["completion_tokens"]
        self.replies, self.failed = told["replies"], told["failed"]
        self.stalled, self.asked_again = told["stalled"], told["asked_again"]


class Scripted(ThreadingHTTPServer):
    """The server.

    Parameters
    ----------
    fails, stalls : float
        Share of the completions that end with status 500, without being charged; and that are charged, but
        come `stall_seconds` late.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, fails: float = 0.1, stalls: float = 0.01, stall_seconds: float = 3.0, seed: int = 0
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fails, self.stalls, self.stall_seconds = fails, stalls, stall_seconds
        self.luck, self.bill = random.Random(seed), Bill()

    @property
    def url(self) -> str:
        """Up to and with ``/v1``."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed are no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self.path == "/tokenize":
            text = body.get("content", body.get("prompt"))
            if text is None:
                text = " ".join(message["content"] for message in body["messages"])
            self._send(200, {"tokens": [0] * _tokens(text)})
        elif self.path == "/apply-template":
            self._send(200, {"prompt": " ".join(message["content"] for message in body["messages"])})
        elif self.path == "/v1/chat/completions":
            self._complete(body)
        else:
            self._send(404, {"error": {"message": "there is nothing here"}})

    def _complete(self, body: dict[str, Any]) -> None:
        server, bill = self.server, self.server.bill
        text = " ".join(message["content"] for message in body["messages"])
        with bill.lock:
            luck = server.luck.random()
            if luck < server.fails:
                bill.failed += 1
        if luck < server.fails:
            self._send(500, {"error": {"message": "out of order"}})
            return
        said = "It says so in the passages."
        usage = {"prompt_tokens": _tokens(text), "completion_tokens": _tokens(said)}
        with bill.lock:
            bill.prompt += usage["prompt_tokens"]
            bill.completion += usage["completion_tokens"]
            bill.replies += 1
            known = hashlib.sha256(text.encode()).digest()[:8]
            bill.asked_again += known in bill.asked
            bill.asked.add(known)
            late = luck < server.fails + server.stalls
            bill.stalled += late
        if late:
            time.sleep(server.stall_seconds)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        self._send(
            200,
            {"id": "x", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice],
             "usage": usage | {"total_tokens": sum(usage.values())}},
        )  # fmt: skip

    def _send(self, status: int, data: dict[str, Any]) -> None:
        content = json.dumps(data).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True  # the client waits no longer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: ten thousand lines help nobody."""


def started(server: Scripted) -> threading.Thread:
    """A thread that serves until `shutdown`."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    return thread


def main(port_file: str, bill_file: str) -> None:
    """Serve until the process is ended; write where, and every half second what was billed."""
    server = Scripted()
    if Path(bill_file).is_file():  # a study that goes on: what was billed was billed
        server.bill.carry_on(json.loads(Path(bill_file).read_text(encoding="utf-8")))
    started(server)
    Path(port_file).write_text(server.url, encoding="utf-8")
    while True:
        time.sleep(0.5)
        partial = Path(f"{bill_file}.partial")
        partial.write_text(json.dumps(server.bill.to_dict()), encoding="utf-8")
        partial.replace(bill_file)


if __name__ == "__main__":
    main(*sys.argv[1:3])
