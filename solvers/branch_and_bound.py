"""The exact kernel: branch and bound on a concave relaxation, for any selection program.

General solvers linearize the products x_i x_j. For pairwise penalties this relaxation is very weak: at
x = 1/2 every penalty vanishes. Here the relaxation stays quadratic and concave, and is cheap to bound from
any point (`bounds`). Its tightness depends on a matrix (`relaxation`). The steps are

1. presolve: substitute fixed items, remove items that do not fit or cannot gain and rows that cannot bind;
   without interactions, a knapsack search finishes here;
2. an incumbent from greedy starts, local search and perturbations of the best one; if the rows make these
   fail, HiGHS solves the program without interactions for a feasible selection, or proves that there is none;
3. the root: row multipliers by subgradient steps, the relaxation, fixing by reduced costs;
4. depth-first search, include branch first, with propagation of the rows and fixing at every node;
5. if the rest of the tree, extrapolated from the finished share, is likely to take longer than computing a
   better matrix: compute it, drop items that it excludes, and search again from the better root.

The search can stop after any node: the bound is then the largest over the open nodes and everything that
was pruned.

Sources: Billionnet, Elloumi and Plateau (2009) for the convex reformulation; Burer (2009) for the doubly
non-negative relaxation; Caprara, Pisinger and Toth (1999) for the quadratic knapsack; the relaxation is
solved by pair exchange as in sequential minimal optimization (Platt, 1998).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.numbers import FEASIBILITY_TOLERANCE, row_size
from mio_rag.formulations.program import LinearConstraint, SelectionProgram
from mio_rag.solvers import bounds, incumbents, kernel
from mio_rag.solvers.capabilities import one_blas_thread
from mio_rag.solvers.compiled import VERSION
from mio_rag.solvers.compiled import warm as warm_up
from mio_rag.solvers.presolve import FloatArray, IntArray, Problem, fixed_in, presolve
from mio_rag.solvers.relaxation import (
    Incumbent,
    Root,
    dominated,
    first_matrix,
    improved,
    probed,
    relax_root,
    shifted,
    target,
    unevenly_shifted,
    worthwhile,
)
from mio_rag.solvers.result import SolveOptions, SolveResult, Status, absolute_tolerance, conclude


@dataclass(eq=False)
class WarmStart:
    """Selection and relaxation matrix of the last solve; filled and updated by the kernel.

    Nothing in it can make a result wrong: the selection is only a start for local search, and the matrix is
    cut to what the next program allows and made positive semidefinite again.
    """

    x: NDArray[np.int8] | None = None
    items: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    penalties: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    matrix: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))

    def matrix_for(self, problem: Problem) -> FloatArray | None:
        """The matrix, scaled by how much penalties have grown and cut to them; None where it does not fit."""
        known = {int(item): k for k, item in enumerate(self.items)}
        here = np.array([t for t, item in enumerate(problem.items) if int(item) in known], dtype=np.int64)
        if here.size < 3:
            return None
        there = np.array([known[int(problem.items[t])] for t in here])
        before, now = self.penalties[np.ix_(there, there)], problem.A[np.ix_(here, here)]
        size = float((before * before).sum())
        growth = float((before * now).sum()) / size if size > 0 else 0.0
        if growth <= 0:
            return None
        M = problem.A.copy()
        # Items that the matrix does not know stay apart: their penalties with the others are left out.
        apart = np.ix_(np.setdiff1d(np.arange(problem.m), here), here)
        M[apart] = np.minimum(M[apart], 0.0)
        M[np.ix_(here, apart[0].ravel())] = M[apart].T
        block = np.minimum(growth * self.matrix[np.ix_(there, there)], now)
        np.fill_diagonal(block, growth * np.diagonal(self.matrix)[there])
        M[np.ix_(here, here)] = block
        return shifted(M)

    def keep(self, problem: Problem, matrix: FloatArray) -> None:
        """Remember the matrix of a problem, with the penalties that it was made for."""
        self.items, self.penalties, self.matrix = problem.items, problem.A, matrix


_SLICE_SECONDS = 0.004  # between looks at the clock
_STEPS = 60  # pair exchanges a node


class Search:
    """The depth-first search as arrays that `kernel.search` works on, a slice of nodes at a time."""

    def __init__(
        self, program: SelectionProgram, root: Root, best: Incumbent, tolerance: float, gap: float
    ) -> None:
        problem = root.problem
        m, rows = problem.m, problem.w.size
        depth = m + 2
        self.program, self.problem, self.best_known = program, problem, best
        #: Whether a selection met the rows only by the rounding of their sums; `bound` covers its value.
        self.doubtful = False
        # The root's bound is over the items that it left; what it dropped may be worth more.
        self.ceiling = max(root.bound, root.dropped)
        data, shared = problem.data, problem.sharing
        shift = problem.W.T @ root.lam if rows else np.zeros(m)
        empty, zeros, whole = np.empty, np.zeros, np.int64
        self.tree = tree = kernel.Tree(  # what is below a depth is written before it is read
            ids=empty((depth, m), whole),
            P=empty((depth, m)),
            X=empty((depth, m)),
            GX=empty((depth, m)),
            activity=zeros((depth, max(rows, 1))),
            chosen=empty((depth, m), whole),
            sizes=zeros((depth, 2), whole),
            at=zeros((depth, 7)),
            paid=zeros((depth, 0 if shared is None else shared.cost.size), np.bool_),
            share=empty((depth, 0 if shared is None else shared.users[0].size)),
        )
        tree.ids[0], tree.P[0] = np.arange(m), data.p - shift
        tree.X[0], tree.GX[0] = root.x, root.G @ root.x
        tree.sizes[0] = m, 0
        # as `kernel.ROOM` and so on say
        tree.at[0] = data.room, 0.0, root.lam @ problem.w, root.bound, 0.0, 2 * m, 1.0
        if shared is not None:
            tree.share[0] = shared.share[shared.users]
        self._best = np.zeros(m, dtype=np.int8)
        # as `kernel.INCUMBENT` and so on say
        offset = problem.base / problem.scale
        self.numbers = np.array([best.value, tolerance, 0, 0, root.dropped, _STEPS, gap, offset, 0, 0])
        given = kernel.Given(data.A, root.G, data.c, data.W, data.w, problem.harmless, shift)
        self._arrays = given, problem.needs, tree, self._best, self.numbers

    @property
    def nodes(self) -> int:
        """Nodes so far."""
        return int(self.numbers[kernel.NODES])

    @property
    def bound(self) -> float:
        """Proven upper bound: over what was pruned and what is open, and never above the root's."""
        depth = int(self.numbers[kernel.DEPTH])
        reach = float(max(self.numbers[kernel.PRUNED], self.numbers[kernel.INCUMBENT]))
        if depth >= 0:
            reach = max(reach, float(self.tree.at[: depth + 1, kernel.BOUND].max()))
        return max(min(reach, self.ceiling), float(self.numbers[kernel.INCUMBENT]))

    def run(self, deadline: float, allowed: float, work: float = math.inf) -> str | None:
        """Search until it is over (None) or a limit ("time", "nodes", "work"); improves the incumbent."""
        before = float(self.numbers[kernel.INCUMBENT])
        step = 32
        stopped: str | None = None
        while self.numbers[kernel.DEPTH] >= 0:
            now = time.perf_counter()
            if now >= deadline or self.nodes >= allowed or self.numbers[kernel.WORK] >= work:
                stopped = "time" if now >= deadline else "nodes" if self.nodes >= allowed else "work"
                break
            kernel.search(*self._arrays, int(min(step, allowed - self.nodes)), work)
            took = time.perf_counter() - now
            step = int(min(1e6, max(8, step * min(4.0, _SLICE_SECONDS / max(took, 1e-6)))))
        if self.numbers[kernel.INCUMBENT] > before:
            x = fixed_in(self.program)
            x[self.problem.items[self._best > 0]] = 1
            if self.program.violations(x):
                self.doubtful = True
            else:
                self.best_known.value, self.best_known.x = float(self.numbers[kernel.INCUMBENT]), x
        return stopped


_LARGEST_TABLE = 50_000_000  # cells of the dynamic program
_KNAPSACK_NODES = 20_000  # of the linear case, before the dynamic program takes over
_FORCED_STARTS, _PERTURBATIONS, _ITEMS_PER_PERTURBATION = 3, 10, 10  # of the incumbent's local search
_SECONDS_PER_SQUARE = 1.5e-7  # times m^2: about what the root takes; a nearer deadline gets a cheaper one
_CLOSING_SECONDS_PER_SQUARE = 8e-8  # times n^2: what `conclude` takes to check an interrupted search
_ROWS_SECONDS = 1.0  # at most, for a first selection that meets all rows
_QUICK_WORK = 5e5  # of the search, before a better matrix is considered
_UNRESOLVED = "the search is complete, but the numbers differ too much in size to close the gap in float64"


def solve(
    program: SelectionProgram,
    options: SolveOptions,
    max_nodes: int | None = None,
    warm: WarmStart | None = None,
) -> SolveResult:
    """Solve to proven optimality, or to a certified gap at a limit.

    Deterministic, unless a time limit cuts it short: neither seed nor thread count changes the search, and
    one BLAS thread is used. Neither the time limit nor the reported seconds include compilation. Where
    coefficients differ by more than about 12 orders of magnitude, the search may end without a proof to
    10^-6: the bound holds, and the message says so.

    max_nodes: stop after so many nodes, with ``limit="nodes"``.
    warm: what a program of the same pool left behind; updated. See `solve_path`.
    """
    _ready(False)
    if program.segments is not None:
        _ready(True)
    start = time.perf_counter()
    with one_blas_thread():
        return _solve(program, options, max_nodes, warm or WarmStart(), start)


def warmup() -> float:
    """Compile the kernel ahead of its first use; returns the seconds that took, under one when cached."""
    start = time.perf_counter()
    _ready(False)
    _ready(True)
    return time.perf_counter() - start


@cache
def _ready(shared: bool) -> None:
    """Load or compile the kernel, and look for BLAS libraries: neither is solving."""
    with one_blas_thread():
        name = "the exact kernel" + (" for shared text" if shared else "")
        warm_up((incumbents, bounds, kernel), name, "8 to 12", shared)


def _solve(
    program: SelectionProgram, options: SolveOptions, max_nodes: int | None, warm: WarmStart, start: float
) -> SolveResult:
    closing, deadline, seconds = (
        _CLOSING_SECONDS_PER_SQUARE * program.n**2,
        math.inf,
        options.time_limit_seconds,
    )
    if seconds is not None:
        deadline = start + seconds - min(closing, 0.4 * seconds)

    def finish(
        best: Incumbent, bound: float, limit: str | None, nodes: int, infeasible: bool = False
    ) -> SolveResult:
        known = problem.base + max(bound, best.value) * problem.scale if problem is not None else math.inf
        about: dict[str, Any] = {"limit": limit, "nodes": nodes, "version": VERSION}
        about |= {"x": best.x, "bound": known, "proven_infeasible": infeasible}
        about["wall_seconds"] = time.perf_counter() - start
        about["rounding"] = 1e-13 * problem.m * problem.scale if problem is not None else 0.0
        result = conclude(program, options, "branch_and_bound", **about)
        unresolved = result.status in (Status.FEASIBLE, Status.NO_SOLUTION) and limit is None
        return replace(result, message=_UNRESOLVED) if unresolved else result

    problem = presolve(program)
    best = Incumbent(-math.inf, None)
    if problem is None:
        return finish(best, math.inf, None, 0, infeasible=True)
    if problem.m == 0:
        feasible = bool(np.all(problem.w >= 0))
        x = fixed_in(program) if feasible else None
        return finish(Incumbent(0.0 if feasible else -math.inf, x), 0.0, None, 0, infeasible=not feasible)
    linear = _linear_optimum(problem)
    if linear is not None:
        x = fixed_in(program)
        x[problem.items[linear > 0]] = 1
        value = problem.value(linear)
        return finish(Incumbent(value, x), value, None, 0)
    # Above 1, an incumbent below zero would allow to prune more than a better one does.
    asked = options if options.relative_gap <= 1.0 else replace(options, relative_gap=1.0)
    in_haste = deadline - time.perf_counter() < _SECONDS_PER_SQUARE * problem.m**2
    begun = time.perf_counter()
    rounds = 0 if in_haste else _PERTURBATIONS + problem.m // _ITEMS_PER_PERTURBATION
    point = np.zeros(0) if warm.x is None else warm.x[problem.items].astype(np.float64)
    best = _start(program, problem, point, deadline, rounds)
    start_took = time.perf_counter() - begun
    left = min(_ROWS_SECONDS, (deadline - time.perf_counter()) / 2)
    if best.x is None and problem.w.size and left > _ROWS_SECONDS / 100:
        rows_only = _without_interactions(program, options, left)
        sizes = np.abs(np.concatenate([program.all_costs, *(row.coefficients for row in program.rows)]))
        # A solver with fixed tolerances may misjudge what is smaller or larger.
        plain = np.all((sizes == 0) | ((sizes >= 1e-6) & (sizes <= 1e6)))
        if rows_only.status is Status.INFEASIBLE and plain:
            return finish(best, math.inf, None, 0, infeasible=True)
        if rows_only.x is not None:
            _offer(program, problem, rows_only.x[problem.items].astype(np.int8), best)
    tolerance = max(absolute_tolerance(program.value_scale) / 2 / problem.scale, 1e-13 * problem.m)
    first = first_matrix if problem.sharing is None else unevenly_shifted
    G = dominated(problem.A) if in_haste else first(problem.A)
    nothing = np.zeros(problem.m)
    root = Root(problem, G, np.zeros(problem.w.size), nothing, math.inf, -math.inf)
    root = relax_root(root, best, tolerance, asked)
    if not in_haste and warm.matrix.size and root.bound > target(problem, best, tolerance, asked):
        # A remembered matrix is of the items that probing had left.
        root = probed(root, target(problem, best, tolerance, asked), deadline)
        known = warm.matrix_for(root.problem)
        if known is not None:
            tried = relax_root(replace(root, G=known, bound=math.inf), best, tolerance, asked)
            root = tried if tried.bound < root.bound else root
    allowed = math.inf if max_nodes is None else max_nodes
    search = Search(program, root, best, tolerance, asked.relative_gap)
    spent, effort, look = 0, 0, _QUICK_WORK
    while True:
        stopped = search.run(deadline, allowed - spent, look)
        if stopped != "work":
            break
        work, done = float(search.numbers[kernel.WORK]), float(search.numbers[kernel.DONE])
        if not worthwhile(root, effort, search.bound, best, work, done):
            look = 1.5 * work + 1.0
            continue
        better, effort = improved(root, best, tolerance, asked, effort, deadline - closing)
        if better is not None:
            root, spent = better, spent + search.nodes
            if time.perf_counter() + 2 * start_took < deadline:  # it takes about as long, or twice
                _round(program, root.problem, root.x, best, _PERTURBATIONS * effort, effort)
            ceiling = search.bound
            search = Search(program, root, best, tolerance, asked.relative_gap)
            search.ceiling = min(ceiling, search.ceiling)
            look = _QUICK_WORK
    warm.x = best.x
    if root.made_for is not None and root.made is not None:
        warm.keep(root.made_for, root.made)
    infeasible = stopped is None and best.x is None and not search.doubtful
    return finish(best, search.bound, stopped, spent + search.nodes, infeasible=infeasible)


def _start(
    program: SelectionProgram, problem: Problem, point: FloatArray, deadline: float, rounds: int
) -> Incumbent:
    """A good selection, if one is found quickly."""
    best = Incumbent(-math.inf, None)
    _round(program, problem, point, best, rounds)
    if best.x is None:  # rows that greedy starts cannot meet
        from mio_rag.solvers.heuristics import HEURISTICS

        chosen = HEURISTICS["local_search"](program, deadline)
        _offer(program, problem, chosen[problem.items].astype(np.int8), best)
    return best


def _without_interactions(program: SelectionProgram, options: SolveOptions, seconds: float) -> SolveResult:
    """Solve the 0/1 linear program without interactions: a feasible start, or a proof that there is none.

    HiGHS detects contradictory rows fast. Budget and rows are relaxed by twice their tolerance, so that
    infeasibility of the relaxed program is a proof.
    """
    from mio_rag.solvers.backends import solve_highs

    def loosened(row: LinearConstraint) -> LinearConstraint:
        sizes = (min(1.0, row_size(row.coefficients, b)) for b in (row.lower, row.upper))
        lower, upper = (2 * FEASIBILITY_TOLERANCE * size for size in sizes)
        return replace(row, lower=row.least - lower, upper=row.most + upper)

    budget = loosened(LinearConstraint(program.all_costs, upper=program.budget)).upper
    rows, pairs = tuple(map(loosened, program.rows)), np.zeros_like(program.pairwise)
    linear = replace(program, pairwise=pairs, budget=budget, rows=rows)
    return solve_highs(linear, replace(options, time_limit_seconds=seconds, relative_gap=0.1, threads=1))


def _round(
    program: SelectionProgram, problem: Problem, x: FloatArray, best: Incumbent, rounds: int, seed: int = 0
) -> None:
    """Improve the incumbent by local search: from greedy starts or from itself, and from a relaxed point."""
    known = np.zeros(0, dtype=np.int8)
    if best.x is not None:
        known = best.x[problem.items]
        if np.count_nonzero(known) + np.count_nonzero(fixed_in(program)) < np.count_nonzero(best.x):
            known = known[:0]  # some of its items were removed
    rounds = min(rounds, problem.m)
    given = problem.data, problem.needs, x, _FORCED_STARTS
    found, _, better = incumbents.incumbent(*given, rounds, known, seed)
    if found:
        _offer(program, problem, better, best)


def _offer(program: SelectionProgram, problem: Problem, x: NDArray[np.int8], best: Incumbent) -> None:
    """Take a selection of the problem's items as the incumbent if it is feasible and better."""
    value = problem.value(x)
    if value <= best.value or not problem.feasible(x):
        return
    full = fixed_in(program)
    full[problem.items[x > 0]] = 1
    if not program.violations(full):
        best.value, best.x = value, full


def _linear_optimum(problem: Problem) -> NDArray[np.int8] | None:
    """Without pairs, segments and rows: depth first, else a dynamic program; None if neither is safe."""
    if problem.sharing is not None or problem.w.size or np.any(problem.A):
        return None
    x: NDArray[np.int8]
    done, x = incumbents.knapsack_search(problem.p, problem.c, problem.room, _KNAPSACK_NODES)
    if done and problem.feasible(x):  # running sums of costs that are not whole may drift past the room
        return x
    if not np.all(problem.c == np.floor(problem.c)) or problem.m * problem.room > _LARGEST_TABLE:
        return None
    x = incumbents.knapsack_table(problem.p, problem.c.astype(np.int64), int(problem.room))
    return x
