"""Checks before every request: size of the body, API key, and the number of requests in progress."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mio_rag.service.connections import answering, arrived
from mio_rag.service.limits import ServiceLimits
from mio_rag.service.metrics import Metrics

__all__ = ["BodyLimit", "Full", "Gate", "HeadAsGet", "key_matches", "refusal"]

T = TypeVar("T")


def refusal(status: int, kind: str, *problems: str, retry_after: int | None = None) -> Response:
    """A response that says what went wrong, in the form that `Problems` documents."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(
        {"error": {"kind": kind, "problems": list(problems)}}, status_code=status, headers=headers
    )


def key_matches(request: Request, key: str) -> bool:
    """Whether a request carries the key; the time that takes says nothing about the key."""
    given = request.headers.get("x-api-key", "")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if not given and scheme.lower() == "bearer":
        given = token.strip()
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, key)]
    return hmac.compare_digest(*digests)


class _GoneError(Exception):
    """The client left before its request was complete."""


class BodyLimit:
    """Reads the body of a request up to a limit, in limited time, before anything else sees it."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float, metrics: Metrics) -> None:
        self.app, self.max_bytes, self.seconds, self.metrics = app, max_bytes, seconds, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 408 or 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with arrived(scope):
            await self._request(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            with answering(scope):
                await self.app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self.seconds):
                body = await self._body(receive)
        except TimeoutError:
            self.metrics.closed.labels("body").inc()
            response = refusal(408, "Timeout", f"the body took more than {self.seconds:g} s")
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        except _GoneError:
            return
        if body is None:
            message = f"the body is larger than {self.max_bytes} bytes: shorten the request"
            await refusal(413, "TooLarge", message)(scope, receive, send)
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        with answering(scope):
            await self.app(scope, replay, send)

    async def _body(self, receive: Receive) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.max_bytes:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)


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
    """Too many requests are waiting.

    Parameters
    ----------
    retry_after : int
        Seconds after which there should be.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__("the service is busy")
        self.retry_after = retry_after


class Gate:
    """Limits how many requests run at once and how many wait; further ones are refused at once."""

    def __init__(self, limits: ServiceLimits) -> None:
        self.limits = limits
        self.waiting = self.working = 0
        self._seconds = 0.05  # a request takes about so long
        self._free = asyncio.Semaphore(limits.concurrency)
        self._threads = anyio.CapacityLimiter(limits.concurrency)

    def retry_after(self) -> int:
        """Seconds in which what waits now will about be done."""
        return max(1, math.ceil(self._seconds * (self.waiting + self.working) / self.limits.concurrency))

    @property
    def crowded(self) -> bool:
        """Whether clients should reconnect.

        One worker process may hold most of the connections; a new connection goes to a less busy one.
        """
        return self.waiting > self.limits.concurrency

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, done in a thread.

        Raises
        ------
        Full
            If too many wait already, or the wait took too long.
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
