"""What a day's questions are believed to take: a forecast that holds in whatever order they come.

Without one a pacer takes the questions that it has seen for the rule, which fails where a day begins with all
easy or all hard ones. With one it knows what the day takes as a whole, so that what was not spent at first is
not given away: it is still to come. But no day takes exactly what was forecast. So it is asked of what was
seen how well that fits questions in random order, of a day as days differ: by its mean, and by its trend. As
far as it fits, the day's own mean is learned from it; as far as it does not, the order is to blame, and the
forecast holds (`python -m benchmarks pacing` measures both).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mio_rag.formulations.numbers import is_setting

__all__ = ["Forecast", "forecast_problem"]

#: Tokens of a workload fall about with this power of the price, where evidence is what is read for.
_POWER = 0.55
#: The mean question of the rest takes at least and at most so many times that of the day.
_LEAST, _MOST = 0.5, 2.0
#: Standard deviations as shares of the mean: of days, of questions. (Those of the study's other questions.)
_DAYS, _QUESTIONS = 0.1, 1.0
#: How likely what was seen is in no random order, where the best fit of a random one is 1.
_SORTED = 0.011
#: How far from the forecast's price, as a factor, tokens are trusted to follow the power above.
_FAR = 2.0


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

    def price_for(self, effort: float, course: float, seen: int, coming: float, left: float) -> float:
        """The price at which what is left lasts for what is still to come.

        Parameters
        ----------
        effort, course : float
            Of the questions so far: their sum, and that of each times the number of those before it.
        seen : int
            How many these are.
        coming : float
            Questions of the window that are not settled, > 0.
        left : float
            Tokens that are not settled, >= 0.
        """
        each = self._rest(effort, course, seen, coming)
        each = min(max(each, _LEAST * self.mean_tokens), _MOST * self.mean_tokens)
        return float(self.price * (each * coming / max(left, 1.0)) ** (1 / _POWER))

    def _rest(self, effort: float, course: float, seen: int, coming: float) -> float:
        """What a question that is still to come takes in the mean."""
        mean = self.mean_tokens
        if seen == 0:
            return mean
        ratio, noise = effort / seen / mean, _QUESTIONS**2 / seen
        spread = _DAYS**2 + noise
        off = (ratio - 1) ** 2 / spread
        if seen > 1:
            slope = (course - (seen - 1) / 2 * effort) / mean
            off += slope**2 / (_QUESTIONS**2 * (seen**3 - seen) / 12)
        fit = math.exp(-off / 2)
        believed = fit / (fit + _SORTED)
        as_seen = mean * (_DAYS**2 * ratio + noise) / spread
        as_forecast = ((seen + coming) * mean - effort) / coming
        return believed * as_seen + (1 - believed) * as_forecast

    def near(self, told: float, before: float) -> float:
        """A price that was found so: beyond what is known of it, the last one, which follows the spending."""
        if told > _FAR * self.price:
            return max(before, _FAR * self.price)
        return told if told >= self.price / _FAR else min(before, self.price / _FAR)


def forecast_problem(price: Any, mean_tokens: Any) -> str | None:
    """What is wrong with a forecast, in words."""
    if not is_setting(mean_tokens) or not 0 < mean_tokens <= 1e12:
        return f"mean_tokens={mean_tokens!r} must be a number above 0, at most 1e12"
    if price is None or (is_setting(price) and price == 0):
        return "mean_tokens goes with the price at which questions take so many: give price > 0 as well"
    return None
