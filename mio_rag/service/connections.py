"""Limits on connections: how many at once, how many per client, and how long without a request.

uvicorn reads requests and writes responses, but it waits without limit for the end of a request's headers and
for a client to read, and it accepts connections until no file descriptor is left. `GuardedProtocol` adds
timeouts, and `ConnectionGuard` enforces the limits. Both use the callbacks of `asyncio.Protocol` and the
state that a server passes to every request. `BodyLimit`, which sees every request first, tells them whether
a request is being received or answered.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from mio_rag.service.limits import ConnectionLimits
from mio_rag.service.metrics import Metrics

__all__ = [
    "CONNECTION_GUARD",
    "Connection",
    "ConnectionGuard",
    "GuardedProtocol",
    "SeldomLogged",
    "answering",
    "arrived",
]

CONNECTION_GUARD = "mio_rag.connection_guard"  # key in the state of the application
_CONNECTION = "mio_rag.connection"  # key in the state of each request

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 24\r\n\r\ntoo many are connected.\n"
)


class ConnectionGuard:
    """The open connections of a worker process, and their limits."""

    def __init__(self, limits: ConnectionLimits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._proxies = [ipaddress.ip_network(network) for network in limits.trusted_proxies]
        self._open: set[Connection] = set()
        self._of: Counter[str] = Counter()
        # Connections without an active request, longest waiting first: never served, and served before.
        self._silent: dict[Connection, None] = {}
        self._idle: dict[Connection, None] = {}

    def admit(self, connection: Connection) -> bool:
        """Accept a connection, closing another one if a limit is reached; False if that is not possible."""
        one, limits = connection.client, self.limits
        if one is not None and self._of[one] >= limits.max_connections_per_client:
            room = self._make_room(lambda other: other.client == one)
        else:
            room = len(self._open) < limits.max_connections or self._make_room(lambda other: True)
        if not room:
            return False
        self._open.add(connection)
        if one is not None:
            self._of[one] += 1
        self.metrics.connections.inc()
        self.wait(connection)
        return True

    def _make_room(self, among: Callable[[Connection], bool]) -> bool:
        """Close the connection that has been without a request longest, of the larger kind.

        So a flood of half-open connections cannot displace clients between two requests, and many idle
        connections cannot displace new clients.
        """
        silent, idle = (list(filter(among, kind)) for kind in (self._silent, self._idle))
        longest = silent if len(silent) > len(idle) else idle
        if not longest:
            return False
        longest[0].close("crowded")
        return True

    def wait(self, connection: Connection) -> None:
        """Mark a connection as being without a request from now on."""
        (self._idle if connection.served else self._silent)[connection] = None

    def protect(self, connection: Connection) -> None:
        """Exempt a connection from being replaced: its request is being answered."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def forget(self, connection: Connection) -> bool:
        """Stop counting a connection; False if it was not counted."""
        if connection not in self._open:
            return False
        self._open.remove(connection)
        self.protect(connection)
        if connection.client is not None:
            self._of[connection.client] -= 1
            if not self._of[connection.client]:
                del self._of[connection.client]
        self.metrics.connections.dec()
        return True

    def client(self, host: str) -> str | None:
        """The client that a connection from an address counts for; None for trusted proxies."""
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        if any(address in network for network in self._proxies):
            return None
        if isinstance(address, ipaddress.IPv6Address):  # one customer usually has a whole /64
            return str(ipaddress.ip_network((address, 64), strict=False))
        return str(address)


class Connection:
    """One connection. While it has no active request, a timer is running that closes it."""

    def __init__(self, guard: ConnectionGuard) -> None:
        self.guard = guard
        self.client: str | None = None
        self.served = False
        self._requests = 0
        self._arriving = True
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def begin(self, transport: asyncio.Transport) -> bool:
        """Whether the connection may stay; it is closed if not."""
        self._transport = transport
        with suppress(OSError):  # the client has disconnected already
            # Without TCP_NODELAY the body of a response waits for the ACK of its headers (40 ms when the
            # connection is kept alive). asyncio sets it only for sockets that name their protocol, and
            # accepted ones do not.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")  # None if the client has disconnected already
        self.client = self.guard.client(peer[0]) if peer else None
        if not self.guard.admit(self):
            self.guard.metrics.closed.labels("refused").inc()
            transport.write(_FULL)
            transport.close()
            return False
        self._wait(self.guard.limits.header_seconds, "headers")
        return True

    def hear(self) -> None:
        """Bytes arrived. Without an active request they are headers, which must be complete in time."""
        if not self._requests and not self._arriving:
            self._arriving = True
            self._wait(self.guard.limits.header_seconds, "headers")

    @contextmanager
    def request(self) -> Iterator[None]:
        """Context from the end of a request's headers to the end of the request."""
        self._requests += 1
        self._stop()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._arriving = False
                self._wait(self.guard.limits.idle_seconds, "idle")

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Context while a completely received request is answered."""
        self.guard.protect(self)
        try:
            yield
        finally:
            self.served = True
            if self._transport is not None:
                self.guard.wait(self)

    def stall(self) -> None:
        """The client has stopped reading."""
        self._read()
        self._unread = self._later(self.guard.limits.unread_seconds, "unread")

    def go_on(self) -> None:
        """The client reads again."""
        self._read()

    def close(self, reason: str) -> None:
        """Close the connection at once and count the reason."""
        if self._transport is not None:
            self.guard.metrics.closed.labels(reason).inc()
            self._transport.abort()
            self.end()

    def end(self) -> bool:
        """The connection is closed; False if it was not accepted or was closed before."""
        self._stop()
        self._read()
        self._transport = None
        return self.guard.forget(self)

    def _wait(self, seconds: float, reason: str) -> None:
        self._stop()
        if self._transport is not None:
            self._timer = self._later(seconds, reason)

    def _later(self, seconds: float, reason: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.close, reason)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with the `ConnectionGuard` from the application's state."""

    def __init__(self, *, app_state: dict[str, Any], **given: Any) -> None:
        self._connection, self._admitted = Connection(app_state[CONNECTION_GUARD]), False
        super().__init__(app_state={**app_state, _CONNECTION: self._connection}, **given)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects."""
        self._admitted = self._connection.begin(transport)
        if self._admitted:
            super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """A client sends."""
        self._connection.hear()
        super().data_received(data)

    def pause_writing(self) -> None:
        """A client has stopped reading."""
        self._connection.stall()
        super().pause_writing()

    def resume_writing(self) -> None:
        """A client reads again."""
        self._connection.go_on()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection is closed, by either side."""
        self._connection.end()
        if self._admitted:
            super().connection_lost(exc)


@contextmanager
def arrived(scope: Scope) -> Iterator[None]:
    """Context for a request whose headers have arrived; no effect without a `ConnectionGuard`."""
    connection = scope.get("state", {}).get(_CONNECTION)
    if connection is None:
        yield
        return
    with connection.request():
        yield


@contextmanager
def answering(scope: Scope) -> Iterator[None]:
    """Context for a completely received request: its connection is not closed to make room."""
    connection = scope.get("state", {}).get(_CONNECTION)
    if connection is None:
        yield
        return
    with connection.answer():
        yield


class SeldomLogged(logging.Filter):
    """Logs a repeated message once per interval, with its count: remote clients can cause many of them."""

    _MOST = 256  # distinct messages that are tracked

    def __init__(self, seconds: float = 60.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._last: dict[tuple[str, str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
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
