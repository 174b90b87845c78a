"""The root of the search: row multipliers, the concave relaxation, fixing by reduced costs, and its diagonal.

With a diagonal D that makes A + diag(D) positive semidefinite, x^2 = x turns  p.x - 1/2 x'A x  into the
concave (p + D/2).x - 1/2 x'(A + diag(D)) x. Any such D is valid; a good one makes the bound small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers import kernel
from mio_rag.solvers.presolve import FloatArray, Problem
from mio_rag.solvers.result import SolveOptions

__all__ = ["Incumbent", "Root", "better_diagonal", "relax_root", "target", "uniform_diagonal"]

_MULTIPLIER_STEPS = 25


@dataclass
class Incumbent:
    """The incumbent: a full 0/1 vector of the program and its value on the scale of `Problem`."""

    value: float
    x: NDArray[np.int8] | None


@dataclass(eq=False)
class Root:
    """What the root leaves: surviving items, their diagonal, multipliers, relaxed point and bounds."""

    problem: Problem
    D: FloatArray
    lam: FloatArray
    x: FloatArray
    bound: float
    dropped: float  # largest value that anything dropped by its reduced cost could have had


def target(problem: Problem, best: Incumbent, tolerance: float, options: SolveOptions) -> float:
    """The bound at which nothing worth having is left: incumbent plus tolerance."""
    if best.x is None:
        return -math.inf
    objective = abs(problem.base / problem.scale + best.value)
    return best.value + max(tolerance, options.relative_gap * objective)


def uniform_diagonal(A: FloatArray) -> FloatArray:
    """The smallest uniform diagonal that makes A + diag(D) positive semidefinite, with room for rounding."""
    m = A.shape[0]
    least = float(np.linalg.eigvalsh(A)[0]) if m and np.any(A) else 0.0
    return np.full(m, max(0.0, -least) + 1e-12 * m if least < 0 else 0.0)


def relax_root(root: Root, best: Incumbent, tolerance: float, options: SolveOptions) -> Root:
    """Multipliers, relaxation and fixing by reduced costs, for the diagonal that `root` has."""
    problem, lam, x = root.problem, root.lam, root.x
    every = np.arange(problem.m)
    G = problem.A + np.diag(root.D)
    b = problem.room + problem.extra
    stop = target(problem, best, tolerance, options)
    if problem.w.size:
        lam = _multipliers(problem, root.D, G, lam, x, best)
    q = problem.p - problem.W.T @ lam + 0.5 * root.D
    used = float(problem.cr @ x)
    if used > b:
        x = x * (b / used)
    g = G @ x
    base = float(lam @ problem.w)
    bound, mu = kernel.relax(q, G, every, problem.cr, b, x, g, problem.m, 4000, stop, base, 1e-9)
    bound = min(bound, root.bound)
    h = q - g - mu * problem.cr
    here = base + 0.5 * float(x @ g) + mu * b + float(np.maximum(h, 0).sum())
    out = (h < 0) & (here + h <= stop)
    dropped = max(root.dropped, float((here + h)[out].max())) if out.any() else root.dropped
    k = np.flatnonzero(~out)
    return Root(problem.keep(k) if out.any() else problem, root.D[k], lam, x[k], bound, dropped)


def _multipliers(
    problem: Problem, D: FloatArray, G: FloatArray, lam: FloatArray, x: FloatArray, best: Incumbent
) -> FloatArray:
    """Multipliers >= 0 of the rows that make the relaxation's bound small (Polyak's subgradient steps)."""
    every = np.arange(problem.m)
    b = problem.room + problem.extra
    least, at, step = math.inf, lam, 1.0
    for _ in range(_MULTIPLIER_STEPS):
        q = problem.p - problem.W.T @ lam + 0.5 * D
        g = G @ x
        value, _ = kernel.relax(
            q, G, every, problem.cr, b, x, g, problem.m, 300, -math.inf, float(lam @ problem.w), 1e-7
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


def better_diagonal(root: Root) -> FloatArray | None:
    """A diagonal that lowers the relaxation where its point is most fractional; None where none is found.

    Maximises  weights . delta  with  A + diag(D) - diag(delta)  positive semidefinite, by Newton steps on
    the log-barrier; the result is shifted to be positive semidefinite in floating point.
    """
    A = root.problem.A
    m = A.shape[0]
    scale = float(np.abs(A).max(initial=0.0))
    if m < 3 or scale <= 0:
        return None
    G = (A + np.diag(root.D)) / scale
    weights = root.x * (1 - root.x) + 0.02
    least = float(np.linalg.eigvalsh(G)[0])
    delta = np.full(m, least - 0.05 * abs(least) - 1e-3)
    sharpness = 2.0 / float(weights.mean()) / 0.3
    for _ in range(10):
        try:
            inverse = np.linalg.inv(G - np.diag(delta))
            slope = sharpness * weights - np.diag(inverse)
            step = np.linalg.solve(inverse * inverse + 1e-10 * np.eye(m), slope)
        except np.linalg.LinAlgError:
            return None
        decrement = float(slope @ step)
        length = 1.0 / (1.0 + math.sqrt(decrement)) if decrement > 0.25 else 1.0
        while length > 1e-6:
            try:
                np.linalg.cholesky(G - np.diag(delta + length * step))
                break
            except np.linalg.LinAlgError:
                length *= 0.5
        else:
            break
        delta = delta + length * step
        if decrement < 0.1:
            sharpness *= 4
    D = root.D - scale * delta
    least = float(np.linalg.eigvalsh(A + np.diag(D))[0])
    margin = 1e-12 * m * max(1.0, float(np.abs(D).max()))
    return D if least >= margin else D + (margin - least)
