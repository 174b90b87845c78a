"""OR-Tools CP-SAT: clauses instead of big-M rows, integers instead of floats.

CP-SAT takes integer coefficients only. Costs and rows must be exact decimals with at most six places; they
are multiplied by a power of ten, so that feasibility is exact. Six places of what is below 1e-6 are those of
its largest coefficient. The objective is multiplied by a power of two and rounded; the sum of all rounding
errors is added to the bound.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, require
from mio_rag.formulations.program import LinearConstraint, SelectionProgram
from mio_rag.solvers.bounds import upper_bound
from mio_rag.solvers.by_rows import segments_by_rows
from mio_rag.solvers.result import SolveOptions, SolveResult, absolute_tolerance, conclude
from mio_rag.solvers.scaling import within_reach, without_giants

__all__ = ["solve"]

# CP-SAT adds terms in 64-bit integers; leave it room.
_LARGEST_OBJECTIVE_EXPONENT = 50
_LARGEST_ACTIVITY = 2.0**60


def _decimal_scale(values: NDArray[np.float64], what: str) -> int:
    """The smallest power of ten that makes all values whole numbers."""
    finer = max(0, -math.ceil(math.log10(float(np.abs(values).max(initial=0.0)) or 1.0)))
    for places in range(min(300, 7 + finer)):
        scaled = values * 10**places
        size = np.abs(scaled)
        # Relative below 1: nothing but zero may become zero.
        if np.all(
            np.abs(scaled - np.round(scaled)) <= np.maximum(1e-9 * np.minimum(1.0, size), 1e-15 * size)
        ):
            if float(np.abs(scaled).sum()) > _LARGEST_ACTIVITY:
                raise InputError(f"{what} are too large for the 64-bit integers of cpsat: use solver='highs'")
            return int(10**places)
    raise InputError(
        f"cpsat takes whole or decimal coefficients with at most six places, and {what} has finer ones: "
        "use solver='highs'"
    )


def _add_row(model: Any, x: list[Any], row: LinearConstraint, what: str) -> None:
    """lower <= coefficients . x <= upper, in whole numbers; a side that cannot bind is left out."""
    from ortools.sat.python import cp_model

    row = without_giants(row)
    scale = float(_decimal_scale(row.coefficients, what))
    whole = np.round(row.coefficients * scale)
    expression = cp_model.LinearExpr.weighted_sum(x, [int(v) for v in whole])
    least, most = float(whole[whole < 0].sum()), float(whole[whole > 0].sum())
    # Half a unit: a tolerance is not for what whole numbers tell apart. More where sums of floats cannot.
    slack = max(0.5, 2.0**-52 * (row.coefficients.size + 2) * float(np.abs(whole).sum()))
    upper = min(row.most * scale, row.upper * scale + slack)
    lower = max(row.least * scale, row.lower * scale - slack)
    if upper < most:
        model.add(expression <= math.floor(max(upper, least - 1)))
    if lower > least:
        model.add(expression >= math.ceil(min(lower, most + 1)))


@segments_by_rows
def solve(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Solve with `threads` workers; deterministic for a seed with one."""
    cp_model = require("ortools.sat.python.cp_model", "solvers", "solver='cpsat'")
    version = str(require("ortools", "solvers", "solver='cpsat'").__version__)
    start = time.perf_counter()
    assert program.fixed is not None
    model = cp_model.CpModel()
    x = [model.new_bool_var(f"x{i}") for i in range(program.n)]
    for i in np.flatnonzero(program.fixed >= 0):
        model.add(x[int(i)] == int(program.fixed[i]))
    _add_row(model, x, LinearConstraint(program.costs, upper=program.budget), "the costs")
    for row in program.rows:
        _add_row(model, x, row, f"the coefficients of row '{row.name}'")
    linear, pairwise, offset = within_reach(program)
    terms, weights = list(x), [float(v) for v in linear]
    for i, j in zip(*np.nonzero(np.triu(pairwise, 1)), strict=True):
        weight = float(pairwise[i, j])
        both = model.new_bool_var(f"y{i},{j}")
        if weight > 0:
            model.add_bool_or([~x[i], ~x[j], both])
        else:
            model.add_implication(both, x[i])
            model.add_implication(both, x[j])
        terms.append(both)
        weights.append(-weight)
    total = float(np.abs(weights).sum()) if weights else 0.0
    objective_scale = 2.0 ** min(1000, _LARGEST_OBJECTIVE_EXPONENT - math.frexp(total)[1])
    exact = np.array(weights) * objective_scale
    rounding = float(np.abs(exact - np.round(exact)).sum()) / objective_scale
    model.maximize(cp_model.LinearExpr.weighted_sum(terms, [int(w) for w in np.round(exact)]))

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = options.threads
    # CP-SAT would take an interrupt for a reason to stop, and tell nobody: leave it to Python.
    parameters.catch_sigint_signal = False
    parameters.random_seed = options.seed
    parameters.relative_gap_limit = options.relative_gap
    parameters.absolute_gap_limit = absolute_tolerance(program.value_scale) / 2 * objective_scale
    if options.time_limit_seconds is not None:
        parameters.max_time_in_seconds = max(1e-3, options.time_limit_seconds - (time.perf_counter() - start))
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    decision = np.array([solver.value(v) for v in x], dtype=np.int8) if found else None
    bound: float | None = None
    if found:  # without a solution, a bound of 0 may mean that none was computed
        bound = float(solver.best_objective_bound) / objective_scale + rounding + offset
        if status == cp_model.OPTIMAL:  # rounding may hide what a simple bound shows: that nothing gains
            bound = min(bound, upper_bound(program))
    limit = "time" if status in (cp_model.FEASIBLE, cp_model.UNKNOWN) else None
    if status == cp_model.OPTIMAL and rounding > absolute_tolerance(program.value_scale):
        limit = "precision"  # integers that are too coarse for the smaller values
    common: dict[str, Any] = {
        "limit": limit,
        "wall_seconds": time.perf_counter() - start,
        "nodes": int(solver.num_branches),
        "version": version,
    }
    if status == cp_model.MODEL_INVALID:
        return conclude(
            program, options, "cpsat", x=None, bound=None, broken=True, message=model.validate(), **common
        )
    return conclude(
        program,
        options,
        "cpsat",
        x=decision,
        bound=bound,
        proven_infeasible=status == cp_model.INFEASIBLE,
        **common,
    )
