"""The trace of a question under a policy: every step in a sentence, with what it cost and at which price."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mio_rag.control.planner.trace import PlanStep, PlanTrace
from mio_rag.control.trace import Step, is_between

__all__ = ["PolicyStep", "PolicyTrace", "per_token", "share"]


def share(value: float, digits: int = 2) -> str:
    """A probability, or a difference of two, as sentences hold it: .21, +.21 is made of it, 1.00."""
    said = f"{value:.{digits}f}"
    return said.replace("0.", ".", 1) if abs(value) < 1 and said.lstrip("-").startswith("0.") else said


def per_token(price: float) -> str:
    """A price of a token, in four digits or as many as bring it within 2 %: .0005, .00015, .000020."""
    digits = 4 if price == 0 or price >= 1e-4 else 1 - math.floor(math.log10(price))
    # Whoever multiplies by it is to get the amount that is told beside it.
    while abs(round(price, digits) - price) > 0.02 * price:
        digits += 1
    return share(price, digits)


@dataclass(frozen=True, kw_only=True)
class PolicyStep(PlanStep):
    """One decision, or one node of the workflow.

    Parameters
    ----------
    why : str
        A sentence: what was done, and what it was worth at the price.
    complete : float or None
        Probability that the evidence is complete, after it; None where nothing was read by then.
    """

    why: str = ""
    complete: float | None = None


@dataclass(frozen=True, kw_only=True)
class PolicyTrace(PlanTrace):
    """All of one question.

    Parameters
    ----------
    token_price : float
        mu, as every controller saw it; 0 where the question was turned away before it had one.
    complete : float or None
        Probability that the evidence is complete, in the end.
    search : dict
        Where strategies search: id (by which a bandit is told a rating), strategies, why these, notes (who
        was left out), what their chooser says of them, and under found_by, of each passage read, strategy ->
        its rank there, 0 where only a link leads to it. Otherwise empty.
    wanted : int
        Tokens of what was worth reading, where fewer were allowed than the policy allows, and none of it had
        room in them, so that nothing was read; otherwise 0.
    """

    kind: ClassVar[str] = "policy"
    step_type: ClassVar[type[Step]] = PolicyStep

    steps: tuple[PolicyStep, ...]
    token_price: float = 0.0
    complete: float | None = None
    search: dict[str, Any] = field(default_factory=dict)
    wanted: int = 0

    def explain(self) -> str:
        """The question's way, a line for each step."""
        costs = self.by_node()
        lines = []
        for place, step in enumerate(self.steps, 1):
            call = costs[step.node]
            tokens = call.prompt_tokens + call.completion_tokens
            took = f" [{tokens} tokens]" if tokens else ""
            lines.append(f"{place}. {step.why}{took}")
        return "\n".join(lines)

    def columns(self) -> dict[str, Any]:
        """With the price, and the probability that the evidence is complete."""
        told = 0.0 if self.complete is None else self.complete
        return super().columns() | {"token_price": self.token_price, "complete": told}

    def problems(self) -> list[str]:
        """What no policy writes."""
        problems = super().problems()
        levels = [self.complete, *(step.complete for step in self.steps)]
        if not all(level is None or is_between(level, 0, 1) for level in levels):
            problems.append("a probability that the evidence is complete is not in [0, 1]")
        if not is_between(self.token_price, 0, 1e12):
            problems.append(f"token_price is {self.token_price!r}, not a number >= 0")
        if not isinstance(self.search, dict):
            problems.append("search is no object")
        if not all(isinstance(step.why, str) for step in self.steps):
            problems.append("why is no sentence")
        return problems
