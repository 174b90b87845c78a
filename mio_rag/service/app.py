"""The HTTP application: routes, errors as JSON, and the page."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware

from mio_rag.allocation.money import Rate
from mio_rag.allocation.pacer import Pacer
from mio_rag.answer_cache import AnswerCache
from mio_rag.evaluation.markup import plain
from mio_rag.generation import Generator
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.service.answering import Answering
from mio_rag.service.asked import Asked, asked_of
from mio_rag.service.body import StrictRoute
from mio_rag.service.connections import CONNECTION_GUARD, ConnectionGuard, SeldomLogged
from mio_rag.service.curve import EXAMPLE_PRICE, HOW, Curve, example_of
from mio_rag.service.error_responses import explain_errors
from mio_rag.service.examples import example_questions
from mio_rag.service.guard import BodyLimit, Gate, HeadAsGet, key_matches, refusal
from mio_rag.service.limits import ConnectionLimits, ServiceLimits
from mio_rag.service.messages import (
    Answered,
    CurvePointTold,
    Examples,
    Health,
    Limits,
    Price,
    Problems,
    Rated,
    Rating,
    Selected,
    policy_state,
    request_models,
)
from mio_rag.service.metrics import CONTENT_TYPE_LATEST, Metrics
from mio_rag.service.pacing import standing
from mio_rag.service.planning import Planning
from mio_rag.service.reference import render_reference
from mio_rag.service.searching import Strategies
from mio_rag.text import clean

__all__ = ["create_app"]

Work = Callable[[Asked], dict[str, Any]]

_FILES = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css")}
_FILES["/page.js"] = ("page.js", "text/javascript")
_OPEN = {*_FILES, "/health", "/docs", "/openapi.json"}  # need no key: they show nothing of the index
_ASKED = {"/select", "/ask", "/feedback", "/examples", "/price", "/metrics"}  # by name in the metrics
_LOOPBACK = ["localhost", "127.0.0.1", "[::1]", "testserver"]
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problems, "description": text}
    for status, text in {
        400: "The request is invalid; the problems say what was given, what is allowed and how to fix it.",
        401: "The API key is missing or wrong.",
        408: "The body took too long to arrive.",
        413: "The body is too large.",
        422: "The body does not fit the schema, or its values are out of range.",
        429: "The tokens of this day or hour are spent; Retry-After says when there are more.",
        502: "The solver or the generator failed.",
        503: "Too many requests are waiting; Retry-After says when to try again.",
    }.items()
}


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
    """The application over an index.

    Parameters
    ----------
    generator : Generator
        Answers in /ask; its tokenizer counts what passages cost. Closed when the application ends.
    connections : ConnectionLimits, optional
        Apply if the server uses `mio_rag.service.connections.GuardedProtocol`; the time limit of a body
        always applies.
    api_key : str, optional
        Required for everything but the page, /health and the documentation.
    loopback : bool
        Answer only requests whose Host header names this machine. This prevents DNS rebinding: a foreign page
        cannot reach the service through its own name.
    examples : sequence of str
        Questions that the page proposes; without them they are taken from the index.
    pacer : Pacer, optional
        Sets the price of a token for every request, and limits what all of them spend. Closed when the
        application ends.
    rate : Rate, optional
        What the reader's tokens cost: responses then tell dollars, and the price of a token is at least what
        follows from their worth.
    curve : Curve, optional
        What the operator's questions spend and find at each price, for the page.
    cache : AnswerCache, optional
        Answers of /ask are kept there, and given again.
    routing : mapping, optional
        `mio_rag.control.router.settings.RouterSettings` as plain data: /ask answers at the tier that its
        router chooses, whatever budget and longest answer a request names.
    strategies : Strategies, optional
        By which is searched; with a bandit among them answers can be rated.
    policy : str, optional
        Preset or file: /ask answers as the policy decides, whatever a request sets; a file that changes is
        taken over while the service runs.
    refusing : Refusal, optional
        When /ask says that the passages do not answer.
    planning : Planning, optional
        /ask answers by the workflow that its planner chooses.
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
        generator.close()
        if pacer is not None:
            pacer.close()
        if answering.searching is not None:
            answering.searching.close()
        if answering.governed is not None:
            answering.governed.close()
        if answering.planned is not None:
            answering.planned.close()

    from mio_rag import __version__

    app = FastAPI(
        title="mio-rag",
        version=__version__,
        summary="Chooses what a language model reads, and proves the choice.",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    app.router.route_class = StrictRoute
    _guard(app, metrics, api_key)
    models = dict(zip(("/select", "/ask"), request_models(bounds), strict=True))
    if answering.learning is not None and answering.learning.learns:
        models["/feedback"] = Rating
    explain_errors(app, models)
    if loopback:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=_LOOPBACK)
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        BodyLimit, max_bytes=bounds.max_body_bytes, seconds=clients.body_seconds, metrics=metrics
    )
    _add_questions(app, answering, metrics, models)
    if "/feedback" in models:
        _add_feedback(app, answering)
    _add_state(app, answering, metrics, bounds)
    _add_examples(app, example_questions(index, examples))
    _add_price(app, answering, curve)
    _add_pages(app)
    return app


def _guard(app: FastAPI, metrics: Metrics, api_key: str | None) -> None:
    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        began, path = time.monotonic(), request.url.path
        request.state.began = began
        known = path if path in _OPEN | _ASKED else "other"
        metrics.active.inc()
        try:
            if api_key is not None and path not in _OPEN and not key_matches(request, api_key):
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


def _add_questions(
    app: FastAPI, answering: Answering, metrics: Metrics, models: Mapping[str, type[BaseModel]]
) -> None:
    async def answered(
        request: Request, body: BaseModel, work: Callable[[Asked], dict[str, Any]]
    ) -> Response:
        asked = asked_of(body, request.state.began, answering.units)
        data = await request.app.state.gate.run(lambda: work(asked))
        if "cached" in data:
            metrics.looked_up(data["cached"])
        if data.get("cached") is None:  # an old selection was counted when it was made
            metrics.certified(data["status"], data["gap"])
        return JSONResponse(plain(data))

    async def select(request: Request, body: BaseModel) -> Response:
        """Choose passages for a question, with a certificate."""
        return await answered(request, body, answering.select)

    async def ask(request: Request, body: BaseModel) -> Response:
        """Choose passages and answer from them."""
        return await answered(request, body, answering.ask)

    # The models are built from the limits at run time, so annotations cannot name them.
    select.__annotations__["body"] = models["/select"]
    ask.__annotations__["body"] = models["/ask"]
    app.post("/select", response_model=Selected, responses=_REFUSALS)(select)
    app.post("/ask", response_model=Answered, responses=_REFUSALS)(ask)


def _add_feedback(app: FastAPI, answering: Answering) -> None:
    @app.post("/feedback", response_model=Rated, responses=_REFUSALS)
    async def feedback(request: Request, body: Rating) -> Rated:
        """Rate an answer; those strategies are credited that found what was read."""
        assert answering.learning is not None
        learning = answering.learning
        noted = await request.app.state.gate.run(lambda: {"noted": learning.rate(body.id, body.helpful)})
        return Rated(**noted)


def _add_state(app: FastAPI, answering: Answering, metrics: Metrics, limits: ServiceLimits) -> None:
    @app.get("/health", response_model=Health)
    async def health() -> Health:
        """Whether the service is up, and what it serves."""
        return Health(
            status="ok",
            version=app.version,
            index=clean(answering.index.name),
            passages=len(answering.index),
            embedder=clean(answering.index.embedder.name),
            sentences=answering.index.sentences is not None,
            units=answering.units,
            generator=clean(answering.generator.name),
            limits=Limits(**limits.to_dict()),
            policy=None if answering.governed is None else policy_state(answering.governed.state()),
        )

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, 401: _REFUSALS[401]},
    )
    def show_metrics() -> Response:  # in a thread: what was learned is read from a file
        """Requests, latencies, certificates and gaps in Prometheus' text format."""
        account = standing(answering.pacer)
        learned = None if answering.learning is None else answering.learning.stats()
        return Response(metrics.text(account, learned), media_type=CONTENT_TYPE_LATEST)


def _add_examples(app: FastAPI, questions: tuple[str, ...]) -> None:
    @app.get("/examples", response_model=Examples, responses={401: _REFUSALS[401]})
    async def examples() -> Examples:
        """Questions to begin with."""
        return Examples(questions=list(questions))


def _add_price(app: FastAPI, answering: Answering, curve: Curve | None) -> None:
    @app.get("/price", response_model=Price, responses={401: _REFUSALS[401]})
    def price() -> Price:
        """What a price of a token means, by example, and the operator's own curve."""
        if (account := standing(answering.pacer)) is not None:
            now, whose = account.price, "At the present price"
        elif answering.rate is not None and answering.rate.token_price > 0:
            now, whose = answering.rate.token_price, "At the price"
        else:
            now, whose = EXAMPLE_PRICE, "At a price"
        return Price(
            example=f"{whose} of {example_of(now)}",
            questions=None if curve is None else curve.questions,
            curve=[] if curve is None else [CurvePointTold(**vars(one)) for one in curve.points],
            how=HOW if curve is None else None,
        )


def _add_pages(app: FastAPI) -> None:
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
