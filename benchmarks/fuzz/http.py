"""Requests to the service: through the application itself, and some through a socket on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from benchmarks.fuzz.endings import Wrong, strict
from benchmarks.fuzz.odd import TEXTS, chance, mutated_bytes, mutated_text, number, pick, simpler, value
from mio_rag.corpora.load import load_dataset
from mio_rag.generation import make_generator
from mio_rag.retrieval import CorpusIndex, TfidfEmbedder
from mio_rag.service.app import create_app

_PATHS = ("/select", "/ask", "/health", "/metrics", "/openapi.json", "/docs", "/", "/nowhere", "/select/")
_METHODS = ("POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "NONSENSE")
_TYPES = (
    b"application/json",
    b"text/plain",
    b"application/json; charset=utf-16",
    b"",
    b"\xff",
    b"application/xml",
)
_QUESTIONS = ("Which tower is taller?", "Who built the Brooklyn Bridge?", "x", "\u4e2d\u6587?")
#: Fields of a body with values that they may have.
_FIELDS: dict[str, tuple[Any, ...]] = {
    "budget_tokens": (1, 60, 256, 8192),
    "pool": (1, 5, 20, 200),
    "deadline_seconds": (1e-6, 0.5, 2, 30),
    "redundancy_weight": (0, 0.1, 1e6, 1e-300),
    "passage_penalty": ("auto", 0, 0.02, 1e6),
    "token_price": (0, 0.001, 1e6),
    "radius": (0, 0.05, 2),
    "max_passages": (1, 3, None),
    "max_per_source": (1, None),
    "more_tokens": (1, 100, None),
    "max_tokens": (1, 64, 512),
}
_OVERLOAD = (503, 504)
_SECONDS = 60.0
_PATIENCE = 1.0


class Http:
    """A request: method, path, headers and body; or the bytes for a socket."""

    chunk = 100

    def __init__(self, folder: Path) -> None:
        del folder
        demo = load_dataset("demo")
        self._index = CorpusIndex.build(demo.passages, TfidfEmbedder(dimensions=60), demo.name)
        self._app = create_app(self._index, make_generator("extractive"))
        self._runner = asyncio.Runner()
        self._life = self._app.router.lifespan_context(self._app)
        self._runner.run(self._life.__aenter__())
        self._port: int | None = None
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def draw(self, rng: np.random.Generator) -> Any:
        """A right request, of which one to three parts are not what they should be."""
        body: Any = {"question": pick(rng, _QUESTIONS)}
        for name in rng.permutation(list(_FIELDS))[: int(rng.integers(6))]:
            body[str(name)] = pick(rng, _FIELDS[str(name)])
        for _ in range(int(rng.choice(3, p=[0.3, 0.5, 0.2]))):
            name = pick(rng, [*_FIELDS, "question", pick(rng, TEXTS)])
            odd = pick(rng, TEXTS) if name == "question" or chance(rng, 0.2) else number(rng)
            body[name] = value(rng, True) if chance(rng, 0.3) else odd
        if chance(rng, 0.03):
            body = value(rng, True)
        text = json.dumps(body, ensure_ascii=chance(rng, 0.5))
        if chance(rng, 0.25):
            text = mutated_text(rng, text)
        data = text.encode(pick(rng, ["utf-8", "utf-8", "utf-8", "utf-8", "utf-16"]), "surrogatepass")
        if chance(rng, 0.1):
            data = mutated_bytes(rng, data)
        usual = chance(rng, 0.85)
        given: dict[str, Any] = {
            "method": "POST" if usual else pick(rng, _METHODS),
            "path": pick(rng, ["/select", "/select", "/ask"]) if usual else pick(rng, _PATHS),
            "headers": [[b"host", b"localhost"], [b"content-type", b"application/json"]],
            "body": data,
        }
        if chance(rng, 0.1):
            given["headers"][1][1] = pick(rng, _TYPES)
        if chance(rng, 0.1):
            odd_name = pick(
                rng, [b"host", b"content-length", b"transfer-encoding", b"authorization", b"x-\xff", b""]
            )
            given["headers"].append(
                [odd_name, pick(rng, [b"", b"\xff\xfe", b"-1", b"chunked", b"a" * 5000, b"999"])]
            )
        if chance(rng, 0.01):
            raw, bent = _raw(given), chance(rng, 0.5)
            given["raw"] = mutated_bytes(rng, raw) if bent else raw
            given["whole"] = not bent and len(given["headers"]) == 2
        return given

    def run(self, given: Any) -> str:
        """Send it, and check what came back."""
        if "raw" in given:
            return self._through_a_socket(given["raw"], given["whole"])
        status, headers, body = self._runner.run(self._answer(given))
        return _check(status, headers, body, given["path"], given["method"])

    async def _answer(self, given: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        """The application's answer, without a server before it."""
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": given["method"],
            "scheme": "http", "path": given["path"], "raw_path": given["path"].encode(), "query_string": b"",
            "root_path": "", "headers": [tuple(pair) for pair in given["headers"]],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        }  # fmt: skip
        body = given["body"]
        half = len(body) // 2
        parts = [body[:half], body[half:]]
        sent: list[Any] = []

        async def receive() -> Any:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await asyncio.sleep(_SECONDS)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        async with asyncio.timeout(_SECONDS):
            await self._app(scope, receive, send)
        starts = [message for message in sent if message["type"] == "http.response.start"]
        if len(starts) != 1 or sent[-1].get("more_body", False):
            raise Wrong("no answer, or half of one", sent)
        whole = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
        return starts[0]["status"], {name.lower(): text for name, text in starts[0]["headers"]}, whole

    def _through_a_socket(self, raw: bytes, whole: bool) -> str:
        """Bytes to a real server. What is no whole request may be waited for, and need not be answered."""
        patience = _SECONDS if whole else _PATIENCE
        with socket.create_connection(("127.0.0.1", self._serving()), timeout=patience) as client:
            received = b""
            with contextlib.suppress(ConnectionError, *(() if whole else (TimeoutError,))):
                client.sendall(raw)
                while part := client.recv(65536):
                    received += part
        if not received:
            if whole:
                raise Wrong("no answer on a socket", raw)
            return "the connection was closed"
        head, _, body = received.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        status = lines[0].split(b" ")
        if not lines[0].startswith(b"HTTP/1.1 ") or not status[1].isdigit():
            raise Wrong("an answer that is no HTTP", lines[0])
        if status[1].startswith(b"5") and int(status[1]) not in _OVERLOAD:
            raise Wrong(f"status {status[1].decode()} on a socket", received[:300])
        if b"Traceback (most recent" in body:
            raise Wrong("a traceback in an answer", body[:300])
        return f"{status[1].decode()} on a socket"

    def _serving(self) -> int:
        """The port of a server in a thread, started when it is first needed."""
        if self._port is None:
            app = create_app(self._index, make_generator("extractive"))
            listener = socket.create_server(("127.0.0.1", 0))
            self._port = int(listener.getsockname()[1])
            self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
            self._thread = threading.Thread(
                target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
            )
            self._thread.start()
            while not self._server.started:
                time.sleep(0.01)
        return self._port

    def smaller(self, given: Any) -> Iterator[Any]:
        """A shorter body, fewer headers."""
        for name in ("raw",) if "raw" in given else ("body", "headers"):
            yield from ({**given, name: part} for part in simpler(given[name]))

    def close(self) -> None:
        """Stop what was started."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
        self._runner.run(self._life.__aexit__(None, None, None))
        self._runner.close()


def _raw(given: Any) -> bytes:
    lines = [f"{given['method']} {given['path']} HTTP/1.1".encode()]
    lines += [name + b": " + text for name, text in given["headers"]]
    if not any(name == b"content-length" for name, _ in given["headers"]):
        lines.append(b"content-length: %d" % len(given["body"]))
    whole: bytes = b"\r\n".join(lines) + b"\r\nconnection: close\r\n\r\n" + given["body"]
    return whole


def _check(status: int, headers: dict[bytes, bytes], body: bytes, path: str, method: str) -> str:
    """What an answer must be."""
    if status >= 500 and status not in _OVERLOAD:
        raise Wrong(f"status {status}", body[:300])
    if status == 503 and b"retry-after" not in headers:
        raise Wrong("503 without Retry-After", headers)
    if not 200 <= status < 600:
        raise Wrong("a status that is none", status)
    kind = headers.get(b"content-type", b"")
    if method == "HEAD" or not kind.startswith(b"application/json"):
        if status >= 400 and method != "HEAD" and kind.split(b";")[0] != b"text/plain":
            raise Wrong("a refusal that is neither JSON nor text", kind)
        return str(status)
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except ValueError as error:
        raise Wrong("an answer that is no strict JSON", body[:300]) from error
    strict("an answer", found)
    if status >= 400:
        problems = found.get("error", {}).get("problems")
        if not problems or not all(isinstance(p, str) and p.strip() for p in problems):
            raise Wrong("a refusal without a reason", found)
        if any("Traceback (most recent" in p for p in problems):
            raise Wrong("a traceback in a refusal", problems)
    elif path in ("/select", "/ask"):
        _check_selection(found)
    return str(status)


def _check_selection(found: dict[str, Any]) -> None:
    chosen = [p for p in found["passages"] if p["selected"]]
    if [p["id"] for p in chosen] != found["selected_ids"]:
        raise Wrong("selected_ids are not the passages that are in", found["selected_ids"])
    if found["tokens_used"] > found["budget_tokens"]:
        raise Wrong("more tokens than the budget", found["tokens_used"])
    if found["objective"] is not None and found["bound"] is not None and found["bound"] < found["objective"]:
        raise Wrong("the bound lies below the objective", found["bound"])


def _refuse(name: str) -> float:
    raise ValueError(name)
