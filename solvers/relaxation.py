"""The root of the search: row multipliers, relaxation, fixing by reduced costs, and better matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers import kernel_relax
from mio_rag.solvers.presolve import FloatArray, Problem
from mio_rag.solvers.reformulation import better_diagonal, relaxation_matrix
from mio_rag.solvers.result import SolveOptions

__all__ = ["Incumbent", "Root", "improved", "is_wide", "relax_root", "target", "waiting"]

_MULTIPLIER_STEPS = 80  # with 25, a dozen mixed rows cost twice the nodes
_QUICK_NODES = 150  # before any better matrix is worth its price
_LARGEST_DIAGONAL = 260  # items
_NO_PENALTY = 1e-12  # relative to the largest value: nothing for a better matrix to gain
_WIDE_GAP = 0.06
_EFFORTS = (20, 60, 200)  # steps of `relaxation_matrix`
_NODES_PER_STEP, _NODES_PER_SQUARE = 25.0, 0.0045  # the time of an eigendecomposition in nodes


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


def target(problem: Problem, best: Incumbent, tolerance: float, options: SolveOptions) -> float:
    """The bound at which nothing worth having is left: incumbent plus tolerance."""
    if best.x is None:
        return -math.inf
    objective = abs(problem.base / problem.scale + best.value)
    return best.value + max(tolerance, options.relative_gap * objective)


def relax_root(root: Root, best: Incumbent, tolerance: float, options: SolveOptions) -> Root:
    """Multipliers, relaxation and fixing by reduced costs, for the matrix that `root` has."""
    problem, lam, x = root.problem, root.lam, root.x
    every = np.arange(problem.m)
    G = root.G
    b = problem.room + problem.extra
    stop = target(problem, best, tolerance, options)
    if problem.w.size:
        lam = _multipliers(problem, G, lam, x, best)
    q = problem.p - problem.W.T @ lam + 0.5 * np.diagonal(G)
    used = float(problem.cr @ x)
    if used > b:
        x = x * (b / used)
    g = G @ x
    base = float(lam @ problem.w)
    bound, mu = kernel_relax.relax(
        q, G, 0.0, every, problem.cr, b, x, g, problem.m, 4000, stop, base, 1e-9, 0.0
    )
    bound = min(bound, root.bound)
    h = q - g - mu * problem.cr
    here = base + 0.5 * float(x @ g) + mu * b + float(np.maximum(h, 0).sum())
    out = (h < 0) & (here + h <= stop)
    dropped = max(root.dropped, float((here + h)[out].max())) if out.any() else root.dropped
    k = np.flatnonzero(~out)
    if out.any():
        problem, G = problem.keep(k), np.ascontiguousarray(G[np.ix_(k, k)])
    return Root(problem, G, lam, x[k], bound, dropped)


def _multipliers(
    problem: Problem, G: FloatArray, lam: FloatArray, x: FloatArray, best: Incumbent
) -> FloatArray:
    """Multipliers >= 0 of the rows that make the relaxation's bound small (Polyak's subgradient steps)."""
    every = np.arange(problem.m)
    b = problem.room + problem.extra
    least, at, step = math.inf, lam, 1.0
    for _ in range(_MULTIPLIER_STEPS):
        q = problem.p - problem.W.T @ lam + 0.5 * np.diagonal(G)
        g = G @ x
        value, _ = kernel_relax.relax(
            q,
            G,
            0.0,
            every,
            problem.cr,
            b,
            x,
            g,
            problem.m,
            300,
            -math.inf,
            float(lam @ problem.w),
            1e-7,
            0.0,
        )
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


def waiting(root: Root, effort: int, wide: bool) -> float:
    """Nodes to search before `improved` at this effort is worth its price: about as long as it takes."""
    if effort >= len(_EFFORTS):
        return math.inf
    price = _EFFORTS[effort] * (_NODES_PER_STEP + _NODES_PER_SQUARE * root.problem.m**2)
    return max(_QUICK_NODES, math.ceil(price / 4 if wide else price))


def is_wide(bound: float, best: Incumbent, problem: Problem) -> bool:
    """Whether the gap calls for more than another diagonal."""
    objective = abs(problem.base / problem.scale + best.value)
    return best.x is None or bound - best.value > _WIDE_GAP * objective


def improved(
    root: Root,
    best: Incumbent,
    tolerance: float,
    options: SolveOptions,
    effort: int,
    deadline: float,
) -> Root | None:
    """The root with a better matrix; None where that does not lower its bound.

    `effort` counts from 0; see `waiting` for when each is due.
    """
    problem = root.problem
    scale = float(np.abs(problem.A).max(initial=0.0))
    if problem.m < 3 or scale <= _NO_PENALTY:
        return None
    if effort == 0 and not is_wide(root.bound, best, problem):
        matrix = better_diagonal(root.G, root.x, scale) if problem.m <= _LARGEST_DIAGONAL else None
    else:
        matrix = relaxation_matrix(problem, root.lam, _EFFORTS[effort], deadline)
    if matrix is None:
        return None
    tried = relax_root(replace(root, G=matrix, bound=math.inf), best, tolerance, options)
    return replace(tried, made_for=problem, made=matrix) if tried.bound < root.bound else None
