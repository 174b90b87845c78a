"""Requests and responses, as the OpenAPI page shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from mio_rag.defaults import DEFAULTS
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
    radius: Annotated[float, Field(ge=0, le=2)] | None = None
    """rho: how far each embedding may be off (l2); null: as the policy says."""
    max_passages: Number | None = None
    """Largest number of passages; null: as the policy says."""
    max_per_source: Number | None = None
    """Largest number of passages from one source; null: as the policy says."""
    merge: bool | None = None
    """Read passages of one document as one text, overlaps once; null: as the policy says."""
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
    longest = Annotated[int, Field(ge=1, le=limits.max_answer_tokens)]
    question = Annotated[str, Field(min_length=1, max_length=limits.max_question)]
    pool = Annotated[int, Field(ge=1, le=limits.max_pool)]
    seconds = Annotated[float, Field(gt=0, le=limits.max_deadline_seconds)]
    usual = min(2.0, limits.max_deadline_seconds)
    size, length = f"largest context; null: {DEFAULTS.budget}", f"longest answer; null: {DEFAULTS.answer}"
    until = "from the arrival of the request; then the best selection found so far is returned, with its "
    #: name -> type, default, description
    common: dict[str, tuple[Any, Any, str]] = {
        "question": (question, ..., "the question"),
        "budget_tokens": (budget | None, None, f"{size}, or as the policy says"),
        "pool": (pool | None, None, "number of candidates to retrieve; null: as the policy says"),
        "where": (
            str | tuple[str, ...] | dict[str, Any] | None, None,
            "only passages that meet this: 'date>=2026-01-01', or key -> value",
        ),
        "model": (str, "", "POLICY/READER, or a reader; see /v1/models"),
        "why": (bool, False, "also the reasons for every candidate"),
        "proof": (bool, False, "also the certificate"),
        "deadline_seconds": (seconds, usual, f"{until}certified gap"),
    }  # fmt: skip
    more = "also report the gain from this many more tokens"
    stream = "answer as server-sent events: text while it is written, then done"
    own: dict[str, dict[str, tuple[Any, Any, str]]] = {
        "select": {"more_tokens": (budget | None, None, more)},
        "ask": {
            "max_tokens": (longest | None, None, f"{length}, or as the policy says"),
            "stream": (bool, False, stream),
        },
    }

    def made(path: str) -> type[Settings]:
        fields = {
            name: (kind, Field(default, description=text))
            for name, (kind, default, text) in {**common, **own[path]}.items()
        }
        return create_model(f"{path.title()}Request", __base__=_Request, **fields)  # type: ignore[call-overload, no-any-return]

    return {f"/{path}": made(path) for path in own}


# -- parts of responses -----------------------------------------------------------------------------------


class Response(BaseModel):
    """Base of responses: nothing but what is declared."""

    model_config = ConfigDict(extra="forbid")


class Reason(Response):
    """A candidate, selected or not, and why."""

    id: str
    title: str
    source: str
    selected: bool
    tokens: int = Field(description="what it costs in a prompt")
    relevance: float
    value: float = Field(description="what it adds to the others selected, or would add")
    reason: str = Field(description="why it is selected or not, in a sentence")
    redundant_with: str | None = Field(description="id of the selected passage that it repeats most")
    text: str


class Part(Response):
    """A text that is read, and where it comes from."""

    n: int = Field(description="its number, from 1, in the order in which it is read")
    source: str
    section: list[str] = Field(description="title and headings above it")
    page: int | None
    ids: list[str] = Field(description="passages that it is made of")
    tokens: int = Field(description="its share of all tokens")
    probability: float | None = Field(description="that it is needed; null: unknown")


class Place(Response):
    """Where a passage, or a sentence of one, stands in a text that is read: characters [start, end)."""

    id: str
    start: int
    end: int
    page: int | None = None
    section: list[str] = []


class Read(Response):
    """A text that is read, and where in it each passage stands."""

    title: str
    source: str
    text: str
    parts: list[Place]


class Note(Response):
    """Something that a user should know."""

    code: str
    text: str


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


class Cached(Response):
    """An answer that was given before."""

    question: str = Field(description="that it was given to")
    age_seconds: float = Field(description="since it was given")


# -- responses --------------------------------------------------------------------------------------------


class Selected(Response):
    """What is read, and a proof that no other choice is worth more."""

    version: int = Field(description="of this form")
    question: str
    context: str = Field(description="what is read, as it stands in a prompt")
    tokens: int
    budget: int | None = Field(description="null where a tier counts otherwise")
    counter: str = Field(description="what counted the tokens")
    parts: list[Part] = Field(description="in prompt order; what passages share is read once")
    read: list[Read] = Field(description="the texts of `parts`, in the same order")
    answerable: float | None = Field(
        description="probability that the documents have an answer at all; null: unknown"
    )
    units: Literal["passages", "sentences"] = Field(description="what was selected")
    method: str | None
    status: Literal["optimal", "feasible", "infeasible", "no_solution", "ranked", "none"] = Field(
        description="of the program; none: none was solved, since nothing was to be read"
    )
    gap: float | None = Field(description="proven: no selection is worth more than by this share")
    seconds: float = Field(description="that the solver took")
    left_out: int = Field(description="passages that were found and are not read")
    notes: list[Note]
    reasons: list[Reason] | None = Field(None, description="with `why`: every candidate, chosen ones first")
    certificate: dict[str, Any] | None = Field(None, description="with `proof`: of the program")
    more: More | None = Field(None, description="with more_tokens")
    dollars: float | None = Field(None, description="in /select: price of the tokens that are read")
    search: Search | None = Field(None, description="where strategies search")


class Usage(Response):
    """What the reader took."""

    prompt_tokens: int
    completion_tokens: int
    seconds: float
    dollars: float | None = Field(None, description="where the reader has a price")


class Answered(Selected):
    """An answer and what it was read from."""

    answer: str = Field(description="blank if it is refused")
    citations: list[int] = Field(description="numbers of `parts` that the answer cites or repeats")
    model: str = Field(description="reader that answered")
    usage: Usage
    refusal: Refused | None = Field(None, description="where a refusal model judges answers")
    said: str | None = Field(None, description="the reply of the reader, if it is refused")
    cached: Cached | None = Field(
        None, description="where answers are stored: null for a new one; usage is that of its making"
    )
    policy: PolicyReport | None = Field(None, description="where a policy decides")


class Rated(Response):
    """Whether a rating counts: a question is rated once."""

    noted: bool


class Examples(Response):
    """Questions to begin with."""

    questions: list[str]


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
    problem: str | None = Field(None, description="why changed documents are not served")
    unread: int = Field(0, description="files, or parts of them, that could not be read; the log names them")
    embedder: str
    sentences: bool = Field(description="whether the index has vectors of its sentences")
    units: Literal["passages", "auto"] = Field(
        description="default of `units`: auto; passages where a refusal model judges answers"
    )
    generator: str
    limits: Limits
    policy: PolicyState | None = Field(None, description="where a policy decides")


class Problem(Response):
    """What went wrong, in words."""

    kind: str
    message: str = Field(description="the problems as one text")
    problems: list[str]
    code: str | None = Field(None, description="budget_spent or model_not_found")
    window: Literal["day", "week", "month"] | None = Field(None, description="that is spent")
    resets_at: str | None = Field(None, description="when the window that blocks ends, in UTC")


class Problems(Response):
    """The body of every response that is no success."""

    error: Problem
