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
    """search.id or split.id of the response."""
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


# -- responses --------------------------------------------------------------------------------------------


class Response(BaseModel):
    """Base of responses: nothing but what is declared."""

    model_config = ConfigDict(extra="forbid")


def _response(name: str, about: str, /, base: Any = Response, **fields: Any) -> Any:
    """Make a class of responses.

    fields: name -> type, or (type, description, default); without a default it is required.
    """
    made = {}
    for key, given in fields.items():
        kind, text, default = (*given, ...)[:3] if isinstance(given, tuple) else (given, None, ...)
        made[key] = (kind, Field(default, description=text))
    return create_model(name, __base__=base, __doc__=about, **made)  # type: ignore[call-overload]


Reason: Any = _response(
    "Reason", "A candidate, selected or not, and why.",
    id=str, title=str, source=str, selected=bool, tokens=(int, "what it costs in a prompt"),
    relevance=float, value=(float, "what it adds to the others selected, or would add"),
    reason=(str, "why it is selected or not, in a sentence"),
    redundant_with=(str | None, "id of the selected passage that it repeats most"), text=str,
)  # fmt: skip
Part: Any = _response(
    "Part", "A text that is read, and where it comes from.",
    n=(int, "its number, from 1, in the order in which it is read"), source=str,
    date=(str | None, "of its document; null: unknown"),
    section=(list[str], "title and headings above it"), page=int | None,
    ids=(list[str], "passages that it is made of"), tokens=(int, "its share of all tokens"),
    probability=(float | None, "that it is needed; null: unknown"),
)  # fmt: skip
Place: Any = _response(
    "Place", "Where a passage, or a sentence of one, stands in a text that is read: characters [start, end).",
    id=str, start=int, end=int, page=(int | None, None, None), section=(list[str], None, []),
)  # fmt: skip
Read: Any = _response(
    "Read", "A text that is read, and where in it each passage stands.",
    title=str, source=str, text=str, parts=list[Place],
)  # fmt: skip
Note: Any = _response(
    "Note", "Something that a user should know.",
    code=str, text=str,
)  # fmt: skip
More: Any = _response(
    "More", "What more tokens buy at the same prices: `gain`, proven to lie between `low` and `high`.",
    more_tokens=int, tokens_used=int, gain=float | None, low=float | None, high=float | None,
    added=(list[str], "ids as in `passages`"), removed=list[str],
    unit_then=(Literal["passage", "sentence"], "what a request would select by itself"), certified=bool,
)  # fmt: skip
Search: Any = _response(
    "Search", "The search strategies, and which of them found what.",
    id=(str, "for /feedback; empty if nothing is learned"), strategies=list[str], why=(str, "why these"),
    prompt_tokens=(int, "that the strategies took"), completion_tokens=int,
    notes=(list[str], "strategies that were left out, and why"),
    found_by=(
        dict[str, dict[str, int]],
        "passage -> strategy -> rank; 0: only a link leads there; of /ask under a policy, passages that "
        "are read",
    ),
)  # fmt: skip
PolicyStep: Any = _response(
    "PolicyStep", "One step of a question under a policy.",
    step=(str, "node of the workflow, or decision of the policy"),
    why=(str, "what was done, and its value at the price"), tokens=(int, "into and out of models"),
    seconds=float, complete=(float | None, "probability that the evidence is complete, after it"),
)  # fmt: skip
PolicyReport: Any = _response(
    "PolicyReport", "The policy under which a question was answered, and its steps.",
    name=str, sha256=(str, "of the policy, with everything in its files"),
    token_price=(float, "minimum that a token had to add to the probability of evidence"),
    complete=(float | None, "probability that the evidence is complete"), workflow=str,
    steps=list[PolicyStep],
)  # fmt: skip
Refused: Any = _response(
    "Refused", "Whether the passages answer the question.",
    probability=(float, "that they do not"), threshold=(float, "above which an answer is refused"),
    refused=bool,
)  # fmt: skip
SplitReport: Any = _response(
    "SplitReport", "Which of two policies answered, where questions are shared between them.",
    id=(str, "for /feedback"), policy=str, share=(float, "of the questions that it answers"),
)  # fmt: skip
Cached: Any = _response(
    "Cached", "An answer that was given before.",
    question=(str, "that it was given to"), age_seconds=(float, "since it was given"),
)  # fmt: skip
Selected: Any = _response(
    "Selected", "What is read, and a proof that no other choice is worth more.",
    version=(int, "of this form"), question=str, context=(str, "what is read, as it stands in a prompt"),
    tokens=int, budget=(int | None, "null where a tier counts otherwise"),
    counter=(str, "what counted the tokens"),
    parts=(list[Part], "in prompt order; what passages share is read once"),
    read=(list[Read], "the texts of `parts`, in the same order"),
    answerable=(
        float | None,
        "estimate that the documents are about the question; weak where they nearly answer; null: unknown",
    ),
    units=(Literal["passages", "sentences"], "what was selected"), method=str | None,
    status=(
        Literal["optimal", "feasible", "infeasible", "no_solution", "ranked", "none"],
        "of the program; none: none was solved, since nothing was to be read",
    ),
    gap=(float | None, "proven: no selection is worth more than by this share"),
    seconds=(float, "that the solver took"), left_out=(int, "passages that were found and are not read"),
    notes=list[Note],
    reasons=(list[Reason] | None, "with `why`: every candidate, chosen ones first", None),
    certificate=(dict[str, Any] | None, "with `proof`: of the program", None),
    more=(More | None, "with more_tokens", None),
    dollars=(float | None, "in /select: price of the tokens that are read", None),
    search=(Search | None, "where strategies search", None),
)  # fmt: skip
Usage: Any = _response(
    "Usage", "What the reader took.",
    prompt_tokens=int, completion_tokens=int, seconds=float,
    dollars=(float | None, "where the reader has a price", None),
    estimated=(bool, "the endpoint reports no tokens of its answer: they are estimated", False),
)  # fmt: skip
Answered: Any = _response(
    "Answered", "An answer and what it was read from.", base=Selected,
    answer=(str, "blank if it is refused"),
    citations=(list[int], "numbers of `parts` that the answer cites or repeats"),
    model=(str, "reader that answered"), usage=Usage,
    refusal=(Refused | None, "where a refusal model judges answers", None),
    said=(str | None, "the reply of the reader, if it is refused", None),
    cached=(Cached | None, "where answers are stored: null for a new one; usage is that of its making", None),
    policy=(PolicyReport | None, "where a policy decides", None),
    split=(SplitReport | None, "where two policies share the questions", None),
)  # fmt: skip
Rated: Any = _response(
    "Rated", "Whether a rating counts: a question is rated once.",
    noted=bool,
)  # fmt: skip
Examples: Any = _response(
    "Examples", "Questions to begin with.",
    questions=list[str],
)  # fmt: skip
Limits: Any = _response(
    "Limits", "Limits on requests.",
    max_body_bytes=int, max_chat_bytes=int, max_question=(int, "characters"), max_pool=int,
    max_budget_tokens=int, max_answer_tokens=int, max_deadline_seconds=Seconds,
    concurrency=(int, "requests worked on at the same time, by each process"),
    queue=(int, "requests that may wait"), max_wait_seconds=Seconds,
)  # fmt: skip
PolicyState: Any = _response(
    "PolicyState", "The policy that serves now.",
    name=str, sha256=str, problem=(str | None, "why a change of its files is not in force"),
)  # fmt: skip
Health: Any = _response(
    "Health", "What this service serves.",
    status=Literal["ok"], version=str, index=str, passages=int,
    problem=(str | None, "why changed documents are not served", None),
    unread=(int, "files, or parts of them, that could not be read; the log names them", 0), embedder=str,
    sentences=(bool, "whether the index has vectors of its sentences"),
    units=(
        Literal["passages", "auto"],
        "default of `units`: auto; passages where a refusal model judges answers",
    ),
    generator=str, limits=Limits, policy=(PolicyState | None, "where a policy decides", None),
)  # fmt: skip
Problem: Any = _response(
    "Problem", "What went wrong, in words.",
    kind=str, message=(str, "the problems as one text"), problems=list[str],
    code=(str | None, "budget_spent, budget_held or model_not_found", None),
    window=(Literal["day", "week", "month"] | None, "that is spent", None),
    resets_at=(str | None, "when the window that blocks ends, in UTC", None),
)  # fmt: skip
Problems: Any = _response(
    "Problems", "The body of every response that is no success.",
    error=Problem,
)  # fmt: skip
