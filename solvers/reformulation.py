"""Matrices for the concave relaxation.

On 0/1 vectors x^2 = x, and products of items are never negative. So with any positive semidefinite G that is
at most A off the diagonal,

    p.x - 1/2 x'A x  <=  (p + diag(G)/2).x - 1/2 x'G x      for every 0/1 vector x,

and the right side is concave. How good the bound is depends on G; three ways to find one, by rising price:

- `first_matrix`: A with the smallest uniform diagonal, or one that charges links to their ends. One or two
  eigenvalue computations.
- `better_diagonal`: the diagonal that lowers the relaxation most where its point is fractional (quadratic
  convex reformulation), by Newton steps on a log-barrier. A few inversions; closes a third
  to a half of a small gap.
- `relaxation_matrix`: diagonal and off-diagonal together, from the dual of the doubly non-negative program

      maximise  p.x - 1/2 <A, X>   subject to  X_ii = x_i,  X_ij >= 0,  c.x <= b,  [[1, x'], [x, X]] psd.

  Without X >= 0 a relaxation spreads over many similar passages and books their pairs as negative: with
  heavy penalties the gap is tens of percent, with X >= 0 a few. Solved roughly by the alternating direction
  method of multipliers on the dual, one eigendecomposition a step. It can stop after any step: what is left
  of infeasibility is paid by a shift of the diagonal.

Sources: Billionnet, Elloumi and Plateau (2009) for the convex reformulation; Burer (2009) for the doubly
non-negative relaxation; Povh, Rendl and Wiegele (2006) and Wen, Goldfarb and Yin (2010) for the method.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.presolve import Problem

__all__ = [
    "Splitting",
    "better_diagonal",
    "diagonal_fits",
    "dominated",
    "first_matrix",
    "relaxation_matrix",
    "shifted",
]

FloatArray = NDArray[np.float64]

_NEWTON_STEPS = 5
_OVER_RELAXATION = 1.75
_FIRST_PENALTY = 0.5
_FIRST_SHARE = 0.75  # of the matrix that the relaxation had
_BALANCE = 0.65  # of pairs against single items
_BALANCE_EVERY = 5  # steps
_DUAL_WEIGHT = 6.0  # only the dual side makes the bound, so its residual is kept smaller


def shifted(M: FloatArray) -> FloatArray:
    """M with the smallest uniform shift of its diagonal that makes it positive semidefinite."""
    m = M.shape[0]
    if m == 0 or not np.any(M):
        return M
    margin = 1e-12 * m * max(1.0, float(np.abs(M).max()))
    least = float(np.linalg.eigvalsh(M)[0])
    return M if least >= margin else M + (margin - least) * np.eye(m)


def dominated(A: FloatArray) -> FloatArray:
    """A with a diagonal that no row sum of absolute values exceeds: positive semidefinite, and cheap."""
    return A + np.diag(np.abs(A).sum(axis=1) * (1 + 1e-12))


def first_matrix(A: FloatArray) -> FloatArray:
    """A with the better of two diagonals, by their sum: one shift for all, or links charged to their ends.

    A few negative entries (benefits of linked passages) among small ones would make the uniform shift pay
    for them on every item; a diagonal as large as their row sums pays on theirs alone.
    """
    whole = shifted(A)
    links = np.minimum(A, 0.0)
    if not np.any(links):
        return whole
    if float(np.abs(links).sum()) >= float(np.trace(whole)):
        return whole  # charging the links alone costs as much; spares a large matrix its second eigenvalue
    apart = shifted(A - links) + dominated(links)
    return apart if np.trace(apart) < np.trace(whole) else whole


def _is_positive_definite(M: FloatArray) -> bool:
    try:
        np.linalg.cholesky(M)
    except np.linalg.LinAlgError:
        return False
    return True


def diagonal_fits(m: int, deadline: float) -> bool:
    """Whether `better_diagonal` of order m is over by the deadline, on the clock of `time.perf_counter`."""
    return time.perf_counter() + 2.5 * _expected_seconds(m) <= deadline


def better_diagonal(G: FloatArray, x: FloatArray, scale: float) -> FloatArray | None:
    """A matrix that differs from G in its diagonal and lowers the relaxation near its point x.

    Maximises  weights . delta  with  G - diag(delta)  positive semidefinite, weights x (1 - x), by Newton
    steps on the log-barrier. None where the arithmetic fails.

    Parameters
    ----------
    G : array, shape (m, m)
        Positive semidefinite.
    x : array, shape (m,)
        The relaxed point.
    scale : float
        Size of the entries off the diagonal, > 0.
    """
    m = G.shape[0]
    H = G / scale
    weights = x * (1 - x) + 0.02
    least = float(np.linalg.eigvalsh(H)[0])
    delta = np.full(m, least - 0.05 * abs(least) - 1e-3)
    sharpness = 2.0 / float(weights.mean()) / 0.3
    for _ in range(_NEWTON_STEPS):
        try:
            inverse = np.linalg.inv(H - np.diag(delta))
            slope = sharpness * weights - np.diag(inverse)
            step = np.linalg.solve(inverse * inverse + 1e-10 * np.eye(m), slope)
        except np.linalg.LinAlgError:
            return None
        decrement = float(slope @ step)
        length = 1.0 / (1.0 + math.sqrt(decrement)) if decrement > 0.25 else 1.0
        while length > 1e-6 and not _is_positive_definite(H - np.diag(delta + length * step)):
            length *= 0.5
        if length <= 1e-6:
            break
        delta = delta + length * step
        if decrement < 0.1:
            sharpness *= 4
    return shifted(G - scale * np.diag(delta))


@dataclass(eq=False)
class Splitting:
    """Where the method of multipliers stands, for the items of a problem: it can be resumed.

    `Z` is the primal matrix; `S` (positive semidefinite) and `N` (non-negative) share out the dual one, in
    the units of the objective; the budget's primal slack is in those of the costs. The items are counted in
    units of 1/kappa, so that the pairs weigh about as much as the single items: it saves half of the steps.
    """

    Z: FloatArray
    S: FloatArray
    N: FloatArray
    kappa: float
    sigma: float
    slack: float = 0.0
    slack_dual: float = 0.0
    steps: int = 0

    @classmethod
    def of(cls, problem: Problem, x: FloatArray, G: FloatArray) -> Splitting:
        """The start, near what the relaxation with the matrix G found: its point x, and G as the dual matrix.

        The dual matrix vanishes at (1, x). With penalties of 0.3 and more, 6 steps from there beat 12 from
        nothing.
        """
        m = problem.m
        pairs = float(np.abs(problem.A).sum()) / max(m - 1, 1)
        single = float(np.abs(problem.p).sum())
        kappa = float(np.clip(_BALANCE * math.sqrt(single / max(pairs, 1e-9 * single, 1e-300)), 0.5, 5.0))
        Z, S = np.zeros((m + 1, m + 1)), np.zeros((m + 1, m + 1))
        items, at = x / kappa, np.arange(1, m + 1)
        Z[0, 0] = 1.0
        Z[0, 1:] = Z[1:, 0] = items
        Z[at, at] = items / kappa
        S[1:, 1:] = _FIRST_SHARE * 0.5 * kappa**2 * G
        S[0, 1:] = S[1:, 0] = -S[1:, 1:] @ items
        S[0, 0] = -float(S[0, 1:] @ items)
        return cls(Z, S, np.zeros_like(Z), kappa, _FIRST_PENALTY / kappa**1.5)

    def keep(self, k: NDArray[np.int64]) -> Splitting:
        """The same for some of the items."""
        at = np.ix_(*2 * (np.concatenate(([0], k + 1)),))
        return replace(self, Z=self.Z[at], S=self.S[at], N=self.N[at])


def relaxation_matrix(
    problem: Problem, lam: FloatArray, steps: int, deadline: float, state: Splitting
) -> FloatArray | None:
    """A positive semidefinite matrix that is at most A off the diagonal, from the doubly non-negative dual.

    Parameters
    ----------
    problem : Problem
        With m >= 1 items and some penalty.
    lam : array, shape (rows,)
        Multipliers of the rows, which are folded into the values.
    steps : int
        Eigendecompositions of order m + 1, >= 1.
    deadline : float
        On the clock of `time.perf_counter`. Stops in time for it; None where not one step fits.
    state : Splitting
        Of the same items, to go on from; updated.
    """
    m = problem.m
    kappa = state.kappa
    every = np.arange(1, m + 1)
    cost = np.zeros((m + 1, m + 1))
    cost[0, 1:] = cost[1:, 0] = -0.5 * kappa * (problem.p - problem.W.T @ lam)
    cost[1:, 1:] = 0.5 * kappa**2 * problem.A
    scale = float(np.abs(cost).max())
    cost /= scale
    length = float(np.linalg.norm(problem.cr))
    row, length = problem.cr / length, length * kappa
    room = (problem.room + problem.extra) / length
    # Constraints: Z_00 = 1, kappa Z_ii - Z_0i = 0, row . Z_0 + slack = room. Their Gram matrix is an arrow.
    own = kappa**2 + 0.5
    pivot = 0.5 * float(row @ row) + 1.0 - 0.25 * float(row @ row) / own
    Z, S, N, sigma = state.Z, state.S / scale, state.N / scale, state.sigma
    slack, slack_dual = state.slack / length, state.slack_dual * length / scale
    size = 1.0 + float(np.linalg.norm(cost))
    took = _expected_seconds(m)
    for step in range(state.steps, state.steps + steps):
        now = time.perf_counter()
        if now + 2.5 * took > deadline:  # this step, and the shift at the end
            if step == state.steps:
                return None
            break
        left = cost - S - N
        corner = left[0, 0] + (1.0 - Z[0, 0]) / sigma
        items = kappa * left[every, every] - left[0, 1:] - (kappa * Z[every, every] - Z[0, 1:]) / sigma
        budget = float(row @ left[0, 1:]) - slack_dual + (room - float(row @ Z[0, 1:]) - slack) / sigma
        mu = (budget + 0.5 * float(row @ items) / own) / pivot
        diagonal = (items + 0.5 * mu * row) / own
        dual = cost.copy()
        dual[0, 0] -= corner
        dual[every, every] -= kappa * diagonal
        border = 0.5 * (mu * row - diagonal)
        dual[0, 1:] -= border
        dual[1:, 0] -= border
        N = np.maximum(0.0, dual - S - Z / sigma)
        np.fill_diagonal(N, 0.0)
        free = -mu - slack / sigma
        slack_dual, new_slack = max(0.0, free), max(0.0, -sigma * free)
        S, new = _split(dual - N - Z / sigma, sigma)
        stride = _OVER_RELAXATION if step else 1.0
        Z = Z + stride * (new - Z)
        slack += stride * (new_slack - slack)
        if step % _BALANCE_EVERY == _BALANCE_EVERY - 1:
            residual = float(np.linalg.norm(dual - S - N)) / size
            sigma *= _balance(Z, kappa, row, room, slack, _DUAL_WEIGHT * residual)
        took = time.perf_counter() - now
    state.Z, state.S, state.N, state.sigma, state.steps = Z, S * scale, N * scale, sigma, step + 1
    state.slack, state.slack_dual = slack * length, slack_dual * scale / length
    units = scale / kappa**2
    M = np.minimum(units * (S[1:, 1:] + S[1:, 1:].T), problem.A)
    np.fill_diagonal(M, 2 * units * np.diagonal(S)[1:])
    return shifted(M)


def _expected_seconds(m: int) -> float:
    """A cautious guess of the time of one eigendecomposition, until one has been timed."""
    return 1e-3 + 1e-9 * m**3


def _split(target: FloatArray, sigma: float) -> tuple[FloatArray, FloatArray]:
    """Positive part of a symmetric matrix, and sigma times its negative part."""
    values, vectors = np.linalg.eigh(target)
    positive = values > 0
    if 2 * int(positive.sum()) < values.size:
        V = vectors[:, positive]
        S = (V * values[positive]) @ V.T
        return S, sigma * (S - target)
    V = vectors[:, ~positive]
    negative = (V * -values[~positive]) @ V.T
    return target + negative, sigma * negative


def _balance(Z: FloatArray, kappa: float, row: FloatArray, room: float, slack: float, dual: float) -> float:
    """Factor on the penalty parameter that keeps primal and dual residuals of the same size."""
    items = kappa * np.diagonal(Z)[1:] - Z[0, 1:]
    budget = float(row @ Z[0, 1:]) + slack - room
    squares = (Z[0, 0] - 1) ** 2 + float(items @ items) + budget**2 + float((np.minimum(Z, 0) ** 2).sum())
    primal = math.sqrt(squares) / (1.0 + room)
    if primal > 2 * dual:
        return 0.7
    return 1.6 if dual > 2 * primal else 1.0
