"""What a day's questions are believed to take: a forecast that holds in whatever order they come.

Without one a pacer takes the questions that it has seen for the rule, which fails where a day begins with all
easy or all hard ones. With one it knows what the day takes as a whole, so that what was not spent at first is
not given away: it is still to come. Somebody says it, or the last window has shown it. But no day takes
exactly what was forecast. So it is asked of what was seen how well that fits questions in random order, of a
day as days differ: by its mean, and by its trend. As far as it fits, the day's own mean is learned from it;
as far as it does not, the order is to blame, and the forecast holds. `python -m benchmarks pacing` measures
both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mio_rag.formulations.numbers import is_setting

__all__ = ["Forecast", "forecast_problem"]

#: Tokens of a question are taken to fall with this power of its price. It is 1.2 where they are few (128 in
#: the mean), .3 where they are many (512).
_SPENT = 1.0
#: And the price moves as if it were this: one that moves too far spoils more than one that moves too little,
#: in any order of the study's other questions.
_CAUTION = 1.5
#: The mean question of the rest takes at least and at most so many times that of the day.
_LEAST, _MOST = 0.5, 2.0
#: Standard deviations as shares of the mean: of days; of questions, those of the study's other ones.
_DAYS, _QUESTIONS = 0.15, 1.0
#: So many questions of a window tell what the next one takes; the mean of fewer is off by more than days are.
_ENOUGH = 50
#: How likely what was seen is in no random order, where the best fit of a random one is 1.
_SORTED = 0.011
#: How far from the forecast's price, as a factor, tokens are trusted to follow the power above.
_FAR = 2.0
#: And how far from it a price counts in a window's mean: where nobody would read more, it falls to nearly 0.
_COUNTED = 8.0
#: Tokens of the mean question: beyond it, squares of what is seen could be infinite.
_SMALLEST = 1e-6


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

    @classmethod
    def learned(cls, reference: float, effort: float, questions: int, price: float) -> Forecast | None:
        """What a window has shown.

        Parameters
        ----------
        reference : float
            The price at which efforts were counted.
        effort : float
            Of its questions, their sum.
        questions : int
        price : float
            Its mean price, at which the next window begins.

        Returns
        -------
        Forecast or None
            None where so few questions tell too little, or spent nothing.
        """
        if questions < _ENOUGH or effort <= 0:
            return None
        return cls(price, effort / questions * _at_most(_FAR, reference / price) ** _SPENT)

    def effort(self, price: float, tokens: int, allowed: int) -> float:
        """What a question that spent `tokens` at `price` would have spent at the price of the forecast.

        Parameters
        ----------
        allowed : int
            Where so few were allowed that they may have been too few, it counts as a mean question at least.
        """
        share = _at_most(_FAR, price / self.price) ** _SPENT
        told, enough = float(tokens * share), _MOST * self.mean_tokens
        unlimited = allowed * share >= enough or allowed >= max(enough, 2 * tokens)
        return told if unlimited else max(told, self.mean_tokens)

    def counted(self, price: float) -> float:
        """The logarithm of a price, as it counts in the mean price of a window."""
        return math.log(self.price * _at_most(_COUNTED, price / self.price))

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
        return float(self.price * (each * coming / max(left, 1.0)) ** (1 / _CAUTION))

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


def _at_most(factor: float, ratio: float) -> float:
    """A ratio that is neither above a factor nor below one over it."""
    return min(max(ratio, 1 / factor), factor)


def forecast_problem(price: Any, mean_tokens: Any) -> str | None:
    """What is wrong with a forecast, in words."""
    if not is_setting(mean_tokens) or not _SMALLEST <= mean_tokens <= 1e12:
        return f"mean_tokens={mean_tokens!r} must be a number above 0: at least {_SMALLEST:g}, at most 1e12"
    if price is None or (is_setting(price) and price == 0):
        return "mean_tokens goes with the price at which questions take so many: give price > 0 as well"
    return None
