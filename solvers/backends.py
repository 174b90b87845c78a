"""Back ends: enumeration, HiGHS, OR-Tools CP-SAT and Pyomo, on the scale that general solvers work on.

Their tolerances are absolute, those of a program relative to its numbers. So values are divided by a power of
two, which rounds nothing, until the largest coefficient is about 1,000; so are rows of small fractions and of
far larger numbers. Rows of whole numbers get whole bounds, since a solver may exceed a bound by its
tolerance. A penalty above all that could be gained only says what not to choose; it is cut down to that, so
that values next to it are not lost.

CP-SAT takes integers only. Costs and rows must be exact decimals with at most six places; they are multiplied
by a power of ten, so that feasibility is exact. The objective is multiplied by a power of two and rounded;
the sum of all rounding errors is added to the bound.

Pyomo builds the program as a readable model and opens every solver that it supports: ``pyomo:gurobi``,
``pyomo:scip``, ``pyomo:cbc`` and so on.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, SolverError, require
from mio_rag.formulations.linearize import Linearization, MilpArrays, linearize
from mio_rag.formulations.numbers import is_whole
from mio_rag.formulations.program import LinearConstraint, SelectionProgram, precedence_program
from mio_rag.solvers.capabilities import PACKAGES, refusal
from mio_rag.solvers.heuristics import solve as solve_heuristic
from mio_rag.solvers.result import (
    SolveOptions,
    SolveResult,
    Status,
    absolute_tolerance,
    conclude,
    upper_bound,
)

_Solve = TypeVar("_Solve", bound=Callable[..., SolveResult])


def segments_by_rows(solve: _Solve) -> _Solve:
    """Let a back end solve a program with segments as `precedence_program` writes it; the claim is
    concluded for the given program, each segment paid once.
    """

    @wraps(solve)
    def solved(program: SelectionProgram, options: SolveOptions, *rest: Any, **more: Any) -> SolveResult:
        if program.segments is None:
            return solve(program, options, *rest, **more)
        assert program.fixed is not None
        # What never fits says nothing about the scale of values either.
        fits = (program.alone <= program.most_cost) | (program.fixed == 1)
        fitting = replace(program, fixed=np.where(fits, program.fixed, np.int8(0)))
        claim = solve(precedence_program(fitting), options, *rest, **more)
        failed = claim.status is Status.ERROR
        return conclude(
            program,
            options,
            claim.solver,
            x=None if failed or claim.x is None else claim.x[: program.n].astype(np.int8),
            bound=claim.bound,
            proven_infeasible=claim.status is Status.INFEASIBLE,
            broken=failed,
            limit=claim.limit,
            wall_seconds=claim.wall_seconds,
            nodes=claim.nodes,
            version=claim.version,
            message=claim.message,
        )

    return cast(_Solve, solved)


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

    objective of `given` = factor * objective of `program` + offset, but for `dropped` at most. What is fixed
    counts for nothing in the objective of `program`; a bound - objective of it up to `absolute_gap` counts as
    optimal. With a `contradiction`, a row alone excludes every selection, and `program` is without it.
    `dual_tolerance` is what HiGHS may leave of a gain; `blur` what tolerances may hide even so, to be added
    to a bound. Where the numbers are too far apart for floating point (`coarse`), a solver takes the small
    ones for zero, and its claims prove nothing.
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
        """Turn what a solver claims of `program` into a result for `given`, see `conclude`; `bound` is one
        of `program`.
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
    """Scale a program without segments to numbers of about 1."""
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
        or any(_far_apart(np.append(r.coefficients, (r.lower, r.upper))) for r in (budget, *kept)),
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


def _far_apart(values: FloatArray) -> bool:
    sizes = np.abs(values[(values != 0) & np.isfinite(values)])
    return bool(sizes.size and float(sizes.min()) < _SEEN * float(sizes.max()))


def within_reach(program: SelectionProgram) -> tuple[FloatArray, FloatArray, float]:
    """Return values and pairs of what is free, and the objective of what is fixed to be in.

    Gains that do not fit the budget are left out, and penalties cut down to a little more than all gains: a
    selection that pays one is then still below the fixed items alone or, where these break a row, below what
    local search finds.
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
        too_dear = np.add.outer(program.costs, program.costs) > room
        pairwise = np.where((pairwise < 0) & too_dear, 0.0, pairwise)
    offset = program.objective(inside)
    gains = float(np.maximum(linear, 0).sum() + np.maximum(np.triu(-pairwise), 0).sum())
    if program.violations(inside):
        found = solve_heuristic(program, SolveOptions(time_limit_seconds=_SECONDS), "local_search").x
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
        lower, upper = float(np.ceil(row.least)), float(np.floor(row.most))
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
    """Cut coefficients that alone exceed the upper bound down to what still does, where all have one sign."""
    a = row.coefficients
    if math.isinf(row.upper) or not a.size or a.min() < 0 or a.max() <= 0:
        return row
    enough = 4 * _power_of_two(row.most) if row.most > 0 else 1.0  # nothing above 0 keeps a bound of 0
    return replace(row, coefficients=np.minimum(a, enough)) if a.max() > enough else row


def _largest(values: FloatArray) -> float:
    return float(np.abs(values).max(initial=0.0))


def _power_of_two(largest: float) -> float:
    """The power of two that leaves a number between 1 and 2; 1 for zero."""
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0


_CHUNK = 1 << 14


def solve_exhaustive(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Try all selections of the free items; ties go to the one that comes first in binary order."""
    start = time.perf_counter()
    assert program.fixed is not None
    free, shared = program.free, program.segments
    fixed_in = (program.fixed == 1).astype(np.float64)
    total = 1 << free.size
    best_value, best_x = -np.inf, None
    seen = 0
    stopped = False
    for first in range(0, total, _CHUNK):
        codes = np.arange(first, min(first + _CHUNK, total))
        x = np.broadcast_to(fixed_in, (codes.size, program.n)).copy()
        x[:, free] = (codes[:, None] >> np.arange(free.size)) & 1
        paid = None if shared is None else (x @ shared.needs > 0).astype(np.float64)
        cost = x @ program.costs
        if paid is not None and shared is not None:
            cost = cost + paid @ shared.costs
        ok = cost <= program.most_cost
        for row in program.rows:
            activity = x @ row.coefficients
            ok &= activity <= row.most
            ok &= activity >= row.least
        x = x[ok]
        seen += codes.size
        if x.shape[0]:
            value = x @ program.linear - 0.5 * ((x @ program.pairwise) * x).sum(axis=1)
            if paid is not None and shared is not None:
                value = value - paid[ok] @ shared.prices
            k = int(np.argmax(value))
            if value[k] > best_value:
                best_value, best_x = float(value[k]), x[k]
        limit = options.time_limit_seconds
        if limit is not None and time.perf_counter() - start > limit and seen < total:
            stopped = True
            break
    bound = upper_bound(program) if stopped else (best_value if best_x is not None else None)
    return conclude(
        program,
        options,
        "exhaustive",
        x=best_x,
        bound=bound,
        proven_infeasible=best_x is None and not stopped,
        limit="time" if stopped else None,
        wall_seconds=time.perf_counter() - start,
        nodes=seen,
        version=f"numpy {np.__version__}",
    )


def _model(arrays: MilpArrays) -> Any:
    """The arrays for HiGHS."""
    import highspy

    lp = highspy.HighsLp()
    columns, rows = arrays.objective.size, arrays.row_lower.size
    lp.num_col_, lp.num_row_ = columns, rows
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = arrays.objective
    lp.col_lower_, lp.col_upper_ = arrays.col_lower, arrays.col_upper
    lp.row_lower_, lp.row_upper_ = arrays.row_lower, arrays.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = arrays.matrix.indptr.astype(np.int32)
    lp.a_matrix_.index_ = arrays.matrix.indices.astype(np.int32)
    lp.a_matrix_.value_ = arrays.matrix.data.astype(np.float64)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[int(flag)] for flag in arrays.integral]
    return lp


@segments_by_rows
def solve_highs(
    program: SelectionProgram, options: SolveOptions, form: Linearization = "mccormick"
) -> SolveResult:
    """Solve a linearized program ("mccormick" or "glover") to the stated gap."""
    import highspy

    start = time.perf_counter()
    name = "highs" if form == "mccormick" else f"highs-{form}"
    given = scaled(program)
    highs = highspy.Highs()
    version = str(highs.version())
    problem = refusal("highspy", version)
    if problem is not None:
        raise InputError(f"HiGHS cannot be used: {problem}")
    highs.setOptionValue("output_flag", False)
    # The defaults stop at a relative gap of 1e-4, which would be a wrong optimum called optimal.
    highs.setOptionValue("mip_rel_gap", options.relative_gap)
    highs.setOptionValue("mip_abs_gap", given.absolute_gap / 2)
    # By default every helper may be off by 1e-6, and thousands of them add up to a wrong objective.
    highs.setOptionValue("mip_feasibility_tolerance", 1e-9)
    highs.setOptionValue("dual_feasibility_tolerance", given.dual_tolerance)
    highs.setOptionValue("small_matrix_value", 1e-12)  # entries below it would be taken for zero
    highs.setOptionValue("threads", options.threads)
    highs.setOptionValue("random_seed", options.seed)
    if given.contradiction:
        return conclude(
            program, options, name, x=None, bound=None, proven_infeasible=True, version=version, nodes=0
        )
    arrays = linearize(given.program, form)
    if arrays.objective.size == 0:  # HiGHS calls a model without columns "empty" whatever its rows say
        return _without_items(program, options, name, version)
    if options.time_limit_seconds is not None:
        spent = time.perf_counter() - start
        highs.setOptionValue("time_limit", max(1e-3, options.time_limit_seconds - spent))
    # HiGHS keeps the workers of a thread's first run and refuses any other number of them later on.
    highspy.Highs.resetGlobalScheduler(True)
    passed = highs.passModel(_model(arrays))
    ran = highs.run() if passed != highspy.HighsStatus.kError else passed
    status = highs.getModelStatus()
    info = highs.getInfo()
    kinds = highspy.HighsModelStatus
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = arrays.recover(np.asarray(highs.getSolution().col_value)) if found else None
    common: dict[str, Any] = {
        "limit": "time" if status == kinds.kTimeLimit else None,
        "wall_seconds": time.perf_counter() - start,
        "nodes": max(0, int(info.mip_node_count)),
        "version": version,
    }
    # With every column bounded, "unbounded or infeasible" means infeasible.
    infeasible = status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible)
    if ran == highspy.HighsStatus.kError or not (infeasible or status in (kinds.kOptimal, kinds.kTimeLimit)):
        message = f"HiGHS stopped with {highs.modelStatusToString(status)}"
        return conclude(program, options, name, x=x, bound=None, broken=True, message=message, **common)
    return given.concluded(
        options,
        name,
        x=x,
        bound=None if infeasible else float(info.mip_dual_bound),
        proven_infeasible=infeasible,
        **common,
    )


def _without_items(program: SelectionProgram, options: SolveOptions, name: str, version: str) -> SolveResult:
    x = None if program.violations([]) else np.zeros(0, dtype=np.int8)
    bound = None if x is None else 0.0
    return conclude(
        program, options, name, x=x, bound=bound, proven_infeasible=x is None, version=version, nodes=0
    )


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
def solve_cpsat(program: SelectionProgram, options: SolveOptions) -> SolveResult:
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


# Names of the time, gap, thread and seed options of solvers behind Pyomo's classic interface.
_CLASSIC_OPTIONS: dict[str, tuple[str, str, str | None, str | None]] = {
    "scip": ("limits/time", "limits/gap", None, "randomization/randomseedshift"),
    "cbc": ("sec", "ratioGap", "threads", "randomSeed"),
    "glpk": ("tmlim", "mipgap", None, None),
    "cplex": ("timelimit", "mip_tolerances_mipgap", "threads", "randomseed"),
    "xpress": ("maxtime", "miprelstop", "threads", "randomseed"),
    "gurobi": ("TimeLimit", "MIPGap", "Threads", "Seed"),
}


def build_model(program: SelectionProgram) -> Any:
    """Return the Fortet/McCormick model as a `pyomo.environ.ConcreteModel`, with named components.

    ``x[i]`` binary, ``y[i, j]`` for every nonzero pair, ``value`` (objective), ``budget``, ``row[k]`` and
    ``product[...]``. Segments are items behind the others, as in `precedence_program`.
    """
    program = precedence_program(program)
    pyo = require("pyomo.environ", "solvers", "solver='pyomo'")
    assert program.fixed is not None
    n, p, c = program.n, program.linear, program.costs
    pairs = [(int(i), int(j)) for i, j in zip(*np.nonzero(np.triu(program.pairwise, 1)), strict=True)]
    model = pyo.ConcreteModel("selection")
    model.x = pyo.Var(range(n), domain=pyo.Binary)
    model.y = pyo.Var(pairs, bounds=(0, 1))
    model.value = pyo.Objective(
        expr=sum(float(p[i]) * model.x[i] for i in range(n))
        - sum(float(program.pairwise[i, j]) * model.y[i, j] for i, j in pairs),
        sense=pyo.maximize,
    )

    def sides(row: LinearConstraint) -> list[Any]:
        if not np.any(row.coefficients):  # constant expressions are not constraints in Pyomo
            holds = row.least <= 0 <= row.most
            return [pyo.Constraint.Feasible if holds else pyo.Constraint.Infeasible]
        activity = sum(float(a) * model.x[i] for i, a in enumerate(row.coefficients) if a != 0)
        upper = [activity <= row.upper] if math.isfinite(row.upper) else []
        return upper + ([activity >= row.lower] if math.isfinite(row.lower) else [])

    model.budget = pyo.Constraint(expr=sides(LinearConstraint(c, upper=program.budget))[0])
    model.row = pyo.ConstraintList()
    for row in program.rows:
        for side in sides(row):
            model.row.add(side)
    model.product = pyo.ConstraintList()
    for i, j in pairs:
        if program.pairwise[i, j] > 0:
            model.product.add(model.y[i, j] >= model.x[i] + model.x[j] - 1)
        else:
            model.product.add(model.y[i, j] <= model.x[i])
            model.product.add(model.y[i, j] <= model.x[j])
    for i, value in enumerate(program.fixed):
        if value >= 0:
            model.x[i].fix(int(value))
    return model


@segments_by_rows
def solve_pyomo(program: SelectionProgram, options: SolveOptions, backend: str = "highs") -> SolveResult:
    """Solve through Pyomo with the named solver: `InputError` if it is unknown, missing or unusable,
    `SolverError` if it broke.
    """
    name = "pyomo" if backend == "highs" else f"pyomo:{backend}"
    version = str(require("pyomo.version", "solvers", "solver='pyomo'").version)
    pyo = require("pyomo.environ", "solvers", "solver='pyomo'")
    start = time.perf_counter()
    if program.n == 0:
        return _without_items(program, options, name, version)
    given = scaled(program)
    if given.contradiction:
        return conclude(program, options, name, x=None, bound=None, proven_infeasible=True, version=version)
    try:
        model = build_model(given.program)
    except ValueError as error:  # Pyomo refuses trivially infeasible constraints while building
        if "infeasible" not in str(error).lower():
            raise
        return conclude(program, options, name, x=None, bound=None, proven_infeasible=True, version=version)
    limit_seconds = options.time_limit_seconds
    if limit_seconds is not None:
        left = max(1e-3, limit_seconds - (time.perf_counter() - start))
        options = replace(options, time_limit_seconds=left)
    if backend == "highs":
        claims = _claims_of_highs(model, options, given)
    else:
        claims = _claims_of_classic(pyo, model, options, backend)
    x, bound, infeasible, limit, message = claims
    if bound is None and not infeasible:  # not every interface passes the solver's own bound on
        bound = (upper_bound(program) - given.offset) / given.factor
    return given.concluded(
        options,
        name,
        x=x,
        bound=bound,
        proven_infeasible=infeasible,
        broken=limit is None,
        limit=limit,
        message=message,
        wall_seconds=time.perf_counter() - start,
        version=version,
    )


_Claims = tuple[Any, float | None, bool, str | None, str]


def _values(model: Any, pyo: Any) -> Any:
    return np.array([pyo.value(model.x[i], exception=False) or 0.0 for i in range(len(model.x))])


def _claims_of_highs(model: Any, options: SolveOptions, given: Scaled) -> _Claims:
    # The classic appsi_highs interface silently drops the time limit; this one keeps it.
    import highspy
    import pyomo.environ as pyo
    from pyomo.contrib.solver.common import factory, results

    solver = factory.SolverFactory("highs")
    if not solver.available():
        raise SolverError(f"Pyomo finds no HiGHS: pip install 'highspy{PACKAGES['highspy'].versions}'")
    problem = refusal("highspy", str(highspy.Highs().version()))
    if problem is not None:
        raise InputError(f"solver 'pyomo' cannot use HiGHS: {problem}")
    # HiGHS keeps the workers of a thread's first run and refuses any other number of them later on.
    highspy.Highs.resetGlobalScheduler(True)
    outcome = solver.solve(
        model,
        time_limit=options.time_limit_seconds,
        rel_gap=options.relative_gap,
        threads=options.threads,
        solver_options={
            "random_seed": options.seed,
            "mip_abs_gap": given.absolute_gap / 2,
            "mip_feasibility_tolerance": 1e-9,  # see `mio_rag.solvers.backends`
            "dual_feasibility_tolerance": given.dual_tolerance,
            "small_matrix_value": 1e-12,
        },
        raise_exception_on_nonoptimal_result=False,
        load_solutions=False,
    )
    condition, why = outcome.solution_status, outcome.termination_condition
    found = condition in (results.SolutionStatus.feasible, results.SolutionStatus.optimal)
    if found:
        outcome.solution_loader.load_vars()
    kinds = results.TerminationCondition
    infeasible = why in (kinds.provenInfeasible, kinds.infeasibleOrUnbounded)
    ended = re.sub(r"(?=[A-Z])", " ", why.name).lower()  # Pyomo's names run together
    return (
        _values(model, pyo) if found else None,
        outcome.objective_bound,
        infeasible,
        "time" if why == kinds.maxTimeLimit else None,
        "" if found or infeasible else f"HiGHS through Pyomo stopped: {ended}",
    )


def _claims_of_classic(pyo: Any, model: Any, options: SolveOptions, backend: str) -> _Claims:
    if backend.split("_")[0] not in _CLASSIC_OPTIONS:
        raise InputError(
            f"how to pass limits to Pyomo's solver '{backend}' is not known here: choose one of "
            f"{', '.join(sorted(_CLASSIC_OPTIONS))}, or use solver='highs'"
        )
    solver = pyo.SolverFactory(backend)
    if solver is None or not solver.available(exception_flag=False):
        raise InputError(f"Pyomo finds no installed solver '{backend}': install it, or use solver='highs'")
    names = _CLASSIC_OPTIONS[backend.split("_")[0]]
    values = (options.time_limit_seconds, options.relative_gap, options.threads, options.seed)
    for key, value in zip(names, values, strict=True):
        if key is not None and value is not None:
            solver.options[key] = value
    if backend == "glpk" and options.time_limit_seconds is not None:
        solver.options["tmlim"] = max(1, math.ceil(options.time_limit_seconds))  # it takes whole seconds only
    if backend == "cbc":
        solver.options["timeMode"] = "elapsed"  # its limit is processor time otherwise
    # Readers of these solvers' logs disagree on the sign of a maximisation's bound; a minimisation has one
    # reading.
    model.value.deactivate()
    model.loss = pyo.Objective(expr=-model.value.expr, sense=pyo.minimize)
    errors = require("pyomo.common.errors", "solvers", "solver='pyomo'")
    try:
        outcome = solver.solve(model, load_solutions=False)
    except (errors.ApplicationError, ValueError) as error:
        raise SolverError(f"'{backend}' failed behind Pyomo: {error}") from error
    kinds = pyo.TerminationCondition
    why = outcome.solver.termination_condition
    found = len(outcome.solution) > 0 and why != kinds.infeasible
    if found:
        model.solutions.load_from(outcome)
    # "Optimal" means within the gap that was asked for: the objective is a bound only where that gap is 0.
    proven = why == kinds.optimal and options.relative_gap == 0
    lower = outcome.problem.lower_bound  # of the minimisation above
    known = -float(lower) if lower is not None and math.isfinite(float(lower)) else None
    if proven and found and known is None:
        known = -float(pyo.value(model.loss))
    stopped = why == kinds.maxTimeLimit or (why != kinds.optimal and found)
    return (
        _values(model, pyo) if found else None,
        known,
        why in (kinds.infeasible, kinds.infeasibleOrUnbounded),
        "time" if stopped else None,
        "" if found else f"{backend} stopped with {why}",
    )
