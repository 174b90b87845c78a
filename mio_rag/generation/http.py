"""JSON over HTTP, by httpx2: to an endpoint, or to llama.cpp's server in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from mio_rag.errors import InputError, require
from mio_rag.types import GenerationError

_LOCAL_SECONDS = 600.0  # for one reply of a server in this process, or for the turn on its connection
_LARGEST_REPLY = 64 << 20  # bytes
DONE = "[DONE]"  # the last of the events of a reply


class HttpFailure(GenerationError):
    """A request without a usable reply.

    status: HTTP status; None: there was no response.
    sent: whether the server may have worked on the request, and charged for it.
    """

    def __init__(self, message: str, status: int | None = None, *, sent: bool = True, **more: Any) -> None:
        super().__init__(message, untold=sent, **more)
        self.status = status


class JsonClient:
    """Sends JSON, and returns the JSON of the reply; thread-safe. Repeats nothing, but see `local`.

    address: ``http://host:port``, to which paths are added.
    key: sent as bearer token.
    seconds: longest time for one whole reply.
    local: for a server in this process: one connection, reopened once where the server closed it; no proxy,
        no redirects.

    Raises `InputError` for an address or a key that cannot be sent; `MissingExtraError` without the package
    httpx2.
    """

    def __init__(
        self, address: str, key: str, seconds: float = _LOCAL_SECONDS, *, local: bool = False
    ) -> None:
        self._httpx = require("httpx2", "gguf" if local else "openai", "talking to a language model's server")
        self._seconds, self._local = seconds, local
        limits = {"max_connections": 1, "max_keepalive_connections": 1, "keepalive_expiry": None}
        if not local:
            limits = {"max_connections": None, "max_keepalive_connections": 100}
        try:
            self._client = self._httpx.Client(
                base_url=address,
                headers={"Authorization": f"Bearer {key.strip()}", "Content-Type": "application/json"},
                timeout=seconds,
                limits=self._httpx.Limits(**limits),
                trust_env=not local,
                follow_redirects=not local,
            )
        except UnicodeEncodeError as error:
            raise InputError("the key (OPENAI_API_KEY) holds a character that cannot be sent") from error
        except (self._httpx.InvalidURL, ValueError) as error:
            raise InputError(f"'{address}' is not an address ({error})") from error

    def request(
        self, method: str, path: str, body: Any = None, hear: Callable[[Any], object] | None = None
    ) -> Any:
        """Return the JSON of the reply.

        hear: called with each piece of a reply that comes as server-sent events, and `DONE`; None is returned
            then.

        Raises `HttpFailure` for no connection, no whole reply in time, any status but 2xx, or a body that is
        not JSON.
        """
        broken = (self._httpx.NetworkError, self._httpx.RemoteProtocolError)
        for is_last in (not self._local, True):
            try:
                return self._sent(method, path, body, hear)
            except self._httpx.HTTPError as error:
                if is_last or not isinstance(error, broken):
                    raise self._lost(error) from error
        raise AssertionError("unreachable")

    def _sent(self, method: str, path: str, body: Any, hear: Callable[[Any], object] | None) -> Any:
        if self._client.is_closed:
            raise HttpFailure("the connection is closed", sent=False, repeat=False)
        # Python's own encoder: half of a surrogate pair goes out as an escape.
        content = None if body is None else json.dumps(body)
        until, raw, size = time.monotonic() + self._seconds, bytearray(), 0
        with self._client.stream(method, path, content=content) as response:
            reads = _reads(response.extensions["network_stream"])
            if not reads[-1]:
                raise HttpFailure("the server had sent a reply that was not asked for")
            streams = response.headers.get("content-type", "").startswith("text/event-stream")
            events = hear if streams and response.is_success else None
            for part in response.iter_bytes():
                raw += part
                size += len(part)
                if time.monotonic() > until:  # a server that sends a byte now and then
                    raise self._httpx.ReadTimeout(f"no whole reply within {self._seconds:g} s")
                if size > _LARGEST_REPLY:
                    raise HttpFailure(f"the reply is larger than {_LARGEST_REPLY >> 20} MiB", repeat=False)
                if events is not None:
                    *lines, raw = raw.split(b"\n")
                    for line in lines:
                        data = line.strip().removeprefix(b"data:").strip()
                        if line.startswith(b"data:"):
                            events(DONE if data == DONE.encode() else _json(data, response.status_code))
            reads.append(0)
            if not response.is_success:
                raise _refusal(response, raw)
            return None if events is not None else _json(raw, response.status_code)

    def _lost(self, error: Exception) -> HttpFailure:
        names = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError")
        unsent = tuple(getattr(self._httpx, name) for name in names)
        return HttpFailure(str(error) or type(error).__name__, sent=not isinstance(error, unsent))

    def is_timeout(self, failure: HttpFailure) -> bool:
        """Whether the reply did not come in time."""
        return isinstance(failure.__cause__, self._httpx.TimeoutException)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _reads(stream: Any) -> list[int]:
    """How often a connection was read for its last reply so far; at first once.

    What is there before anything was read came with the reply before: a server or a proxy that sends two
    would have the next question answered by the second.
    """
    known: list[int] = getattr(stream, "reads", [1])
    if not hasattr(stream, "reads"):
        read = stream.read

        def counted(*given: Any, **more: Any) -> Any:
            known[-1] += 1
            return read(*given, **more)

        stream.reads, stream.read = known, counted
    del known[:-1]
    return known


def _json(raw: bytes | bytearray, status: int) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise HttpFailure(f"the reply is not JSON: {bytes(raw[:80])!r}", status) from error


def _refusal(response: Any, raw: bytes | bytearray) -> HttpFailure:
    """A status other than 2xx. 4xx and 503 (overloaded) say that nothing was done, so nothing is charged."""
    status = int(response.status_code)
    reason = raw[:200].decode("utf-8", "replace")
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        error = json.loads(raw)["error"]
        reason = str(error["message"] if isinstance(error, dict) else error)[:300]
    wait, told = None, response.headers.get("retry-after", "")
    with suppress(ValueError, TypeError):  # a date
        wait = max(0.0, parsedate_to_datetime(told).timestamp() - time.time())
    with suppress(ValueError):  # seconds
        wait = max(0.0, float(told))
    return HttpFailure(
        f"HTTP {status}: {reason}",
        status,
        sent=status == 408 or (status >= 500 and status != 503),
        repeat=status in (408, 409, 429) or status >= 500,
        retry_after=wait if wait is not None and wait < 1e9 else None,
    )
