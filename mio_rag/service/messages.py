"""Requests and responses, as the OpenAPI page shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from mio_rag.service.limits import ServiceLimits

__all__ = ["Answered", "Health", "Problems", "Selected", "request_models"]

Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class _Request(BaseModel):
    """Settings that both endpoints share; see `Selector`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    redundancy_weight: Weight = Field(0.1, description="lambda_1: price of similarity between two passages")
    passage_penalty: Weight | Literal["auto"] = Field(
        "auto", description="lambda_2: what one more passage must be worth; auto: the pool's median relevance"
    )
    token_price: Weight = Field(0.0, description="lambda_3: what one more token must be worth")
    radius: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = Field(
        0.0, description="rho: how far each embedding may be off (l2)"
    )
    max_passages: Annotated[int, Field(ge=1, le=10_000)] | None = None
    max_per_source: Annotated[int, Field(ge=1, le=10_000)] | None = None


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


class Passage(BaseModel):
    """A candidate, in or out, and why."""

    id: str
    title: str
    source: str
    tokens: int
    relevance: float
    value: float
    selected: bool
    reason: str
    redundant_with: str | None
    text: str


class More(BaseModel):
    """What more tokens buy: `gain`, proven to lie between `low` and `high`."""

    more_tokens: int
    tokens_used: int
    gain: float | None
    low: float | None
    high: float | None
    added: list[str]
    removed: list[str]
    certified: bool


class Selected(BaseModel):
    """A selection and its certificate; the chosen passages first, in prompt order."""

    model_config = ConfigDict(extra="allow")

    question: str
    status: Literal["optimal", "feasible", "infeasible", "no_solution"]
    objective: float | None
    bound: float | None
    gap: float | None
    limit: str | None
    tokens_used: int
    budget_tokens: int
    passage_penalty: float
    selected_ids: list[str]
    passages: list[Passage]
    more: More | None = None


class Answered(Selected):
    """An answer and what it was read from."""

    answer: str
    generator: str
    prompt_tokens: int
    completion_tokens: int


class Health(BaseModel):
    """What this service serves."""

    status: Literal["ok"]
    version: str
    index: str
    passages: int
    embedder: str
    generator: str
    limits: dict[str, float]


class Problem(BaseModel):
    """What went wrong, in words."""

    kind: str
    problems: list[str]


class Problems(BaseModel):
    """The body of every response that is no success."""

    error: Problem
