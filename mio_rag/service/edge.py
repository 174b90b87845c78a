"""The edge of the service: connections, bodies, keys, and how many requests run or wait.

uvicorn reads requests and writes responses, but it waits without limit for the end of a request's headers and
for a client to read, and it accepts connections until no file descriptor is left. `GuardedProtocol` adds
timeouts, and `ConnectionGuard` enforces the limits. Both use the callbacks of `asyncio.Protocol` and the
state that a server passes to every request. `BodyLimit`, which sees every request first, reports whether
a request is being received or answered.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mio_rag.errors import InputError
from mio_rag.service.metrics import Metrics
from mio_rag.service.settings import ConnectionLimits, ServiceLimits
from mio_rag.storage import parse_json

CONNECTION_GUARD = "mio_rag.connection_guard"  # key in the state of the application
_CONNECTION = "mio_rag.connection"  # key in the state of each request
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "testserver")

_GONE = 499  # the client left before its request was complete: nothing is sent

T = TypeVar("T")


# -- responses that refuse --------------------------------------------------------------------------------


def refusal(
    status: int, kind: str, *problems: str, retry_after: int | None = None, close: bool = False, **more: Any
) -> Response:
    """Return an error response in the form that `Problems` documents; `close` ends the connection."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if close:
        headers["Connection"] = "close"
    error = {"kind": kind, "message": "; ".join(problems), "problems": list(problems), **more}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def _raw_refusal(status: str, kind: str, problem: str, *headers: str) -> bytes:
    """Return a whole error response as bytes, for connections that have no request."""
    error = {"kind": kind, "message": problem, "problems": [problem]}
    body = json.dumps({"error": error}, separators=(",", ":"))
    lines = [f"HTTP/1.1 {status}", *headers, "Connection: close", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode()


_FULL = _raw_refusal("503 Service Unavailable", "Busy", "too many are connected", "Retry-After: 1")
_NO_HTTP = _raw_refusal("400 Bad Request", "InvalidRequest", "this is not a valid HTTP request")


# -- requests ---------------------------------------------------------------------------------------------


def is_loopback_host(request: Request) -> bool:
    """Return whether the Host header names this machine: a foreign page cannot get here by its own name."""
    host = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d+)?", request.headers.get("host", ""))
    return host is not None and host[1].lower() in _LOOPBACK


def key_of(request: Request) -> str:
    """Return the key that a request carries; empty without one."""
    given = request.headers.get("x-api-key", "")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if not given and scheme.lower() == "bearer" else given


class UnusableBody(InputError):
    """The body of a request does not fit."""


async def json_body(request: Request) -> Any:
    """Return the JSON object of a request, read as strictly as files are.

    Only ``application/json`` is read: other types can be sent by foreign web pages without asking first.

    Raises `UnusableBody` if it is anything else.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body() if kind == "application/json" or kind.endswith("+json") else b""
    try:
        data = parse_json(body, "the body") if body else None
    except InputError as error:
        cause = error.__cause__
        if isinstance(cause, json.JSONDecodeError):
            problem = f"the body is not valid JSON (character {cause.pos}: {cause.msg})"
            raise UnusableBody(problem) from error
        raise UnusableBody(error.problems) from error
    if not isinstance(data, dict):
        raise UnusableBody("send a JSON object, as Content-Type: application/json")
    return data


class BodyLimit:
    """Reads the body of a request up to a limit, in limited time, before anything else sees it."""

    def __init__(
        self, app: ASGIApp, max_bytes: Callable[[str], int], seconds: float, metrics: Metrics
    ) -> None:
        self.app, self.max_bytes, self.seconds, self.metrics = app, max_bytes, seconds, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400, 408 or 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        connection = scope.get("state", {}).get(_CONNECTION)
        with nullcontext() if connection is None else connection.request():
            response, receive = await self._received(scope, receive)
            if response is None:
                with nullcontext() if connection is None else connection.answer():
                    await self.app(scope, receive, send)
            elif response.status_code != _GONE:
                await response(scope, receive, send)

    async def _received(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        """Return what reads the whole body; or the response that refuses the request."""
        names = {name.lower() for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= names:
            # A proxy may go by the other one, and take the rest for another client's request.
            problem = "a request has Content-Length or Transfer-Encoding, not both"
            return refusal(400, "InvalidRequest", problem, close=True), receive
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return None, receive
        body, more, most = bytearray(), True, self.max_bytes(scope["path"])
        try:
            async with asyncio.timeout(self.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return Response(status_code=_GONE), receive
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > most:
                        problem = f"the body is larger than {most:,} bytes: shorten the request"
                        return refusal(413, "TooLarge", problem), receive
        except TimeoutError:
            self.metrics.closed.labels("body").inc()
            problem = f"the body took more than {self.seconds:g} s"
            return refusal(408, "Timeout", problem, close=True), receive
        pending: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        return None, replay


class HeadAsGet:
    """Answers HEAD as GET, with the same headers and without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def bare(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self.app({**scope, "method": "GET"}, receive, bare)


class Full(Exception):
    """Too many requests are waiting; try again in `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__("the service is busy")
        self.retry_after = retry_after


class Gate:
    """Limits how many requests run at once and how many wait; further ones are refused at once."""

    def __init__(self, limits: ServiceLimits) -> None:
        self.limits = limits
        self.waiting = self.working = 0
        self._seconds = 0.05  # running mean of what a request takes
        self._free = asyncio.Semaphore(limits.concurrency)
        self._threads = anyio.CapacityLimiter(limits.concurrency)

    def retry_after(self) -> int:
        """Return the seconds in which what waits now will be done, roughly."""
        return max(1, math.ceil(self._seconds * (self.waiting + self.working) / self.limits.concurrency))

    @property
    def crowded(self) -> bool:
        """Whether clients should reconnect: a new connection goes to a less busy worker process."""
        return self.waiting > self.limits.concurrency

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread and return its result.

        Raises `Full` if too many wait already, or the wait took too long.
        """
        if self.waiting >= self.limits.queue and self._free.locked():
            raise Full(self.retry_after())
        self.waiting += 1
        try:
            async with asyncio.timeout(self.limits.max_wait_seconds):
                await self._free.acquire()
        except TimeoutError as error:
            raise Full(self.retry_after()) from error
        finally:
            self.waiting -= 1
        self.working += 1
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self.working -= 1
            self._free.release()
            self._seconds += 0.1 * (clock() - began - self._seconds)


# -- connections ------------------------------------------------------------------------------------------


class ConnectionGuard:
    """The open connections of a worker process, and their limits."""

    def __init__(self, limits: ConnectionLimits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._proxies = [ipaddress.ip_network(network) for network in limits.trusted_proxies]
        self._open: set[GuardedProtocol] = set()
        self._of: Counter[str | None] = Counter()
        # Connections without an active request, longest waiting first: never served, and served before.
        self._silent: dict[GuardedProtocol, None] = {}
        self._idle: dict[GuardedProtocol, None] = {}

    def admit(self, connection: GuardedProtocol) -> bool:
        """Accept a connection, closing another one if a limit is reached; False if that is not possible."""
        one, limits = connection.counted, self.limits
        if one is not None and self._of[one] >= limits.max_connections_per_client:
            fits = self._make_room(lambda other: other.counted == one)
        else:
            fits = len(self._open) < limits.max_connections or self._make_room(lambda other: True)
        if fits:
            self._open.add(connection)
            self._of[one] += 1
            self.metrics.connections.inc()
            self.wait(connection)
        return fits

    def _make_room(self, among: Callable[[GuardedProtocol], bool]) -> bool:
        """Close the connection that has been without a request longest, of the larger kind."""
        longest = max((list(filter(among, kind)) for kind in (self._idle, self._silent)), key=len)
        if longest:
            longest[0].abort("crowded")
        return bool(longest)

    def wait(self, connection: GuardedProtocol) -> None:
        """Mark a connection as being without a request from now on."""
        (self._idle if connection.served else self._silent)[connection] = None

    def protect(self, connection: GuardedProtocol) -> None:
        """Exempt a connection from being replaced: its request is being answered."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def forget(self, connection: GuardedProtocol) -> None:
        """Stop counting a connection, if it is counted."""
        if connection in self._open:
            self._open.remove(connection)
            self.protect(connection)
            self._of[connection.counted] -= 1
            if not self._of[connection.counted]:
                del self._of[connection.counted]
            self.metrics.connections.dec()

    def client(self, host: str) -> str | None:
        """Return the client that a connection from an address counts for; None for trusted proxies."""
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        if any(address in network for network in self._proxies):
            return None
        if isinstance(address, ipaddress.IPv6Address):  # one customer usually has a whole /64
            return str(ipaddress.ip_network((address, 64), strict=False))
        return str(address)


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with the `ConnectionGuard` from the application's state.

    While a connection has no active request, a timer is running that closes it.
    """

    def __init__(self, *, app_state: dict[str, Any], **given: Any) -> None:
        super().__init__(app_state={**app_state, _CONNECTION: self}, **given)
        self._guard: ConnectionGuard = app_state[CONNECTION_GUARD]
        self.counted: str | None = None  # client that it counts for
        self.served = False
        self._is_open, self._active, self._arriving = False, 0, True
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects."""
        with suppress(OSError):  # the client has disconnected already
            # Without TCP_NODELAY the body of a response waits for the ACK of its headers (40 ms when the
            # connection is kept alive). asyncio sets it only for sockets that name their protocol, and
            # accepted ones do not.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")  # None if the client has disconnected already
        self.counted = self._guard.client(peer[0]) if peer else None
        if self._guard.admit(self):
            self._is_open = True
            self._limit("idle", "headers", self._guard.limits.header_seconds)
            super().connection_made(transport)
        else:
            self._guard.metrics.closed.labels("refused").inc()
            transport.write(_FULL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes arrived. Without an active request they are headers, which must be complete in time."""
        if not self._active and not self._arriving:
            self._arriving = True
            self._limit("idle", "headers", self._guard.limits.header_seconds)
        super().data_received(data)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Context from the end of a request's headers to the end of the request."""
        self._active += 1
        self._stop("idle")
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._arriving = False
                self._limit("idle", "idle", self._guard.limits.idle_seconds)

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Context while a completely received request is answered."""
        self._guard.protect(self)
        try:
            yield
        finally:
            self.served = True
            if self._is_open:
                self._guard.wait(self)

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self.transport.write(_NO_HTTP)
        self.transport.close()

    def pause_writing(self) -> None:
        """A client has stopped reading."""
        self._limit("unread", "unread", self._guard.limits.unread_seconds)
        super().pause_writing()

    def resume_writing(self) -> None:
        """A client reads again."""
        self._stop("unread")
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection is closed, by either side."""
        self._end()
        if self.transport is not None:  # it was admitted
            super().connection_lost(exc)

    def abort(self, reason: str) -> None:
        """Close the connection at once and count the reason."""
        if self._is_open:
            self._guard.metrics.closed.labels(reason).inc()
            self.transport.abort()
            self._end()

    def _end(self) -> None:
        self._is_open = False
        self._stop("idle")
        self._stop("unread")
        self._guard.forget(self)

    def _limit(self, timer: str, reason: str, seconds: float) -> None:
        """Close the connection after some time, unless the timer is stopped."""
        self._stop(timer)
        if self._is_open:
            self._timers[timer] = asyncio.get_running_loop().call_later(seconds, self.abort, reason)

    def _stop(self, timer: str) -> None:
        if (running := self._timers.pop(timer, None)) is not None:
            running.cancel()


class SeldomLogged(logging.Filter):
    """Logs a repeated message once per interval, with its count: remote clients can cause many of them."""

    _MOST = 256  # distinct messages that are tracked

    def __init__(self, seconds: float = 60.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._last: dict[tuple[str, str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        key = (record.name, record.getMessage().partition("\n")[0][:200], error)
        now = time.monotonic()
        last, missed = self._last.pop(key, (-self._seconds, 0))
        if now - last < self._seconds:
            self._last[key] = last, missed + 1
            return False
        while len(self._last) >= self._MOST:
            del self._last[next(iter(self._last))]
        self._last[key] = now, 0
        if missed:
            record.msg = f"{record.getMessage().rstrip()} ({missed} more like this in between)"
            record.args = None
        return True
