"""A total of tokens, shared among questions so that they reach the most together, with a certified gap.

    maximise   sum_q w_q V_q(x_q)      subject to   sum_q c(x_q) <= T

with the selection program's value V_q of each question. One price of a token decides for all of them: the
bisection over it yields an allocation and, by Lagrangian duality, a bound on every other one. The gap is at
most what one question's next step is worth, so it vanishes as questions grow in number.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mio_rag.allocation.workload import (
    Decided,
    PricedQuestion,
    Told,
    Totals,
    Workload,
    usual_weight,
    workload_of,
)
from mio_rag.context import TokenCounter
from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting, plural
from mio_rag.formulations.rows import count_problem
from mio_rag.pool import Candidates
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.selection.solving import Choice, concluded
from mio_rag.solvers.many import solve_as_completed

_CLOSE = 1e-3
_DIGITS = 4
_STEEPER = 1.05
_LOWER = (0.95, 0.8, 0.5)  # prices just below the one found, as shares of it: each question's next steps
_AGAIN = 64  # questions that are solved again for exactly what is left, in one round
_ROUNDS = 20


@dataclass(frozen=True)
class PricePoint:
    """What a workload spends and reaches at one price, on average over its questions.

    mean_value: of the program, without the price of tokens; weighted where questions are.
    mean_bound: no allocation of that many tokens is worth more; infinite where a solver proves nothing.
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

    at: the price, and what is spent and reached there; never above `wanted`.
    below: the nearest price tried at which more is spent; None where even free tokens are not all spent.
    programs: that were solved: fewer than questions times prices, since neighbouring prices prove each other.
    curve: every price that was tried, by falling price.
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

    pools: one for each question: a sample of those that are to come.
    mean_tokens: above 0.
    selector: without a token price; by default ``Selector()``.
    ceilings: most tokens of any question, or of each; give the budget that the price will be used with.
    counter: the reader's tokenizer: text that passages share is then paid once, as where they are read.
    workers: threads that solve.
    progress: told one line for each price that is tried.

    The price has four digits, rounded up. Spending is a staircase: the next step may lie well below what was
    asked for where questions are few.

    Raises `InputError` for settings or pools that do not fit, or mean tokens below what must be chosen;
    `SolverError` if the solver broke.
    """
    if not (is_setting(mean_tokens) and 0 < mean_tokens <= 1e12):
        raise InputError(f"mean_tokens={mean_tokens!r} must be a number above 0, at most 1e12")
    workload = workload_of(
        pools, selector or Selector(), ceilings=ceilings, counter=counter, workers=workers, told=progress
    )
    found = workload.bracket(math.floor(mean_tokens * len(pools)), _CLOSE)
    low, at = found
    if low is not None:
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

    Raises `InputError` for a price below 0 or not finite, and as `price_for`.
    """
    if wrong := [price for price in token_prices if not is_setting(price)]:
        raise InputError(
            [f"token_price={price!r} must be a number from 0 to {LARGEST_SETTING:g}" for price in wrong]
        )
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


def filled(
    workload: Workload, selector: Selector, price: float, total_tokens: int, workers: int
) -> list[Decided]:
    """Return the decisions at a price, and steps from there with what is left of the total.

    price: one that was tried, and spends no more than the total.
    """
    questions, current = workload.questions, workload.decisions(price)
    left = total_tokens - sum(decided.tokens for decided in current)
    if price == 0:  # each has its best, whatever is left
        return current

    def is_over() -> bool:
        """Whether what is left is less than any passage that is not chosen."""
        return left < min(q.smallest_missing(one) for q, one in zip(questions, current, strict=True))

    for share in _LOWER:
        if is_over():
            return current
        workload.at(share * price)
        left = _stepped(questions, current, left, {})
    for _ in range(_ROUNDS):
        if is_over():
            break
        pairs = zip(questions, current, strict=True)
        gains = [max((gain for gain, _ in _better(one, q)), default=0.0) for q, one in pairs]
        again = sorted(range(len(current)), key=lambda k: -gains[k])[:_AGAIN]
        # The best of some questions within what they have and all that is left.
        budgets = {k: min(questions[k].ceiling, current[k].tokens + left) for k in again}
        tasks = (
            (k, questions[k].program(0.0, most)) for k, most in budgets.items() if most > current[k].tokens
        )
        more: dict[int, Decided] = {}
        for k, result in solve_as_completed(tasks, selector.solver, selector.options, workers=workers):
            workload.programs += 1
            more[k] = questions[k].decided(0.0, budgets[k], result)
        after = _stepped(questions, current, left, more)
        if after == left:
            break
        left = after
    return current


def _better(decided: Decided, question: PricedQuestion, *more: Decided) -> list[tuple[float, Decided]]:
    """Decisions that are worth more for more tokens, with the value of each token more."""
    return [
        ((other.value - decided.value) / max(other.tokens - decided.tokens, 1), other)
        for other in (*(probe.decided for probe in question.probes), *more)
        if other.x is not None and other.value > decided.value and other.tokens >= decided.tokens
    ]


def _stepped(
    questions: Sequence[PricedQuestion], current: list[Decided], left: int, more: Mapping[int, Decided]
) -> int:
    """Take steps while any fits, the best first; return what is left afterwards."""
    heap: list[tuple[float, int, int, int, Decided]] = []
    taken = [0] * len(current)  # steps of each question: those that lead on from an earlier decision are off
    serial = itertools.count()

    def push(k: int) -> None:
        for gain, other in _better(current[k], questions[k], *([more[k]] if k in more else ())):
            if other.tokens - current[k].tokens <= left:
                heapq.heappush(heap, (-gain, k, taken[k], next(serial), other))

    for k in range(len(current)):
        push(k)
    while heap:
        _, k, since, _, other = heapq.heappop(heap)
        step = other.tokens - current[k].tokens
        if since != taken[k] or step > left:
            continue
        left -= step
        current[k] = other
        taken[k] += 1
        push(k)
    return left


@dataclass(frozen=True, eq=False)
class Allocation:
    """A total of tokens, shared among questions.

    choices: what was decided for each question; `selections` adds the reasons.
    tokens: of each question: the assembled block where a counter was given, else the sum over its passages.
    token_price: mu: what one more token had to be worth; 0 where nothing had to be left out for its tokens.
    values: w_q V_q of each choice, recomputed from it. 0 where nothing is feasible.
    bound: no allocation of the total is worth more, where tokens are summed over passages and what they
        share. None where a solver proved nothing.
    programs: solved on the way.
    """

    choices: tuple[Choice, ...]
    tokens: tuple[int, ...]
    total_tokens: int
    token_price: float
    values: tuple[float, ...]
    bound: float | None
    programs: int
    notes: tuple[str, ...] = ()

    @cached_property
    def selections(self) -> tuple[Selection, ...]:
        """What each question reads, with reasons; the certificate is that of its own program at the price."""
        return tuple(concluded(choice) for choice in self.choices)

    @property
    def value(self) -> float:
        """What was reached: the sum of `values`."""
        return math.fsum(self.values)

    @property
    def tokens_used(self) -> int:
        """Of all questions."""
        return sum(self.tokens)

    @property
    def gap(self) -> float | None:
        """(bound - value) / |value|, at least 0; None without a bound, or where only the value is 0."""
        if self.bound is None:
            return None
        missing = max(0.0, self.bound - self.value)
        return 0.0 if missing == 0 else None if self.value == 0 else missing / abs(self.value)

    def explain(self) -> str:
        """A few lines for a person."""
        gap = "no bound was proven" if self.bound is None else f"none can exceed {self.bound:.6g}"
        if self.gap is not None:
            gap += f" (gap {self.gap:.3%})"
        lines = [
            f"{plural(len(self.choices), 'question')}, {self.tokens_used} of "
            f"{plural(self.total_tokens, 'token')}, price of a token {self.token_price:.4g}",
            f"value {self.value:.6g}; {gap}",
        ]
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the passages."""
        return {
            "questions": len(self.choices),
            "total_tokens": self.total_tokens,
            "tokens_used": self.tokens_used,
            "token_price": self.token_price,
            "value": self.value,
            "bound": self.bound,
            "gap": self.gap,
            "programs": self.programs,
            "notes": list(self.notes),
            "tokens": list(self.tokens),
            "values": list(self.values),
            "selected_ids": [[c.formulation.candidates.ids[i] for i in c.chosen] for c in self.choices],
        }


def allocate(
    pools: Sequence[Candidates],
    total_tokens: int,
    *,
    selector: Selector | None = None,
    weights: Sequence[float] | None = None,
    floors: int | Sequence[int] | None = None,
    ceilings: int | Sequence[int] | None = None,
    counter: TokenCounter | None = None,
    workers: int = 1,
    progress: Told | None = None,
) -> Allocation:
    """Share a total of tokens among questions so that their selections are worth the most together.

    pools: one for each question.
    total_tokens: T >= 1, of all questions together.
    selector: whose program is solved for each question; without a token price, by default ``Selector()``. Its
        time limit is one for each program.
    weights: what each question counts, from 1e-9 to 1e9; by default `usual_weight`: 1, over documents less
        where many units are alike.
    floors, ceilings: fewest and most tokens of any question, or of each. A question that cannot reach its
        floor is infeasible: it gets nothing, and its status says so.
    counter: the reader's tokenizer. Text that passages share is then paid once, and each assembled block
        keeps the tokens that its question was given, so that the total holds as counted.
    workers: threads that solve.
    progress: told one line for each price that is tried.

    Value, bound and gap are recomputed from the decisions.

    Raises `InputError` for weights, floors or ceilings of the wrong length or that contradict each other,
    empty pools, settings that do not fit, floors where passages share text, or a total below the shortest
    passage (of documents: unit) or what must be chosen; `SolverError` if the solver broke.
    """
    if problem := count_problem("total_tokens", total_tokens):
        raise InputError(problem)
    if total_tokens < 1:
        raise InputError(f"total_tokens={total_tokens} must be >= 1")
    total, chooser = int(total_tokens), selector or Selector()
    if weights is None:
        weights = [usual_weight(chooser, pool) for pool in pools]
    workload = workload_of(
        pools, chooser, weights=weights, floors=floors, ceilings=ceilings, counter=counter, most=total,
        workers=workers, told=progress,
    )  # fmt: skip
    offered = [question.candidates for question in workload.questions]
    shortest, unit = min((int(one.tokens.min()), one.unit) for one in offered)
    if total < shortest:
        raise InputError(
            f"total_tokens={total} is below the shortest {unit} of all questions, {shortest} tokens: "
            f"raise it{', or split passages' if unit == 'passage' else ''}"
        )
    price = workload.bracket(total)[1].price
    decided = filled(workload, chooser, price, total, workers)
    pairs = zip(workload.questions, decided, strict=True)
    choices = tuple(question.choice(one) for question, one in pairs)
    tokens = tuple(choice.used for choice in choices)
    if sum(tokens) > total:  # by construction it cannot be
        raise AssertionError(f"{sum(tokens)} tokens were allotted, of {total}")
    values = tuple(question.value_of(c) for question, c in zip(workload.questions, choices, strict=True))
    reached, bound = math.fsum(values), workload.bound(total)
    notes: tuple[str, ...] = ()
    if without := [k for k, choice in enumerate(choices) if choice.result.x is None]:
        named = ", ".join(map(str, without[:5])) + (", ..." if without[5:] else "")
        status = choices[without[0]].result.status.value.replace("_", " ")
        notes = (f"{plural(len(without), 'question')} without a selection ({named}): {status}",)
    certified = max(bound, reached) if math.isfinite(bound) else None
    return Allocation(choices, tokens, total, price, values, certified, workload.programs, notes)
