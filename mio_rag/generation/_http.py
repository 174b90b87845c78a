"""JSON over HTTP to a server in this process, with the standard library."""

from __future__ import annotations

import http.client
import json
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

__all__ = ["HttpFailure", "LoopbackClient"]


class HttpFailure(Exception):
    """A request that brought no JSON; `status` is the HTTP status, None if there was no response at all."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def _decode(raw: bytes, status: int) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise HttpFailure(f"the reply is not JSON: {raw[:80]!r}", status) from error


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
            For any status but 2xx, for no connection, no reply in time, or a reply that is not JSON.
        """
        payload = None if body is None else json.dumps(body).encode()
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
