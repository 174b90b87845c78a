"""A program on the scale that general solvers work on: their tolerances are absolute, ours are not.

Values are divided by a power of two, so that the largest coefficient is between 1 and 2: nothing is rounded.
So are rows of small fractions, and rows of far larger numbers. Rows of whole numbers get whole bounds, since
a solver may overstep a bound by its tolerance. A penalty beyond all that could be gained only says what not
to choose; it is cut down to that, so that next to it values are not lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.program import LinearConstraint, SelectionProgram, is_whole
from mio_rag.solvers.result import SolveOptions, absolute_tolerance

__all__ = ["Scaled", "scaled", "within_reach", "without_giants"]

FloatArray = NDArray[np.float64]

_LARGEST = 2.0**24  # coefficient of a row
_BEYOND = 1.01  # times what could be gained


@dataclass(frozen=True, eq=False)
class Scaled:
    """A scaled program with the same items and the same best selections.

    Parameters
    ----------
    given : SelectionProgram
    program : SelectionProgram
        What is fixed counts for nothing in its objective.
    factor, offset : float
        objective of `given` = factor * objective of `program` + offset.
    absolute_gap : float
        Largest bound - objective of `program` that counts as optimal.
    contradiction : bool
        Whether a row alone excludes every selection: `program` is then without it.
    """

    given: SelectionProgram
    program: SelectionProgram
    factor: float
    offset: float
    absolute_gap: float
    contradiction: bool

    def bound(self, bound: float, options: SolveOptions, x: NDArray[np.int8] | None) -> tuple[float, bool]:
        """A bound of `program` as one of `given`, and whether floating point proves no more.

        A general solver does not see what is 1e-12 of the largest number. Where the tolerance is below that,
        and the bound below what was found, it is raised by 1e-9 of the largest number, so that it holds.
        """
        value = self.factor * bound + self.offset
        objective = value if x is None else self.given.objective(x)
        tolerance = options.tolerance(objective, self.given.value_scale)
        if tolerance < 1e-12 * self.factor and value < objective:
            return value + 1e-9 * self.factor, True
        return value, value - objective > tolerance


def scaled(program: SelectionProgram) -> Scaled:
    """The program on a scale of about 1."""
    linear, pairwise, offset = within_reach(program)
    factor = _power_of_two(max(_largest(linear), _largest(pairwise)))
    spend = _row(LinearConstraint(program.costs, upper=program.budget))
    rows = [_row(row) for row in program.rows]
    kept = tuple(row for row in rows if row is not None)
    budget = LinearConstraint(np.zeros(program.n), upper=0.0) if spend is None else spend
    return Scaled(
        program,
        SelectionProgram(
            linear / factor, pairwise / factor, budget.coefficients, budget.upper, kept, program.fixed
        ),
        factor,
        offset,
        absolute_tolerance(program.value_scale) / factor,
        spend is None or len(kept) < len(rows),
    )


def within_reach(program: SelectionProgram) -> tuple[FloatArray, FloatArray, float]:
    """Values and pairs of what is free, and the objective of what is fixed to be in.

    Gains that do not fit the budget are left out, and penalties cut down to a little more than all gains
    together: whoever pays one is then still below the fixed items alone, where these are feasible.
    """
    assert program.fixed is not None
    room = program.most_cost
    free, inside = program.fixed < 0, program.fixed == 1
    linear, pairwise = program.linear, program.pairwise
    if not free.all():
        linear = np.where(free, linear - pairwise[:, inside].sum(axis=1), 0.0)
        pairwise = np.where(np.logical_and.outer(free, free), pairwise, 0.0)
    linear = np.where((linear > 0) & (program.costs > room), 0.0, linear)
    if float(pairwise.min(initial=0.0)) < 0:
        pairwise = np.where(
            (pairwise < 0) & (np.add.outer(program.costs, program.costs) > room), 0.0, pairwise
        )
    offset = program.objective(inside)
    if program.violations(inside):
        return linear, pairwise, offset
    gains = float(np.maximum(linear, 0).sum() + np.maximum(np.triu(-pairwise), 0).sum())
    reach = _BEYOND * gains if gains > 0 else program.value_scale  # without gains: any loss says it
    return np.maximum(linear, -reach), np.minimum(pairwise, reach), offset


def _row(row: LinearConstraint) -> LinearConstraint | None:
    """The row with half of its tolerance in its bounds; None where no selection can keep it."""
    smallest, largest = np.minimum(row.coefficients, 0).sum(), np.maximum(row.coefficients, 0).sum()
    if row.most < smallest or row.least > largest:
        return None
    row = without_giants(row)
    if is_whole(row.coefficients):
        lower, upper = _ceil(row.least), _floor(row.most)
        if lower > upper:
            return None
    else:
        lower, upper = (row.lower + row.least) / 2, (row.upper + row.most) / 2
    unit, largest = 1.0, _largest(row.coefficients)
    if largest < 1 or largest > _LARGEST:
        unit = _power_of_two(largest) / (1.0 if largest < 1 else _LARGEST)
    # A bound that no sum comes near would be one more large number.
    reach = 2 * float(np.abs(row.coefficients).sum()) + unit
    upper = upper if math.isinf(upper) else min(max(upper, -reach), reach)
    lower = lower if math.isinf(lower) else min(max(lower, -reach), reach)
    return LinearConstraint(row.coefficients / unit, lower / unit, upper / unit, row.name)


def without_giants(row: LinearConstraint) -> LinearConstraint:
    """The row with what alone exceeds its upper bound cut down to what still does.

    Only where all coefficients have one sign, so that nothing cancels it.
    """
    a = row.coefficients
    if math.isinf(row.upper) or not a.size or a.min() < 0 or a.max() <= 0:
        return row
    enough = 4 * _power_of_two(row.most) if row.most > 0 else 1.0  # nothing above 0 keeps a bound of 0
    return replace(row, coefficients=np.minimum(a, enough)) if a.max() > enough else row


def _floor(value: float) -> float:
    return float(math.floor(value)) if math.isfinite(value) else value


def _ceil(value: float) -> float:
    return float(math.ceil(value)) if math.isfinite(value) else value


def _largest(values: FloatArray) -> float:
    return float(np.abs(values).max(initial=0.0))


def _power_of_two(largest: float) -> float:
    """The power of two that leaves a number between 1 and 2; 1 for zero."""
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0
