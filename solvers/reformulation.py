"""Matrices for the concave relaxation.

On 0/1 vectors x^2 = x, and products of items are never negative. So with any positive semidefinite G that is
at most A off the diagonal,

    p.x - 1/2 x'A x  <=  (p + diag(G)/2).x - 1/2 x'G x      for every 0/1 vector x,

and the right side is concave. The quality of the bound depends on G. Ways to find one, by increasing cost:

- `first_matrix`: A with the smallest uniform diagonal, or one that charges links to their ends. One or two
  eigenvalue computations.
- `better_diagonal`: the diagonal that lowers the relaxation most where its point is fractional (quadratic
  convex reformulation), by Newton steps on a log-barrier. A few inversions; closes almost
  half of a small gap.
- `doubly_nonnegative.relaxation_matrix`: diagonal and off-diagonal together, by a conic program.

Source: Billionnet, Elloumi and Plateau (2009) for the convex reformulation.
"""

from __future__ import annotations

import math
import time

import numpy as np

from mio_rag.solvers.presolve import FloatArray

__all__ = [
    "better_diagonal",
    "diagonal_fits",
    "dominated",
    "expected_seconds",
    "first_matrix",
    "nearly_shifted",
    "shifted",
    "unevenly_shifted",
    "verified",
]

_NEWTON_STEPS, _SHARPNESS, _STRIDE = 3, 50.0, 1.7  # a stride of 1 cannot leave the cone
_FIRST_SHIFT = 0.02  # of the diagonal, in units of the entries
_EVENLY = 0.06  # of the weights; without it, entries that matter deeper in the tree get nothing
_MANY = 256  # items, from which on Lanczos steps and a factorization take half as long as eigenvalues
_LANCZOS_STEPS, _LANCZOS_SLACKS = 32, (1.003, 1.01)


def shifted(M: FloatArray) -> FloatArray:
    """M with the smallest uniform shift of its diagonal that makes it positive semidefinite."""
    if not np.any(M):
        return M
    margin = _margin(M)
    least = float(np.linalg.eigvalsh(M)[0])
    return M if least >= margin else M + (margin - least) * np.eye(M.shape[0])


def nearly_shifted(M: FloatArray) -> FloatArray:
    """`shifted`, but where M is large with a shift that may be a percent too large, and is found sooner."""
    if M.shape[0] < _MANY or not np.any(M):
        return shifted(M)
    least = _least_by_lanczos(M)
    for slack in _LANCZOS_SLACKS:
        raised = M + (_margin(M) + slack * max(0.0, -least)) * np.eye(M.shape[0])
        if _is_positive_definite(raised):
            return raised + _margin(M) * np.eye(M.shape[0])
    return shifted(M)


def _least_by_lanczos(M: FloatArray) -> float:
    """The smallest eigenvalue of a symmetric matrix, or somewhat more (Lanczos, 1950; reorthogonalized)."""
    basis = np.zeros((_LANCZOS_STEPS + 1, M.shape[0]))
    small = np.zeros((_LANCZOS_STEPS + 1, _LANCZOS_STEPS + 1))
    start = np.random.default_rng(0).normal(size=M.shape[0])
    basis[0] = start / np.linalg.norm(start)
    for j in range(_LANCZOS_STEPS):
        v, known = M @ basis[j], basis[: j + 1]
        small[j, j] = float(v @ basis[j])
        for _ in range(2):
            v -= (known @ v) @ known
        length = float(np.linalg.norm(v))
        if length <= 1e-12 * float(np.abs(small).max()):
            break
        small[j, j + 1] = small[j + 1, j] = length
        basis[j + 1] = v / length
    return float(np.linalg.eigvalsh(small[: j + 1, : j + 1])[0])


def verified(M: FloatArray) -> FloatArray:
    """M, positive semidefinite but for rounding, with a small uniform shift that makes up for it.

    As safe as `shifted`, for a tenth of the price: one factorization shows what eigenvalues would.
    """
    margin = _margin(M) * np.eye(M.shape[0])
    return M + 2 * margin if _is_positive_definite(M + margin) else shifted(M)


def _margin(M: FloatArray) -> float:
    """More than the rounding of eigenvalues and factors of M."""
    return float(1e-12 * M.shape[0] * max(1.0, np.abs(M).max(initial=0.0)))


def dominated(A: FloatArray) -> FloatArray:
    """A with a diagonal that no row sum of absolute values exceeds: positive semidefinite, and cheap."""
    return A + np.diag(np.abs(A).sum(axis=1) * (1 + 1e-12))


def first_matrix(A: FloatArray) -> FloatArray:
    """A with the better of two diagonals, by their sum: one shift for all, or links charged to their ends.

    A few negative entries (benefits of linked passages) among small ones would make the uniform shift pay
    for them on every item; a diagonal as large as their row sums pays on theirs alone.
    """
    whole = nearly_shifted(A)
    links = np.minimum(A, 0.0)
    if not np.any(links):
        return whole
    allowed = (float(np.trace(whole)) - float(np.abs(links).sum())) / A.shape[0]
    others = A - links
    if allowed <= 0 or not _is_positive_definite(others + allowed * np.eye(A.shape[0])):
        return whole  # with its links charged apart, the rest would need a larger shift than is left
    return nearly_shifted(others) + dominated(links)


def unevenly_shifted(A: FloatArray) -> FloatArray:
    """A with the smallest diagonal in proportion to the lengths of its rows, or `first_matrix` by the trace.

    Where redundancy is weighed by relevance, entries of most items are tiny beside those of a few; a uniform
    shift would charge all of them for these few. Off by a factor of 50 in the trace on pools of windows.
    """
    uniform = first_matrix(A)
    lengths = np.sqrt((A * A).sum(axis=1))
    if not np.any(lengths):
        return uniform
    root = np.sqrt(np.maximum(lengths, 1e-6 * float(lengths.max())))
    diagonal = np.diagonal(shifted(A / np.outer(root, root))) * root**2
    if float(diagonal.sum()) >= float(np.trace(uniform)):
        return uniform
    return A + np.diag(diagonal)


def _is_positive_definite(M: FloatArray) -> bool:
    try:
        np.linalg.cholesky(M)
    except np.linalg.LinAlgError:
        return False
    return True


def diagonal_fits(m: int, deadline: float) -> bool:
    """Whether `better_diagonal` of order m is over by the deadline, on the clock of `time.perf_counter`."""
    return time.perf_counter() + 2.5 * expected_seconds(m) <= deadline


def better_diagonal(G: FloatArray, x: FloatArray, scale: float) -> FloatArray | None:
    """A matrix that differs from G in its diagonal and lowers the relaxation near its point x.

    Maximises  weights . delta  with  G - diag(delta)  positive semidefinite, weights x (1 - x) plus a little
    for all, by Newton steps on the log-barrier. None where the arithmetic fails.

    Parameters
    ----------
    G : array, shape (m, m)
        Positive semidefinite.
    x : array, shape (m,)
        The relaxed point.
    scale : float
        Size of the entries off the diagonal, > 0.
    """
    every = np.arange(G.shape[0])

    def less(delta: FloatArray, unit: float = 1.0) -> FloatArray:
        M = G / unit
        M[every, every] -= delta
        return M

    weights = x * (1 - x) + _EVENLY
    sharpness = _SHARPNESS / float(weights.mean())
    delta = np.full(x.size, -_FIRST_SHIFT)
    for _ in range(_NEWTON_STEPS):
        try:
            inverse = np.linalg.inv(less(delta, scale))
            slope = sharpness * weights - np.diagonal(inverse)
            inverse *= inverse
            inverse[every, every] += 1e-10
            step = np.linalg.solve(inverse, slope)
        except np.linalg.LinAlgError:
            return None
        length = min(1.0, _STRIDE / (1.0 + math.sqrt(max(0.0, float(slope @ step)))))
        while not _is_positive_definite(less(delta + length * step, scale)):
            length *= 0.5
            if length <= 1e-6:
                return verified(less(scale * delta))
        delta = delta + length * step
    return verified(less(scale * delta))


def expected_seconds(m: int) -> float:
    """A cautious guess of the time of one eigendecomposition, until one has been timed."""
    return 1e-3 + 1e-9 * m**3
