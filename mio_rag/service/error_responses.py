"""Errors as responses: what was wrong with a request, in JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from mio_rag.errors import InfeasibleError, InputError, MioRagError, SpentError
from mio_rag.service.body import UnusableBody
from mio_rag.service.guard import Full, refusal
from mio_rag.service.messages import invalid_field
from mio_rag.text import clean

__all__ = ["explain_errors"]


def explain_errors(app: FastAPI, models: Mapping[str, type[BaseModel]]) -> None:
    """Answer every error of a request with a status, a kind and problems in words."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = []
        for part in error.errors():
            if part["type"] == "json_invalid":
                reason = part.get("ctx", {}).get("error", "it cannot be read")
                problems.append(f"the body is not valid JSON (character {part['loc'][-1]}: {reason})")
                continue
            if len(part["loc"]) == 1:
                problems.append("send a JSON object, as Content-Type: application/json")
                continue
            path = request.scope["route"].path
            problems.append(clean(invalid_field(str(part["loc"][1]), part, path, models)))
        return refusal(422, "InputError", *dict.fromkeys(problems[:20]))

    @app.exception_handler(UnusableBody)
    async def unusable(request: Request, error: UnusableBody) -> Response:
        return refusal(422, "InputError", clean(error.detail))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        response = refusal(error.status_code, "HTTPError", str(error.detail))
        response.headers.update(dict(error.headers or {}))
        if response.headers.get("allow") == "GET":
            response.headers["allow"] = "GET, HEAD"  # see `HeadAsGet`
        return response

    @app.exception_handler(Full)
    async def full(request: Request, error: Full) -> Response:
        message = f"the service is busy: try again in {error.retry_after} s"
        return refusal(503, "Busy", message, retry_after=error.retry_after)

    @app.exception_handler(SpentError)
    async def spent(request: Request, error: SpentError) -> Response:
        wait = None if error.retry_after is None else max(1, math.ceil(error.retry_after))
        return refusal(429, "SpentError", str(error), retry_after=wait)

    @app.exception_handler(MioRagError)
    async def failed(request: Request, error: MioRagError) -> Response:
        if isinstance(error, InputError):
            return refusal(400, type(error).__name__, *(clean(p) for p in error.problems))
        status = 400 if isinstance(error, InfeasibleError) else 502
        return refusal(status, type(error).__name__, clean(str(error)))
