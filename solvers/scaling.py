"""A program on the scale that general solvers work on: their tolerances are absolute, ours are not.

Values are divided by a power of two, so that the largest coefficient is about 1,000: nothing is rounded. So
are rows of small fractions, and rows of far larger numbers. Rows of whole numbers get whole bounds, since
a solver may overstep a bound by its tolerance. A penalty beyond all that could be gained only says what not
to choose; it is cut down to that, so that next to it values are not lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import is_whole
from mio_rag.formulations.program import LinearConstraint, SelectionProgram
from mio_rag.solvers.heuristics import solve as local_search
from mio_rag.solvers.result import SolveOptions, SolveResult, absolute_tolerance, conclude

__all__ = ["Scaled", "scaled", "within_reach", "without_giants"]

FloatArray = NDArray[np.float64]

_LARGEST = 2.0**16  # coefficient of a row; HiGHS presolves wrongly beside numbers of 1e7 and more
_OBJECTIVE = 2.0**10  # largest coefficient of an objective: what solvers take for zero is absolute
_SEEN = 1e-11  # of the largest number: what solvers in floating point still see
_SECONDS = 0.1  # for a selection that keeps the rows
_SMALL_SHARE = 1e-3  # of the largest number, for values that decide
_RESOLVED = 1e-9 * _OBJECTIVE  # of each item's value, at the least, by a solver on this scale
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
    dropped : float
        But for this much at most, in units of `given`.
    absolute_gap : float
        Largest bound - objective of `program` that counts as optimal.
    contradiction : bool
        Whether a row alone excludes every selection: `program` is then without it.
    dual_tolerance : float
        What HiGHS may leave of a gain: its default of 1e-7, less where the gap is small.
    blur : float
        What the tolerances of a solver may hide even so, to be added to the bound that it proves; 0 unless
        what decides is a thousand times smaller than the largest penalty.
    coarse : bool
        Whether the numbers of `program` lie too far apart for a solver in floating point: it takes the small
        ones for zero, and what it claims proves nothing.
    """

    given: SelectionProgram
    program: SelectionProgram
    factor: float
    offset: float
    dropped: float
    absolute_gap: float
    contradiction: bool
    dual_tolerance: float
    blur: float
    coarse: bool

    def concluded(
        self,
        options: SolveOptions,
        solver: str,
        *,
        x: NDArray[np.int8] | None,
        bound: float | None,
        proven_infeasible: bool,
        limit: str | None,
        message: str = "",
        **common: Any,
    ) -> SolveResult:
        """What a solver claims of `program` as a result for `given`, see `conclude`.

        Parameters
        ----------
        bound : float or None
            Of `program`.
        """
        if bound is not None:
            bound = self.factor * (bound + self.blur) + self.offset + self.dropped
        if self.coarse:
            bound, limit = None, limit or "precision"
            if x is None or self.given.violations(x):
                x, message = None, "the numbers of this program differ too much in size for this solver"
                proven_infeasible, common["broken"] = False, False
        elif limit is None and x is not None and bound is not None and not self.given.violations(x):
            objective = self.given.objective(x)
            if bound - objective > options.tolerance(objective, self.given.value_scale):
                limit = "precision"
        return conclude(
            self.given,
            options,
            solver,
            x=x,
            bound=bound,
            proven_infeasible=proven_infeasible,
            limit=limit,
            message=message,
            **common,
        )


def scaled(program: SelectionProgram) -> Scaled:
    """The program on a scale of about 1.

    Raises
    ------
    InputError
        For a program with segments: `mio_rag.formulations.precedence_program` writes them as rows.
    """
    if program.segments is not None:
        raise InputError("a program with segments is scaled in the form of rows: use precedence_program")
    linear, pairwise, offset = within_reach(program)
    tolerance = absolute_tolerance(program.value_scale)
    linear, pairwise, dropped = _without_dust(linear, pairwise, tolerance / 10)
    largest = max(_largest(linear), _largest(pairwise))
    factor = max(_power_of_two(largest) / _OBJECTIVE, np.finfo(np.float64).tiny)
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
        dropped,
        tolerance / factor,
        spend is None or len(kept) < len(rows),
        min(1e-7, max(1e-10, tolerance / factor / 10)),
        _RESOLVED * max(1, program.n) if program.value_scale < _SMALL_SHARE * _OBJECTIVE * factor else 0.0,
        _far_apart(np.append(pairwise, linear))
        or any(_far_apart(np.append(row.coefficients, _ends(row))) for row in (budget, *kept)),
    )


def _without_dust(
    linear: FloatArray, pairwise: FloatArray, most: float
) -> tuple[FloatArray, FloatArray, float]:
    """The objective without what a solver would not see, and the sum of that, where it is at most `most`."""
    seen = _SEEN * max(_largest(linear), _largest(pairwise))
    values, pairs = np.abs(linear) >= seen, np.abs(pairwise) >= seen
    dropped = float(np.abs(linear[~values]).sum() + np.abs(np.triu(pairwise)[~pairs]).sum())
    if not 0 < dropped <= most:
        return linear, pairwise, 0.0
    return np.where(values, linear, 0.0), np.where(pairs, pairwise, 0.0), dropped


def _ends(row: LinearConstraint) -> list[float]:
    return [end for end in (row.lower, row.upper) if math.isfinite(end)]


def _far_apart(values: FloatArray) -> bool:
    sizes = np.abs(values[values != 0])
    return bool(sizes.size and float(sizes.min()) < _SEEN * float(sizes.max()))


def within_reach(program: SelectionProgram) -> tuple[FloatArray, FloatArray, float]:
    """Values and pairs of what is free, and the objective of what is fixed to be in.

    Gains that do not fit the budget are left out, and penalties cut down to a little more than all gains
    together: whoever pays one is then still below the fixed items alone or, where these break a row, below
    what local search finds.
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
    gains = float(np.maximum(linear, 0).sum() + np.maximum(np.triu(-pairwise), 0).sum())
    if program.violations(inside):
        found = local_search(program, SolveOptions(time_limit_seconds=_SECONDS), "local_search").x
        if found is None:
            return linear, pairwise, offset
        gains += offset - program.objective(found)
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
