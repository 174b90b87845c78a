"""Matrices for the concave relaxation from the dual of the doubly non-negative program.

    maximise  p.x - 1/2 <A, X>   subject to  X_ii = x_i,  X_ij >= 0,  c.x <= b,  [[1, x'], [x, X]] psd.

Without X >= 0, a relaxation spreads over many similar passages and takes their pairs as negative: with heavy
penalties the gap is tens of percent, with X >= 0 a few percent. With light penalties, X >= 0 reduces the gap
of the best diagonal by a third. The program is solved roughly, by the alternating direction method of
multipliers on the dual. A step takes an eigendecomposition. In later steps the eigenvectors change less, so
that those of an earlier step can be reused to first order, in a quarter of the time. The method can stop
after any step: remaining infeasibility is compensated by a shift of the diagonal.

- `relaxation_matrix`: of all items.
- `core_matrix`: of the items that the relaxation uses, about a quarter; the others contribute through their
  reduced costs. A rough matrix at a fifth of the cost; items that it excludes make the next one cheaper.

Sources: Burer (2009) for the doubly non-negative relaxation; Povh, Rendl and Wiegele (2006) and Wen, Goldfarb
and Yin (2010) for the method; Daleckii and Krein (1965) for the derivative of a function of a matrix.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.presolve import FloatArray, Problem, part_of
from mio_rag.solvers.reformulation import expected_seconds, shifted, verified

__all__ = ["Splitting", "core_matrix", "core_size", "relaxation_matrix"]

_OVER_RELAXATION = 1.75
_FIRST_PENALTY = 0.5
_FIRST_SHARE = 0.75  # of the matrix that the relaxation had
_FIRST_PAIRS = 0.5  # of the products in the primal start
_BALANCE = 0.8  # of pairs against single items
_BALANCE_EVERY = 5  # steps
_DUAL_WEIGHT = 30.0  # only the dual side makes the bound, so its residual is kept smaller
_EXACT_EVERY, _LONGER_EVERY = 5, 4  # steps; between eigendecompositions at most, and until it is one more
_LIGHT = 2.2  # kappa from which on the multipliers make the better matrix
_CORE, _CORE_MORE = 1.2, 4  # times the items that the relaxation uses; at least so many more
_CORE_SECONDS = 0.3  # of an eigendecomposition of all items, by its cautious guess
_CORE_SHARE = 0.8  # of their reduced costs, that the other items pay


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
    vectors: FloatArray | None = None  # of the last eigendecomposition
    age: int = 0  # steps since

    @classmethod
    def of(cls, problem: Problem, x: FloatArray, G: FloatArray) -> Splitting:
        """The start, near what the relaxation with the matrix G found: its point x, and G as the dual matrix.

        The dual matrix vanishes at (1, x), the primal one has a part of the products that would go with it.
        With penalties of 0.3 and more, 6 steps from there beat 12 from nothing.
        """
        m = problem.m
        pairs = float(np.abs(problem.A).sum()) / max(m - 1, 1)
        single = float(np.abs(problem.p).sum())
        kappa = float(np.clip(_BALANCE * math.sqrt(single / max(pairs, 1e-9 * single, 1e-300)), 0.5, 5.0))
        Z, S = np.zeros((m + 1, m + 1)), np.zeros((m + 1, m + 1))
        items, at = x / kappa, np.arange(1, m + 1)
        Z[1:, 1:] = _FIRST_PAIRS / kappa**2 * _products(x, G)
        Z[0, 0] = 1.0
        Z[0, 1:] = Z[1:, 0] = items
        Z[at, at] = items / kappa
        S[1:, 1:] = _FIRST_SHARE * 0.5 * kappa**2 * G
        S[0, 1:] = S[1:, 0] = -S[1:, 1:] @ items
        S[0, 0] = -float(S[0, 1:] @ items)
        return cls(Z, S, np.zeros_like(Z), kappa, _FIRST_PENALTY / kappa**1.5)

    def keep(self, k: NDArray[np.int64]) -> Splitting:
        """The same for some of the items."""
        at = np.concatenate(([0], k + 1))
        Z, S, N = (part_of(M, at) for M in (self.Z, self.S, self.N))
        return replace(self, Z=Z, S=S, N=N, vectors=None)


def relaxation_matrix(
    problem: Problem, lam: FloatArray, steps: int, deadline: float, state: Splitting
) -> FloatArray | None:
    """A positive semidefinite matrix that is at most A off the diagonal, from the doubly non-negative dual.

    There are two, which would be the same if the method had converged: with heavy penalties the dual matrix
    cut to the penalties is the tighter one, with light ones the penalties less the multipliers of X >= 0.

    Parameters
    ----------
    problem : Problem
        With m >= 1 items and some penalty.
    lam : array, shape (rows,)
        Multipliers of the rows, which are folded into the values.
    steps : int
        Steps of the method, >= 1.
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
    own_cost, left, N = np.diagonal(cost), np.empty_like(cost), state.N / scale
    S, sigma = state.S / scale, state.sigma
    slack, slack_dual = state.slack / length, state.slack_dual * length / scale
    Y = state.Z / sigma  # its diagonal and border move with all else
    size = 1.0 + float(np.linalg.norm(cost))
    took = expected_seconds(m)
    vectors, age = state.vectors, state.age
    for step in range(state.steps, state.steps + steps):
        now = time.perf_counter()
        if now + 3 * took > deadline:  # this step, and the shifts at the end
            if step == state.steps:
                return None
            break
        first, own_part = cost[0] - S[0] - N[0], own_cost - np.diagonal(S)
        corner = first[0] + 1.0 / sigma - Y[0, 0]
        items = kappa * own_part[1:] - first[1:] - (kappa * np.diagonal(Y)[1:] - Y[0, 1:])
        budget = float(row @ first[1:]) - slack_dual + (room - slack) / sigma - float(row @ Y[0, 1:])
        mu = (budget + 0.5 * float(row @ items) / own) / pivot
        diagonal = (items + 0.5 * mu * row) / own
        border = 0.5 * (mu * row - diagonal)
        np.subtract(cost, Y, out=left)
        left[0, 0] -= corner
        left[every, every] -= kappa * diagonal
        left[0, 1:] -= border
        left[1:, 0] -= border
        np.subtract(left, S, out=N)
        np.maximum(N, 0.0, out=N)
        np.fill_diagonal(N, 0.0)
        left -= N
        free = -mu - slack / sigma
        slack_dual, new_slack = max(0.0, free), max(0.0, -sigma * free)
        age += 1
        if vectors is None or age >= min(_EXACT_EVERY, 1 + (step + 1) // _LONGER_EVERY):
            S, negative, vectors = _split(left)
            age = 0
        else:
            S, negative = _nearly_split(left, vectors)
        stride = _OVER_RELAXATION if step else 1.0
        slack += stride * (new_slack - slack)
        if step % _BALANCE_EVERY == _BALANCE_EVERY - 1:
            # what the dual matrix lacks: left - S + Y = Y - negative
            Y -= negative
            residual = float(np.linalg.norm(Y)) / size
            Y *= 1.0 - stride
            Y += negative
            factor = _balance(Y * sigma, kappa, row, room, slack, _DUAL_WEIGHT * residual)
            sigma *= factor
            Y /= factor
        else:
            Y *= 1.0 - stride
            negative *= stride
            Y += negative
        if age == 0:
            took = time.perf_counter() - now
    state.Z, state.S, state.N, state.sigma, state.steps = Y * sigma, S * scale, N * scale, sigma, step + 1
    state.slack, state.slack_dual = slack * length, slack_dual * scale / length
    state.vectors, state.age = vectors, age
    units = scale / kappa**2
    if kappa >= _LIGHT:
        N += N.T
        M = problem.A - units * N[1:, 1:]
    else:
        M = np.minimum(units * (S[1:, 1:] + S[1:, 1:].T), problem.A)
    np.fill_diagonal(M, 2 * units * np.diagonal(S)[1:])
    return shifted(M)


def core_size(x: FloatArray) -> int:
    """How many items `core_matrix` is about, where the relaxed point is x."""
    used = int(np.count_nonzero(x > 1e-9))
    return min(x.size, max(int(_CORE * used), used + _CORE_MORE))


def core_matrix(
    problem: Problem, lam: FloatArray, G: FloatArray, x: FloatArray, steps: int, deadline: float
) -> FloatArray | None:
    """What `relaxation_matrix` gives, but of the items that x uses and the likeliest others.

    Every other item has a reduced cost h < 0 at x. Raised by 2 |h|, its diagonal entry leaves the bound at x
    as it is. What these entries outweigh of the entries between the core and the others (a Schur complement)
    is left out of the core, and added again at the end; what remains of the core is solved for as before.

    Parameters
    ----------
    G : array, shape (m, m)
        Positive semidefinite and at most A off the diagonal; the rows and columns of the other items stay.
    x : array, shape (m,)
        The relaxed point of G.
    steps : int
        Of the method, with the items of the core, >= 1.
    """
    deadline -= _CORE_SECONDS * expected_seconds(problem.m)  # for the factorizations of all items
    if time.perf_counter() > deadline:
        return None
    slope = problem.p - problem.W.T @ lam + 0.5 * np.diagonal(G) - G @ x
    mu = float((slope / problem.cr)[x < 1.0 - 1e-9].max(initial=0.0))
    reduced = np.minimum(slope - mu * problem.cr, 0.0)
    order = np.lexsort((-reduced, x <= 1e-9))
    core, others = np.sort(order[: core_size(x)]), np.sort(order[core_size(x) :])
    G = G.copy()
    G[others, others] += 2 * _CORE_SHARE * -reduced[others] + 1e-9
    # The factor's rows of the core do not depend on the block there, which only has to be large enough.
    k, order = others.size, np.concatenate([others, core])
    joined = G.take(order, axis=0).take(order, axis=1)
    joined[k:, k:] = (1.0 + 2.0 * np.trace(joined[k:, k:])) * np.eye(core.size)
    try:
        V = np.linalg.cholesky(joined)[k:, :k]
    except np.linalg.LinAlgError:
        return None
    outweighed = V @ V.T
    inside = np.ix_(core, core)
    part = problem.keep(core)
    part = replace(
        part,
        p=part.p - outweighed @ x[core] + 0.5 * np.diagonal(outweighed),
        A=part.A - outweighed + np.diag(np.diagonal(outweighed)),
    )
    state = Splitting.of(part, x[core], G[inside] - outweighed)
    M = relaxation_matrix(part, lam, steps, deadline, state)
    if M is None:
        return None
    M += outweighed
    diagonal = np.diagonal(M).copy()
    np.minimum(M, problem.A[inside], out=M)
    np.fill_diagonal(M, diagonal)
    G[inside] = M
    return verified(G)


def _products(x: FloatArray, G: FloatArray) -> FloatArray:
    """x x' and a covariance with the variances x (1 - x) that is large where G is small."""
    variance = x * (1.0 - x)
    k = np.flatnonzero(variance > 1e-6)
    products = np.outer(x, x)
    if k.size:
        H = part_of(G, k)
        inverse = np.linalg.inv(H + 1e-3 * max(float(np.abs(H).max()), 1e-300) * np.eye(k.size))
        deviation = np.sqrt(variance[k] / np.maximum(np.diagonal(inverse), 1e-300))
        products[np.ix_(k, k)] += inverse * np.outer(deviation, deviation)
    return products


def _split(target: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Positive and negative part of a symmetric matrix (their difference is the matrix); its eigenvectors."""
    values, vectors = np.linalg.eigh(target)
    k = int(np.searchsorted(values, 0.0))
    if 2 * k > values.size:
        V = vectors[:, k:] * np.sqrt(values[k:])
        S = V @ V.T  # of a matrix and its own transpose, BLAS works out half
        return S, S - target, vectors
    V = vectors[:, :k] * np.sqrt(-values[:k])
    negative = V @ V.T
    return target + negative, negative, vectors


def _nearly_split(target: FloatArray, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The same parts, to first order in what `target` lacks of being diagonal in the basis `vectors`.

    Entries between two vectors of one sign belong to the part of that sign; those between a positive and a
    negative one are shared out in proportion to the eigenvalues.
    """
    turned = target @ vectors
    values = np.einsum("ij,ij->j", vectors, turned)
    positive = values > 0
    few_positive = 2 * np.count_nonzero(positive) <= values.size
    of_part = positive if few_positive else ~positive
    own, other = np.flatnonzero(of_part), np.flatnonzero(~of_part)
    basis = vectors[:, own]
    entries = basis.T @ turned
    sizes = values[own, None]
    entries[:, other] *= sizes / (sizes - values[other])
    entries[:, own] *= 0.5
    part = basis @ (entries @ vectors.T)
    part = part + part.T
    if few_positive:
        return part, part - target
    return target - part, -part


def _balance(Z: FloatArray, kappa: float, row: FloatArray, room: float, slack: float, dual: float) -> float:
    """Factor on the penalty parameter that keeps primal and dual residuals of the same size."""
    items = kappa * np.diagonal(Z)[1:] - Z[0, 1:]
    budget = float(row @ Z[0, 1:]) + slack - room
    squares = (Z[0, 0] - 1) ** 2 + float(items @ items) + budget**2 + float((np.minimum(Z, 0) ** 2).sum())
    primal = math.sqrt(squares) / (1.0 + room)
    if primal > 2 * dual:
        return 0.7
    return 1.6 if dual > 2 * primal else 1.0
