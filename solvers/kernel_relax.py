"""The compiled relaxation of the exact kernel, and the factorization that checks its concavity.

With a positive semidefinite G that is at most A off the diagonal (`reformulation`), the
concave  q.x - 1/2 x'G x,  q = p + diag(G)/2,  is nowhere below the objective. Over {0 <= x <= 1, c.x <= b}
any point x with gradient h = q - G x and any mu >= 0 give

    value of every feasible y  <=  base + 1/2 x'G x + mu b + sum_i max(0, h_i - mu c_i),

so the solver of the relaxation may stop anywhere. Rows enter through multipliers lam >= 0: p <- p - W'lam,
base <- base + lam.w.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.compiled import ZERO, compiled

__all__ = ["is_positive_definite", "probe", "relax"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BitArray = NDArray[np.int8]


@compiled
def relax(
    q: FloatArray,
    G: FloatArray,
    delta: float,
    ids: IntArray,
    c: FloatArray,
    b: float,
    x: FloatArray,
    g: FloatArray,
    m: int,
    steps: int,
    stop: float,
    base: float,
    tol: float,
    early: float,
) -> tuple[float, float, int]:
    """Pair-exchange ascent on the concave relaxation, with the unused budget as one more item.

    The matrix is G - delta I on the items `ids`. x (feasible) and g, the matrix times x, are improved in
    place. Ends when the bound is at most `stop`, when the maximum
    is known to `tol`, after `steps` exchanges, or, with `early` > 0, once the maximum is above `stop` and
    known to that share of the distance. Returns the bound, its mu and the
    number of exchanges.
    """
    per_token = np.empty(m)
    # Infinite where an item is all in, or all out. Conditions on x in the innermost loop are mispredicted by
    # processors every other time, which takes twice as long as all the rest.
    full, empty = np.empty(m), np.empty(m)
    used = 0.0
    up_ratio, up = 0.0, -1
    down_ratio, down = np.inf, -2
    for i in range(m):
        used += c[i] * x[i]
        per_token[i] = 1.0 / c[i]
        full[i] = 0.0 if x[i] < 1.0 - 1e-12 else np.inf
        empty[i] = 0.0 if x[i] > 1e-12 else np.inf
        ratio = (q[i] - g[i]) * per_token[i]
        if ratio - full[i] > up_ratio:
            up_ratio, up = ratio, i
        if ratio + empty[i] < down_ratio:
            down_ratio, down = ratio, i
    best = np.inf
    best_mu = 0.0
    k = 0
    last = np.inf
    while True:
        if b - used > 1e-9 and down_ratio > 0.0:
            down_ratio, down = 0.0, -1  # room to spare gives way first
        done = up_ratio - down_ratio <= tol or down == -2 or k >= steps
        if k % 8 == 0 or done:
            mu = max(0.0, 0.5 * (up_ratio + min(down_ratio, up_ratio)))
            curvature = 0.0
            excess = 0.0
            for i in range(m):
                curvature += x[i] * g[i]
                excess += max(0.0, q[i] - g[i] - mu * c[i])
            last = base + 0.5 * curvature + mu * b + excess
            if last < best:
                best = last
                best_mu = mu
            if done or last <= stop:
                return best, best_mu, k
            if early > 0.0 and stop > -np.inf:
                primal = base - 0.5 * curvature
                for i in range(m):
                    primal += q[i] * x[i]
                if primal > stop and last - primal < early * (last - stop):
                    return best, best_mu, k  # it cannot prune, and is known well enough to branch
        k += 1
        # Move t tokens: a of item `up` in, d of item `down` out; with one of them, the other is the room.
        iu = ids[up] if up >= 0 else ids[down]
        jd = ids[down] if down >= 0 else iu
        bend = 0.0
        t = np.inf
        if up >= 0:
            bend += (G[iu, iu] - delta) * per_token[up] * per_token[up]
            t = (1.0 - x[up]) * c[up]
        if down >= 0:
            bend += (G[jd, jd] - delta) * per_token[down] * per_token[down]
            t = min(t, x[down] * c[down])
        if up >= 0 and down >= 0:
            bend -= 2 * G[iu, jd] * per_token[up] * per_token[down]
        elif up >= 0:
            t = min(t, b - used)
        if bend > 1e-15:
            t = min(t, (up_ratio - down_ratio) / bend)
        a = 0.0
        d = 0.0
        if up >= 0:
            a = t * per_token[up]
            x[up] = min(1.0, x[up] + a)
        if down >= 0:
            d = t * per_token[down]
            x[down] = max(0.0, x[down] - d)
        if up < 0:
            used -= t
        elif down < 0:
            used += t
        if up >= 0:
            g[up] -= delta * a
        if down >= 0:
            g[down] += delta * d
        if up >= 0:
            full[up] = 0.0 if x[up] < 1.0 - 1e-12 else np.inf
            empty[up] = 0.0 if x[up] > 1e-12 else np.inf
        if down >= 0:
            full[down] = 0.0 if x[down] < 1.0 - 1e-12 else np.inf
            empty[down] = 0.0 if x[down] > 1e-12 else np.inf
        up_ratio, up = 0.0, -1
        down_ratio, down = np.inf, -2
        for r in range(m):
            s = ids[r]
            g[r] += a * G[iu, s] - d * G[jd, s]
            ratio = (q[r] - g[r]) * per_token[r]
            if ratio - full[r] > up_ratio:
                up_ratio, up = ratio, r
            if ratio + empty[r] < down_ratio:
                down_ratio, down = ratio, r


@compiled
def probe(
    A: FloatArray,
    G: FloatArray,
    q: FloatArray,
    c: FloatArray,
    cr: FloatArray,
    room: float,
    extra: float,
    base: float,
    x: FloatArray,
    g: FloatArray,
    order: IntArray,
    steps: int,
    stop: float,
    out: BitArray,
) -> tuple[float, int]:
    """Probe the items of `order` in turn: with the item selected, could anything above `stop` be reached?

    If not, it is marked in `out` (which may hold items that are out already). An item that is in has its
    true penalties A with the others in place of those of G, and no diagonal of its own, so that this shows
    more than its reduced cost. x is a point of the relaxation, g is G x, c and room are the true costs, cr
    and extra those of the relaxation. Returns the largest bound of an item that was marked, and how many
    items at the end of `order` were not.
    """
    m = q.size
    ids = np.empty(m, dtype=np.int64)
    q_, c_, x_, g_ = np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    largest = -np.inf
    stayed = 0
    for t in range(order.size):
        i = order[t]
        b = room - c[i]
        used = 0.0
        n = ZERO
        for k in range(m):
            if k != i and c[k] <= b and out[k] == 0:
                ids[n] = k
                q_[n] = q[k] - A[i, k]
                c_[n] = cr[k]
                x_[n] = x[k]
                g_[n] = g[k]
                used += cr[k] * x[k]
                n += 1
        for k in range(m):
            if x[k] != 0.0 and (k == i or c[k] > b or out[k] == 1):
                for u in range(n):
                    g_[u] -= x[k] * G[k, ids[u]]
        b += extra
        if used > b:
            for u in range(n):
                x_[u] *= b / used
                g_[u] *= b / used
        own = base + q[i] - 0.5 * G[i, i]
        # A feasible point above `stop` ends it: no bound from here could be below.
        bound, _, _ = relax(q_, G, 0.0, ids, c_, b, x_, g_, n, steps, stop, own, 1e-7, np.inf)
        if bound <= stop:
            out[i] = 1
            largest = max(largest, bound)
            stayed = 0
        else:
            stayed += 1
    return largest, stayed


@compiled
def is_positive_definite(
    G: FloatArray, ids: IntArray, m: int, delta: float, L: FloatArray, column: FloatArray
) -> bool:
    """Whether G - delta I on the items has a factorization whose pivots are far from rounding.

    L and column are room to work in: the factor, and one over its diagonal.
    """
    for i in range(m):
        row, entry = G[ids[i]], L[i]
        for j in range(i + 1):
            entry[j] = row[ids[j]]
        entry[i] -= delta
        for k in range(i):
            other = L[k]
            total = entry[k]
            for j in range(k):
                total -= entry[j] * other[j]
            entry[k] = total * column[k]
        pivot = entry[i]
        for j in range(i):
            pivot -= entry[j] * entry[j]
        if pivot < 1e-9:
            return False
        column[i] = 1.0 / math.sqrt(pivot)
    return True
