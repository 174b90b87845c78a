"""JSON over HTTP with the standard library, for the few requests that no client library covers."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

__all__ = ["HttpFailure", "LoopbackClient", "encode", "post_json"]


class HttpFailure(Exception):
    """A request that brought no JSON: `status` is the HTTP status, or None if there was no response at all."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def encode(body: Any) -> bytes:
    """JSON as UTF-8. A lone surrogate, which UTF-8 cannot hold, becomes "?" instead of failing the request."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _decode(raw: bytes, status: int) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise HttpFailure(f"the reply is not JSON: {raw[:80]!r}", status) from error


def post_json(url: str, body: Any, headers: Mapping[str, str], timeout_seconds: float) -> Any:
    """POST to a server anywhere; honours the proxies of the environment.

    Raises
    ------
    HttpFailure
        For any status but 2xx, for no connection, no reply in time, or a reply that is not JSON.
    """
    request = urllib.request.Request(
        url, data=encode(body), headers={"Content-Type": "application/json", **headers}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
            return _decode(response.read(), response.status)
    except urllib.error.HTTPError as error:
        raise HttpFailure(f"HTTP {error.code}: {error.read()[:200]!r}", error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise HttpFailure(str(error) or type(error).__name__) from error


class LoopbackClient:
    """One kept-open connection to a server in this process; never goes through a proxy; thread-safe.

    Parameters
    ----------
    address : str
        ``http://host:port``.
    api_key : str
        Sent as bearer token.
    """

    def __init__(self, address: str, api_key: str) -> None:
        where = urlsplit(address)
        self._connection = http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=600)
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"}
        self._lock = Lock()

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON reply. A connection that the server let go while idle is opened once more.

        Raises
        ------
        HttpFailure
            As `post_json`.
        """
        payload = None if body is None else encode(body)
        with self._lock:
            for attempt in (1, 2):
                try:
                    self._connection.request(method, path, payload, self._headers)
                    response = self._connection.getresponse()
                    raw = response.read()
                    break
                except (OSError, http.client.HTTPException) as error:
                    self._connection.close()
                    if attempt == 2:
                        raise HttpFailure(str(error) or type(error).__name__) from error
        if not 200 <= response.status < 300:
            raise HttpFailure(f"HTTP {response.status}: {raw[:200]!r}", response.status)
        return _decode(raw, response.status)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()
