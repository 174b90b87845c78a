"""The HTTP application: routes, errors as JSON, and the page."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from mio_rag import __version__
from mio_rag.allocation.money import Rate
from mio_rag.allocation.pacer import Pacer
from mio_rag.errors import InfeasibleError, InputError, MioRagError, SpentError
from mio_rag.evaluation.markup import plain
from mio_rag.generation import Generator
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.service import messages
from mio_rag.service.answering import Answering
from mio_rag.service.edge import (
    CONNECTION_GUARD,
    BodyLimit,
    ConnectionGuard,
    Full,
    Gate,
    HeadAsGet,
    SeldomLogged,
    UnusableBody,
    is_loopback_host,
    json_body,
    key_matches,
    refusal,
)
from mio_rag.service.metrics import Metrics
from mio_rag.service.page import EXAMPLE_PRICE, HOW, Curve, example_of, example_questions, render_reference
from mio_rag.service.requests import Asked, standing
from mio_rag.service.settings import ConnectionLimits, Planning, ServiceLimits, Strategies
from mio_rag.session.cache import AnswerCache
from mio_rag.settings import Settings
from mio_rag.types import clean

_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_OPEN = {*_FILES, "/health", "/docs", "/openapi.json"}  # need no key: they show nothing of the index
_ASKED = {"/select", "/ask", "/feedback", "/examples", "/price", "/metrics"}  # by name in the metrics
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": messages.Problems, "description": text}
    for status, text in {
        400: "The request is invalid; the problems state what was given, what is allowed and how to fix it.",
        401: "The API key is missing or wrong.",
        408: "The body took too long to arrive.",
        413: "The body is too large.",
        422: "The body does not fit the schema, or its values are out of range.",
        429: "The tokens of this day or hour are spent; Retry-After states when there are more.",
        500: "The service failed unexpectedly; its log has the details.",
        502: "The solver or the generator failed.",
        503: "Too many requests are waiting; Retry-After states when to try again.",
    }.items()
}
_KEY_REFUSED: dict[int | str, dict[str, Any]] = {401: _REFUSALS[401]}


def create_app(
    index: CorpusIndex,
    generator: Generator,
    limits: ServiceLimits | None = None,
    *,
    connections: ConnectionLimits | None = None,
    api_key: str | None = None,
    loopback: bool = True,
    examples: Sequence[str] = (),
    pacer: Pacer | None = None,
    rate: Rate | None = None,
    curve: Curve | None = None,
    cache: AnswerCache | None = None,
    routing: Mapping[str, Any] | None = None,
    strategies: Strategies | None = None,
    policy: str | None = None,
    refusing: Refusal | None = None,
    planning: Planning | None = None,
) -> FastAPI:
    """Return the application over an index.

    generator: answers in /ask; its tokenizer counts what passages cost. Closed when the application ends.
        Several requests use it at the same time if it has an attribute `concurrency`, as those of this
        package do.
    connections: apply if the server uses `mio_rag.service.edge.GuardedProtocol`; the time limit of a body
        always applies.
    api_key: required for everything but the page, /health and the documentation.
    loopback: answer only requests whose Host header names this machine. This prevents DNS rebinding: a
        foreign page cannot reach the service through its own name.
    examples: questions that the page proposes; without them they are taken from the index.
    pacer: sets the token price of every request, and limits what all of them spend. Closed when the
        application ends.
    rate: what the reader's tokens cost: responses then report dollars, and the token price is at least what
        follows from the value of an answer.
    curve: what the operator's questions spend and find at each price, for the page.
    cache: stores answers of /ask, and gives them again.
    routing: `RouterSettings` as plain data: /ask answers at the tier that its router chooses, whatever budget
        and longest answer a request sets.
    strategies: search strategies; with a bandit among them answers can be rated.
    policy: preset or file: /ask answers as the policy decides, whatever a request sets; a changed file is put
        in force while the service runs.
    refusing: decides when /ask reports that the passages do not answer.
    planning: /ask answers by the workflow that its planner chooses.
    """
    bounds, clients = limits or ServiceLimits(), connections or ConnectionLimits()
    answering = Answering(
        index, generator, pacer, rate, cache, routing, strategies, policy, refusing, planning
    )
    metrics = Metrics()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        app.state.gate = Gate(bounds)
        seldom = SeldomLogged()
        loggers = [logging.getLogger(name) for name in ("asyncio", "uvicorn.error")]
        for logger in loggers:
            logger.addFilter(seldom)
        yield {CONNECTION_GUARD: ConnectionGuard(clients, metrics)}
        for logger in loggers:
            logger.removeFilter(seldom)
        answering.close()

    app = FastAPI(
        title="mio-rag",
        version=__version__,
        summary="Chooses what a language model reads, and proves the choice.",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    _guard(app, metrics, api_key, loopback)
    _explain_errors(app)
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        BodyLimit, max_bytes=bounds.max_body_bytes, seconds=clients.body_seconds, metrics=metrics
    )
    _add_questions(app, answering, metrics, bounds)
    _add_state(app, answering, metrics, bounds)
    _add_pages(app, answering, example_questions(index, examples), curve)
    return app


def _guard(app: FastAPI, metrics: Metrics, api_key: str | None, loopback: bool) -> None:
    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        began, path = time.monotonic(), request.url.path
        request.state.began = began
        known = path if path in _OPEN | _ASKED else "other"
        metrics.active.inc()
        try:
            if loopback and not is_loopback_host(request):
                problem = "the Host header names another machine: send localhost or 127.0.0.1"
                response = refusal(400, "InvalidHost", problem)
            elif api_key is not None and path not in _OPEN and not key_matches(request, api_key):
                response = refusal(401, "Unauthorized", "send the key as 'Authorization: Bearer KEY'")
            else:
                response = await call_next(request)
        except Exception:  # becomes a 500 in an outer layer
            metrics.observe(known, 500, time.monotonic() - began)
            raise
        finally:
            metrics.active.dec()
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if app.state.gate.crowded:
            response.headers["Connection"] = "close"
        metrics.observe(known, response.status_code, time.monotonic() - began)
        return response


def _explain_errors(app: FastAPI) -> None:
    """Answer every error of a request with a status, a kind and problems in words."""

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        response = refusal(error.status_code, "HTTPError", str(error.detail))
        response.headers.update(dict(error.headers or {}))
        if response.headers.get("allow") == "GET":
            response.headers["allow"] = "GET, HEAD"  # see `HeadAsGet`
        return response

    @app.exception_handler(Full)
    async def full(request: Request, error: Full) -> Response:
        problem = f"the service is busy: try again in {error.retry_after} s"
        return refusal(503, "Busy", problem, retry_after=error.retry_after)

    @app.exception_handler(MioRagError)
    async def failed(request: Request, error: MioRagError) -> Response:
        if isinstance(error, UnusableBody):
            return refusal(422, "InputError", *(clean(problem) for problem in error.problems[:20]))
        if isinstance(error, InputError):
            return refusal(400, type(error).__name__, *(clean(problem) for problem in error.problems))
        if isinstance(error, SpentError):
            wait = None if error.retry_after is None else max(1, math.ceil(error.retry_after))
            return refusal(429, "SpentError", str(error), retry_after=wait)
        status = 400 if isinstance(error, InfeasibleError) else 502
        return refusal(status, type(error).__name__, clean(str(error)))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return refusal(500, "InternalError", "the service failed unexpectedly: its log has the details")


def _add_questions(app: FastAPI, answering: Answering, metrics: Metrics, bounds: ServiceLimits) -> None:
    """Add the routes that take a body: /select, /ask and, where something learns, /feedback."""

    def add(
        path: str,
        body: type[Settings],
        response: type[BaseModel],
        description: str,
        work: Callable[[dict[str, Any], float], dict[str, Any]],
    ) -> None:
        async def answer(request: Request) -> Response:
            given = dict(body.from_dict(await json_body(request), kind=UnusableBody))
            data = await request.app.state.gate.run(lambda: work(given, request.state.began))
            if "cached" in data:
                metrics.looked_up(data["cached"])
            if data.get("cached") is None and data.get("status", "none") != "none":
                metrics.certified(data["status"], data["gap"])  # a stored one was counted before
            return JSONResponse(plain(data))

        schema = {"content": {"application/json": {"schema": body.model_json_schema()}}, "required": True}
        app.post(
            path,
            response_model=response,
            responses=_REFUSALS,
            description=description,
            name=path[1:],
            openapi_extra={"requestBody": schema},
        )(answer)

    models = messages.request_models(bounds)
    units = answering.units
    add(
        "/select",
        models["/select"],
        messages.Selected,
        "Choose passages for a question, with a certificate.",
        lambda given, began: answering.select(Asked.of(given, began, units)),
    )
    add(
        "/ask",
        models["/ask"],
        messages.Answered,
        "Choose passages and answer from them.",
        lambda given, began: answering.ask(Asked.of(given, began, units)),
    )
    if answering.learns:
        about = "Rate an answer; the strategies that found what was read are credited."
        add(
            "/feedback",
            messages.Rating,
            messages.Rated,
            about,
            lambda given, began: {"noted": answering.rate_answer(given["id"], given["helpful"])},
        )


def _add_state(app: FastAPI, answering: Answering, metrics: Metrics, bounds: ServiceLimits) -> None:
    # In threads: a policy, or what was learned, may have to be read from files.
    @app.get("/health", response_model=messages.Health)
    def health() -> messages.Health:
        """Whether the service is up, and what it serves."""
        index, governed = answering.index, answering.governed
        return messages.Health(
            status="ok",
            version=app.version,
            index=clean(index.name),
            passages=len(index),
            embedder=clean(index.embedder.name),
            sentences=index.sentences is not None,
            units=answering.units,
            generator=clean(answering.generator.name),
            limits=messages.Limits(**bounds.to_dict()),
            policy=None if governed is None else messages.PolicyState(**governed.state()),
        )

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **_KEY_REFUSED},
    )
    def show_metrics() -> Response:
        """Requests, latencies, certificates and gaps in Prometheus' text format."""
        text = metrics.text(standing(answering.pacer), answering.stats())
        return Response(text, media_type=CONTENT_TYPE_LATEST)


def _add_pages(app: FastAPI, answering: Answering, questions: tuple[str, ...], curve: Curve | None) -> None:
    @app.get("/examples", response_model=messages.Examples, responses=_KEY_REFUSED)
    async def examples() -> messages.Examples:
        """Questions to begin with."""
        return messages.Examples(questions=list(questions))

    @app.get("/price", response_model=messages.Price, responses=_KEY_REFUSED)
    def price() -> messages.Price:
        """What a token price means, by example, and the operator's own curve."""
        if (account := standing(answering.pacer)) is not None:
            now, which = account.price, "At the present price"
        elif answering.rate is not None and answering.rate.token_price > 0:
            now, which = answering.rate.token_price, "At the price"
        else:
            now, which = EXAMPLE_PRICE, "At a price"
        return messages.Price(
            example=f"{which} of {example_of(now)}",
            questions=None if curve is None else curve.questions,
            curve=[] if curve is None else [messages.CurvePoint(**asdict(one)) for one in curve.points],
            how=HOW if curve is None else None,
        )

    here = resources.files("mio_rag.service")

    def add(path: str, name: str, kind: str) -> None:
        content = here.joinpath(name).read_bytes()

        async def show() -> Response:
            return Response(content, media_type=kind)

        app.get(path, include_in_schema=False)(show)

    for path, (name, kind) in _FILES.items():
        add(path, name, kind)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(render_reference(app.openapi()))
