"""All selections of a small program, in extended precision: the truth that certificates are checked against.

Independent of the solvers: nothing is shared with them but the definition of a program. A selection whose
excess over a limit equals the feasibility tolerance to within rounding is neither clearly feasible nor
clearly not; so there are two optima, without and with such selections, nearly always the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations import SelectionProgram
from mio_rag.formulations.numbers import feasibility_tolerance, is_whole

Extended = NDArray[np.longdouble]

_ROUNDING = 1e-14  # of a sum, relative to the sizes of its terms


@dataclass(frozen=True)
class Truth:
    """What enumeration finds.

    least, most: optimum over what is clearly feasible, and with the doubtful selections too; -inf where there
        is none.
    size: sum of the absolute values of all terms of the objective: rounding is relative to it.
    largest: the largest of them.
    """

    least: float
    most: float
    size: float
    largest: float

    @property
    def feasible(self) -> bool:
        """Whether some selection is clearly feasible."""
        return self.least > -np.inf

    @property
    def doubtful(self) -> bool:
        """Whether rounding decides the optimum."""
        return self.least != self.most


def enumerate_all(program: SelectionProgram) -> Truth:
    """Objective and rows of every selection of the free items, by doubling: 2^n numbers a row."""
    assert program.fixed is not None
    free, inside = program.free, np.flatnonzero(program.fixed == 1)
    pairwise = program.pairwise.astype(np.longdouble)
    linear = program.linear.astype(np.longdouble)
    value = np.array([linear[inside].sum() - pairwise[np.ix_(inside, inside)].sum() / 2])
    for k, i in enumerate(free):
        gain = linear[i] - pairwise[i, inside].sum()
        value = np.concatenate([value, value + gain - _sums(pairwise[i, free[:k]])])
    once = np.zeros(value.size, dtype=np.longdouble)
    prices = np.zeros(0)
    if program.segments is not None:
        prices = program.segments.prices
        for s, used in _uses(program):
            once[used] += np.longdouble(program.segments.costs[s])
            value[used] -= np.longdouble(prices[s])
    sure = np.ones(value.size, dtype=bool)
    possible = sure.copy()
    for k, (row, upper) in enumerate(_limits(program)):
        activity = _sums(row[free], row[inside].astype(np.longdouble).sum())
        if k == 0:
            activity, row = activity + once, program.all_costs
        excess = activity - np.longdouble(upper) - np.longdouble(feasibility_tolerance(row, upper))
        # Sums of whole numbers have none.
        rounding = 0.0 if is_whole(row) else _ROUNDING * (float(np.abs(row).sum()) + abs(upper))
        sure &= excess <= -rounding
        possible &= excess <= rounding
    size = float(np.abs(program.linear).sum() + np.abs(program.pairwise).sum() / 2 + prices.sum())
    terms = (np.abs(program.linear), np.abs(program.pairwise), prices)
    largest = float(max(part.max(initial=0.0) for part in terms))
    return Truth(_largest(value[sure]), _largest(value[possible]), size, largest)


def _uses(program: SelectionProgram) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Each segment, and which selections of the free items pay for it."""
    assert program.segments is not None
    assert program.fixed is not None
    free = program.free
    codes = np.arange(1 << free.size)
    for s, users in enumerate(program.segments.needs.T):
        mask = int(sum(1 << k for k, i in enumerate(free) if users[i]))
        yield s, (codes & mask > 0) | bool(users[program.fixed == 1].any())


def _limits(program: SelectionProgram) -> list[tuple[NDArray[np.float64], float]]:
    """The budget, and then the rows, as  coefficients . x <= upper."""
    limits = [(program.costs, program.budget)]
    for row in program.rows:
        limits += [(sign * row.coefficients, sign * side) for sign, side in ((1, row.upper), (-1, row.lower))]
    return [(row, upper) for row, upper in limits if np.isfinite(upper)]


def _sums(terms: NDArray[Any], start: Any = 0) -> Extended:
    """Sums over all subsets; bit i of the index says whether term i is in."""
    sums = np.array([start], dtype=np.longdouble)
    for term in terms.astype(np.longdouble):
        sums = np.concatenate([sums, sums + term])
    return sums


def _largest(values: Extended) -> float:
    return float(values.max()) if values.size else -np.inf
