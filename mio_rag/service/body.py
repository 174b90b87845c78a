"""The body of a request, read as strictly as every other JSON from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from mio_rag.errors import InputError
from mio_rag.reading import parse_json

__all__ = ["StrictRoute", "UnusableBody"]


class UnusableBody(HTTPException):
    """The body is JSON, and still nothing that can be taken; `detail` says why."""


class _StrictRequest(Request):
    async def json(self) -> Any:
        """The body; `json.JSONDecodeError` where it is no JSON, as FastAPI expects it."""
        try:
            return parse_json(await self.body(), "the body")
        except InputError as error:
            if isinstance(error.__cause__, json.JSONDecodeError):
                raise error.__cause__ from None
            raise UnusableBody(422, str(error)) from error


class StrictRoute(APIRoute):
    """A route that reads its body so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own handler, for a request that reads strictly."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict
