"""The joint robust counterpart by cuts, with any exact solver of selection programs as the oracle.

maximise W(x) = min_s f_s(x) over scenarios s, each a selection program (`mio_rag.formulations.joint`). For
any weights w >= 0 that sum to 1, max_x sum_s w_s f_s(x) is one selection program, and its proven bound lies
above every W. Each round solves that program, evaluates the selection's certified worst case, adds the
scenario that is worst for it, and takes for w the weights that make the largest of the values of all
selections so far smallest (a linear program: the dual of max t subject to t <= f_s(x) over mixtures of those
selections). The bound may stay above the best worst case, since mixtures can be safer than any one selection.
The remaining gap is reported.

Source: Kelley (1960); Bertsimas, Dunning and Lubin, Reformulation versus cutting-planes for robust
optimization (2016), for cuts with an exact oracle.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # loads scipy.optimize, a fifth of a second, where it is first used
from numpy.typing import NDArray

from mio_rag.formulations.joint import JointProblem
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.result import SolveOptions, SolveResult, Status, relative_gap

__all__ = ["JointResult", "joint_steps"]

FloatArray = NDArray[np.float64]

#: Rounds, each an exact solve, at most.
MAX_CUTS = 20
#: ... and no more once so many in a row have lowered the bound by less than this share of it.
_IDLE, _PROGRESS = 3, 1e-5


@dataclass(frozen=True, eq=False)
class JointResult:
    """What the cuts found.

    Parameters
    ----------
    result : SolveResult
        `objective`: certified lower value of the worst case of `x`; `bound`: no selection has a worst case
        above it; `status` OPTIMAL where the two meet within the options' tolerance.
    program : SelectionProgram
        The worst scenario found for `x`, or the last program where there is no selection.
    upper : float or None
        The value of `x` in that scenario: its worst case lies between `result.objective` and this.
    cuts : int
        Programs solved.
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
    """The programs that the cuts need solved, one by one; send each its result.

    Parameters
    ----------
    options : SolveOptions
        The time limit holds for all rounds together, the relative gap for the robust problem.
    safe : sequence of SelectionProgram
        Programs whose selections are good candidates (the termwise counterpart, the nominal program); solved
        first. Their bounds are not used.
    certified : SelectionProgram, optional
        One whose objective is never above the worst case (the termwise counterpart): a selection is worth the
        larger of what it and the problem itself certify.
    """
    start = time.perf_counter()
    deadline = math.inf if options.time_limit_seconds is None else start + options.time_limit_seconds
    nobody = np.zeros(0, dtype=np.int64)
    scenarios = [problem.scenario(problem.worst(nobody)[0])]
    found: list[NDArray[np.int8]] = []
    best = _Best()
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
        if last.x is not None:
            known = any(np.array_equal(last.x, x) for x in found)
            if not known:
                found.append(last.x)
                chosen = np.flatnonzero(last.x[: problem.n])
                scenarios.append(problem.scenario(problem.worst(chosen)[0]))
                lower = problem.lower(chosen) + problem.added(last.x)
                if certified is not None:
                    lower = max(lower, certified.objective(last.x))
                best.offer(last.x, lower)
        if idle >= _IDLE:
            break  # mixtures of selections, not missing scenarios, keep the bound up
        if bound - best.value <= options.tolerance(best.value, scenarios[0].value_scale):
            break
        if from_safe and rounds < len(safe):
            continue
        if rounds >= max_cuts or time.perf_counter() >= deadline or not found:
            break
        weights = _weights(np.array([[s.objective(x) for x in found] for s in scenarios]))
    return _concluded(problem, options, best, bound, rounds, nodes, last, scenarios, start, deadline)


@dataclass(eq=False)
class _Best:
    """The selection with the best certified worst case."""

    x: NDArray[np.int8] | None = None
    value: float = -math.inf

    def offer(self, x: NDArray[np.int8], value: float) -> None:
        """Keep the better one."""
        if value > self.value:
            self.x, self.value = x, value


def _concluded(
    problem: JointProblem,
    options: SolveOptions,
    best: _Best,
    bound: float,
    rounds: int,
    nodes: int,
    last: SolveResult,
    scenarios: list[SelectionProgram],
    start: float,
    deadline: float,
) -> JointResult:
    """The result, recomputed from the selection."""
    seconds = time.perf_counter() - start
    limit = "time" if time.perf_counter() >= deadline or last.limit == "time" else None
    x = best.x
    if x is None:
        return JointResult(replace(last, wall_seconds=seconds, nodes=nodes), scenarios[0], None, rounds)
    worst = min(scenarios, key=lambda s: s.objective(x))
    value = best.value
    proven = math.isfinite(bound) and bound - value <= options.tolerance(value, scenarios[0].value_scale)
    result = SolveResult(
        Status.OPTIMAL if proven else Status.FEASIBLE,
        f"{last.solver}, joint cuts",
        x=x,
        objective=value,
        bound=max(bound, value) if math.isfinite(bound) else None,
        gap=relative_gap(value, bound, scenarios[0].value_scale) if math.isfinite(bound) else None,
        limit=limit,
        wall_seconds=seconds,
        nodes=nodes,
        version=last.version,
        message=f"joint worst case by {rounds} programs",
    )
    return JointResult(result, worst, worst.objective(x), rounds)


def _mixed(scenarios: list[SelectionProgram], weights: FloatArray) -> SelectionProgram:
    """The convex combination of scenarios."""
    used = [k for k in range(len(scenarios)) if k < weights.size and weights[k] > 1e-9]
    share = weights[used] / weights[used].sum()
    return replace(
        scenarios[0],
        linear=np.sum([w * scenarios[k].linear for w, k in zip(share, used, strict=True)], axis=0),
        pairwise=np.sum([w * scenarios[k].pairwise for w, k in zip(share, used, strict=True)], axis=0),
    )


def _weights(values: FloatArray) -> FloatArray:
    """w on the simplex that makes max over columns of w . values smallest."""
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
