"""What a response says of who decided it: a policy, a planner, a refusal model."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Plan", "PolicyTold", "Refused", "Response"]


class Response(BaseModel):
    """What every part of a response is: nothing beside what it declares."""

    model_config = ConfigDict(extra="forbid")


class PolicyStepTold(Response):
    """One step of a question's way."""

    step: str = Field(description="node of the workflow, or decision of the policy")
    why: str = Field(description="what was done, and what it was worth at the price")
    tokens: int = Field(description="into and out of models")
    seconds: float
    complete: float | None = Field(description="probability that the evidence is complete, after it")


class PolicyTold(Response):
    """Under which policy a question was answered, and how."""

    name: str
    sha256: str = Field(description="of the policy, with everything that its files hold")
    token_price: float = Field(description="what a token had to add to the probability of the evidence")
    complete: float | None = Field(description="probability that the evidence is complete")
    workflow: str
    steps: list[PolicyStepTold]


class Refused(Response):
    """Whether the passages answer the question."""

    probability: float = Field(description="that they do not")
    threshold: float = Field(description="above which an answer is refused")
    refused: bool


class PlanStep(Response):
    """One executor of a workflow."""

    node: str = Field(description="its path in the workflow")
    executor: str
    gave: str
    note: str
    tokens: int = Field(description="with everything inside it")
    dropped: str | None = Field(description="why nothing of it was used")


class Plan(Response):
    """The workflow that a planner chose, and what came of it."""

    workflow: str
    worth: dict[str, float] = Field(description="what the planner saw in the workflows to choose from")
    fallback: str | None = Field(description="why the workflow itself gave no answer, where it gave none")
    steps: list[PlanStep]
