"""A model behind OpenAI's protocol that fails in every way, and bills its work whatever becomes of the reply.

`python -m benchmarks.faults URL_FILE BILL_FILE [WAIT]` serves until it is ended; with WAIT it is well, and
each reply takes so many seconds.
"""

from __future__ import annotations

import email.utils
import itertools
import json
import random
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.runner import write_json, write_text
from mio_rag.retrieval.minilm import packaged_minilm
from mio_rag.storage import read_json

INTO, OUT = 0.15, 0.60  # dollars per million tokens
_THOUGHT = " Let me think."
_OVER = 3  # how often the longest answer a reply takes where the server ignores the limit
_MARK = re.compile(r"\(no\. (\d+)\)")  # of a question: the answer repeats it

Json = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """What becomes of one completion.

    charges: tokens of the reply that are billed: "no" (nor is the prompt), "said", "most" (the longest
        answer), or "over" (more than it).
    change: of the whole reply, or of the events of a stream, which end it; bytes are sent as they are.
    how: whole, cut, close (without a length), reset, silent, late, drip or twice.
    """

    charges: str = "said"
    status: int = 200
    change: Callable[[Any], Any] = lambda reply: reply
    how: str = "whole"
    headers: Mapping[str, str] | None = None


def _usage(usage: Any) -> Callable[[Any], Any]:
    def change(reply: Any) -> Any:
        if isinstance(reply, list):
            return [*reply[:-1], {**reply[-1], "usage": usage}]
        return {**reply, "usage": usage}

    return change


def _message(**fields: Any) -> Callable[[Json], Json]:
    def change(reply: Json) -> Json:
        return {**reply, "choices": [{**reply["choices"][0], "message": {"role": "assistant", **fields}}]}

    return change


def refused(**headers: str) -> Fault:
    """Return a refusal for too many requests."""
    return Fault("no", 429, lambda reply: b'{"error": {"message": "slow down"}}', headers=headers)


def _bytes(data: bytes, charges: str = "most", status: int = 200, **more: Any) -> Fault:
    return Fault(charges, status, lambda reply: data, **more)


_TROUBLE, _UNTRUE = b'{"error": {"message": "exploded"}}', b', "usage": {"prompt_tokens": 1}}'
_TOLD = (1, None, "9", 2.5, True, float("nan"), -7, 10**30)  # what a count may be, besides the truth
#: Faults of a reply. Before the model works: nothing is billed.
BEFORE: Mapping[str, Fault] = {
    "429": refused(), "429, wait 0": refused(**{"Retry-After": "0"}),
    "429, a date": refused(**{"Retry-After": email.utils.formatdate(0, usegmt=True)}),
    "429, no time": refused(**{"Retry-After": "-5 soon"}),
    "503": _bytes(b"<html>busy</html>", "no", 503), "409": _bytes(b"{}", "no", 409),
    "400": _bytes(b'{"error": "no such thing"}', "no", 400), "404": _bytes(b"", "no", 404),
    "closed": _bytes(b"", "no", how="silent"), "moved in a circle": _bytes(b"", "no", 307),
}  # fmt: skip
#: While it works, or after: the prompt is billed, and the longest answer.
DURING: Mapping[str, Fault] = {
    **{str(status): _bytes(_TROUBLE, status=status) for status in (500, 502, 504, 408)},
    "reset": _bytes(b"", how="reset"), "closed after work": _bytes(b"", how="silent"),
    "cut": Fault("most", how="cut"), "cut headers": _bytes(b"", how="headers"),
    "late": Fault("most", how="late"), "a byte now and then": Fault("most", how="drip"),
    "broken JSON": _bytes(b'{"choices": [{"mess'), "deep JSON": _bytes(b"[" * 100_000),
    "no UTF-8": _bytes(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
    "no gzip": _bytes(b"{}", headers={"Content-Encoding": "gzip"}),
    "no choices": Fault("most", change=lambda reply: {**reply, "choices": []}),
    "null": _bytes(b"null"), "empty": _bytes(b""), "a number": _bytes(b"5"), "204": _bytes(b"", status=204),
    "a number for a text": Fault("most", change=_message(content=5)),
    "a tool for a text": Fault("most", change=_message(tool_calls=[{"id": "x"}])),
}  # fmt: skip
#: The reply is good, or nearly so; what it took is billed.
AFTER: Mapping[str, Fault] = {
    **{
        f"{told} tokens": Fault(change=_usage({"prompt_tokens": told, "completion_tokens": told}))
        for told in _TOLD
    },
    "no usage": Fault(change=_usage(None)), "a list as usage": Fault(change=_usage([1, 2])),
    "no counts": Fault(change=_usage({"total_tokens": 3})),
    "ignores the limit": Fault("over"),
    "thinks aside, no usage": Fault(
        change=lambda reply: _usage(None)(_message(reasoning=_THOUGHT, content=_text(reply))(reply))
    ),
    "two choices": Fault("over", change=lambda reply: {**reply, "choices": reply["choices"] * 2}),
    "text in parts": Fault(change=lambda reply: _message(content=[{"text": _text(reply)}])(reply)),
    "the reply twice": Fault(how="twice"), "no length": Fault(how="close"),
    "two keys": Fault(change=lambda reply: json.dumps(reply)[:-1].encode() + _UNTRUE),
}  # fmt: skip
_PIECE = {"choices": [{"index": 0, "delta": {"content": " again"}}]}
#: Faults of a stream of events; of the others those that fit are used, too.
STREAMS: Mapping[str, Fault] = {
    "cut stream": Fault("most", how="cut"),
    "ends in the middle": Fault("most", change=lambda e: e[:2], how="close"),
    "error in a stream": Fault("most", change=lambda e: [e[0], {"error": {"message": "overloaded"}}]),
    "broken event": Fault("most", change=lambda e: [e[0], b'data: {"choi\n\n']),
    "null event": Fault("most", change=lambda e: [e[0], None]),
    "no last usage": Fault(change=_usage(None)),
    "comments": Fault(change=lambda e: [b": wait\n\nevent: x\r\n", *e]),
    "after the end": Fault(change=lambda e: [*e, b"data: [DONE]\n\n", _PIECE]),
}
_OF_WHOLE = ("cut", "no choices", "a number for a text", "a tool for a text")
WHOLE = {**BEFORE, **DURING, **AFTER}
STREAMED = {**BEFORE, **STREAMS} | {k: fault for k, fault in DURING.items() if k not in _OF_WHOLE}


def _text(reply: Json) -> str:
    return str(reply["choices"][0]["message"]["content"])


class FaultyServer(ThreadingHTTPServer):
    """The model.

    share: of the completions that end with a fault. Slow ones are a tenth as frequent as others.
    wait, late: seconds that each reply takes, and that a late one takes longer.
    planned: of the next completions, instead of drawn ones.
    billed: begin with this bill.
    """

    daemon_threads = True
    request_queue_size = 1024

    def __init__(
        self,
        share: float = 0.5,
        wait: float = 0.0,
        late: float = 3.0,
        seed: int = 0,
        billed: Json | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.share, self.wait, self.late = share, wait, late
        self.drawn, self.lock, self.planned = random.Random(seed), threading.Lock(), list[Fault]()
        self.tokenizer = Tokenizer.from_file(str(Path(packaged_minilm()) / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.bill = Counter(billed or {})

    @property
    def url(self) -> str:
        """Address up to and with ``/v1``."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def tokens(self, text: str, frame: bool = False) -> int:
        """Count a text, as the client does."""
        return len(self.tokenizer.encode(text, add_special_tokens=frame).ids)

    def draw(self, streams: bool) -> tuple[str, Fault]:
        """Return name and fault of the next completion."""
        faults = STREAMED if streams else WHOLE
        with self.lock:
            if self.planned:
                return "planned", self.planned.pop(0)
            if self.drawn.random() >= self.share:
                return "none", Fault()
            weights = [0.1 if fault.how in ("late", "drip") else 1.0 for fault in faults.values()]
            (name,) = self.drawn.choices(list(faults), weights)
        return name, faults[name]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that were killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultyServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        with suppress(OSError):  # the client waits no longer
            if self.path == "/v1/chat/completions":
                self._complete(body)
            elif (
                self.path == "/tokenize"
            ):  # as llama.cpp counts: a number that is no token stands between texts
                parts = body["content"] if isinstance(body["content"], list) else [body["content"]]
                frame = body.get("add_special", False)
                counted = ([-1] if isinstance(p, int) else [0] * self.server.tokens(p, frame) for p in parts)
                self._send(200, json.dumps({"tokens": list(itertools.chain(*counted))}).encode())
            elif self.path == "/apply-template":
                prompt = "\n\n".join(message["content"] for message in body["messages"])
                self._send(200, json.dumps({"prompt": prompt}).encode())
            else:
                self._send(404, b"{}")

    def _complete(self, body: Json) -> None:
        server, text = self.server, "\n\n".join(message["content"] for message in body["messages"])
        marks = _MARK.findall(text)
        name, fault = server.draw(bool(body.get("stream")))
        most = body.get("max_tokens") or body["max_completion_tokens"]
        answer = f"no. {marks[-1] if marks else 0}"
        into, said = server.tokens(text, True), server.tokens(answer)
        if fault is AFTER["thinks aside, no usage"]:
            said += server.tokens(_THOUGHT)
        out = {"no": 0, "said": said, "most": most, "over": _OVER * most}[fault.charges]
        with server.lock:
            server.bill.update(asked=1, **{f"fault: {name}": 1})
            if fault.charges != "no":
                server.bill.update(prompt_tokens=into, completion_tokens=out, charged=1)
        if server.wait:
            time.sleep(server.wait)
        usage = {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "scripted"}
        reply: Any = {**head, "choices": [choice], "usage": usage}
        kind = "application/json"
        if body.get("stream"):
            kind = "text/event-stream"
            reply = [
                {**head, "choices": [{"index": 0, "delta": {"content": piece}}]}
                for piece in re.split(r"(?= )", answer)
            ]
            reply += [
                {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
                {"choices": [], "usage": usage},
            ]
        made = fault.change(reply)
        if isinstance(made, list):
            events = [e if isinstance(e, bytes) else b"data: %s\n\n" % json.dumps(e).encode() for e in made]
            made = b"".join([*events, *([b"data: [DONE]\n\n"] if fault.charges != "most" else [])])
        self._send(fault.status, made if isinstance(made, bytes) else json.dumps(made).encode(), fault, kind)

    def _send(self, status: int, data: bytes, fault: Fault = Fault(), kind: str = "application/json") -> None:
        how, headers = fault.how, {"Content-Type": kind, **(fault.headers or {})}
        if how == "late":
            time.sleep(self.server.late)
        if how in ("reset", "silent"):
            self.close_connection = True
            if how == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            return
        if status == 307:
            headers["Location"] = self.path
        if how == "close":
            headers["Connection"] = "close"
        elif status != 204:
            headers["Content-Length"] = str(len(data) + (9 if how == "cut" else 0))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.close_connection = how in ("close", "cut", "headers")
        if how == "headers":
            self.flush_headers()
            return
        self.end_headers()
        if how == "drip":
            for k in range(len(data)):
                self.wfile.write(data[k : k + 1])
                time.sleep(0.1)
            return
        again = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
        self.wfile.write(data + again + data if how == "twice" else data)

    def finish(self) -> None:
        with suppress(OSError, ValueError):  # broken on purpose
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def faulty_server(**given: Any) -> Iterator[FaultyServer]:
    """Run a server in a thread of this process."""
    server = FaultyServer(**given)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def dollars(bill: Mapping[str, int]) -> float:
    """Return what a bill comes to."""
    return (bill.get("prompt_tokens", 0) * INTO + bill.get("completion_tokens", 0) * OUT) / 1e6


def serve(url_file: Path, bill_file: Path, wait: float | None = None) -> None:
    """Serve until the process is ended, with faults, or each answer after so many seconds."""
    billed = read_json(bill_file) if bill_file.is_file() else None
    with faulty_server(share=0.5 if wait is None else 0.0, wait=wait or 0.0, billed=billed) as server:
        write_text(url_file, server.url)
        while True:
            with server.lock:
                bill = dict(server.bill)
            write_json(bill_file, bill)
            time.sleep(0.5)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), *map(float, sys.argv[3:]))
