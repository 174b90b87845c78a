"""Back ends: enumeration, HiGHS, OR-Tools CP-SAT and Pyomo, on the scale that general solvers work on.

Building a model counts against the time limit; loading a package on its first use does not. Where a limit
stops a solver before it has a selection, that of local search is returned.

Their tolerances are absolute, those of a program relative to its numbers. So values are divided by a power of
two, which rounds nothing, until the largest coefficient is about 1,000; so are rows of small fractions and of
far larger numbers. Rows of whole numbers get whole bounds, since a solver may exceed a bound by its
tolerance. A penalty above all that could be gained only says what not to choose; it is cut down to that, so
that values next to it are not lost.

CP-SAT takes integers only. Costs and rows must be exact decimals with at most six places; they are multiplied
by a power of ten, so that feasibility is exact. The objective is multiplied by a power of two and rounded;
the sum of all rounding errors is added to the bound.

Pyomo builds the program as a readable model and opens HiGHS and the solvers of `_CLASSIC_OPTIONS`:
``pyomo:gurobi``, ``pyomo:scip``, ``pyomo:cbc`` and so on.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

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

_Claims = dict[str, Any]  # arguments of `conclude`
_BY_LOCAL_SEARCH = "the selection is that of local search, since the solver had none yet"
_INFEASIBLE: _Claims = {"x": None, "bound": None, "proven_infeasible": True}


def _back_end(solve: Callable[..., _Claims]) -> Callable[..., SolveResult]:
    """Conclude what a function claims. A program with segments is solved in the form of `precedence_program`;
    the claim is then concluded for the given program, each segment paid once.
    """

    @wraps(solve)
    def solved(program: SelectionProgram, options: SolveOptions, *rest: Any) -> SolveResult:
        start = time.perf_counter()
        if program.segments is None:
            claims = solve(program, options, *rest)
        else:
            # What never fits says nothing about the scale of values either.
            assert program.fixed is not None
            fits = (program.alone <= program.most_cost) | (program.fixed == 1)
            fitting = replace(program, fixed=np.where(fits, program.fixed, np.int8(0)))
            claim = solved(precedence_program(fitting), options, *rest)
            failed = claim.status is Status.ERROR
            claims = {
                "x": None if failed or claim.x is None else claim.x[: program.n].astype(np.int8),
                "proven_infeasible": claim.status is Status.INFEASIBLE,
                "broken": failed,
                **{k: getattr(claim, k) for k in ("solver", "bound", "limit", "nodes", "version", "message")},
            }
        if claims["x"] is None and claims.get("limit") == "time":
            found = solve_heuristic(program, SolveOptions(time_limit_seconds=_SECONDS), "local_search").x
            if found is not None:
                claims |= {"x": found, "message": _BY_LOCAL_SEARCH}
        return conclude(program, options, wall_seconds=time.perf_counter() - start, **claims)

    return solved


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

    def claims(
        self, options: SolveOptions, x: NDArray[np.int8] | None, bound: float | None, **more: Any
    ) -> _Claims:
        """Turn what a solver claims of `program` into claims for `given`; `bound` is one of `program`."""
        if bound is not None:
            bound = self.factor * (bound + self.blur) + self.offset + self.dropped
        holds = x is not None and not self.given.violations(x)
        if self.coarse:
            bound, more["limit"] = None, more["limit"] or "precision"
            if not holds:
                x, more["proven_infeasible"], more["broken"] = None, False, False
                more["message"] = "the numbers of this program differ too much in size for this solver"
        elif more["limit"] is None and x is not None and bound is not None and holds:
            objective = self.given.objective(x)
            if bound - objective > options.tolerance(objective, self.given.value_scale):
                more["limit"] = "precision"
        return {"x": x, "bound": bound, **more}


def scaled(program: SelectionProgram) -> Scaled:
    """Scale a program without segments to numbers of about 1."""
    linear, pairwise, offset = _within_reach(program)
    tolerance = absolute_tolerance(program.value_scale)
    # What a solver would not see is left out, where all of it is within the tolerance.
    seen = _SEEN * max(_largest(linear), _largest(pairwise))
    values, pairs = np.abs(linear) >= seen, np.abs(pairwise) >= seen
    dropped = float(np.abs(linear[~values]).sum() + np.abs(np.triu(pairwise)[~pairs]).sum())
    if 0 < dropped <= tolerance / 10:
        linear, pairwise = np.where(values, linear, 0.0), np.where(pairs, pairwise, 0.0)
    else:
        dropped = 0.0
    largest = max(_largest(linear), _largest(pairwise))
    factor = max(_power_of_two(largest) / _OBJECTIVE, np.finfo(np.float64).tiny)
    spend = _row(LinearConstraint(program.costs, upper=program.budget))
    rows = [_row(row) for row in program.rows]
    kept = tuple(row for row in rows if row is not None)
    budget = LinearConstraint(np.zeros(program.n), upper=0.0) if spend is None else spend
    sides = [np.append(r.coefficients, (r.lower, r.upper)) for r in (budget, *kept)]
    given = linear / factor, pairwise / factor, budget.coefficients, budget.upper, kept, program.fixed
    is_small = program.value_scale < _SMALL_SHARE * _OBJECTIVE * factor
    return Scaled(
        program,
        SelectionProgram(*given),
        factor,
        offset,
        dropped,
        absolute_gap=tolerance / factor,
        contradiction=spend is None or len(kept) < len(rows),
        dual_tolerance=min(1e-7, max(1e-10, tolerance / factor / 10)),
        blur=_RESOLVED * max(1, program.n) if is_small else 0.0,
        coarse=any(map(_far_apart, (np.append(pairwise, linear), *sides))),
    )


def _far_apart(values: FloatArray) -> bool:
    sizes = np.abs(values[(values != 0) & np.isfinite(values)])
    return bool(sizes.size and float(sizes.min()) < _SEEN * float(sizes.max()))


def _within_reach(program: SelectionProgram) -> tuple[FloatArray, FloatArray, float]:
    """Values and pairs of what is free, and the objective of what is fixed to be in.

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
    row = _without_giants(row)
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


def _without_giants(row: LinearConstraint) -> LinearConstraint:
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
    free, shared, limit = program.free, program.segments, options.time_limit_seconds
    fixed_in = np.asarray(program.fixed == 1, dtype=np.float64)
    total = 1 << free.size
    best_value, best_x = -np.inf, None
    seen, stopped = 0, False
    while seen < total and not stopped:
        codes = np.arange(seen, min(seen + _CHUNK, total))
        x = np.broadcast_to(fixed_in, (codes.size, program.n)).copy()
        x[:, free] = (codes[:, None] >> np.arange(free.size)) & 1
        cost = x @ program.costs
        if shared is not None:
            paid = (x @ shared.needs > 0).astype(np.float64)
            cost = cost + paid @ shared.costs
        ok = cost <= program.most_cost
        for row in program.rows:
            activity = x @ row.coefficients
            ok &= (activity <= row.most) & (activity >= row.least)
        x = x[ok]
        seen += codes.size
        if x.shape[0]:
            value = x @ program.linear - 0.5 * ((x @ program.pairwise) * x).sum(axis=1)
            if shared is not None:
                value = value - paid[ok] @ shared.prices
            k = int(np.argmax(value))
            if value[k] > best_value:
                best_value, best_x = float(value[k]), x[k]
        stopped = limit is not None and time.perf_counter() - start > limit and seen < total
    return conclude(
        program,
        options,
        "exhaustive",
        x=best_x,
        bound=upper_bound(program) if stopped else (best_value if best_x is not None else None),
        proven_infeasible=best_x is None and not stopped,
        limit="time" if stopped else None,
        wall_seconds=time.perf_counter() - start,
        nodes=seen,
        version=f"numpy {np.__version__}",
    )


def model_of(arrays: MilpArrays) -> Any:
    """The arrays for HiGHS."""
    import highspy

    lp, matrix = highspy.HighsLp(), arrays.matrix
    lp.num_col_, lp.num_row_ = arrays.objective.size, arrays.row_lower.size
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = arrays.objective
    lp.col_lower_, lp.col_upper_ = arrays.col_lower, arrays.col_upper
    lp.row_lower_, lp.row_upper_ = arrays.row_lower, arrays.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32)
    lp.a_matrix_.value_ = matrix.data.astype(np.float64)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[int(flag)] for flag in arrays.integral]
    return lp


def _highs_options(options: SolveOptions, given: Scaled) -> dict[str, Any]:
    return {
        "random_seed": options.seed,
        "mip_abs_gap": given.absolute_gap / 2,
        # By default every helper may be off by 1e-6, and thousands of them add up to a wrong objective.
        "mip_feasibility_tolerance": 1e-9,
        "dual_feasibility_tolerance": given.dual_tolerance,
        "small_matrix_value": 1e-12,  # entries below it would be taken for zero
    }


def _without_items(program: SelectionProgram) -> _Claims:
    return _INFEASIBLE if program.violations([]) else {"x": np.zeros(0, dtype=np.int8), "bound": 0.0}


@_back_end
def solve_highs(
    program: SelectionProgram, options: SolveOptions, form: Linearization = "mccormick"
) -> _Claims:
    """Solve a linearized program ("mccormick" or "glover") to the stated gap."""
    import highspy

    start = time.perf_counter()
    given = scaled(program)
    highs = highspy.Highs()
    version = str(highs.version())
    about = {"solver": "highs" if form == "mccormick" else f"highs-{form}", "version": version, "nodes": 0}
    problem = refusal("highspy", version)
    if problem is not None:
        raise InputError(f"HiGHS cannot be used: {problem}")
    if given.contradiction:
        return _INFEASIBLE | about
    arrays = linearize(given.program, form)
    if arrays.objective.size == 0:  # HiGHS calls a model without columns "empty" whatever its rows say
        return _without_items(program) | about
    settings = _highs_options(options, given) | {"output_flag": False, "threads": options.threads}
    # The default stops at a relative gap of 1e-4, which would be a wrong optimum called optimal.
    settings["mip_rel_gap"] = options.relative_gap
    if options.time_limit_seconds is not None:
        spent = time.perf_counter() - start
        settings["time_limit"] = max(1e-3, options.time_limit_seconds - spent)
    for key, value in settings.items():
        highs.setOptionValue(key, value)
    # HiGHS keeps the workers of a thread's first run and refuses any other number of them later on.
    highspy.Highs.resetGlobalScheduler(True)
    passed = highs.passModel(model_of(arrays))
    ran = highs.run() if passed != highspy.HighsStatus.kError else passed
    status, info, kinds = highs.getModelStatus(), highs.getInfo(), highspy.HighsModelStatus
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = arrays.recover(np.asarray(highs.getSolution().col_value)) if found else None
    about["nodes"] = max(0, int(info.mip_node_count))
    about["limit"] = "time" if status == kinds.kTimeLimit else None
    # With every column bounded, "unbounded or infeasible" means infeasible.
    infeasible = status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible)
    if ran == highspy.HighsStatus.kError or not (infeasible or status in (kinds.kOptimal, kinds.kTimeLimit)):
        message = f"HiGHS stopped with {highs.modelStatusToString(status)}"
        return {"x": x, "bound": None, "broken": True, "message": message, **about}
    bound = None if infeasible else float(info.mip_dual_bound)
    return given.claims(options, x, bound, proven_infeasible=infeasible, **about)


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
        allowed = np.maximum(1e-9 * np.minimum(1.0, size), 1e-15 * size)
        if np.all(np.abs(scaled - np.round(scaled)) <= allowed):
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

    row = _without_giants(row)
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


@_back_end
def solve_cpsat(program: SelectionProgram, options: SolveOptions) -> _Claims:
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
    linear, pairwise, offset = _within_reach(program)
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
    about = {"solver": "cpsat", "version": version, "limit": limit, "nodes": int(solver.num_branches)}
    if status == cp_model.MODEL_INVALID:
        return {"x": None, "bound": None, "broken": True, "message": model.validate(), **about}
    infeasible = status == cp_model.INFEASIBLE
    return {"x": decision, "bound": bound, "proven_infeasible": infeasible, **about}


#: Both name Pyomo's newer interface to HiGHS: its older one silently drops the time limit.
HIGHS_NAMES = ("highs", "appsi_highs")
# Names of the time, gap, thread and seed options of solvers behind Pyomo's classic interface.
_CLASSIC_OPTIONS: dict[str, tuple[str, str, str | None, str | None]] = {
    "scip": ("limits/time", "limits/gap", None, "randomization/randomseedshift"),
    "cbc": ("sec", "ratioGap", "threads", "randomSeed"),
    "glpk": ("tmlim", "mipgap", None, None),
    "cplex": ("timelimit", "mip_tolerances_mipgap", "threads", "randomseed"),
    "xpress": ("maxtime", "miprelstop", "threads", "randomseed"),
    "gurobi": ("TimeLimit", "MIPGap", "Threads", "Seed"),
}


def _pyomo_model(program: SelectionProgram) -> Any:
    """The Fortet/McCormick model with named components: ``x[i]`` binary, ``y[i, j]`` for every nonzero pair,
    ``value`` (objective), ``budget``, ``row[k]`` and ``product[...]``.
    """
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


@_back_end
def solve_pyomo(program: SelectionProgram, options: SolveOptions, backend: str = "highs") -> _Claims:
    """Solve through Pyomo with the named solver: `InputError` if it is unknown, missing or unusable,
    `SolverError` if it broke.
    """
    version = str(require("pyomo.version", "solvers", "solver='pyomo'").version)
    pyo = require("pyomo.environ", "solvers", "solver='pyomo'")
    about = {"solver": "pyomo" if backend == "highs" else f"pyomo:{backend}", "version": version}
    start = time.perf_counter()
    if program.n == 0:
        return _without_items(program) | about | {"nodes": 0}
    given = scaled(program)
    if given.contradiction:
        return _INFEASIBLE | about
    try:
        model = _pyomo_model(given.program)
    except ValueError as error:  # Pyomo refuses trivially infeasible constraints while building
        if "infeasible" not in str(error).lower():
            raise
        return _INFEASIBLE | about
    built = time.perf_counter() - start
    if options.time_limit_seconds is not None and _PASSING * built > options.time_limit_seconds:
        return about | {"x": None, "bound": None, "limit": "time"}
    options = options.after(built)
    if backend in HIGHS_NAMES:
        x, bound, infeasible, limit, message = _claims_of_highs(model, options, given)
    else:
        x, bound, infeasible, limit, message = _claims_of_classic(pyo, model, options, backend)
    if bound is None and not infeasible:  # not every interface passes the solver's own bound on
        bound = (upper_bound(program) - given.offset) / given.factor
    claimed = {"proven_infeasible": infeasible, "broken": limit is None, "limit": limit, "message": message}
    return given.claims(options, x, bound, **claimed, **about)


_PASSING = 5.0  # times as long as building a model takes what Pyomo then does to pass it on
# x, bound, whether that nothing is feasible is proven, limit, message
_Found = tuple[Any, float | None, bool, str | None, str]


def _values(model: Any, pyo: Any) -> Any:
    return np.array([pyo.value(model.x[i], exception=False) or 0.0 for i in range(len(model.x))])


def _claims_of_highs(model: Any, options: SolveOptions, given: Scaled) -> _Found:
    import highspy
    import pyomo.environ as pyo
    from pyomo.contrib.solver.common import factory, results

    solver = factory.SolverFactory("highs")
    if not solver.available():
        raise SolverError(f"Pyomo finds no HiGHS: pip install 'highspy{PACKAGES['highspy'].versions}'")
    problem = refusal("highspy", str(highspy.Highs().version()))
    if problem is not None:
        raise InputError(f"solver 'pyomo' cannot use HiGHS: {problem}")
    highspy.Highs.resetGlobalScheduler(True)  # as above
    start = time.perf_counter()
    solver.set_instance(model)
    outcome = solver.solve(
        model,
        time_limit=options.after(time.perf_counter() - start).time_limit_seconds,
        rel_gap=options.relative_gap,
        threads=options.threads,
        solver_options=_highs_options(options, given),
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


def _claims_of_classic(pyo: Any, model: Any, options: SolveOptions, backend: str) -> _Found:
    if backend.split("_")[0] not in _CLASSIC_OPTIONS:
        raise InputError(
            f"how to pass limits to Pyomo's solver '{backend}' is not known here: choose one of "
            f"{', '.join(sorted({*_CLASSIC_OPTIONS, *HIGHS_NAMES}))}, or use solver='highs'"
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
