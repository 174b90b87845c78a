"""What a day's questions are believed to take: a forecast that holds in whatever order they come.

Without one a pacer takes the questions that it has seen for the rule, which fails where a day begins with all
easy or all hard ones. With one it knows what the day takes as a whole, so that what was not spent at first is
not given away: it is still to come. That is better where questions come sorted, and worse where they are
others than those of the forecast (`python -m benchmarks pacing` measures both).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mio_rag.formulations.numbers import is_setting

__all__ = ["Forecast", "forecast_problem"]

#: Tokens of a workload fall about with this power of the price, where evidence is what is read for.
_POWER = 0.55
#: The mean question of the rest takes at least and at most so many times that of the day.
_LEAST, _MOST = 0.5, 2.0


@dataclass(frozen=True)
class Forecast:
    """Questions take so many tokens in the mean, at this price of a token.

    Parameters
    ----------
    price : float
        Above 0.
    mean_tokens : float
        Above 0: what `price_for` found, or the last window.
    """

    price: float
    mean_tokens: float

    def effort(self, price: float, tokens: int, allowed: int) -> float:
        """What a question that spent `tokens` at `price` would have spent at the price of the forecast.

        Parameters
        ----------
        allowed : int
            Where so few were allowed that they may have been too few, it counts as a mean question at least.
        """
        share = (price / self.price) ** _POWER
        told = float(tokens * share)
        return told if allowed * share >= _MOST * self.mean_tokens else max(told, self.mean_tokens)

    def price_for(self, effort: float, questions: float, coming: float, left: float) -> float:
        """The price at which what is left lasts for what is still to come.

        Parameters
        ----------
        effort : float
            Of all questions so far.
        questions, coming : float
            Of the whole window; of them those that are not settled, > 0.
        left : float
            Tokens that are not settled, >= 0.
        """
        each = (questions * self.mean_tokens - effort) / coming
        each = min(max(each, _LEAST * self.mean_tokens), _MOST * self.mean_tokens)
        return float(self.price * (each * coming / max(left, 1.0)) ** (1 / _POWER))


def forecast_problem(price: Any, mean_tokens: Any) -> str | None:
    """What is wrong with a forecast, in words."""
    if not is_setting(mean_tokens) or not 0 < mean_tokens <= 1e12:
        return f"mean_tokens={mean_tokens!r} must be a number above 0, at most 1e12"
    if price is None or (is_setting(price) and price == 0):
        return "mean_tokens goes with the price at which questions take so many: give price > 0 as well"
    return None
