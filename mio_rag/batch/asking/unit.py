"""What costs are counted in: tokens, or money."""

from __future__ import annotations

import math

from mio_rag.control.composed.parts import READER
from mio_rag.session.costs import Prices
from mio_rag.session.trace import Trace

__all__ = ["Unit"]

_NANO = 1e9  # dollars are counted in whole billionths, rounded up


class Unit:
    """Tokens, or billionths of a dollar, both as whole numbers.

    Parameters
    ----------
    prices : Prices
        By model, as a policy names them.
    dollars : bool
    """

    def __init__(self, prices: Prices, dollars: bool) -> None:
        self.prices, self.dollars = prices, dollars

    @property
    def name(self) -> str:
        """As summaries have it."""
        return "dollars" if self.dollars else "tokens"

    def of(self, model: str, into: int, out: int) -> int:
        """What tokens into and out of a model cost."""
        if not self.dollars:
            return into + out
        cost = self.prices.of(model, into, out)
        assert cost is not None
        return math.ceil(cost * _NANO)

    def spent(self, trace: Trace) -> int:
        """Of everything that a question took; steps name the models."""
        return sum(
            self.of(step.model or READER, call.prompt_tokens, call.completion_tokens)
            for step in trace.steps
            for call in step.calls
        )

    def most(self, into: int, out: int) -> int:
        """The most that so many tokens may cost, by whichever model."""
        return max((self.of(name, into, out) for name in self.prices.dollars), default=into + out)

    def given(self, total: float) -> int:
        """A total as it is counted."""
        return math.floor(total * _NANO) if self.dollars else int(total)

    def told(self, cost: int) -> float:
        """A cost as people read it."""
        return cost / _NANO if self.dollars else float(cost)
