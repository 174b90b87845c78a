"""Sequences of related programs: sweeps over one pool, robust cuts, and conflicts of infeasible programs.

**Cuts** maximise W(x) = min_s f_s(x) over scenarios s, each a selection program
(`mio_rag.formulations.robust`). For weights w >= 0 that sum to 1, max_x sum_s w_s f_s(x) is one selection
program, and its bound lies above every W. Each round solves it, adds the scenario that is worst for the
selection, and takes for w the weights that make the largest value of all selections so far smallest (a linear
program). Mixtures can be safer than any one selection; that gap remains, and is reported.

**Conflicts** are found by the deletion filter: budget, rows and fixed items are dropped one after another
while what remains is still infeasible.

Sources: Kelley (1960) and Bertsimas, Dunning and Lubin, Reformulation versus cutting-planes for robust
optimization (2016), for the cuts; Chinneck and Dravnieks (1991) for the deletion filter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import plural
from mio_rag.formulations.program import SelectionProgram, with_token_price
from mio_rag.formulations.robust import JointProblem
from mio_rag.solvers.registry import check_name, resolve, solve
from mio_rag.solvers.result import SolveOptions, SolveResult, Status, relative_gap

if TYPE_CHECKING:
    from mio_rag.solvers.branch_and_bound import WarmStart

FloatArray = NDArray[np.float64]

MAX_CUTS = 20  # rounds of cuts, each an exact solve
_IDLE, _PROGRESS = 3, 1e-5  # stop after so many rounds that lower the bound by less than this share of it
_SECONDS = 2.0  # for each of the small programs of a conflict


def solve_path(
    programs: Iterable[SelectionProgram], solver: str = "auto", options: SolveOptions | None = None
) -> Iterator[SolveResult]:
    """Solve programs of one pool one after another, for instance along lambda_1, the radius or the budget.

    The kernel starts each from the selection and the relaxation matrix of the one before; other solvers start
    anew. Certificates are those of `solve`.

    programs: all with the same number of items, which mean the same passages (else `InputError`). Built as
        needed.
    solver, options: as in `solve`; the time limit holds for each program.
    """
    run = path_solver(solver, options or SolveOptions())
    n: int | None = None
    for k, program in enumerate(programs):
        if n is not None and program.n != n:
            raise InputError(
                f"program {k} has {program.n} items, those before it {n}: a path is over one pool of passages"
            )
        n = program.n
        yield run(program)


def path_solver(solver: str, options: SolveOptions) -> Callable[..., SolveResult]:
    """Return `solve` with a memory: the kernel starts each program of a pool from what the one before left.
    It takes a program, and the seconds of the time limit that are spent (0).
    """
    check_name(solver)
    warm: WarmStart | None = None
    size = -1

    def run(program: SelectionProgram, spent: float = 0.0) -> SolveResult:
        nonlocal warm, size
        left = options.after(spent)
        if resolve(program, solver) != "branch_and_bound":
            return solve(program, solver, left)
        from mio_rag.solvers import branch_and_bound  # loads the compiled code

        if warm is None or program.n != size:
            warm, size = branch_and_bound.WarmStart(), program.n
        return branch_and_bound.solve(program, left, warm=warm)

    return run


@dataclass(frozen=True, eq=False)
class JointResult:
    """What the cuts found.

    `result.objective` is a certified lower value of the worst case of `x`, `result.bound` is above every
    worst case. `program` is the worst scenario found for `x`, in which it is worth `upper`; without a
    selection, the last program. `cuts` programs were solved.
    """

    result: SolveResult
    program: SelectionProgram
    upper: float | None
    cuts: int


def joint_steps(
    problem: JointProblem,
    options: SolveOptions,
    safe: Sequence[SelectionProgram] = (),
    max_cuts: int = MAX_CUTS,
    *,
    certified: SelectionProgram | None = None,
) -> Generator[SelectionProgram, SolveResult, JointResult]:
    """Yield the programs that the cuts need solved, one by one; send each its result.

    The selections of `safe` programs are candidates (the termwise counterpart, the nominal program); their
    bounds are not used. The objective of `certified` is never above the worst case: a selection is worth the
    larger of what it and the problem itself certify. Limits and gap of `options` hold for all rounds
    together.
    """
    start = time.perf_counter()
    deadline = math.inf if options.time_limit_seconds is None else start + options.time_limit_seconds
    scenarios = [problem.scenario(problem.worst(np.zeros(0, dtype=np.int64))[0])]
    found: list[NDArray[np.int8]] = []
    best, value = None, -math.inf  # the selection with the best certified worst case
    bound, weights, nodes, rounds, idle = math.inf, np.ones(1), 0, 0, 0
    while True:
        from_safe = rounds < len(safe)
        program = safe[rounds] if from_safe else _mixed(scenarios, weights)
        last = yield program
        rounds += 1
        nodes += last.nodes or 0
        if last.status in (Status.INFEASIBLE, Status.ERROR):
            return JointResult(last, program, None, rounds)
        if last.bound is not None and not from_safe:
            idle = 0 if last.bound < bound - _PROGRESS * max(abs(bound), 1e-9) else idle + 1
            bound = min(bound, last.bound)
        if last.x is not None and not any(np.array_equal(last.x, x) for x in found):
            found.append(last.x)
            chosen = np.flatnonzero(last.x[: problem.n])
            scenarios.append(problem.scenario(problem.worst(chosen)[0]))
            lower = problem.lower(chosen) + problem.added(last.x)
            if certified is not None:
                lower = max(lower, certified.objective(last.x))
            if lower > value:
                best, value = last.x, lower
        if idle >= _IDLE:
            break  # mixtures of selections, not missing scenarios, keep the bound up
        if bound - value <= options.tolerance(value, scenarios[0].value_scale):
            break
        if from_safe and rounds < len(safe):
            continue
        if rounds >= max_cuts or time.perf_counter() >= deadline or not found:
            break
        weights = _weights(np.array([[s.objective(x) for x in found] for s in scenarios]))
    seconds, scale = time.perf_counter() - start, scenarios[0].value_scale
    if best is None:
        return JointResult(replace(last, wall_seconds=seconds, nodes=nodes), scenarios[0], None, rounds)
    is_bounded = math.isfinite(bound)
    proven = is_bounded and bound - value <= options.tolerance(value, scale)
    result = SolveResult(
        Status.OPTIMAL if proven else Status.FEASIBLE,
        f"{last.solver}, joint cuts",
        x=best,
        objective=value,
        bound=max(bound, value) if is_bounded else None,
        gap=relative_gap(value, bound, scale) if is_bounded else None,
        limit="time" if time.perf_counter() >= deadline or last.limit == "time" else None,
        wall_seconds=seconds,
        nodes=nodes,
        version=last.version,
        message=f"joint worst case by {rounds} programs",
    )
    worst = min(scenarios, key=lambda s: s.objective(best))
    return JointResult(result, worst, worst.objective(best), rounds)


def _mixed(scenarios: list[SelectionProgram], weights: FloatArray) -> SelectionProgram:
    """The convex combination of scenarios."""
    used = np.flatnonzero(weights > 1e-9)
    parts = [(w, scenarios[k]) for w, k in zip(weights[used] / weights[used].sum(), used, strict=True)]
    linear = np.sum([w * one.linear for w, one in parts], axis=0)
    return replace(
        scenarios[0], linear=linear, pairwise=np.sum([w * one.pairwise for w, one in parts], axis=0)
    )


def _weights(values: FloatArray) -> FloatArray:
    """w on the simplex that makes max over columns of w . values smallest."""
    import scipy.optimize  # here: it takes a fifth of a second

    rows, columns = values.shape
    found = scipy.optimize.linprog(
        np.append(np.zeros(rows), 1.0),
        A_ub=np.hstack([values.T, -np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None, :],
        b_eq=[1.0],
        bounds=[(0, None)] * rows + [(None, None)],
    )
    if found.x is None:  # any weights are valid; equal ones always exist
        return np.full(rows, 1.0 / rows)
    return np.maximum(np.asarray(found.x[:rows], dtype=np.float64), 0.0)


@dataclass(frozen=True)
class Conflict:
    """Requirements that cannot hold together.

    parts: in the user's words.
    minimal: whether it is proven that every part is needed; False if a time limit came first.
    smallest_budget: the least budget under which all of it holds; None where none is large enough, or none
        was proven.
    """

    parts: tuple[str, ...]
    minimal: bool
    smallest_budget: float | None

    def explain(self) -> str:
        """One line for a person."""
        text = f"cannot hold together: {'; '.join(self.parts)}"
        if self.smallest_budget is not None:
            return f"{text}; a budget of {plural(self.smallest_budget, 'token')} would do"
        return text


def find_conflict(
    program: SelectionProgram, names: Sequence[str] | None = None, solver: str = "highs"
) -> Conflict | None:
    """Return a minimal conflict of an infeasible program; None if it is feasible, or that is not proven.
    `names` are those of the items; by default "item 0" and so on.
    """
    names = [f"item {i}" for i in range(program.n)] if names is None else names
    assert program.fixed is not None
    most = max(float(program.all_costs.sum()) + 1.0, program.budget)
    shared, nothing = program.segments, np.zeros(program.n)
    unpriced = None if shared is None else replace(shared, prices=np.zeros(shared.m))
    pairs = np.zeros((program.n, program.n))
    free = SelectionProgram(nothing, pairs, program.costs, program.budget, segments=unpriced)
    # In the order in which they are given up; if the budget stays, a larger one is looked for.
    parts: list[tuple[str, int]] = [("budget", 0)]
    parts += [("out", int(i)) for i in np.flatnonzero(program.fixed == 0)]
    parts += [("row", k) for k in range(len(program.rows))]
    parts += [("in", int(i)) for i in np.flatnonzero(program.fixed == 1)]

    def limited(kept: list[tuple[str, int]]) -> SelectionProgram:
        fixed = np.full(program.n, -1, dtype=np.int8)
        for kind, k in kept:
            if kind in ("in", "out"):
                fixed[k] = kind == "in"
        rows = tuple(program.rows[k] for kind, k in kept if kind == "row")
        return replace(free, rows=rows, budget=program.budget if ("budget", 0) in kept else most, fixed=fixed)

    options = SolveOptions(time_limit_seconds=_SECONDS)
    if solve(limited(parts), solver, options).status is not Status.INFEASIBLE:
        return None
    minimal, kept = True, list(parts)
    for part in parts:
        fewer = [p for p in kept if p != part]
        status = solve(limited(fewer), solver, options).status
        if status is Status.INFEASIBLE:
            kept = fewer
        elif status is Status.NO_SOLUTION:
            minimal = False
    smallest = None
    if ("budget", 0) in kept:
        rest = limited([p for p in parts if p[0] != "budget"])
        cheapest = solve(with_token_price(rest, 1.0), solver, options)
        if cheapest.is_optimal and cheapest.objective is not None:
            smallest = 0.0 - cheapest.objective  # never -0
    words = {
        "budget": lambda k: f"at most {plural(program.budget, 'token')}",
        "row": lambda k: program.rows[k].name,
        "in": lambda k: f"'{names[k]}' in",
        "out": lambda k: f"'{names[k]}' out",
    }
    kept.sort(key=lambda part: (list(words).index(part[0]), part[1]))
    return Conflict(tuple(words[kind](k) for kind, k in kept), minimal, smallest)
