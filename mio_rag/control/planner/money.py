"""What steps cost, in tokens or in dollars."""

from __future__ import annotations

from collections.abc import Iterable

from mio_rag.control.costs import Prices
from mio_rag.control.planner.settings import WorkflowSettings
from mio_rag.control.planner.trace import PlanStep, PlanTrace
from mio_rag.errors import InputError

__all__ = ["COSTS", "asked_by_model", "dollars", "spent_on", "tokens_by_model"]

#: What costs may be counted in.
COSTS = ("tokens", "dollars")


def dollars(steps: Iterable[PlanStep], settings: WorkflowSettings) -> float | None:
    """What the tokens of steps cost; None where a model that was asked has no price."""
    prices = Prices(settings.prices)
    each = [
        prices.of(step.model or "reader", call.prompt_tokens, call.completion_tokens)
        for step in steps
        for call in step.calls
    ]
    known = [price for price in each if price is not None]
    return sum(known) if settings.prices and len(known) == len(each) else None


def tokens_by_model(steps: Iterable[PlanStep]) -> dict[str, tuple[int, int]]:
    """Tokens into and out of every model that steps asked; of whom they answer by it is "reader"."""
    found: dict[str, tuple[int, int]] = {}
    for step in steps:
        for call in step.calls:
            into, out = found.get(step.model or "reader", (0, 0))
            found[step.model or "reader"] = into + call.prompt_tokens, out + call.completion_tokens
    return found


def asked_by_model(trace: PlanTrace) -> dict[str, tuple[int, int]]:
    """The same of a whole question: the reader may also have been asked before and after the steps."""
    found = {name: both for name, both in tokens_by_model(trace.steps).items() if name != "reader"}
    into, out = (sum(getattr(call, f"{k}_tokens") for call in trace.calls) for k in ("prompt", "completion"))
    spent = [sum(both[side] for both in found.values()) for side in (0, 1)]
    return {"reader": (into - spent[0], out - spent[1]), **found}


def spent_on(steps: Iterable[PlanStep], cost: str, settings: WorkflowSettings) -> float:
    """What steps have cost, in that unit.

    Raises
    ------
    InputError
        For dollars without the price of a model that was asked.
    """
    if cost == "tokens":
        return float(sum(c.prompt_tokens + c.completion_tokens for step in steps for c in step.calls))
    found = dollars(steps, settings)
    if found is None:
        raise InputError("a model that was asked has no price: give --model-price for each, and for reader")
    return found
