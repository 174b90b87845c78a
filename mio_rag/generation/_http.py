"""JSON over HTTP to a server in this process, by httpx2."""

from __future__ import annotations

import json
from typing import Any

from mio_rag.errors import require

__all__ = ["HttpFailure", "LoopbackClient"]

_SECONDS = 600.0  # for one reply, or for one's turn


class HttpFailure(Exception):
    """A request that brought no JSON; `status` is the HTTP status, None if there was no response at all."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class LoopbackClient:
    """One kept-open connection to a server in this process; never goes through a proxy; thread-safe.

    Requests wait for their turn on it.

    Parameters
    ----------
    address : str
        ``http://host:port``.
    api_key : str
        Sent as bearer token.
    seconds : float
        Longest wait for a connection, for one's turn on it, and for each piece of a reply.

    Raises
    ------
    MissingExtraError
        Without the extra ``gguf``.
    """

    def __init__(self, address: str, api_key: str, seconds: float = _SECONDS) -> None:
        self._httpx = require("httpx2", "gguf", "talking to llama.cpp's server")
        self._client = self._httpx.Client(
            base_url=address,
            headers={"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
            timeout=seconds,
            limits=self._httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None),
            trust_env=False,  # proxies are for what is elsewhere
            follow_redirects=False,
        )

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON reply. A connection that the server let go is opened once more.

        Raises
        ------
        HttpFailure
            For any status but 2xx, for no connection, no reply in time, or a reply that is not JSON; once the
            client is closed.
        """
        # Python's own encoder: what is half of a surrogate pair goes out as an escape.
        content = None if body is None else json.dumps(body)
        if self._client.is_closed:
            raise HttpFailure("the connection is closed")
        try:
            try:
                response = self._client.request(method, path, content=content)
            except (self._httpx.NetworkError, self._httpx.RemoteProtocolError):
                response = self._client.request(method, path, content=content)
        except self._httpx.HTTPError as error:
            raise HttpFailure(str(error) or type(error).__name__) from error
        if not response.is_success:
            raise HttpFailure(
                f"HTTP {response.status_code}: {response.content[:200]!r}", response.status_code
            )
        try:
            return response.json()
        except ValueError as error:
            raise HttpFailure(
                f"the reply is not JSON: {response.content[:80]!r}", response.status_code
            ) from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
