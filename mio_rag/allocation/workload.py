"""A workload: questions that share tokens, solved at one price after the other, and the price in between.

For every price mu >= 0 the sum of phi_q(mu), and mu T, bounds what any allocation of T tokens can reach
(Lagrangian duality). What is spent falls as mu rises, so a bracket of two prices closes in on the total.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mio_rag.allocation.question import Decided, PricedQuestion, Probe, selector_problems
from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.errors import InputError, SolverError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting, plural
from mio_rag.formulations.rows import count_problem
from mio_rag.selection.selector import Selector
from mio_rag.solvers.capabilities import one_blas_thread
from mio_rag.solvers.many import batch_problems, solve_as_completed

__all__ = ["Bracket", "Told", "Totals", "Workload", "price_problems", "workload_of"]

#: Told in words what was found at each price.
Told = Callable[[str], None]

_ROUNDS = 100
_NAMED = 5
_LONG = 10**12  # tokens, beyond any pool
_SAME_PRICE = 1e-12
_PART, _ENOUGH = 8, 64  # a price is sought among every eighth question first, where so many are left
_PART_CLOSENESS = 0.01  # of that price
_STEPS, _STEP = 7, 1.02  # away from it, each the square of the one before


@dataclass(frozen=True)
class Totals:
    """What a workload spends and reaches at one price.

    Parameters
    ----------
    tokens : int
    value : float
        Sum of w V over the questions.
    relaxed : float
        Sum of the proven bounds on phi: with mu times a total, an upper bound on what that total can reach.
    """

    price: float
    tokens: int
    value: float
    relaxed: float

    def bound(self, total_tokens: int) -> float:
        """No allocation of so many tokens is worth more."""
        return self.relaxed + self.price * total_tokens


@dataclass(frozen=True)
class Bracket:
    """Two prices: at `low` more is spent than wanted, at `high` no more. `low` is None where 0 suffices."""

    low: Totals | None
    high: Totals


class Workload:
    """Questions under one price.

    Parameters
    ----------
    questions : sequence of PricedQuestion
    selector : Selector
        Whose solver and options are used; a time limit is one for each program.
    workers : int
        Threads.
    told : callable, optional
        Told one line for each price.
    """

    def __init__(
        self,
        questions: Sequence[PricedQuestion],
        selector: Selector,
        *,
        workers: int = 1,
        told: Told | None = None,
    ) -> None:
        self.questions = tuple(questions)
        self.programs = 0
        self.tried: dict[float, Totals] = {}
        self._selector, self._workers, self._told = selector, workers, told

    def at(self, price: float) -> Totals:
        """Every question solved at a price, those left out that are known there.

        Raises
        ------
        SolverError
            If the solver broke; it says on which question.
        """
        if price in self.tried:
            return self.tried[price]
        found: list[Probe | None] = [question.known(price) for question in self.questions]
        before = self.programs
        tasks = (
            (k, question.program(price)) for k, question in enumerate(self.questions) if found[k] is None
        )
        with one_blas_thread():  # once for all of them
            for k, result in solve_as_completed(
                tasks, self._selector.solver, self._selector.options, workers=self._workers
            ):
                self.programs += 1
                try:
                    found[k] = self.questions[k].learn(price, result)
                except SolverError as error:
                    raise SolverError(f"question {k}: {error}") from error
        probes = [probe for probe in found if probe is not None]
        totals = Totals(
            price,
            sum(probe.decided.tokens for probe in probes),
            math.fsum(probe.decided.value for probe in probes),
            math.fsum(probe.bound for probe in probes),
        )
        self.tried[price] = totals
        if self._told is not None:
            self._told(
                f"price {price:.6g}: {plural(totals.tokens, 'token')}, value {totals.value:.6g} "
                f"({plural(self.programs - before, 'program')} solved)"
            )
        return totals

    def decisions(self, price: float) -> list[Decided]:
        """The decision of each question at a price that was tried."""
        found = [question.known(price) for question in self.questions]
        return [probe.decided for probe in found if probe is not None]

    def bracket(self, total_tokens: int, closeness: float = 0.0, near: float | None = None) -> Bracket:
        """The prices next to the one at which so many tokens are spent.

        Parameters
        ----------
        closeness : float
            Stop where the prices differ by no more than this share.
        near : float, optional
            Where to look first: `roughly` finds it with fewer solves.

        Raises
        ------
        InputError
            If even the fewest tokens that the constraints allow are too many.
        """
        low, high = self._ends(total_tokens, near)
        if low is None:
            return Bracket(None, high)
        slopes = True
        for _ in range(_ROUNDS):
            if high.price <= low.price * (1 + max(closeness, _SAME_PRICE)):
                break
            middle = self._between(low, high, slopes)
            if middle is None:
                break
            at = self.at(middle)
            lines = low.value - middle * low.tokens
            reached = at.value - middle * at.tokens
            low, high = (low, at) if at.tokens <= total_tokens else (at, high)
            if slopes and closeness == 0 and reached <= lines + 1e-12 * max(1.0, abs(lines)):
                break  # nothing lies above the line through both ends: no price has a better bound
            slopes = not slopes
        return Bracket(low, high)

    def _ends(self, total_tokens: int, near: float | None) -> tuple[Totals | None, Totals]:
        """A price at which more is spent, None where not even 0 is, and one at which no more is."""
        if near:
            at, step = self.at(near), _STEP
            for _ in range(_STEPS):
                over = at.tokens > total_tokens
                other = self.at(at.price * step if over else at.price / step)
                if over != (other.tokens > total_tokens):
                    return (at, other) if over else (other, at)
                at, step = other, step**2
        free = self.at(0.0)
        if free.tokens <= total_tokens:
            return None, free
        steep = max(question.steep_price() for question in self.questions)
        high = self.at(1.01 * steep)
        if high.tokens > total_tokens:
            high = self.at(1.01 * max(question.forcing_price() for question in self.questions))
        if high.tokens > total_tokens:
            raise InputError(
                f"total_tokens={total_tokens} is too little: what must be chosen (must_include, "
                f"min_passages, floors) takes {high.tokens} tokens at least; raise it, or ask for less"
            )
        return free, high

    def roughly(self, total_tokens: int) -> float | None:
        """The price at which an eighth of the questions spends an eighth; None where that says nothing."""
        part = self.questions[::_PART]
        if len(part) < _ENOUGH:
            return None
        few = Workload(part, self._selector, workers=self._workers)
        try:
            found = few.bracket(total_tokens * len(part) // len(self.questions), _PART_CLOSENESS)
        except InputError:
            return None
        finally:
            self.programs += few.programs
        return found.high.price or None

    def _between(self, low: Totals, high: Totals, slopes: bool) -> float | None:
        """The price where both ends are worth the same, or the geometric middle; None where they are one."""
        if low.tokens == high.tokens:
            return None
        same = (low.value - high.value) / (low.tokens - high.tokens)
        inside = low.price < same < high.price
        if low.price > 0 and not (slopes and inside):
            middle = math.sqrt(low.price * high.price)
        elif inside:
            middle = same
        else:
            middle = 0.5 * (low.price + high.price)
        return middle if low.price < middle < high.price else None

    def bound(self, total_tokens: int) -> float:
        """The smallest proven bound of all prices tried."""
        return min(totals.bound(total_tokens) for totals in self.tried.values())


def workload_of(
    pools: Sequence[Candidates],
    selector: Selector,
    *,
    weights: Sequence[float] | None = None,
    floors: int | Sequence[int] | None = None,
    ceilings: int | Sequence[int] | None = None,
    counter: TokenCounter | None = None,
    most: int | None = None,
    workers: int = 1,
    told: Told | None = None,
) -> Workload:
    """The workload of pools, checked.

    Parameters
    ----------
    counter : TokenCounter, optional
        The reader's tokenizer: with it, text that passages share is paid once.
    most : int, optional
        Of any question, whatever its ceiling.

    Raises
    ------
    InputError
        With every problem found.
    """
    problems = [*selector_problems(selector), *batch_problems(workers, "threads")]
    if len(pools) == 0:
        raise InputError([*problems, "there are no pools: give one for each question"])
    count = len(pools)
    heavy = _weights(weights, count, problems)
    least = _counts("floors", floors, count, 0, problems)
    highest = _counts("ceilings", ceilings, count, None, problems)
    for k, (low, high) in enumerate(zip(least, highest, strict=True)):
        if low is not None and high is not None and low > high:
            problems.append(
                f"floors[{k}]={low} is above ceilings[{k}]={high}: lower the floor or raise the ceiling"
            )
            break
    if problems:
        raise InputError(problems)
    questions = []
    for k, pool in enumerate(pools):
        whole = int(pool.tokens.sum()) if len(pool) else 0
        if counter is not None and pool.spans is not None:
            whole = _LONG
        limits = [limit for limit in (highest[k], most, whole) if limit is not None]
        try:
            questions.append(
                PricedQuestion(selector, pool, heavy[k], int(least[k] or 0), max(1, min(limits)), counter)
            )
        except InputError as error:
            problems += [f"question {k}: {problem}" for problem in error.problems]
    if problems:
        raise InputError(problems if len(problems) <= _NAMED else [*problems[:_NAMED], _more(problems)])
    return Workload(questions, selector, workers=workers, told=told)


def price_problems(prices: Sequence[float]) -> list[str]:
    """What is wrong with prices of a token, in words."""
    return [
        f"token_price={price!r} must be a number from 0 to {LARGEST_SETTING:g}"
        for price in prices
        if not is_setting(price)
    ]


def _more(problems: Sequence[str]) -> str:
    return f"and {plural(len(problems) - _NAMED, 'problem')} more, of other questions"


def _weights(given: Sequence[float] | None, count: int, problems: list[str]) -> list[float]:
    if given is None:
        return [1.0] * count
    if len(given) != count:
        problems.append(f"weights has {len(given)} values, expected {count}: one for each question")
        return [1.0] * count
    for k, weight in enumerate(given):
        if not is_setting(weight) or not 1e-9 <= weight <= 1e9:
            problems.append(
                f"weights[{k}]={weight!r} must be a number from 1e-9 to 1e9: leave out what is worth nothing"
            )
            break
    return [float(weight) for weight in given] if not problems else [1.0] * count


def _counts(
    name: str, given: int | Sequence[int] | None, count: int, default: int | None, problems: list[str]
) -> Sequence[int | None]:
    if given is None:
        return [default] * count
    if isinstance(given, (int, float, np.number)):
        given = [given] * count
    if len(given) != count:
        problems.append(f"{name} has {len(given)} values, expected one, or {count}")
        return [default] * count
    for k, value in enumerate(given):
        problem = count_problem(f"{name}[{k}]", value)
        if problem is None and name == "ceilings" and value < 1:
            problem = f"ceilings[{k}]={value} must be >= 1: leave the question out instead"
        if problem:
            problems.append(problem)
            return [default] * count
    return [int(value) for value in given]
