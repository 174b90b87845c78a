"""OR-Tools CP-SAT: clauses instead of big-M rows, integers instead of floats.

CP-SAT takes integer coefficients only. Costs and rows must be exact decimals with at most six places; they are
multiplied by a power of ten, so that feasibility is exact. The objective is multiplied by a power of two and
rounded: with m coefficients the error of any objective value is at most m / (2 scale), which is added to the bound.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, require
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.result import ABSOLUTE_TOLERANCE, SolveOptions, SolveResult, conclude

__all__ = ["solve"]

_LARGEST_OBJECTIVE = 2.0**50  # CP-SAT adds objective terms in 64-bit integers; leave it room


def _decimal_scale(values: NDArray[np.float64], what: str) -> int:
    """The smallest power of ten that makes all values whole numbers."""
    for places in range(7):
        scaled = values * 10**places
        if np.all(np.abs(scaled - np.round(scaled)) <= 1e-9 * np.maximum(1.0, np.abs(scaled))):
            return int(10**places)
    raise InputError(
        f"cpsat takes whole or decimal coefficients with at most six places, and {what} has finer ones: "
        "use solver='highs'"
    )


def _integers(values: NDArray[np.float64], scale: int) -> list[int]:
    return [int(v) for v in np.round(values * scale)]


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
    scale = _decimal_scale(program.costs, "costs")
    expression = cp_model.LinearExpr.weighted_sum(x, _integers(program.costs, scale))
    model.add(expression <= math.floor(program.budget * scale + 1e-6))
    for row in program.rows:
        scale = _decimal_scale(row.coefficients, f"row '{row.name}'")
        expression = cp_model.LinearExpr.weighted_sum(x, _integers(row.coefficients, scale))
        if math.isfinite(row.upper):
            model.add(expression <= math.floor(row.upper * scale + 1e-6))
        if math.isfinite(row.lower):
            model.add(expression >= math.ceil(row.lower * scale - 1e-6))
    terms, weights = list(x), [float(v) for v in program.linear]
    for i, j in zip(*np.nonzero(np.triu(program.pairwise, 1)), strict=True):
        weight = float(program.pairwise[i, j])
        both = model.new_bool_var(f"y{i},{j}")
        if weight > 0:
            model.add_bool_or([~x[i], ~x[j], both])
        else:
            model.add_implication(both, x[i])
            model.add_implication(both, x[j])
        terms.append(both)
        weights.append(-weight)
    total = float(np.abs(weights).sum()) if weights else 0.0
    objective_scale = 2.0 ** math.floor(math.log2(_LARGEST_OBJECTIVE / total)) if total > 0 else 1.0
    rounding = len(weights) / (2 * objective_scale)
    model.maximize(cp_model.LinearExpr.weighted_sum(terms, [round(w * objective_scale) for w in weights]))

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = options.threads
    parameters.random_seed = options.seed
    parameters.relative_gap_limit = options.relative_gap
    parameters.absolute_gap_limit = ABSOLUTE_TOLERANCE / 2 * objective_scale
    if options.time_limit_seconds is not None:
        parameters.max_time_in_seconds = max(1e-3, options.time_limit_seconds - (time.perf_counter() - start))
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    decision = np.array([solver.value(v) for v in x], dtype=np.int8) if found else None
    bound: float | None = None
    if status not in (cp_model.INFEASIBLE, cp_model.MODEL_INVALID):
        bound = float(solver.best_objective_bound) / objective_scale + rounding
    common: dict[str, Any] = {
        "limit": "time" if status in (cp_model.FEASIBLE, cp_model.UNKNOWN) else None,
        "wall_seconds": time.perf_counter() - start,
        "nodes": int(solver.num_branches),
        "version": version,
    }
    if status == cp_model.MODEL_INVALID:
        return conclude(program, options, "cpsat", x=None, bound=None, message=model.validate(), **common)
    return conclude(
        program, options, "cpsat", x=decision, bound=bound,
        proven_infeasible=status == cp_model.INFEASIBLE, **common,
    )
