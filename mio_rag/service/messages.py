"""Requests and responses, as the OpenAPI page shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from mio_rag.service.decisions import Plan, PolicyTold, Refused, Response
from mio_rag.service.limits import ServiceLimits

__all__ = [
    "Answered",
    "Examples",
    "Health",
    "Limits",
    "Problems",
    "Rated",
    "Rating",
    "Search",
    "Selected",
    "invalid_field",
    "policy_state",
    "request_models",
]

_ALIKE = 0.45  # of two names, by difflib: from here on one may be meant by the other
_SHOWN = 40  # characters of what was given
#: To the millisecond, and without noise such as 0.30000000000000004.
Seconds = Annotated[float, AfterValidator(lambda value: round(value, 3))]
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class _Request(BaseModel):
    """Settings that both endpoints share; see `Selector`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    preset: Literal["default", "frugal", "thorough", "raw"] = Field(
        "default", description="settings to start from; what is given beside it replaces its own"
    )
    redundancy_weight: Weight | None = Field(
        None, description="lambda_1: price of similarity between two passages; null: by preset"
    )
    passage_penalty: Weight | Literal["adaptive", "auto"] | None = Field(
        None,
        description="lambda_2: what one more passage must be worth; adaptive: 0.1 times the square of the "
        "best relevance of what fits the budget, more where there may be no answer; auto: its median "
        "relevance; null: by preset",
    )
    token_price: Weight | None = Field(
        None, description="lambda_3: what one more token must be worth; null: by preset"
    )
    radius: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = Field(
        0.0, description="rho: how far each embedding may be off (l2)"
    )
    max_passages: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="largest number of passages; null: no limit"
    )
    max_per_source: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="largest number of passages from one source; null: no limit"
    )
    merge: bool = Field(True, description="read passages of one document as one text, overlaps once")
    units: Literal["passages", "sentences", "auto"] | None = Field(
        None,
        description="what is chosen: whole passages, their sentences, or by the room there is; null: what "
        "/health names",
    )


def request_models(limits: ServiceLimits) -> tuple[type[BaseModel], type[BaseModel]]:
    """The bodies of /select and /ask, with a service's limits in them."""
    text = Annotated[str, Field(min_length=1, max_length=limits.max_question)]
    budget = Annotated[int, Field(ge=1, le=limits.max_budget_tokens)]
    pool = Annotated[int, Field(ge=1, le=limits.max_pool)]
    deadline = Annotated[float, Field(gt=0, le=limits.max_deadline_seconds, allow_inf_nan=False)]
    common: dict[str, Any] = {
        "question": (text, Field(description="what is asked")),
        "budget_tokens": (budget, Field(256, description="largest size of the context block")),
        "pool": (pool, Field(50, description="number of candidates to retrieve")),
        "deadline_seconds": (
            deadline,
            Field(
                2.0,
                description="from the arrival of the request; then the best selection found so far is "
                "returned, with its certified gap",
            ),
        ),
    }
    more = Annotated[int, Field(ge=1, le=limits.max_budget_tokens)] | None
    select = create_model(
        "SelectRequest",
        __base__=_Request,
        **common,
        more_tokens=(more, Field(None, description="also report the gain from this many more tokens")),
    )
    length = Annotated[int, Field(ge=1, le=limits.max_answer_tokens)]
    ask = create_model(
        "AskRequest",
        __base__=_Request,
        **common,
        max_tokens=(length, Field(64, description="longest answer")),
    )
    return select, ask


def invalid_field(
    name: str, error: Mapping[str, Any], path: str, models: Mapping[str, type[BaseModel]]
) -> str:
    """What is wrong with a field of a request, in a sentence.

    Parameters
    ----------
    error : mapping
        As Pydantic describes it.
    path : str
        What was asked.
    models : mapping of str to type
        Path -> the model of its requests.
    """
    if error["type"] == "extra_forbidden":
        known = list(models[path].model_fields)
        elsewhere = [other for other, model in models.items() if name in model.model_fields]
        meant = get_close_matches(name, known, 1, _ALIKE)
        hint = (
            f" (but {elsewhere[0]} has)." if elsewhere else f"; did you mean '{meant[0]}'?" if meant else "."
        )
        return f"{path} has no field '{name}'{hint} The fields are {', '.join(known)}"
    if error["type"] == "missing":
        return f"the field '{name}' is missing: give it"
    given = error["input"]
    shown = f"={json.dumps(given)}" if isinstance(given, (bool, int, float)) or given is None else ""
    if isinstance(given, str):
        shown = f"='{given[:_SHOWN]}{' ...' if len(given) > _SHOWN else ''}'"
    words = re.findall("'([^']+)'", error["msg"]) if error["type"] == "literal_error" else []
    near = get_close_matches(str(given), words, 1)
    return f"{name}{shown}: {error['msg']}" + (f"; did you mean '{near[0]}'?" if near else "")


class Passage(Response):
    """A candidate, in or out, and why."""

    id: str
    title: str
    source: str
    tokens: int = Field(description="what it costs in a prompt")
    relevance: float
    value: float = Field(description="what it adds to the others chosen, or would add")
    selected: bool
    reason: str = Field(description="why it is in or out, in a sentence")
    redundant_with: str | None = Field(description="id of the chosen passage that it repeats most")
    text: str


class Part(Response):
    """A passage in a text that is read: characters [start, end) of it."""

    id: str
    start: int
    end: int


class Read(Response):
    """A text as the reader gets it: passages of one document that overlap or touch as one."""

    title: str
    source: str
    text: str
    parts: list[Part]


class More(Response):
    """What more tokens buy at the same prices: `gain`, proven to lie between `low` and `high`."""

    more_tokens: int
    tokens_used: int
    gain: float | None
    low: float | None
    high: float | None
    added: list[str] = Field(description="ids as in `passages`")
    removed: list[str]
    unit_then: Literal["passage", "sentence"] = Field(description="what a request would choose by itself")
    certified: bool


class WorstCase(Response):
    """The value for the worst embeddings within the radius, between `lower` and `upper`."""

    counterpart: Literal["termwise", "joint"]
    lower: float
    upper: float | None
    programs: int


class Conflict(Response):
    """Requirements that cannot hold together."""

    parts: list[str]
    smallest_budget: float | None


class RelevanceSource(Response):
    """Where relevance comes from."""

    kind: Literal["given", "model", "fitted weights", "ranks", "scores"]
    why: str


class Pacing(Response):
    """What this request paid for a token, and what is left for others."""

    token_price: float = Field(description="what a token had to be worth")
    total: int = Field(description="tokens of a window")
    spent: int = Field(description="tokens spent in this window")
    left: int = Field(description="tokens that nobody holds or has spent")
    ends_in: float | None = Field(description="seconds until the next window")


class Search(Response):
    """By which strategies was searched, and who found what."""

    id: str = Field(description="for /feedback; empty where nobody learns")
    strategies: list[str]
    why: str = Field(description="why these")
    prompt_tokens: int = Field(description="that the strategies took")
    completion_tokens: int
    notes: list[str] = Field(description="who was left out, and why")
    found_by: dict[str, dict[str, int]] = Field(
        description="passage -> strategy -> rank; 0: only a link leads there; of /ask under a policy, "
        "passages that are read"
    )


class Rating(BaseModel):
    """What somebody thinks of an answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Annotated[str, Field(min_length=1, max_length=100)] = Field(description="search.id of the response")
    helpful: bool


class Rated(Response):
    """Whether a rating counts: a question is rated once."""

    noted: bool


class Selected(Response):
    """A selection and its certificate; the chosen passages first, in prompt order."""

    question: str
    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    objective: float | None = Field(description="value of the selection")
    bound: float | None = Field(description="proven: no selection is worth more")
    gap: float | None = Field(description="(bound - objective) / |objective|")
    limit: str | None = Field(description="what stopped the search before a proof")
    solver: str
    version: str = Field(description="of the solver")
    wall_seconds: float = Field(description="that the solver took")
    nodes: int | None = Field(description="of the search, where the solver counts them")
    message: str = Field(description="of the solver; mostly empty")
    unit: Literal["passage", "sentence"] = Field(description="what was chosen, and what `passages` are")
    tokens_used: int
    budget_tokens: int | None = Field(description="null where a tier counts otherwise")
    certified_tokens: int | None = Field(description="as the program counts them: the parts, one by one")
    certified_budget: int | None = Field(description="by that count, no choice within it is worth more")
    redundancy_weight: float | None = Field(description="as charged; null where no program chose")
    passage_penalty: float | None = Field(
        description="as charged, where the pool decides it; null where no program chose"
    )
    selected_ids: list[str] = Field(description="in prompt order; of sentences, the passages they are of")
    worst_case: WorstCase | None = Field(description="where the radius is above 0")
    relevance_source: RelevanceSource = Field(description="where relevance comes from, and why from there")
    answerable: float | None = Field(
        None, description="probability that the collection holds an answer at all; null: nothing tells"
    )
    notes: list[str] = Field(description="for people, such as why nothing is chosen")
    conflict: Conflict | None = Field(description="where nothing is feasible")
    passages: list[Passage]
    read: list[Read] = Field(description="in prompt order; what passages share is in it once")
    more: More | None = Field(None, description="with more_tokens")
    dollars: float | None = Field(
        None, description="what the tokens cost that were read, and in /ask those of the answer; with prices"
    )
    pacing: Pacing | None = Field(None, description="where tokens a day or an hour are limited")
    search: Search | None = Field(None, description="where strategies search")


class Cached(Response):
    """An answer that was given before."""

    question: str = Field(description="that it was given to")
    cosine: float | None = Field(description="with that question, where it is another one")
    age_seconds: float = Field(description="since it was given")


class Answered(Selected):
    """An answer and what it was read from."""

    answer: str = Field(description="blank where it is refused")
    refusal: Refused | None = Field(None, description="where a refusal model judges answers")
    said: str | None = Field(None, description="what the reader said, where that is refused")
    generator: str
    prompt_tokens: int
    completion_tokens: int
    cached: Cached | None = Field(
        None, description="where answers are kept: null for a new one; tokens are those of its making"
    )
    tier: str | None = Field(None, description="at which it was answered, where a router chooses")
    context: int | None = Field(None, description="most that the tier reads, in context_unit")
    context_unit: Literal["characters", "tokens"] | None = None
    policy: PolicyTold | None = Field(None, description="where a policy decides")
    plan: Plan | None = Field(None, description="how it was answered, where a planner chooses")


class Examples(Response):
    """Questions to begin with."""

    questions: list[str]


class CurvePointTold(Response):
    """What the operator's questions spend and find at a price of a token."""

    token_price: float
    mean_tokens: float
    evidence: float | None = Field(None, description="mean share of the evidence found, where it is known")


class Price(Response):
    """What a price of a token means."""

    example: str
    questions: int | None = Field(None, description="that the curve was measured on")
    curve: list[CurvePointTold]
    how: str | None = Field(None, description="to get a curve, where there is none")


class Limits(Response):
    """Limits on requests."""

    max_body_bytes: int
    max_question: int = Field(description="characters")
    max_pool: int
    max_budget_tokens: int
    max_answer_tokens: int
    max_deadline_seconds: Seconds
    concurrency: int = Field(description="requests worked on at the same time, by each process")
    queue: int = Field(description="requests that may wait")
    max_wait_seconds: Seconds


class PolicyState(Response):
    """The policy that serves now."""

    name: str
    sha256: str
    problem: str | None = Field(description="why a change of its file was not taken over")


def policy_state(told: tuple[str, str, str | None]) -> PolicyState:
    """The policy that serves, by its name, its hash and what is wrong with a newer file of it."""
    name, sha256, problem = told
    return PolicyState(name=name, sha256=sha256, problem=problem)


class Health(BaseModel):
    """What this service serves."""

    status: Literal["ok"]
    version: str
    index: str
    passages: int
    embedder: str
    sentences: bool = Field(description="whether the index holds vectors of its sentences")
    units: Literal["passages", "auto"] = Field(
        description="what requests choose that do not say it: auto; passages where tokens are paced, or a "
        "router, strategies, a policy, a planner or a refusal model decides"
    )
    generator: str
    limits: Limits
    policy: PolicyState | None = Field(None, description="where a policy decides")


class Problem(BaseModel):
    """What went wrong, in words."""

    kind: str
    problems: list[str]


class Problems(BaseModel):
    """The body of every response that is no success."""

    error: Problem
