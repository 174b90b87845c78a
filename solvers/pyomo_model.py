"""The program as a Pyomo model: a readable reference, and access to every solver that Pyomo supports.

solver="pyomo"          HiGHS through Pyomo
solver="pyomo:NAME"     any other installed solver: "pyomo:gurobi", "pyomo:scip", "pyomo:cbc", ...
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from typing import Any

import numpy as np

from mio_rag.errors import InputError, SolverError, require
from mio_rag.formulations.precedence import precedence_program
from mio_rag.formulations.program import LinearConstraint, SelectionProgram
from mio_rag.solvers.bounds import upper_bound
from mio_rag.solvers.by_rows import segments_by_rows
from mio_rag.solvers.capabilities import PACKAGES, refusal
from mio_rag.solvers.result import SolveOptions, SolveResult, conclude
from mio_rag.solvers.scaling import Scaled, scaled

__all__ = ["build_model", "solve"]

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
    """The Fortet/McCormick model as a `pyomo.environ.ConcreteModel`, with named components.

    Components: ``x[i]`` binary, ``y[i, j]`` for every nonzero pair, ``value`` (objective), ``budget``,
    ``row[k]`` and ``product[...]``. Segments are items behind the others, as in `precedence_program`.
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
    # Constant expressions are not constraints in Pyomo, hence the detour for empty programs.
    model.budget = pyo.Constraint(
        expr=_linear(model, c) <= program.budget
        if np.any(c)
        else _constant(pyo, LinearConstraint(c, upper=program.budget))
    )
    model.row = pyo.ConstraintList()
    for row in program.rows:
        if not np.any(row.coefficients):
            model.row.add(_constant(pyo, row))
            continue
        activity = _linear(model, row.coefficients)
        if math.isfinite(row.upper):
            model.row.add(activity <= row.upper)
        if math.isfinite(row.lower):
            model.row.add(activity >= row.lower)
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


def _linear(model: Any, coefficients: Any) -> Any:
    return sum(float(a) * model.x[i] for i, a in enumerate(coefficients) if a != 0)


def _constant(pyo: Any, row: LinearConstraint) -> Any:
    return pyo.Constraint.Feasible if row.least <= 0 <= row.most else pyo.Constraint.Infeasible


@segments_by_rows
def solve(program: SelectionProgram, options: SolveOptions, backend: str = "highs") -> SolveResult:
    """Solve through Pyomo with the named installed solver.

    Raises
    ------
    InputError
        If the solver is not known here, not installed, or of a version that cannot be used.
    SolverError
        If it broke.
    """
    name = "pyomo" if backend == "highs" else f"pyomo:{backend}"
    version = str(require("pyomo.version", "solvers", "solver='pyomo'").version)
    pyo = require("pyomo.environ", "solvers", "solver='pyomo'")
    start = time.perf_counter()
    if program.n == 0:
        broken = bool(program.violations([]))
        return conclude(
            program,
            options,
            name,
            x=None if broken else np.zeros(0),
            bound=None if broken else 0.0,
            proven_infeasible=broken,
            version=version,
        )
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
        claims = _solve_highs(model, options, given)
    else:
        claims = _solve_classic(pyo, model, options, backend)
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


def _solve_highs(model: Any, options: SolveOptions, given: Scaled) -> _Claims:
    # The classic appsi_highs interface silently drops the time limit; this one keeps it.
    factory = require("pyomo.contrib.solver.common.factory", "solvers", "solver='pyomo'").SolverFactory
    results = require("pyomo.contrib.solver.common.results", "solvers", "solver='pyomo'")
    pyo = require("pyomo.environ", "solvers", "solver='pyomo'")
    solver = factory("highs")
    if not solver.available():
        raise SolverError(f"Pyomo finds no HiGHS: pip install '{PACKAGES['highspy'].requirement}'")
    highspy = require("highspy", "solvers", "solver='pyomo'")
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
            "mip_feasibility_tolerance": 1e-9,  # see `mio_rag.solvers.highs`
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


def _solve_classic(pyo: Any, model: Any, options: SolveOptions, backend: str) -> _Claims:
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
