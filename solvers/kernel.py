"""The compiled part of the exact kernel: incumbent, concave relaxation and depth-first search.

Everything works on dense float64 arrays of the items that are left after presolve, and on the form

    maximise  p.x - 1/2 x'A x      subject to  c.x <= room,  W x <= w,  x in {0, 1}^m

with A symmetric, zero diagonal, any signs. The state of the search lives in arrays that the caller owns, so
that it can be stopped after any number of nodes, asked for its bound, and resumed.

**Relaxation.** With a positive semidefinite G that is at most A off the diagonal (`reformulation`), the
concave  q.x - 1/2 x'G x,  q = p + diag(G)/2,  is nowhere below the objective. Over {0 <= x <= 1, c.x <= b}
any point x with gradient h = q - G x and any mu >= 0 give

    value of every feasible y  <=  base + 1/2 x'G x + mu b + sum_i max(0, h_i - mu c_i),

so the solver of the relaxation may stop anywhere. Rows enter through multipliers lam >= 0: p <- p - W'lam,
base <- base + lam.w.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.compiled import compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BitArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]

#: Places in the array `numbers` of `search`.
INCUMBENT, TOLERANCE, DEPTH, NODES, PRUNED, STEPS, RELATIVE_GAP, OFFSET = range(8)


@compiled
def relax(
    q: FloatArray,
    G: FloatArray,
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
) -> tuple[float, float]:
    """Pair-exchange ascent on the concave relaxation, with the unused budget as one more item.

    x (feasible) and g = G x are improved in place. Ends when the bound is at most `stop`, when the maximum
    is known to `tol`, after `steps` exchanges, or, with `early` > 0, once the maximum is above `stop` and
    known to that share of the distance. Returns the bound and its mu.
    """
    per_token = np.empty(m)
    used = 0.0
    up_ratio, up = 0.0, -1
    down_ratio, down = np.inf, -2
    for i in range(m):
        used += c[i] * x[i]
        per_token[i] = 1.0 / c[i]
        ratio = (q[i] - g[i]) * per_token[i]
        if x[i] < 1.0 - 1e-12 and ratio > up_ratio:
            up_ratio, up = ratio, i
        if x[i] > 1e-12 and ratio < down_ratio:
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
                return best, best_mu
            if early > 0.0 and stop > -np.inf:
                primal = base - 0.5 * curvature
                for i in range(m):
                    primal += q[i] * x[i]
                if primal > stop and last - primal < early * (last - stop):
                    return best, best_mu  # it cannot prune, and is known well enough to branch
        k += 1
        # Move t tokens: a of item `up` in, d of item `down` out; with one of them, the other is the room.
        iu = ids[up] if up >= 0 else ids[down]
        jd = ids[down] if down >= 0 else iu
        bend = 0.0
        t = np.inf
        if up >= 0:
            bend += G[iu, iu] * per_token[up] * per_token[up]
            t = (1.0 - x[up]) * c[up]
        if down >= 0:
            bend += G[jd, jd] * per_token[down] * per_token[down]
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
        up_ratio, up = 0.0, -1
        down_ratio, down = np.inf, -2
        into, out = G[iu], G[jd]
        for r in range(m):
            s = ids[r]
            g[r] += a * into[s] - d * out[s]
            ratio = (q[r] - g[r]) * per_token[r]
            if ratio > up_ratio and x[r] < 1.0 - 1e-12:
                up_ratio, up = ratio, r
            if ratio < down_ratio and x[r] > 1e-12:
                down_ratio, down = ratio, r


@compiled
def _remove(ids: IntArray, P: FloatArray, x: FloatArray, g: FloatArray, G: FloatArray, m: int, t: int) -> int:
    """Take item t out of a node's list (its x goes to 0); returns the new length."""
    if x[t] != 0.0:
        i = ids[t]
        for u in range(m):
            g[u] -= x[t] * G[i, ids[u]]
    m -= 1
    ids[t] = ids[m]
    P[t] = P[m]
    x[t] = x[m]
    g[t] = g[m]
    return m


@compiled
def _rows_hold(activity: FloatArray, W: FloatArray, w: FloatArray, i: int) -> bool:
    """Whether all rows hold after adding item i (-1: as they are)."""
    for r in range(w.size):
        a = activity[r]
        if i >= 0:
            a += W[r, i]
        if a > w[r]:
            return False
    return True


@compiled
def _propagate(
    W: FloatArray,
    w: FloatArray,
    activity: FloatArray,
    ids: IntArray,
    P: FloatArray,
    x: FloatArray,
    g: FloatArray,
    G: FloatArray,
    m: int,
) -> tuple[int, int, bool]:
    """Drop what the rows forbid; find one item that they demand.

    Returns (new length, item that must be in or -1, whether the rows cannot hold any more).
    """
    force = -1
    for r in range(w.size):
        low = activity[r]  # the least that this row's left-hand side can become
        for t in range(m):
            if W[r, ids[t]] < 0:
                low += W[r, ids[t]]
        if low > w[r]:
            return m, force, True
        t = 0
        while t < m:
            v = W[r, ids[t]]
            if v > 0 and low + v > w[r]:
                m = _remove(ids, P, x, g, G, m, t)
                continue
            if v < 0 and low - v > w[r]:
                force = ids[t]
            t += 1
    return m, force, False


@compiled
def _drop_useless(
    A: FloatArray,
    c: FloatArray,
    shift: FloatArray,
    harmless: BoolArray,
    room: float,
    ids: IntArray,
    P: FloatArray,
    x: FloatArray,
    g: FloatArray,
    G: FloatArray,
    m: int,
    force: int,
) -> tuple[int, bool]:
    """Drop items that do not fit, and harmless ones that gain nothing even with all their benefits.

    Returns (new length, whether an item was dropped that must be in).
    """
    t = 0
    while t < m:
        i = ids[t]
        bad = c[i] > room
        if not bad and harmless[i] and P[t] + shift[i] <= 0:
            v = P[t] + shift[i]
            for u in range(m):
                a = A[i, ids[u]]
                if a < 0:
                    v -= a
            bad = v <= 0
        if bad:
            if i == force:
                return m, True
            m = _remove(ids, P, x, g, G, m, t)
        else:
            t += 1
    return m, False


@compiled
def _record(
    numbers: FloatArray, best: BitArray, chosen: IntArray, count: int, value: float, item: int
) -> None:
    """Take a node's selection (and one more item, if >= 0) as the incumbent."""
    numbers[INCUMBENT] = value
    best[:] = 0
    for t in range(count):
        best[chosen[t]] = 1
    if item >= 0:
        best[item] = 1


@compiled
def _best_single(
    c: FloatArray,
    W: FloatArray,
    w: FloatArray,
    shift: FloatArray,
    activity: FloatArray,
    ids: IntArray,
    P: FloatArray,
    m: int,
) -> tuple[int, float, float]:
    """The best item that may be added alone (-1: none), its gain, and the two smallest costs."""
    top = -np.inf
    single = -1
    least = np.inf
    second = np.inf
    for t in range(m):
        i = ids[t]
        if c[i] < least:
            second = least
            least = c[i]
        elif c[i] < second:
            second = c[i]
        if P[t] + shift[i] > top and _rows_hold(activity, W, w, i):
            top = P[t] + shift[i]
            single = i
    return single, top, least + second


@compiled
def _fix(
    G: FloatArray,
    h: FloatArray,
    here: float,
    stop: float,
    numbers: FloatArray,
    ids: IntArray,
    P: FloatArray,
    x: FloatArray,
    g: FloatArray,
    m: int,
    force: int,
) -> tuple[int, int, int, bool]:
    """Fix by reduced costs h: drop what pushes the bound `here` below `stop`, find one item to keep.

    Returns (new length, position of an item to take in or -1, items dropped, whether an item was dropped
    that must be in).
    """
    dropped = 0
    for t in range(m - 1, -1, -1):
        if h[t] < 0 and here + h[t] <= stop:
            numbers[PRUNED] = max(numbers[PRUNED], here + h[t])
            if ids[t] == force:
                return m, -1, dropped, True
            m = _remove(ids, P, x, g, G, m, t)
            h[t] = h[m]
            dropped += 1
    for t in range(m):
        if force >= 0:
            if ids[t] == force:
                return m, t, dropped, False
        elif h[t] > 0 and here - h[t] <= stop:
            numbers[PRUNED] = max(numbers[PRUNED], here - h[t])
            return m, t, dropped, False
    return m, -1, dropped, False


@compiled
def search(
    A: FloatArray,
    G: FloatArray,
    c: FloatArray,
    cr: FloatArray,
    extra: float,
    W: FloatArray,
    w: FloatArray,
    shift: FloatArray,
    harmless: BoolArray,
    ids: IntArray,
    P: FloatArray,
    X: FloatArray,
    GX: FloatArray,
    size: IntArray,
    room: FloatArray,
    base: FloatArray,
    lag: FloatArray,
    activity: FloatArray,
    chosen: IntArray,
    count: IntArray,
    bound: FloatArray,
    best: BitArray,
    numbers: FloatArray,
    max_nodes: int,
) -> None:
    """Depth-first search, include branch first, for at most `max_nodes` more nodes.

    The arrays hold one row per depth: the open items `ids` with their marginal values `P` (multipliers
    subtracted), the relaxed point X and G X, and the state of what is chosen. The exclude branch of a node
    is the node itself without the item, so a depth is done when its list is pruned. Indices of `numbers`
    are the constants at the top of this file.
    """
    n = c.size
    q = np.empty(n)
    cc = np.empty(n)
    h = np.empty(n)
    limit = numbers[NODES] + max_nodes
    d = int(numbers[DEPTH])
    while d >= 0 and numbers[NODES] < limit:
        numbers[NODES] += 1
        m = size[d]
        ids_, p, x, g = ids[d], P[d], X[d], GX[d]
        pruned = False
        while True:
            m, force, pruned = _propagate(W, w, activity[d], ids_, p, x, g, G, m)
            if pruned:
                break
            m, pruned = _drop_useless(A, c, shift, harmless, room[d], ids_, p, x, g, G, m, force)
            if pruned:
                break
            if base[d] > numbers[INCUMBENT] and _rows_hold(activity[d], W, w, -1):
                _record(numbers, best, chosen[d], count[d], base[d], -1)
            single, gain, two = _best_single(c, W, w, shift, activity[d], ids_, p, m)
            if single >= 0 and base[d] + gain > numbers[INCUMBENT]:
                _record(numbers, best, chosen[d], count[d], base[d] + gain, single)
            if m <= 1 or two > room[d]:
                pruned = True  # no two of them fit, and the best single one has been tried
                break
            b = room[d] + extra
            used = 0.0
            for t in range(m):
                i = ids_[t]
                cc[t] = cr[i]
                q[t] = p[t] + 0.5 * G[i, i]
                used += cr[i] * x[t]
            if used > b:
                for t in range(m):
                    x[t] *= b / used
                    g[t] *= b / used
            stop = -np.inf
            if numbers[INCUMBENT] > -np.inf:
                value = abs(numbers[OFFSET] + numbers[INCUMBENT])
                stop = numbers[INCUMBENT] + max(numbers[TOLERANCE], numbers[RELATIVE_GAP] * value)
            ub, mu = relax(q, G, ids_, cc, b, x, g, m, int(numbers[STEPS]), stop, lag[d], 1e-7, 0.4)
            bound[d] = min(bound[d], ub)
            if bound[d] <= stop:
                numbers[PRUNED] = max(numbers[PRUNED], bound[d])
                pruned = True
                break
            here = lag[d] + mu * b  # the bound at the point where the relaxation stopped
            for t in range(m):
                h[t] = q[t] - g[t] - mu * cc[t]
                here += 0.5 * x[t] * g[t] + max(0.0, h[t])
            before = m
            m, take, dropped, pruned = _fix(G, h, here, stop, numbers, ids_, p, x, g, m, force)
            if pruned:
                break
            if take >= 0:
                i = ids_[take]
                gain = p[take]
                m = _remove(ids_, p, x, g, G, m, take)
                for u in range(m):
                    p[u] -= A[i, ids_[u]]
                base[d] += gain + shift[i]
                lag[d] += gain
                room[d] -= c[i]
                for r in range(w.size):
                    activity[d, r] += W[r, i]
                chosen[d, count[d]] = i
                count[d] += 1
                continue
            if dropped * 4 <= before:
                break
        if pruned:
            d -= 1
            continue
        # Branch on the largest fraction: most likely in, and the include branch is searched first.
        at = 0
        score = -1.0
        for t in range(m):
            s = x[t] if x[t] < 1.0 - 1e-6 else 1e-9
            if s > score:
                score = s
                at = t
        i = ids_[at]
        gain = p[at]
        m = _remove(ids_, p, x, g, G, m, at)
        size[d] = m
        e = d + 1
        for t in range(m):
            ids[e, t] = ids_[t]
            P[e, t] = p[t] - A[i, ids_[t]]
            X[e, t] = x[t]
            GX[e, t] = g[t]
        size[e] = m
        room[e] = room[d] - c[i]
        base[e] = base[d] + gain + shift[i]
        lag[e] = lag[d] + gain
        bound[e] = bound[d]
        for r in range(w.size):
            activity[e, r] = activity[d, r] + W[r, i]
        for t in range(count[d]):
            chosen[e, t] = chosen[d, t]
        chosen[e, count[d]] = i
        count[e] = count[d] + 1
        d = e
    numbers[DEPTH] = d
