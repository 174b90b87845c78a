"""All selections of a small program, in twice the precision of float64: the truth of certificates.

Independent of the solvers and of the program's own functions: only its data and the written definition are
used. Sums are pairs of floats (106 bits, by Knuth's exact sum), so that numbers of 1e-12 to 1e12 add up
without error; `exactly` repeats it all in fractions. A selection whose excess over a limit equals the
feasibility tolerance to within rounding is neither clearly feasible nor clearly not; so there are two optima,
without and with such selections, nearly always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations import SelectionProgram

_Function = TypeVar("_Function", bound=Callable[..., object])
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_ROUNDING = 1e-14  # of a sum, relative to the sizes of its terms


def _compiled(function: _Function) -> _Function:
    return cast(_Function, numba.njit(cache=True)(function))


@dataclass(frozen=True, eq=False)
class Truth:
    """What enumeration finds; arrays are over the subsets of the free items, by their bits.

    value, cost: objective and total cost.
    sure, possible: whether it is feasible, clearly or at all.
    within: whether it keeps all rows, whatever it costs.
    size: sum of the absolute values of all terms of the objective: rounding is relative to it.
    largest: the largest of them.
    """

    free: NDArray[np.int64]
    value: Floats
    cost: Floats
    sure: Bools
    possible: Bools
    within: Bools
    size: float
    largest: float

    @cached_property
    def least(self) -> float:
        """Optimum over what is clearly feasible; -inf where nothing is."""
        return float(np.max(self.value, where=self.sure, initial=-np.inf))

    @cached_property
    def most(self) -> float:
        """Optimum with the doubtful selections too."""
        return float(np.max(self.value, where=self.possible, initial=-np.inf))

    @property
    def feasible(self) -> bool:
        """Whether some selection is clearly feasible."""
        return self.least > -np.inf

    @property
    def doubtful(self) -> bool:
        """Whether rounding decides the optimum."""
        return self.least != self.most

    def place(self, x: NDArray[Any]) -> int:
        """Index of a 0/1 vector of all items."""
        return int((1 << np.arange(self.free.size)) @ (np.asarray(x)[self.free] > 0.5))


def enumerate_all(program: SelectionProgram) -> Truth:
    """Objective, cost and rows of every selection of the free items."""
    assert program.fixed is not None
    fixed, shared = np.asarray(program.fixed), program.segments
    free, inside = np.flatnonzero(fixed < 0), np.flatnonzero(fixed == 1)
    none = np.zeros(0)
    needs = np.zeros((program.n, 0), dtype=np.bool_) if shared is None else shared.needs
    costs, prices = (none, none) if shared is None else (shared.costs, shared.prices)
    rows = np.array([r.coefficients for r in program.rows]).reshape(len(program.rows), program.n)
    sides = np.array([(r.lower, r.upper) for r in program.rows]).reshape(len(program.rows), 2)
    given = program.linear, program.pairwise, program.costs, needs, costs, prices
    copies = (one.copy() for one in given)  # one type for all: writable
    arguments: Any = (free, inside, *copies, program.budget, rows, sides)
    return Truth(free, *_all(*arguments))


@_compiled
def _add(high: Floats, low: Floats, term: float, k: int, to: int) -> None:
    """Add a term to sum k, and write it to place `to`."""
    total = high[k] + term
    other = total - high[k]
    error = (high[k] - (total - other)) + (term - other) + low[k]
    high[to] = total + error
    low[to] = error - (high[to] - total)


@_compiled
def _sums(start: Floats, terms: Floats, high: Floats, low: Floats) -> None:
    """Sums of `start` and every subset of the terms, by bits."""
    high[0] = low[0] = 0.0
    for term in start:
        _add(high, low, term, 0, 0)
    for k in range(terms.size):
        for s in range(1 << k):
            _add(high, low, terms[k], s, s | (1 << k))


@_compiled
def _judge(terms: Floats, upper: float, high: Floats, low: Floats, sure: Bools, possible: Bools) -> None:
    """Take out what exceeds a limit: for whole numbers by its rounding, for others by the tolerance."""
    if upper == np.inf:
        return
    size, largest, total, whole, up, down = abs(upper), 0.0, abs(upper), True, False, False
    for term in terms:
        largest = max(largest, abs(term))
        total += abs(term)
        whole &= term == np.floor(term)
        up |= term > 0
        down |= term < 0
    if up and down:
        size = max(size, largest)
    tolerance = 1e-12 * size
    if not whole:
        tolerance = max(1e-6 * min(1.0, size), tolerance)
    rounding = 0.0 if whole and upper == np.floor(upper) and tolerance < 0.5 else _ROUNDING * total
    for s in range(high.size):
        excess = ((high[s] - upper) + low[s]) - tolerance
        sure[s] &= excess <= -rounding
        possible[s] &= excess <= rounding


@_compiled
def _all(
    free: NDArray[np.int64], inside: NDArray[np.int64], linear: Floats, pairwise: Floats, costs: Floats,
    needs: Bools, once: Floats, prices: Floats, budget: float, rows: Floats, sides: Floats,
) -> tuple[Floats, Floats, Bools, Bools, Bools, float, float]:  # fmt: skip
    count = 1 << free.size
    value, rest, gain, left = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count)
    for a in range(inside.size):
        _add(value, rest, linear[inside[a]], 0, 0)
        for b in range(a):
            _add(value, rest, -pairwise[inside[a], inside[b]], 0, 0)
    for k in range(free.size):
        i, half = free[k], 1 << k
        start = np.append(-pairwise[i, inside], linear[i])
        _sums(start, -pairwise[i, free[:k]], gain[:half], left[:half])
        for s in range(half):
            _add(value, rest, gain[s], s, s | half)
            _add(value, rest, left[s], s | half, s | half)
    sure, possible = np.ones(count, np.bool_), np.ones(count, np.bool_)
    for r in range(rows.shape[0]):
        for sign, side in ((1.0, sides[r, 1]), (-1.0, -sides[r, 0])):
            if side < np.inf:
                row = sign * rows[r]
                _sums(row[inside], row[free], gain, left)
                _judge(row, side, gain, left, sure, possible)
    within = sure.copy()
    _sums(costs[inside], costs[free], gain, left)
    for t in range(once.size):
        users = 0
        for k in range(free.size):
            users |= int(needs[free[k], t]) << k
        paid = needs[inside, t].any()
        for s in range(count):
            if paid or s & users:
                _add(gain, left, once[t], s, s)
                _add(value, rest, -prices[t], s, s)
    _judge(np.append(costs, once), budget, gain, left, sure, possible)
    size, largest = np.abs(linear).sum() + np.abs(pairwise).sum() / 2 + prices.sum(), 0.0
    for number in np.concatenate((linear, pairwise.ravel(), prices)):
        largest = max(largest, abs(number))
    return value, gain, sure, possible, within, size, largest


def exactly(program: SelectionProgram) -> tuple[list[Fraction], list[Fraction]]:
    """Objective and total cost of every selection of the free items, in fractions and without shortcuts."""
    data = program.to_dict()
    linear, costs = ([Fraction(v) for v in data[name]] for name in ("linear", "costs"))
    pairs = [[Fraction(v) for v in row] for row in data["pairwise"]]
    fixed = data.get("fixed") or [None] * program.n
    shared = data.get("segments") or {"costs": [], "needs": [[]] * program.n}
    prices = [Fraction(v) for v in shared.get("prices", [0.0] * len(shared["costs"]))]
    free = [i for i in range(program.n) if fixed[i] is None]
    values, totals = list[Fraction](), list[Fraction]()
    for code in range(1 << len(free)):
        chosen = [i for i in range(program.n) if fixed[i] == 1 or (i in free and code >> free.index(i) & 1)]
        paid = {s for i in chosen for s in shared["needs"][i]}
        values.append(
            sum((linear[i] for i in chosen), Fraction(0))
            - sum(pairs[i][j] for i in chosen for j in chosen if i < j)
            - sum(prices[s] for s in paid)
        )
        totals.append(
            sum((costs[i] for i in chosen), Fraction(0)) + sum(Fraction(shared["costs"][s]) for s in paid)
        )
    return values, totals
