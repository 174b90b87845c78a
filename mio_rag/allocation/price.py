"""The price of a token at which a workload spends so many, and what it spends and reaches at given prices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mio_rag.allocation.workload import Told, Totals, Workload, price_problems, workload_of
from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.errors import InputError
from mio_rag.selection.selector import Selector

__all__ = ["PricePoint", "WorkloadPrice", "at_prices", "price_for"]

_CLOSE = 1e-3
_DIGITS = 4
_STEEPER = 1.05


@dataclass(frozen=True)
class PricePoint:
    """What a workload spends and reaches at one price, in the mean of its questions.

    Parameters
    ----------
    token_price : float
        lambda_3, in units of relevance per token.
    mean_tokens, mean_value : float
        The value is the program's, without the price of tokens; weighted where questions are.
    mean_bound : float
        No allocation of that many tokens is worth more in the mean; infinite where a solver proves nothing.
    """

    token_price: float
    mean_tokens: float
    mean_value: float
    mean_bound: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        known = math.isfinite(self.mean_bound)
        return {**dataclasses.asdict(self), "mean_bound": self.mean_bound if known else None}


@dataclass(frozen=True)
class WorkloadPrice:
    """The price at which a workload spends at most so many tokens in the mean.

    Parameters
    ----------
    wanted : float
        Mean tokens that were asked for.
    at : PricePoint
        The price, and what is spent and reached there; never above what was asked for.
    below : PricePoint or None
        The nearest price tried at which more is spent; None where even free tokens are not all spent.
    questions, programs : int
        Solved programs are fewer than questions times prices: neighbouring prices prove each other.
    curve : tuple of PricePoint
        Every price that was tried, by falling price.
    """

    wanted: float
    at: PricePoint
    below: PricePoint | None
    questions: int
    programs: int
    curve: tuple[PricePoint, ...] = ()

    @property
    def token_price(self) -> float:
        """lambda_3."""
        return self.at.token_price

    def explain(self) -> str:
        """One line for a person."""
        text = (
            f"token_price {self.token_price:.4g}: {self.at.mean_tokens:.1f} tokens in the mean of "
            f"{self.questions} questions, value {self.at.mean_value:.4g}"
        )
        if self.below is None:
            return f"{text}; no more is spent at any price, so nothing has to be charged for tokens"
        return (
            f"{text}; the next lower price, {self.below.token_price:.4g}, would spend "
            f"{self.below.mean_tokens:.1f} of the {self.wanted:g} wanted"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "wanted_mean_tokens": self.wanted,
            **self.at.to_dict(),
            "below": None if self.below is None else self.below.to_dict(),
            "questions": self.questions,
            "programs": self.programs,
            "curve": [point.to_dict() for point in self.curve],
        }


def price_for(
    pools: Sequence[Candidates],
    mean_tokens: float,
    *,
    selector: Selector | None = None,
    ceilings: int | Sequence[int] | None = None,
    counter: TokenCounter | None = None,
    workers: int = 1,
    progress: Told | None = None,
) -> WorkloadPrice:
    """The price of a token at which these questions spend so many in the mean.

    Parameters
    ----------
    pools : sequence of Candidates
        One for each question: a sample of those that are to come.
    mean_tokens : float
        Above 0.
    selector : Selector, optional
        Without a token price; by default ``Selector()``.
    ceilings : int or sequence of int, optional
        Most tokens of any question, or of each; give the budget that the price will be used with.
    counter : TokenCounter, optional
        The reader's tokenizer: text that passages share is then paid once, as where they are read.
    workers : int
        Threads that solve.
    progress : callable, optional
        Told one line for each price that is tried.

    Returns
    -------
    WorkloadPrice
        The price has four digits, rounded up. Spending is a staircase: the next step may lie well below what
        was asked for where questions are few.

    Raises
    ------
    InputError
        For settings or pools that do not fit, or mean tokens below what must be chosen.
    SolverError
        If the solver broke.
    """
    if not (
        isinstance(mean_tokens, (int, float))
        and not isinstance(mean_tokens, bool)
        and 0 < mean_tokens <= 1e12
    ):
        raise InputError(f"mean_tokens={mean_tokens!r} must be a number above 0, at most 1e12")
    workload = workload_of(
        pools, selector or Selector(), ceilings=ceilings, counter=counter, workers=workers, told=progress
    )
    found = workload.bracket(math.floor(mean_tokens * len(pools)), _CLOSE)
    at = found.high
    if found.low is not None:
        at = workload.at(_rounded_up(at.price))
        while at.tokens > mean_tokens * len(pools):  # where a limit stopped solves short of a proof
            at = workload.at(_rounded_up(_STEEPER * at.price))
    below = [t for t in workload.tried.values() if t.tokens > mean_tokens * len(pools)]
    nearest = max(below, key=lambda t: t.price, default=None)
    return WorkloadPrice(
        float(mean_tokens),
        _point(workload, at),
        None if nearest is None else _point(workload, nearest),
        len(pools),
        workload.programs,
        tuple(_point(workload, t) for t in sorted(workload.tried.values(), key=lambda t: -t.price)),
    )


def at_prices(
    pools: Sequence[Candidates],
    token_prices: Sequence[float],
    *,
    selector: Selector | None = None,
    ceilings: int | Sequence[int] | None = None,
    counter: TokenCounter | None = None,
    workers: int = 1,
    progress: Told | None = None,
) -> list[PricePoint]:
    """What questions spend and reach at each of these prices; parameters as in `price_for`.

    Raises
    ------
    InputError
        For a price below 0 or not finite, and as `price_for`.
    """
    if problems := price_problems(token_prices):
        raise InputError(problems)
    workload = workload_of(
        pools, selector or Selector(), ceilings=ceilings, counter=counter, workers=workers, told=progress
    )
    return [_point(workload, workload.at(float(price))) for price in token_prices]


def _point(workload: Workload, totals: Totals) -> PricePoint:
    count = len(workload.questions)
    bound = totals.bound(totals.tokens)
    return PricePoint(totals.price, totals.tokens / count, totals.value / count, bound / count)


def _rounded_up(price: float) -> float:
    """To four digits, never below."""
    exponent = math.floor(math.log10(price)) - _DIGITS + 1
    digits = math.ceil(round(price / 10.0**exponent, 6))
    rounded = float(f"{digits}e{exponent}")
    return rounded if rounded >= price else float(f"{digits + 1}e{exponent}")
