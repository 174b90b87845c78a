"""The HTTP application: routes, errors as JSON, and the page."""

from __future__ import annotations

import json
import logging
import math
import time
from asyncio import Queue, create_task, get_running_loop
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import resources
from string import Template
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from mio_rag.allocation.money import Rate
from mio_rag.corpora.load import load_dataset
from mio_rag.defaults import DEFAULTS, __version__
from mio_rag.errors import InfeasibleError, InputError, MioRagError, SpentError
from mio_rag.evaluation.markup import escape, plain
from mio_rag.filters import Filter
from mio_rag.generation import Generator, as_generator
from mio_rag.refusal.model import Refusal
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.sentences import leading_name
from mio_rag.service import messages
from mio_rag.service.answering import Answering, Asked, UnknownModelError
from mio_rag.service.chat import Chat, ChatCompletion, ChatRequest
from mio_rag.service.documents import Documents
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
    key_of,
    refusal,
)
from mio_rag.service.keys import FREE, BudgetHeldError, BudgetSpentError, Caller, Keys
from mio_rag.service.metrics import Metrics
from mio_rag.service.settings import ConnectionLimits, ServiceLimits, Split
from mio_rag.session.cache import AnswerCache
from mio_rag.types import clean

_PROPOSED = 3
_LONGEST_TITLE = 60  # characters: longer ones are sentences, or paths


# -- examples ---------------------------------------------------------------------------------------------


def example_questions(index: CorpusIndex, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the questions to propose: the given ones, else some of the bundled set, else some about titles.

    Texts without a title have the name that they open with. Empty if there are none.
    """
    if given:
        return tuple(clean(example).strip() for example in given)
    if index.name == "demo":
        demo = load_dataset("demo")
        if {p.id: p.text for p in demo.passages} == {p.id: p.text for p in index.passages}:
            return _spread([question.text for question in demo.questions])
    names = dict.fromkeys(" ".join(clean(p.title or leading_name(p.text)).split()) for p in index.passages)
    short = [name for name in names if name and len(name) <= _LONGEST_TITLE]
    return tuple(f"What does the collection say about {name}?" for name in _spread(short))


def _spread(items: Sequence[str]) -> tuple[str, ...]:
    count = min(_PROPOSED, len(items))
    return tuple(items[k * len(items) // count] for k in range(count))


# -- HTTP reference ---------------------------------------------------------------------------------------


def render_reference(document: Mapping[str, Any]) -> str:
    """Return the OpenAPI document as plain HTML: every operation, its fields, an example for the shell."""
    parts = document.get("components", {}).get("schemas", {})
    operations = "".join(
        _operation(path, method, operation, parts)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    page = resources.files("mio_rag.service").joinpath("reference.html").read_text(encoding="utf-8")
    return Template(page).substitute(
        title=escape(document["info"]["title"]),
        version=escape(document["info"]["version"]),
        operations=operations,
    )


def _operation(path: str, method: str, operation: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    name = f"<b>{method.upper()}</b> {escape(path)}"
    text = f"<section><h2>{name}</h2><p>{escape(operation.get('description', ''))}</p>"
    if body is not None:
        example: dict[str, Any] = {"question": "Where was the director of Lone Wolf McQuade born?"}
        example = {"id": "ID", "helpful": True} if path == "/feedback" else {**example, "budget_tokens": 256}
        call = f"curl -s localhost:8000{path} -H 'Content-Type: application/json' -d '{json.dumps(example)}'"
        text += f"<h3>Request</h3>{_table(body, parts)}<pre>{escape(call)}</pre>"
    for status, response in operation["responses"].items():
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        text += f"<h3>{escape(status)}</h3><p>{escape(response['description'])}</p>"
        if schema is not None and status == "200":
            text += _table(schema, parts)
    return text + "</section>"


def _table(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    rows = "".join(_rows(schema, parts, ""))
    return f"<div class='scroll'><table><tbody>{rows}</tbody></table></div>"


def _rows(schema: Mapping[str, Any], parts: Mapping[str, Any], above: str) -> Iterator[str]:
    """A row for each field, and for each field of those that contain fields themselves."""
    if "$ref" in schema:
        schema = parts[schema["$ref"].rpartition("/")[2]]
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        given = "required" if name in required else f"default {json.dumps(field.get('default'))}"
        yield (
            f"<tr><th scope='row'><code>{escape(above + name)}</code></th>"
            f"<td>{escape(' or '.join(_types(field)))}</td><td>{escape(given)}</td>"
            f"<td>{escape(field.get('description', ''))}</td></tr>"
        )
        for option in field.get("anyOf", [field]):
            inner = option.get("items", option)
            if "$ref" in inner:
                yield from _rows(inner, parts, f"{above}{name}{'[]' * ('items' in option)}.")


def _types(field: Mapping[str, Any]) -> Iterator[str]:
    for option in field.get("anyOf", [field]):
        if "$ref" in option:
            yield "object"
        elif "enum" in option or "const" in option:
            yield " | ".join(map(str, option.get("enum", [option.get("const")])))
        elif option.get("type") == "array":
            yield f"list of {' or '.join(_types(option.get('items', {}))) or 'anything'}"
        else:
            low = option.get("minimum", option.get("exclusiveMinimum", option.get("minLength")))
            high = option.get("maximum", option.get("maxLength"))
            span = "" if low is None or high is None else f", {low:g} to {high:g}"
            yield f"{option.get('type', 'anything')}{span}"


#: What answers; see `mio_rag.generation.as_generator`.
Reader = str | Generator | Callable[[str, int], str]
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_CHAT = "/v1/chat/completions"
_OPEN = {*_FILES, "/health", "/docs", "/openapi.json"}  # need no key: they show nothing of the index
_KNOWN = {
    *_OPEN, "/select", "/ask", "/feedback", _CHAT, "/v1/models", "/examples", "/metrics"
}  # fmt: skip
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
        404: "There is no model of this name.",
        408: "The body took too long to arrive.",
        413: "The body is too large.",
        422: "The body does not fit the schema, or its values are out of range.",
        429: "A budget of the key is spent, or requests in progress hold what is left of it; Retry-After "
        "states when the window that blocks ends, or a second.",
        500: "The service failed unexpectedly; its log has the details.",
        502: "The solver or the generator failed.",
        503: "Too many requests are waiting; Retry-After states when to try again.",
    }.items()
}
#: Of an answer that may also come as events.
_STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}, **_REFUSALS}
_LOG = logging.getLogger("mio_rag.service")
_KEY_REFUSED: dict[int | str, dict[str, Any]] = {401: _REFUSALS[401]}


def create_app(
    documents: Documents | CorpusIndex,
    readers: Reader | Mapping[str, Reader],
    limits: ServiceLimits | None = None,
    *,
    connections: ConnectionLimits | None = None,
    keys: Keys | None = None,
    api_key: str | None = None,
    loopback: bool = True,
    examples: Sequence[str] = (),
    rates: Mapping[str, Rate] | None = None,
    cache: AnswerCache | None = None,
    policy: str | None = None,
    refusing: Refusal | None = None,
    split: Split | None = None,
) -> FastAPI:
    """Return the application over documents.

    documents: an index is served as it is.
    readers: name -> what answers in /ask; its tokenizer counts what passages cost. Closed when the
        application ends. Several requests use it at the same time if it has an attribute `concurrency`, as
        those of this package do. One reader alone is named after its model.
    connections: apply if the server uses `mio_rag.service.edge.GuardedProtocol`; the time limit of a body
        always applies.
    keys: required for everything but the page, /health and the documentation; None: no key is asked for.
    api_key: one key without limits, in place of `keys`.
    loopback: answer only requests whose Host header names this machine. This prevents DNS rebinding: a
        foreign page cannot reach the service through its own name.
    examples: questions that the page proposes; without them they are taken from the documents.
    rates: name of a reader -> what its tokens cost: responses then report dollars, and the token price is at
        least what follows from the value of an answer.
    cache: stores answers of /ask, and gives them again.
    policy: preset or file: it decides, and its limits hold whatever a request sets; a changed file is put in
        force while the service runs. None: requests decide.
    refusing: decides when /ask reports that the passages do not answer.
    split: another policy answers a share of the questions; ratings compare the two.
    """
    bounds, clients = limits or ServiceLimits(), connections or ConnectionLimits()
    if isinstance(documents, CorpusIndex):
        documents = Documents(None, index=documents)
    if isinstance(readers, Mapping):
        named = {name: as_generator(one) for name, one in readers.items()}
    else:
        reader = as_generator(readers)
        named = {reader.name.partition(":")[2] or reader.name: reader}
    if api_key is not None:
        keys = Keys(single=api_key)
    if keys is not None:
        keys.check = partial(_check_keys, keys, documents)
        keys.check()
    answering = Answering(documents, named, policy, rates, cache, refusing, split)
    metrics = Metrics()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        app.state.gate, app.state.tasks = Gate(bounds), set()
        seldom = SeldomLogged()
        loggers = [logging.getLogger(name) for name in ("asyncio", "uvicorn.error", "mio_rag.service")]
        for logger in loggers:
            logger.addFilter(seldom)
        yield {CONNECTION_GUARD: ConnectionGuard(clients, metrics)}
        for logger in loggers:
            logger.removeFilter(seldom)
        answering.close()
        if keys is not None:
            keys.close()

    app = FastAPI(
        title="mio-rag",
        version=__version__,
        summary="Chooses what a language model reads, and proves the choice.",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    _guard(app, metrics, keys, loopback)
    _explain_errors(app)
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        BodyLimit,
        max_bytes=lambda path: bounds.max_chat_bytes if path == _CHAT else bounds.max_body_bytes,
        seconds=clients.body_seconds,
        metrics=metrics,
    )
    _add_questions(app, answering, metrics, bounds)
    _add_chat(app, answering, bounds)
    _add_state(app, answering, metrics, bounds, keys)
    _add_pages(app, example_questions(documents.index(), examples))
    return app


def _check_keys(keys: Keys, documents: Documents) -> None:
    """Log which keys can read nothing: their filters are probably misspelt."""
    for name, key in keys:
        try:
            documents.index(None, Filter(key.where))
        except InputError as error:
            _LOG.warning("keys.%s can read nothing, by its where = %r: %s", name, key.where, error)


def _guard(app: FastAPI, metrics: Metrics, keys: Keys | None, loopback: bool) -> None:
    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        began, path = time.monotonic(), request.url.path
        caller: Caller | None = FREE
        if keys is not None and path not in _OPEN:
            caller = keys.caller(key_of(request))
        request.state.began, request.state.caller = began, caller
        known = path if path in _KNOWN else "other"
        metrics.active.inc()
        try:
            if loopback and not is_loopback_host(request):
                problem = "the Host header names another machine: send localhost or 127.0.0.1"
                response = refusal(400, "InvalidHost", problem)
            elif caller is None:
                known_not = "this key is not known: " if key_of(request) else ""
                response = refusal(
                    401, "Unauthorized", f"{known_not}send the key as 'Authorization: Bearer KEY'"
                )
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


def _refused(error: Exception) -> Response:
    """Return the response for a request that fails."""
    if isinstance(error, Full):
        problem = f"the service is busy: try again in {error.retry_after} s"
        return refusal(503, "Busy", problem, retry_after=error.retry_after)
    if isinstance(error, UnusableBody):
        return refusal(422, "InputError", *(clean(problem) for problem in error.problems[:20]))
    if isinstance(error, UnknownModelError):
        return refusal(404, "UnknownModel", str(error), code="model_not_found")
    if isinstance(error, InputError):
        return refusal(400, type(error).__name__, *(clean(problem) for problem in error.problems))
    if isinstance(error, SpentError):
        wait = None if error.retry_after is None else max(1, math.ceil(error.retry_after))
        more: dict[str, Any] = {"code": f"budget_{'held' if isinstance(error, BudgetHeldError) else 'spent'}"}
        if isinstance(error, BudgetSpentError):
            more |= {"window": error.window, "resets_at": error.resets_at}
        return refusal(429, "SpentError", str(error), retry_after=wait, **more)
    if isinstance(error, MioRagError):
        status = 400 if isinstance(error, InfeasibleError) else 502
        return refusal(status, type(error).__name__, clean(str(error)))
    return refusal(500, "InternalError", "the service failed unexpectedly: its log has the details")


def _explain_errors(app: FastAPI) -> None:
    """Answer every error of a request with a status, a kind and problems in words."""

    async def failed(request: Request, error: Exception) -> Response:
        return _refused(error)

    for kind in (Full, MioRagError, Exception):
        app.add_exception_handler(kind, failed)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        response = refusal(error.status_code, "HTTPError", str(error.detail))
        response.headers.update(dict(error.headers or {}))
        if response.headers.get("allow") == "GET":
            response.headers["allow"] = "GET, HEAD"  # see `HeadAsGet`
        return response


async def _streamed(
    app: FastAPI,
    work: Callable[[Callable[[str], None]], dict[str, Any]],
    piece: Callable[[str, bool], str],
    last: Callable[[dict[str, Any]], str],
    whole: Callable[[dict[str, Any]], str],
) -> Response:
    """Send an answer as server-sent events while it is written.

    An error before the first piece is an ordinary response; a later one is an event of the name error.

    work: answers, and calls its argument with each piece.
    piece: the event of a piece, and whether it is the first.
    last: the events that end the stream.
    whole: the text of an answer of which no piece was told.
    """
    loop, told = get_running_loop(), Queue[str | None]()
    gate: Gate = app.state.gate

    def tell(text: str) -> None:
        loop.call_soon_threadsafe(told.put_nowait, text)

    task = create_task(gate.run(lambda: work(tell)))
    app.state.tasks.add(task)  # a client that leaves ends the stream, not the work that is paid for
    task.add_done_callback(app.state.tasks.discard)
    task.add_done_callback(lambda _: told.put_nowait(None))
    first = await told.get()
    if first is None:
        await task  # its error is an ordinary response

    async def events() -> AsyncIterator[str]:
        text, begins = first, True
        while text is not None:
            yield piece(text, begins)
            text, begins = await told.get(), False
        try:
            data = await task
        except Exception as error:
            if not isinstance(error, (MioRagError, Full)):
                _LOG.error("an answer failed while it was sent", exc_info=error)
            yield f"event: error\ndata: {bytes(_refused(error).body).decode()}\n\n"
            return
        if begins and whole(data):
            yield piece(whole(data), True)
        yield last(data)

    return StreamingResponse(events(), media_type="text/event-stream")


def _schema(body: type[BaseModel]) -> dict[str, Any]:
    """The body of a request in the OpenAPI document, with the parts of the model in their places."""
    schema = body.model_json_schema()
    parts = schema.pop("$defs", {})

    def inlined(value: Any) -> Any:
        if isinstance(value, list):
            return [inlined(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return inlined(parts[value["$ref"].rpartition("/")[2]])
        return {key: inlined(one) for key, one in value.items()}

    shown = {"content": {"application/json": {"schema": inlined(schema)}}, "required": True}
    return {"requestBody": shown}


def _add_questions(app: FastAPI, answering: Answering, metrics: Metrics, bounds: ServiceLimits) -> None:
    """Add the routes that take a question: /select, /ask and, where something learns, /feedback."""

    def counted(data: dict[str, Any]) -> dict[str, Any]:
        metrics.counted(data)
        shown: dict[str, Any] = plain(data)
        return shown

    models = messages.request_models(bounds)

    async def asked_in(request: Request, path: str) -> tuple[dict[str, Any], Asked]:
        body, caller = await json_body(request), _caller(request)
        try:
            given = dict(models[path].from_dict(body, kind=UnusableBody))
        except UnusableBody as error:
            more = await app.state.gate.run(lambda: answering.problems(body, caller))
            raise UnusableBody([*error.problems, *more]) from None
        return given, Asked.of(given, request.state.began, caller)

    async def select(request: Request) -> Response:
        """Choose passages for a question, with a certificate."""
        _, asked = await asked_in(request, "/select")
        return JSONResponse(counted(await app.state.gate.run(lambda: answering.select(asked))))

    async def ask(request: Request) -> Response:
        """Choose passages and answer from them; with `stream`, as server-sent events text and done."""
        given, asked = await asked_in(request, "/ask")
        if not given["stream"]:
            return JSONResponse(counted(await app.state.gate.run(lambda: answering.ask(asked))))
        return await _streamed(
            app,
            lambda tell: answering.ask(replace(asked, tell=tell)),
            lambda text, _: f"event: text\ndata: {json.dumps({'text': text})}\n\n",
            lambda data: f"event: done\ndata: {json.dumps(counted(data))}\n\n",
            lambda data: str(data["answer"]),
        )

    async def feedback(request: Request) -> Response:
        """Rate an answer; the strategies that found what was read are credited."""
        rating = messages.Rating.from_dict(await json_body(request), kind=UnusableBody)
        work = partial(answering.rate, rating.id, rating.helpful)
        return JSONResponse({"noted": await app.state.gate.run(work)})

    routes: list[tuple[Any, type[BaseModel], type[BaseModel]]] = [
        (select, models["/select"], messages.Selected),
        (ask, models["/ask"], messages.Answered),
    ]
    if (
        answering.policy != DEFAULTS.policy or answering.ratings is not None
    ):  # a policy that does not learn may be replaced by one that does
        routes.append((feedback, messages.Rating, messages.Rated))
    for answer, body, response in routes:
        told = _STREAMED if answer is ask else _REFUSALS
        app.post(f"/{answer.__name__}", response_model=response, responses=told, openapi_extra=_schema(body))(
            answer
        )


def _caller(request: Request, user: str | None = None) -> Caller:
    """Return who asks; `InputError` where the key needs a user, and none is named."""
    caller: Caller = request.state.caller
    return caller.of_user(user or request.headers.get("x-user", ""))


def _add_chat(app: FastAPI, answering: Answering, bounds: ServiceLimits) -> None:
    """Add what OpenAI's clients call."""

    @app.post(
        _CHAT,
        response_model=ChatCompletion,
        responses=_STREAMED,
        openapi_extra=_schema(ChatRequest),
    )
    async def completions(request: Request) -> Response:
        """Answer the last message of a conversation, as OpenAI's chat completions do."""
        body = await json_body(request)
        try:
            chat = Chat(body, bounds)
        except UnusableBody as error:
            own = body.get("mio_rag")
            named = {**(own if isinstance(own, dict) else {}), "model": body.get("model")}
            more = await app.state.gate.run(lambda: answering.problems(named, request.state.caller))
            raise UnusableBody([*error.problems, *more]) from None
        caller = replace(_caller(request, chat.request.user), smaller=chat.smaller)
        asked = Asked.of(chat.given(bounds), request.state.began, caller, wrapped=chat.wrapped)
        if not chat.request.stream:
            data = await app.state.gate.run(lambda: answering.ask(asked))
            return JSONResponse(plain(chat.completion(data)))
        return await _streamed(
            app,
            lambda tell: answering.ask(replace(asked, tell=tell)),
            chat.chunk,
            lambda data: chat.last(plain(data)),
            chat.text,
        )

    @app.get("/v1/models", responses=_KEY_REFUSED)
    def models() -> dict[str, Any]:
        """What `model` may be: a reader by the policy of the service, or POLICY/READER."""
        one = {"object": "model", "created": 0, "owned_by": "mio-rag"}
        return {"object": "list", "data": [{"id": name, **one} for name in answering.models()]}


def _add_state(
    app: FastAPI, answering: Answering, metrics: Metrics, bounds: ServiceLimits, keys: Keys | None
) -> None:
    # In threads: a policy, or what was learned, may have to be read from files.
    @app.get("/health", response_model=messages.Health)
    def health() -> messages.Health:
        """Whether the service is up, and what it serves."""
        served, index = answering.documents.state(), answering.documents.index()
        own = answering.policy != DEFAULTS.policy
        return messages.Health(
            status="ok",
            version=app.version,
            **{**served, "index": clean(served["index"])},
            embedder=clean(index.embedder.name),
            sentences=index.sentences is not None,
            units=answering.units,
            generator=clean(next(iter(answering.readers.values())).name),
            limits=messages.Limits(**bounds.to_dict()),
            policy=messages.PolicyState(**answering.governed().state()) if own else None,
        )

    shown = {200: {"content": {"text/plain": {}}}, **_KEY_REFUSED}

    @app.get("/metrics", response_class=Response, responses=shown)
    def show_metrics(request: Request) -> Response:
        """Requests, latencies, certificates and gaps in Prometheus' text format; of a key that is held to a
        filter, its own budget alone.
        """
        caller = request.state.caller.key
        own = caller if caller is not None and caller.where is not None else None
        split = None if answering.ratings is None else answering.ratings.stats()
        return Response(metrics.text(keys, answering.stats(), split, own), media_type=CONTENT_TYPE_LATEST)


def _add_pages(app: FastAPI, questions: tuple[str, ...]) -> None:
    @app.get("/examples", response_model=messages.Examples, responses=_KEY_REFUSED)
    async def examples() -> messages.Examples:
        """Questions to begin with."""
        return messages.Examples(questions=list(questions))

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
