"""Requests and responses, as the OpenAPI page shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from mio_rag.service.settings import ServiceLimits
from mio_rag.settings import Settings

#: To the millisecond, and without noise such as 0.30000000000000004.
Seconds = Annotated[float, AfterValidator(lambda value: round(value, 3))]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Number = Annotated[int, Field(ge=1, le=10_000)]


# -- requests ---------------------------------------------------------------------------------------------


class _Request(Settings):
    """Settings that /select and /ask share; see `Selector`."""

    preset: Literal["default", "frugal", "thorough", "raw"] = "default"
    """Settings to start from; the others replace its own."""
    redundancy_weight: Weight | None = None
    """lambda_1: price of similarity between two passages; null: by preset."""
    passage_penalty: Weight | Literal["adaptive", "auto"] | None = None
    """lambda_2: minimum value that one more passage must add; adaptive: 0.1 times the square of the best
    relevance of what fits the budget, more where there may be no answer; auto: its median relevance; null: by
    preset."""
    token_price: Weight | None = None
    """lambda_3: minimum value that one more token must add; null: by preset."""
    radius: Annotated[float, Field(ge=0, le=2)] = 0.0
    """rho: how far each embedding may be off (l2)."""
    max_passages: Number | None = None
    """Largest number of passages; null: no limit."""
    max_per_source: Number | None = None
    """Largest number of passages from one source; null: no limit."""
    merge: bool = True
    """Read passages of one document as one text, overlaps once."""
    units: Literal["passages", "sentences", "auto"] | None = None
    """What is selected: whole passages, their sentences, or depending on the budget; null: see /health."""


class Rating(Settings):
    """A rating of an answer."""

    id: Annotated[str, Field(min_length=1, max_length=100)]
    """search.id of the response."""
    helpful: bool


def request_models(limits: ServiceLimits) -> dict[str, type[Settings]]:
    """Return the bodies of /select and /ask by path, with a service's limits in them."""
    budget = Annotated[int, Field(ge=1, le=limits.max_budget_tokens)]
    common: dict[str, Any] = {
        "question": (
            Annotated[str, Field(min_length=1, max_length=limits.max_question)],
            Field(description="the question"),
        ),
        "budget_tokens": (
            budget,
            Field(min(256, limits.max_budget_tokens), description="largest size of the context block"),
        ),
        "pool": (
            Annotated[int, Field(ge=1, le=limits.max_pool)],
            Field(min(50, limits.max_pool), description="number of candidates to retrieve"),
        ),
        "deadline_seconds": (
            Annotated[float, Field(gt=0, le=limits.max_deadline_seconds)],
            Field(
                min(2.0, limits.max_deadline_seconds),
                description="from the arrival of the request; then the best selection found so far is "
                "returned, with its certified gap",
            ),
        ),
    }
    more = Field(None, description="also report the gain from this many more tokens")
    longest = Annotated[int, Field(ge=1, le=limits.max_answer_tokens)]
    length = Field(min(64, limits.max_answer_tokens), description="longest answer")
    own: dict[str, dict[str, Any]] = {
        "select": {"more_tokens": (budget | None, more)},
        "ask": {"max_tokens": (longest, length)},
    }
    return {
        f"/{path}": create_model(f"{path.title()}Request", __base__=_Request, **common, **fields)
        for path, fields in own.items()
    }


# -- parts of responses -----------------------------------------------------------------------------------


class Response(BaseModel):
    """Base of responses: nothing but what is declared."""

    model_config = ConfigDict(extra="forbid")


class Passage(Response):
    """A candidate, selected or not, and why."""

    id: str
    title: str
    source: str
    tokens: int = Field(description="what it costs in a prompt")
    relevance: float
    value: float = Field(description="what it adds to the others selected, or would add")
    selected: bool
    reason: str = Field(description="why it is selected or not, in a sentence")
    redundant_with: str | None = Field(description="id of the selected passage that it repeats most")
    text: str


class Part(Response):
    """A passage in a text that is read: characters [start, end) of it, and where its document has it."""

    id: str
    start: int
    end: int
    page: int | None = None
    section: list[str] = []


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
    unit_then: Literal["passage", "sentence"] = Field(description="what a request would select by itself")
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

    token_price: float = Field(description="minimum value of a token")
    total: int = Field(description="tokens of a window")
    spent: int = Field(description="tokens spent in this window")
    left: int = Field(description="tokens neither spent nor reserved")
    ends_in: float | None = Field(description="seconds until the next window")


class Search(Response):
    """The search strategies, and which of them found what."""

    id: str = Field(description="for /feedback; empty if nothing is learned")
    strategies: list[str]
    why: str = Field(description="why these")
    prompt_tokens: int = Field(description="that the strategies took")
    completion_tokens: int
    notes: list[str] = Field(description="strategies that were left out, and why")
    found_by: dict[str, dict[str, int]] = Field(
        description="passage -> strategy -> rank; 0: only a link leads there; of /ask under a policy, "
        "passages that are read"
    )


class PolicyStep(Response):
    """One step of a question under a policy."""

    step: str = Field(description="node of the workflow, or decision of the policy")
    why: str = Field(description="what was done, and its value at the price")
    tokens: int = Field(description="into and out of models")
    seconds: float
    complete: float | None = Field(description="probability that the evidence is complete, after it")


class PolicyReport(Response):
    """The policy under which a question was answered, and its steps."""

    name: str
    sha256: str = Field(description="of the policy, with everything in its files")
    token_price: float = Field(description="minimum that a token had to add to the probability of evidence")
    complete: float | None = Field(description="probability that the evidence is complete")
    workflow: str
    steps: list[PolicyStep]


class Refused(Response):
    """Whether the passages answer the question."""

    probability: float = Field(description="that they do not")
    threshold: float = Field(description="above which an answer is refused")
    refused: bool


class PlanStep(Response):
    """One node of a workflow."""

    node: str = Field(description="its path in the workflow")
    executor: str
    gave: str
    note: str
    tokens: int = Field(description="with everything inside it")
    dropped: str | None = Field(description="why nothing of it was used")


class Plan(Response):
    """The workflow that a planner chose, and its steps."""

    workflow: str
    worth: dict[str, float] = Field(description="score of each workflow to choose from")
    fallback: str | None = Field(description="why the workflow itself gave no answer, if it gave none")
    steps: list[PlanStep]


class Cached(Response):
    """An answer that was given before."""

    question: str = Field(description="that it was given to")
    age_seconds: float = Field(description="since it was given")


# -- responses --------------------------------------------------------------------------------------------


class Selected(Response):
    """A selection and its certificate; the selected passages first, in prompt order."""

    question: str
    status: Literal["optimal", "feasible", "infeasible", "no_solution", "none"] = Field(
        description="of the program; none: none was solved, since nothing was to be read"
    )
    objective: float | None = Field(description="value of the selection")
    bound: float | None = Field(description="proven: no selection is worth more")
    gap: float | None = Field(description="(bound - objective) / |objective|")
    limit: str | None = Field(description="what stopped the search before a proof")
    solver: str
    version: str = Field(description="of the solver")
    wall_seconds: float = Field(description="that the solver took")
    nodes: int | None = Field(description="of the search, if the solver counts them")
    message: str = Field(description="of the solver; mostly empty")
    unit: Literal["passage", "sentence"] = Field(description="what was selected, and what `passages` are")
    tokens_used: int
    budget_tokens: int | None = Field(description="null where a tier counts otherwise")
    certified_tokens: int | None = Field(description="as the program counts them: the parts, one by one")
    certified_budget: int | None = Field(description="by that count, no choice within it is worth more")
    redundancy_weight: float | None = Field(description="as charged; null if no program chose")
    passage_penalty: float | None = Field(
        description="as charged, where the pool decides it; null if no program chose"
    )
    selected_ids: list[str] = Field(description="in prompt order; of sentences, the passages they are of")
    worst_case: WorstCase | None = Field(description="where the radius is above 0")
    relevance_source: RelevanceSource = Field(description="where relevance comes from, and why from there")
    answerable: float | None = Field(
        None, description="probability that the collection has an answer at all; null: unknown"
    )
    notes: list[str] = Field(description="for people, such as why nothing is selected")
    conflict: Conflict | None = Field(description="where nothing is feasible")
    passages: list[Passage]
    read: list[Read] = Field(description="in prompt order; what passages share is in it once")
    more: More | None = Field(None, description="with more_tokens")
    dollars: float | None = Field(
        None, description="cost of the tokens that were read, and in /ask of the answer; with prices"
    )
    pacing: Pacing | None = Field(None, description="where tokens a day or an hour are limited")
    search: Search | None = Field(None, description="where strategies search")


class Answered(Selected):
    """An answer and what it was read from."""

    answer: str = Field(description="blank if it is refused")
    refusal: Refused | None = Field(None, description="where a refusal model judges answers")
    said: str | None = Field(None, description="the reply of the reader, if it is refused")
    generator: str
    prompt_tokens: int
    completion_tokens: int
    cached: Cached | None = Field(
        None, description="where answers are stored: null for a new one; tokens are those of its making"
    )
    tier: str | None = Field(None, description="at which it was answered, where a router chooses")
    context: int | None = Field(None, description="most that the tier reads, in context_unit")
    context_unit: Literal["characters", "tokens"] | None = None
    policy: PolicyReport | None = Field(None, description="where a policy decides")
    plan: Plan | None = Field(None, description="how it was answered, where a planner chooses")


class Rated(Response):
    """Whether a rating counts: a question is rated once."""

    noted: bool


class Examples(Response):
    """Questions to begin with."""

    questions: list[str]


class CurvePoint(Response):
    """What the operator's questions spend and find at a token price."""

    token_price: float
    mean_tokens: float
    evidence: float | None = Field(None, description="mean share of the evidence found, if it is labelled")


class Price(Response):
    """What a token price means."""

    example: str
    questions: int | None = Field(None, description="that the curve was measured on")
    curve: list[CurvePoint]
    how: str | None = Field(None, description="how to get a curve, if there is none")


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
    problem: str | None = Field(description="why a change of its files is not in force")


class Health(Response):
    """What this service serves."""

    status: Literal["ok"]
    version: str
    index: str
    passages: int
    embedder: str
    sentences: bool = Field(description="whether the index has vectors of its sentences")
    units: Literal["passages", "auto"] = Field(
        description="default of `units`: auto; passages where tokens are paced, or a router, strategies, a "
        "policy, a planner or a refusal model decides"
    )
    generator: str
    limits: Limits
    policy: PolicyState | None = Field(None, description="where a policy decides")


class Problem(Response):
    """What went wrong, in words."""

    kind: str
    problems: list[str]


class Problems(Response):
    """The body of every response that is no success."""

    error: Problem
