"""Who is connected: so many at a time, so many of one client, and nobody for long without a request.

uvicorn reads requests and writes responses. It waits for ever for the end of a request's headers, and for a
client to read, and takes connections until no file descriptor is left. `GuardedProtocol` puts an end to
waiting, and `Door` holds the limits. Both build on the callbacks of `asyncio.Protocol` and on the state that
a server hands to every request. What a connection is doing they learn from `BodyLimit`, which sees every
request first.
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

__all__ = ["DOOR", "Door", "GuardedProtocol", "SeldomLogged", "Visit", "answering", "arrived"]

DOOR, _VISIT = "mio_rag.door", "mio_rag.visit"  # in the state of the application, and of each of its requests

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 24\r\n\r\ntoo many are connected.\n"
)


class Door:
    """The connections of a worker process."""

    def __init__(self, limits: ConnectionLimits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._proxies = [ipaddress.ip_network(network) for network in limits.trusted_proxies]
        self._open: set[Visit] = set()
        self._of: Counter[str] = Counter()
        # Without a request under way, longest first: those that never made one, and those that did.
        self._silent: dict[Visit, None] = {}
        self._idle: dict[Visit, None] = {}

    def admit(self, visit: Visit) -> bool:
        """Let a connection in, if need be in the place of another one."""
        one, limits = visit.client, self.limits
        if one is not None and self._of[one] >= limits.max_connections_per_client:
            room = self._make_room(lambda other: other.client == one)
        else:
            room = len(self._open) < limits.max_connections or self._make_room(lambda other: True)
        if not room:
            return False
        self._open.add(visit)
        if one is not None:
            self._of[one] += 1
        self.metrics.connections.inc()
        self.wait(visit)
        return True

    def _make_room(self, among: Callable[[Visit], bool]) -> bool:
        """Close the connection that has been without a request longest, of the larger kind.

        So neither a flood of half-open connections drives out clients between two requests, nor a hoard of
        idle ones those who have just come.
        """
        silent, idle = (list(filter(among, kind)) for kind in (self._silent, self._idle))
        longest = silent if len(silent) > len(idle) else idle
        if not longest:
            return False
        longest[0].close("crowded")
        return True

    def wait(self, visit: Visit) -> None:
        """Count a connection as one without a request, from now on."""
        (self._idle if visit.served else self._silent)[visit] = None

    def protect(self, visit: Visit) -> None:
        """Keep a connection, whoever else comes: a request is being answered."""
        self._silent.pop(visit, None)
        self._idle.pop(visit, None)

    def forget(self, visit: Visit) -> bool:
        """Count a connection no more; False where it never was counted, or has been forgotten."""
        if visit not in self._open:
            return False
        self._open.remove(visit)
        self.protect(visit)
        if visit.client is not None:
            self._of[visit.client] -= 1
            if not self._of[visit.client]:
                del self._of[visit.client]
        self.metrics.connections.dec()
        return True

    def client(self, host: str) -> str | None:
        """Whom to count a connection from an address for; None for proxies."""
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        if any(address in network for network in self._proxies):
            return None
        if isinstance(address, ipaddress.IPv6Address):  # a customer gets as many as a /64 holds
            return str(ipaddress.ip_network((address, 64), strict=False))
        return str(address)


class Visit:
    """One connection. While no request is under way, a timer always runs that ends it."""

    def __init__(self, door: Door) -> None:
        self.door = door
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
        with suppress(OSError):  # the client has left already
            # Else the body of a response waits until its head is confirmed: 40 ms on a kept connection.
            # asyncio sees to it only for sockets that name their protocol; accepted ones do not.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")  # None where the client has left already
        self.client = self.door.client(peer[0]) if peer else None
        if not self.door.admit(self):
            self.door.metrics.closed.labels("refused").inc()
            transport.write(_FULL)
            transport.close()
            return False
        self._wait(self.door.limits.header_seconds, "headers")
        return True

    def hear(self) -> None:
        """Note that bytes came: without a request under way they are headers, which have to end in time."""
        if not self._requests and not self._arriving:
            self._arriving = True
            self._wait(self.door.limits.header_seconds, "headers")

    @contextmanager
    def request(self) -> Iterator[None]:
        """From the end of a request's headers to its end."""
        self._requests += 1
        self._stop()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._arriving = False
                self._wait(self.door.limits.idle_seconds, "idle")

    @contextmanager
    def answer(self) -> Iterator[None]:
        """While a request that came whole is answered."""
        self.door.protect(self)
        try:
            yield
        finally:
            self.served = True
            if self._transport is not None:
                self.door.wait(self)

    def stall(self) -> None:
        """The client does not read."""
        self._read()
        self._unread = self._later(self.door.limits.unread_seconds, "unread")

    def go_on(self) -> None:
        """The client reads again."""
        self._read()

    def close(self, reason: str) -> None:
        """Close the connection at once, and count why."""
        if self._transport is not None:
            self.door.metrics.closed.labels(reason).inc()
            self._transport.abort()
            self.end()

    def end(self) -> bool:
        """Note that the connection is closed; False where it had not been let in, or this is known."""
        self._stop()
        self._read()
        self._transport = None
        return self.door.forget(self)

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
    """uvicorn's protocol behind a `Door`, which the application puts into its state under `DOOR`."""

    def __init__(self, *, app_state: dict[str, Any], **given: Any) -> None:
        self._visit, self._admitted = Visit(app_state[DOOR]), False
        super().__init__(app_state={**app_state, _VISIT: self._visit}, **given)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects."""
        self._admitted = self._visit.begin(transport)
        if self._admitted:
            super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """A client sends."""
        self._visit.hear()
        super().data_received(data)

    def pause_writing(self) -> None:
        """A client does not read."""
        self._visit.stall()
        super().pause_writing()

    def resume_writing(self) -> None:
        """A client reads again."""
        self._visit.go_on()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection is closed, whoever closed it."""
        self._visit.end()
        if self._admitted:
            super().connection_lost(exc)


@contextmanager
def arrived(scope: Scope) -> Iterator[None]:
    """Around a request whose headers have come; of a server without a `Door`, nothing."""
    visit = scope.get("state", {}).get(_VISIT)
    if visit is None:
        yield
        return
    with visit.request():
        yield


@contextmanager
def answering(scope: Scope) -> Iterator[None]:
    """Around a request that has come whole: its connection is not closed for the sake of others."""
    visit = scope.get("state", {}).get(_VISIT)
    if visit is None:
        yield
        return
    with visit.answer():
        yield


class SeldomLogged(logging.Filter):
    """Lets a message through once in so many seconds, with how often it came: strangers cause some."""

    _MOST = 256  # different messages that are remembered

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
