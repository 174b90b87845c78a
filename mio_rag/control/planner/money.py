"""What steps cost in dollars."""

from __future__ import annotations

from collections.abc import Iterable

from mio_rag.control.planner.settings import WorkflowSettings
from mio_rag.session.costs import Prices
from mio_rag.session.trace import Step

#: What costs may be counted in.
COSTS = ("tokens", "dollars")


def dollars(steps: Iterable[Step], settings: WorkflowSettings) -> float | None:
    """What the tokens of steps cost; None where a model that was asked has no price."""
    prices = Prices(settings.prices)
    each = [
        prices.of(step.model or "reader", call.prompt_tokens, call.completion_tokens)
        for step in steps
        for call in step.calls
    ]
    known = [price for price in each if price is not None]
    return sum(known) if settings.prices and len(known) == len(each) else None
