"""The root of the search: matrices for the concave relaxation, multipliers, bounds and fixing.

On 0/1 vectors x^2 = x, and products of items are never negative. So with any positive semidefinite G that is
at most A off the diagonal,

    p.x - 1/2 x'A x  <=  (p + diag(G)/2).x - 1/2 x'G x      for every 0/1 vector x,

and the right side is concave. The bound depends on G. Ways to find one, by increasing cost:

- `first_matrix`: A with the smallest uniform diagonal, or one that charges links to their ends. One or two
  eigenvalue computations.
- `better_diagonal`: the diagonal that lowers the relaxation most where its point is fractional (quadratic
  convex reformulation), by Newton steps on a log-barrier. A few inversions; closes almost half of a small
  gap.
- `core_matrix` and `relaxation_matrix`: diagonal and off-diagonal together, from the dual of

      maximise  p.x - 1/2 <A, X>   subject to  X_ii = x_i,  X_ij >= 0,  c.x <= b,  [[1, x'], [x, X]] psd.

  With heavy penalties X >= 0 turns a gap of tens of percent into a few percent; with light ones it reduces
  the gap of the best diagonal by a third. The alternating direction method of multipliers solves it roughly,
  and can stop after any step, since a shift of the diagonal compensates for what is not semidefinite.

Sources: Billionnet, Elloumi and Plateau (2009) for the convex reformulation; Burer (2009) for the doubly
non-negative relaxation; Povh, Rendl and Wiegele (2006) and Wen, Goldfarb and Yin (2010) for the method;
Daleckii and Krein (1965) for the derivative of a function of a matrix.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.program import no_pairs
from mio_rag.solvers import bounds
from mio_rag.solvers.presolve import FloatArray, Problem, part_of
from mio_rag.solvers.result import SolveOptions

_NEWTON_STEPS, _SHARPNESS, _STRIDE = 3, 50.0, 1.7  # a stride of 1 cannot leave the cone
_FIRST_SHIFT = 0.02  # of the diagonal, in units of the entries
_EVENLY = 0.06  # of the weights; without it, entries that matter deeper in the tree get nothing
_MANY = 256  # items, from which on Lanczos steps and a factorization take half as long as eigenvalues
_LANCZOS_STEPS, _LANCZOS_SLACKS = 32, (1.003, 1.01)


def shifted(M: FloatArray) -> FloatArray:
    """M with the smallest uniform shift of its diagonal that makes it positive semidefinite."""
    if not M.any():
        return M
    margin = _margin(M)
    least = float(np.linalg.eigvalsh(M)[0])
    return M if least >= margin else M + (margin - least) * np.eye(M.shape[0])


def nearly_shifted(M: FloatArray) -> FloatArray:
    """`shifted`, but where M is large with a shift that may be a percent too large, and is found sooner."""
    if M.shape[0] < _MANY or not M.any():
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
    """M, positive semidefinite but for rounding, with a small uniform shift that makes up for it."""
    margin = _margin(M) * np.eye(M.shape[0])
    return M + 2 * margin if _is_positive_definite(M + margin) else shifted(M)


def _margin(M: FloatArray) -> float:
    """More than the rounding of eigenvalues and factors of M."""
    return float(1e-12 * M.shape[0] * max(1.0, np.abs(M).max(initial=0.0)))


def dominated(A: FloatArray) -> FloatArray:
    """A with a diagonal that no row sum of absolute values exceeds: positive semidefinite, and cheap."""
    return A + np.diag(np.abs(A).sum(axis=1) * (1 + 1e-12))


def first_matrix(A: FloatArray) -> FloatArray:
    """A with the better of two diagonals, by their sum: one shift for all, or links charged to their ends."""
    whole = nearly_shifted(A)
    if A.min(initial=0.0) >= 0.0:
        return whole
    links = np.minimum(A, 0.0)
    allowed = (float(np.trace(whole)) - float(np.abs(links).sum())) / A.shape[0]
    others = A - links
    if allowed <= 0 or not _is_positive_definite(others + allowed * np.eye(A.shape[0])):
        return whole  # with its links charged apart, the rest would need a larger shift than is left
    return nearly_shifted(others) + dominated(links)


def unevenly_shifted(A: FloatArray) -> FloatArray:
    """A with the smallest diagonal in proportion to the lengths of its rows, or `first_matrix` by the trace.

    Where redundancy is weighed by relevance, entries of most items are tiny; a uniform shift would charge all
    of them for a few.
    """
    if A is no_pairs(A.shape[0]):
        return A
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


def better_diagonal(G: FloatArray, x: FloatArray, scale: float) -> FloatArray | None:
    """A matrix that differs from G in its diagonal and lowers the relaxation near its point x; None if the
    arithmetic fails.

    Maximises weights . delta with G - diag(delta) positive semidefinite, weights x (1 - x) plus a little for
    all, by Newton steps on the log-barrier. `scale` is the size of the entries off the diagonal.
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
    """The state of the method of multipliers for the items of a problem.

    `Z` is the primal matrix; `S` (positive semidefinite) and `N` (non-negative) share out the dual one, in
    units of the objective; the budget's primal slack is in units of the costs. Items are counted in units of
    1/kappa, so that pairs weigh about as much as single items. `vectors` are those of the last
    eigendecomposition, `age` steps ago.
    """

    Z: FloatArray
    S: FloatArray
    N: FloatArray
    kappa: float
    sigma: float
    slack: float = 0.0
    slack_dual: float = 0.0
    steps: int = 0
    vectors: FloatArray | None = None
    age: int = 0

    @classmethod
    def of(cls, problem: Problem, x: FloatArray, G: FloatArray) -> Splitting:
        """Start near what the relaxation with the matrix G found: its point x, and G as the dual matrix."""
        m = problem.m
        pairs = float(np.abs(problem.A).sum()) / max(m - 1, 1)
        single = float(np.abs(problem.relaxed.p).sum())
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

    There are two, equal if the method had converged: with heavy penalties the dual matrix cut to the
    penalties is the tighter one, with light ones the penalties less the multipliers of X >= 0. Goes on from
    `state`, which is updated, for `steps` steps or until the deadline; None where not one step fits. `lam`
    are multipliers of the rows.
    """
    m = problem.m
    kappa = state.kappa
    every = np.arange(1, m + 1)
    cost = np.zeros((m + 1, m + 1))
    cost[0, 1:] = cost[1:, 0] = -0.5 * kappa * problem.priced(lam)
    cost[1:, 1:] = 0.5 * kappa**2 * problem.A
    scale = float(np.abs(cost).max()) or 1.0
    cost /= scale
    length = float(np.linalg.norm(problem.relaxed.cr))
    row, length = problem.relaxed.cr / length, length * kappa
    room = (problem.room + problem.relaxed.extra) / length
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
    """What `relaxation_matrix` gives, of the items that the relaxed point x of G uses and likely others.

    Every other item has a reduced cost h < 0 at x. Raised by 2 |h|, its diagonal entry leaves the bound at x
    as it is. What these entries outweigh of the entries between the core and the others (a Schur complement)
    is left out of the core, and added again at the end; what remains of the core is solved for as before.
    Rows and columns of the other items stay.
    """
    deadline -= _CORE_SECONDS * expected_seconds(problem.m)  # for the factorizations of all items
    if time.perf_counter() > deadline:
        return None
    slope = problem.priced(lam) + 0.5 * np.diagonal(G) - G @ x
    mu = float((slope / problem.relaxed.cr)[x < 1.0 - 1e-9].max(initial=0.0))
    reduced = np.minimum(slope - mu * problem.relaxed.cr, 0.0)
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
    part, own = problem.keep(core), np.diagonal(outweighed)
    p, c, *_ = part.relaxed  # which hold the shares of segments
    p = p - outweighed @ x[core] + 0.5 * own
    part = replace(part, p=p, c=c, A=part.A - outweighed + np.diag(own), sharing=None)
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
    return (part, part - target) if few_positive else (target - part, -part)


def _balance(Z: FloatArray, kappa: float, row: FloatArray, room: float, slack: float, dual: float) -> float:
    """Factor on the penalty parameter that keeps primal and dual residuals of the same size."""
    items = kappa * np.diagonal(Z)[1:] - Z[0, 1:]
    budget = float(row @ Z[0, 1:]) + slack - room
    squares = (Z[0, 0] - 1) ** 2 + float(items @ items) + budget**2 + float((np.minimum(Z, 0) ** 2).sum())
    primal = math.sqrt(squares) / (1.0 + room)
    if primal > 2 * dual:
        return 0.7
    return 1.6 if dual > 2 * primal else 1.0


_MULTIPLIER_STEPS = 80  # with 25, a dozen mixed rows cost twice the nodes
_LARGEST_SHIFT = 100.0  # of an item's value by the multipliers of its rows
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
    """What the root leaves: surviving items, matrix, multipliers, point and bounds."""

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
    bound, mu, q, g = _relaxed(problem, G, lam, x, stop, 4000, 1e-9)
    b = problem.room + problem.relaxed.extra
    bound = min(bound, root.bound)
    h = q - g - mu * problem.relaxed.cr
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
    """Return the root without items that cannot be part of anything above `stop` (see `kernel.probe`).

    The least promising items are probed first, until `_PATIENCE` of them in a row stay, or the deadline. With
    fewer than `fewest` items (None: 50), or without an incumbent, nothing is probed.
    """
    problem, x = root.problem, root.x
    if problem.m < (_FEWEST_TO_PROBE if fewest is None else fewest) or stop == -math.inf:
        return root
    q = problem.priced(root.lam) + 0.5 * np.diagonal(root.G)
    g = root.G @ x
    slope = q - g
    mu = float((slope / problem.relaxed.cr)[x < 1.0 - 1e-9].max(initial=0.0))
    order = np.argsort(slope - mu * problem.relaxed.cr, kind="stable")
    order = order[x[order] < 0.5]
    out = np.zeros(problem.m, dtype=np.int8)
    dropped, stayed = root.dropped, 0
    at_once = max(1, min(_PATIENCE, int(_PROBE_SLICE / (_PROBE_STEPS * problem.m))))
    costs = problem.relaxed.c, problem.relaxed.cr, problem.room, problem.relaxed.extra
    base = float(root.lam @ problem.w)
    for first in range(0, order.size, at_once):
        if stayed >= _PATIENCE or time.perf_counter() >= deadline:
            break
        some = order[first : first + at_once]
        limits = _PROBE_STEPS, stop, out
        most, last = bounds.probe(problem.A, root.G, q, *costs, base, x, g, some, *limits)
        dropped = max(dropped, most)
        stayed = last + (stayed if last == some.size else 0)
    k = np.flatnonzero(out == 0)
    if k.size == problem.m:
        return root
    splitting = root.splitting and root.splitting.keep(k)
    root = replace(root, problem=problem.keep(k), G=part_of(root.G, k), x=x[k], dropped=dropped)
    return replace(root, splitting=splitting)


def _relaxed(
    problem: Problem, G: FloatArray, lam: FloatArray, x: FloatArray, stop: float, steps: int, tolerance: float
) -> tuple[float, float, FloatArray, FloatArray]:
    """Bound and mu of the relaxation, its q and G x (see `kernel`); x is improved in place."""
    b = problem.room + problem.relaxed.extra
    used = float(problem.relaxed.cr @ x)
    if used > b:
        x *= b / used
    q, g = problem.priced(lam) + 0.5 * G.diagonal(), G @ x
    every, limits = np.arange(x.size), (steps, stop, float(lam @ problem.w), tolerance, 0.0)
    bound, mu, _ = bounds.relax(q, G, 0.0, every, problem.relaxed.cr, b, x, g, x.size, *limits)
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
    # Values are about 1: next to larger shifts of them, their digits would be lost.
    most = float(np.abs(problem.W.T @ at).max(initial=0.0))
    return at if most <= _LARGEST_SHIFT else at * (_LARGEST_SHIFT / most)


def _better_shares(
    problem: Problem, G: FloatArray, lam: FloatArray, x: FloatArray, stop: float, best: Incumbent
) -> Problem:
    """The problem with shares of segments that make the relaxation's bound small; x is improved in place."""
    sharing = problem.sharing
    assert sharing is not None
    share, goal = sharing.share[sharing.users], best.value if best.x is not None else -1.0
    p = problem.p - problem.W.T @ lam if lam.size else problem.p
    base = float(lam @ problem.w)
    limits = stop, goal, _SHARE_ROUNDS, _SHARE_STEPS
    bounds.spread(p, G, sharing.c, problem.room, base, problem.needs, share, x, *limits)
    return problem.with_shares(share)


def _gap(bound: float, best: Incumbent, problem: Problem) -> float:
    """The gap as a share of the objective; infinite without an incumbent."""
    objective = abs(problem.base / problem.scale + best.value)
    return math.inf if best.x is None else (bound - best.value) / max(objective, 1e-300)


def _next(root: Root, effort: int, gap: float) -> tuple[str, int, int]:
    """What to try next, "diagonal", "core" or "all", the number of that effort, and its steps."""
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

    `work` is what it has cost, `done` the share of its tree that is over. If every branching halved what is
    to be done, work / done would be the whole: twice too high in the median, so an exponent tempers it. The
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
    root: Root, best: Incumbent, tolerance: float, options: SolveOptions, effort: int, deadline: float
) -> tuple[Root | None, int]:
    """The root with a better matrix or fewer items, None where neither is found in time; the next effort."""
    stop, before = target(root.problem, best, tolerance, options), root.problem.m
    if effort == 0:
        root = probed(root, stop, deadline)
    problem = root.problem
    kind, effort, steps = _next(root, effort, _gap(root.bound, best, problem))
    scale = float(np.abs(problem.A).max(initial=0.0))
    fewer = root if problem.m < before else None
    matrix: FloatArray | None = None
    if problem.m < 3 or scale <= _NO_PENALTY:
        kind = "none"
    if kind == "diagonal":
        if time.perf_counter() + 2.5 * expected_seconds(problem.m) <= deadline:
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
