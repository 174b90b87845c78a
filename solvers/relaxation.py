"""The root of the search: row multipliers, relaxation, fixing by reduced costs, and better matrices."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers import kernel_relax, kernel_shares
from mio_rag.solvers.doubly_nonnegative import Splitting, core_matrix, core_size, relaxation_matrix
from mio_rag.solvers.presolve import FloatArray, Problem, part_of, shared_out
from mio_rag.solvers.reformulation import better_diagonal, diagonal_fits
from mio_rag.solvers.result import SolveOptions

__all__ = ["Incumbent", "Root", "improved", "probed", "relax_root", "target", "worthwhile"]

_MULTIPLIER_STEPS = 80  # with 25, a dozen mixed rows cost twice the nodes
_REFINING_STEPS = 25  # from multipliers that another matrix left
_SHARE_ROUNDS, _SHARE_STEPS = 60, 300  # of better shares of segments; pair exchanges in each
_NO_PENALTY = 1e-12  # relative to the largest value: nothing for a better matrix to gain
_NARROW_GAP, _NARROW_GAP_WITHOUT_CORE = 0.016, 0.025
_EFFORTS = (12, 8, 24, 160)  # steps of conic matrices, one after another; the first of the core alone
_FEWEST_FOR_CORE, _LARGEST_CORE = 90, 0.6  # items; share of them
_WIDE_GAP, _WIDE_STEPS = 0.08, 12  # where a core is no good, and the first matrix of all worth more
_STEP, _PER_SQUARE, _PER_CUBE = 3e5, 60.0, 0.3  # of such a step, as work: constant, times m^2, times m^3
_DIAGONAL_STEPS = 2  # that another diagonal costs
_TREE_GROWTH = 0.65
_FEWEST_TO_PROBE = 50  # items; with fewer, the search does the same at no greater cost
_PROBE_STEPS = 200  # pair exchanges; 60 drop half as many items
_PROBE_SLICE = 2e6  # exchanges times items between looks at the clock: a few milliseconds
_PATIENCE = 20  # items in a row that probing does not drop
_LEFT_PER_PRICE, _SPENT_PER_PRICE = (1.0, 1.0, 6.0, 15.0), (0.0, 0.0, 0.1, 0.1)  # at each effort


@dataclass
class Incumbent:
    """The incumbent: a full 0/1 vector of the program and its value on the scale of `Problem`."""

    value: float
    x: NDArray[np.int8] | None


@dataclass(eq=False)
class Root:
    """What the root leaves: surviving items, matrix (see `reformulation`), multipliers, point and bounds."""

    problem: Problem
    G: FloatArray
    lam: FloatArray
    x: FloatArray
    bound: float
    dropped: float  # largest value that anything dropped by its reduced cost could have had
    made_for: Problem | None = None  # the problem that an improved matrix was made for, before fixing
    made: FloatArray | None = None  # that matrix
    splitting: Splitting | None = None  # where the search for better matrices stands


def target(problem: Problem, best: Incumbent, tolerance: float, options: SolveOptions) -> float:
    """The bound below which nothing better can be left: incumbent plus tolerance."""
    if best.x is None:
        return -math.inf
    objective = abs(problem.base / problem.scale + best.value)
    return best.value + max(tolerance, options.relative_gap * objective)


def relax_root(root: Root, best: Incumbent, tolerance: float, options: SolveOptions) -> Root:
    """Multipliers, relaxation and fixing by reduced costs, for the matrix that `root` has."""
    problem, lam, x, G = root.problem, root.lam, root.x.copy(), root.G
    stop = target(problem, best, tolerance, options)
    if problem.w.size:
        lam = _multipliers(problem, G, lam, x, best)
    if problem.sharing is not None:
        problem = _better_shares(problem, G, lam, x, stop, best)
    bound, mu, q, g = _relaxed(problem, G, lam, x, stop)
    b = problem.room + problem.extra
    bound = min(bound, root.bound)
    h = q - g - mu * problem.cr
    here = float(lam @ problem.w) + 0.5 * float(x @ g) + mu * b + float(np.maximum(h, 0).sum())
    out = (h < 0) & (here + h <= stop)
    dropped = max(root.dropped, float((here + h)[out].max())) if out.any() else root.dropped
    k = np.flatnonzero(~out)
    splitting = root.splitting
    if out.any():
        problem, G = problem.keep(k), part_of(G, k)
        splitting = splitting and splitting.keep(k)
    return Root(problem, G, lam, x[k], bound, dropped, splitting=splitting)


def probed(root: Root, stop: float, deadline: float, fewest: int | None = None) -> Root:
    """The root without items that cannot be part of anything above `stop` (see `kernel_relax.probe`).

    With fewer than `fewest` items (None: 50), or without an incumbent, the root as it is.

    The least promising items are probed first. Probing ends when `_PATIENCE` of them in a row cannot be
    dropped, or at the deadline. With short passages it leaves about half of 200 items where reduced costs
    leave all, which makes the next matrix cheaper and better.
    """
    problem, x = root.problem, root.x
    if problem.m < (_FEWEST_TO_PROBE if fewest is None else fewest) or stop == -math.inf:
        return root
    q = problem.p - problem.W.T @ root.lam + 0.5 * np.diagonal(root.G)
    g = root.G @ x
    slope = q - g
    mu = float((slope / problem.cr)[x < 1.0 - 1e-9].max(initial=0.0))
    order = np.argsort(slope - mu * problem.cr, kind="stable")
    order = order[x[order] < 0.5]
    out = np.zeros(problem.m, dtype=np.int8)
    dropped, stayed = root.dropped, 0
    at_once = max(1, min(_PATIENCE, int(_PROBE_SLICE / (_PROBE_STEPS * problem.m))))
    for first in range(0, order.size, at_once):
        if stayed >= _PATIENCE or time.perf_counter() >= deadline:
            break
        some = order[first : first + at_once]
        most, last = kernel_relax.probe(
            problem.A,
            root.G,
            q,
            problem.c,
            problem.cr,
            problem.room,
            problem.extra,
            float(root.lam @ problem.w),
            x,
            g,
            some,
            _PROBE_STEPS,
            stop,
            out,
        )
        dropped = max(dropped, most)
        stayed = last + (stayed if last == some.size else 0)
    k = np.flatnonzero(out == 0)
    if k.size == problem.m:
        return root
    return replace(
        root,
        problem=problem.keep(k),
        G=part_of(root.G, k),
        x=x[k],
        dropped=dropped,
        splitting=root.splitting and root.splitting.keep(k),
    )


def _relaxed(
    problem: Problem,
    G: FloatArray,
    lam: FloatArray,
    x: FloatArray,
    stop: float,
    steps: int = 4000,
    tolerance: float = 1e-9,
) -> tuple[float, float, FloatArray, FloatArray]:
    """Bound and mu of the relaxation, its q and G x (see `kernel_relax`); x is improved in place."""
    b = problem.room + problem.extra
    used = float(problem.cr @ x)
    if used > b:
        x *= b / used
    q, g = problem.p - problem.W.T @ lam + 0.5 * np.diagonal(G), G @ x
    every, base = np.arange(problem.m), float(lam @ problem.w)
    bound, mu, _ = kernel_relax.relax(
        q, G, 0.0, every, problem.cr, b, x, g, problem.m, steps, stop, base, tolerance, 0.0
    )
    return bound, mu, q, g


def _multipliers(
    problem: Problem, G: FloatArray, lam: FloatArray, x: FloatArray, best: Incumbent
) -> FloatArray:
    """Multipliers >= 0 of the rows that make the relaxation's bound small (Polyak's subgradient steps)."""
    least, at, step = math.inf, lam, 1.0
    for _ in range(_MULTIPLIER_STEPS if not np.any(lam) else _REFINING_STEPS):
        value = _relaxed(problem, G, lam, x, -math.inf, 300, 1e-7)[0]
        if value < least - 1e-12:
            least, at = value, lam
        else:
            step *= 0.7
        slope = problem.W @ x - problem.w
        norm = float(slope @ slope)
        if norm < 1e-18:
            break
        target = best.value if best.x is not None else least - abs(least) - 0.1
        lam = np.maximum(0.0, lam + step * max(least - target, 1e-6) / norm * slope)
    return at


def _better_shares(
    problem: Problem, G: FloatArray, lam: FloatArray, x: FloatArray, stop: float, best: Incumbent
) -> Problem:
    """The problem with shares of segments that make the relaxation's bound small; x is improved in place."""
    sharing = problem.sharing
    assert sharing is not None
    share = sharing.share[sharing.users]
    kernel_shares.spread(
        sharing.p - problem.W.T @ lam,
        G,
        sharing.c,
        problem.room,
        float(lam @ problem.w),
        sharing.start,
        sharing.users[1],
        sharing.cost,
        sharing.price,
        share,
        x,
        stop,
        best.value if best.x is not None else -1.0,
        _SHARE_ROUNDS,
        _SHARE_STEPS,
    )
    return shared_out(problem, sharing.with_shares(share))


def _gap(bound: float, best: Incumbent, problem: Problem) -> float:
    """The gap as a share of the objective; infinite without an incumbent."""
    objective = abs(problem.base / problem.scale + best.value)
    return math.inf if best.x is None else (bound - best.value) / max(objective, 1e-300)


def _next(root: Root, effort: int, gap: float) -> tuple[str, int, int]:
    """What to try next, "diagonal", "core" or "all", the number of that effort, and its steps.

    Where the gap is narrow, another diagonal, which costs a few inversions, comes first; else a matrix of
    the core, where that is small.
    """
    m = root.problem.m
    has_core = m >= _FEWEST_FOR_CORE and core_size(root.x) <= _LARGEST_CORE * m
    if effort == 0 and gap <= (_NARROW_GAP if has_core else _NARROW_GAP_WITHOUT_CORE):
        return "diagonal", 0, _DIAGONAL_STEPS
    if effort == 0 and gap <= _WIDE_GAP and has_core:
        return "core", 0, _EFFORTS[0]
    effort = max(1, effort)
    if effort >= len(_EFFORTS):
        return "none", effort, 0
    return "all", effort, _WIDE_STEPS if effort == 1 and gap > _WIDE_GAP else _EFFORTS[effort]


def worthwhile(root: Root, effort: int, bound: float, best: Incumbent, work: float, done: float) -> bool:
    """Whether the search is likely to go on for longer than a better matrix takes to find.

    Parameters
    ----------
    work, done : float
        What the search has cost, and the share of its tree that it is over with: see `kernel.search`.

    Notes
    -----
    If every branching halved what is to be done, work / done would be the whole. On 64 trees of real pools
    the logarithm of that estimate, after 10^6 units, correlates by .73 with the truth; it is twice too high
    in the median, and up to 60 times. The exponent tempers it, and was set by the times of whole solves. The
    dearer matrices also wait until the search has cost a part of their price.
    """
    kind, effort, steps = _next(root, effort, _gap(bound, best, root.problem))
    if kind == "none":
        return False
    m = core_size(root.x) if kind == "core" else root.problem.m
    price = steps * (_STEP + _PER_SQUARE * m**2 + _PER_CUBE * m**3)
    left = work * (max(done, 1e-30) ** -_TREE_GROWTH - 1.0)
    return left >= _LEFT_PER_PRICE[effort] * price and work >= _SPENT_PER_PRICE[effort] * price


def improved(
    root: Root,
    best: Incumbent,
    tolerance: float,
    options: SolveOptions,
    effort: int,
    deadline: float,
) -> tuple[Root | None, int]:
    """The root with a better matrix or fewer items, None where neither can be had; and the next effort.

    `effort` counts from 0; see `worthwhile` for when each is due. What would not be over by the deadline is
    not begun.
    """
    stop, before = target(root.problem, best, tolerance, options), root.problem.m
    if effort == 0:
        root = probed(root, stop, deadline)
    problem = root.problem
    kind, effort, steps = _next(root, effort, _gap(root.bound, best, problem))
    scale = float(np.abs(problem.A).max(initial=0.0))
    fewer = root if problem.m < before else None
    if problem.m < 3 or scale <= _NO_PENALTY:
        return fewer, effort + 1
    matrix: FloatArray | None = None
    if kind == "diagonal":
        if diagonal_fits(problem.m, deadline):
            matrix = better_diagonal(root.G, root.x, scale)
    elif kind == "core":
        root.splitting = None
        matrix = core_matrix(problem, root.lam, root.G, root.x, steps, deadline)
    elif kind == "all":
        root.splitting = root.splitting or Splitting.of(problem, root.x, root.G)
        matrix = relaxation_matrix(problem, root.lam, steps, deadline, root.splitting)
    if matrix is None:
        return fewer, effort + 1
    tried = relax_root(replace(root, G=matrix, bound=math.inf), best, tolerance, options)
    if tried.bound >= root.bound:
        return fewer, effort + 1
    return replace(probed(tried, stop, deadline), made_for=problem, made=matrix), effort + 1
