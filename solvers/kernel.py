"""The compiled part of the exact kernel: incumbent, concave relaxation and depth-first search.

Everything works on dense float64 arrays of the items that are left after presolve, and on the form

    maximise  p.x - 1/2 x'A x      subject to  c.x <= room,  W x <= w,  x in {0, 1}^m

with A symmetric, zero diagonal, any signs. The state of the search lives in arrays that the caller owns, so
that it can be stopped after any number of nodes, asked for its bound, and resumed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.compiled import NONE, ZERO, compiled
from mio_rag.solvers.kernel_relax import is_positive_definite, relax

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BitArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]

#: Places in the array `numbers` of `search`.
INCUMBENT, TOLERANCE, DEPTH, NODES, PRUNED, STEPS, RELATIVE_GAP, OFFSET, WORK, DONE = range(10)

# Work is counted in units of about a nanosecond, so that decisions do not depend on a clock: per node, per
# item of a node, per item and exchange, per item and row, per cubed item of a factorization.
NODE, ITEM, EXCHANGE, ROW, FACTOR = 400.0, 45.0, 4.6, 2.4, 0.05

_LARGEST_FACTOR = 64  # items; to factorize more costs too much in a node
_RETRY_AT = 0.9  # of the items that were open when the last try failed
_LARGEST_SHARE = 0.25  # of the smallest diagonal entry: more never comes off
_MARGIN = 1.75  # on what would prune if the relaxed point stayed where it is


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
    most: FloatArray,
    activity: FloatArray,
    ids: IntArray,
    P: FloatArray,
    x: FloatArray,
    g: FloatArray,
    G: FloatArray,
    m: int,
) -> tuple[int, int, bool]:
    """Drop what the rows forbid; find one item that they demand.

    `most` is what any single item can add to a row, infinite where one may take something away. Returns
    (new length, item that must be in or -1, whether the rows cannot hold any more).
    """
    force = -1
    for r in range(w.size):
        if activity[r] + most[r] <= w[r]:
            continue
        low = activity[r]  # the least that this row's left-hand side can become
        for t in range(m):
            if W[r, ids[t]] < 0:
                low += W[r, ids[t]]
        if low > w[r]:
            return m, force, True
        for t in range(m - 1, -1, -1):
            v = W[r, ids[t]]
            if v > 0 and low + v > w[r]:
                m = _remove(ids, P, x, g, G, m, t)
            elif v < 0 and low - v > w[r]:
                force = ids[t]
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
    for t in range(m - 1, -1, -1):
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
    return m, False


@compiled
def _record(
    numbers: FloatArray, best: BitArray, chosen: IntArray, count: int, value: float, item: int
) -> None:
    """Take a node's selection (and one more item, if >= 0) as the incumbent."""
    numbers[INCUMBENT] = value
    for i in range(best.size):
        best[i] = 0
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
    delta: FloatArray,
    measured: IntArray,
    weight: FloatArray,
    best: BitArray,
    numbers: FloatArray,
    max_nodes: int,
    max_work: float,
) -> None:
    """Depth-first search, include branch first, for `max_nodes` more nodes or until the work is `max_work`.

    The arrays hold one row per depth: the open items `ids` with their marginal values `P` (multipliers
    subtracted), the relaxed point X and G X, and the state of what is chosen. `delta` is what was taken off
    the diagonal of G at a depth; `measured` items were open when more could not be. The exclude branch of a
    node is the node itself without the item, so a depth is done when its list is pruned. `weight` is the
    share of the tree that is left at a depth, if every branching halves it. Indices of
    `numbers` are the constants at the top of this file.
    """
    n = c.size
    q = np.empty(n)
    cc = np.empty(n)
    h = np.empty(n)
    L = np.empty((min(n, _LARGEST_FACTOR), min(n, _LARGEST_FACTOR)))
    most = np.zeros(w.size)
    for r in range(w.size):
        for i in range(n):
            most[r] = np.inf if W[r, i] < 0 else max(most[r], W[r, i])
    limit = numbers[NODES] + max_nodes
    d = int(numbers[DEPTH])
    while d >= 0 and numbers[NODES] < limit and numbers[WORK] < max_work:
        m = size[d]
        numbers[NODES] += 1
        numbers[WORK] += NODE + (ITEM + ROW * w.size) * m
        ids_, p, x, g = ids[d], P[d], X[d], GX[d]
        pruned = False
        while True:
            m, force, pruned = _propagate(W, w, most, activity[d], ids_, p, x, g, G, m)
            if pruned:
                break
            m, pruned = _drop_useless(A, c, shift, harmless, room[d], ids_, p, x, g, G, m, force)
            if pruned:
                break
            if base[d] > numbers[INCUMBENT] and _rows_hold(activity[d], W, w, NONE):
                _record(numbers, best, chosen[d], count[d], base[d], NONE)
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
                q[t] = p[t] + 0.5 * (G[i, i] - delta[d])
                used += cr[i] * x[t]
            if used > b:
                for t in range(m):
                    x[t] *= b / used
                    g[t] *= b / used
            stop = -np.inf
            if numbers[INCUMBENT] > -np.inf:
                value = abs(numbers[OFFSET] + numbers[INCUMBENT])
                stop = numbers[INCUMBENT] + max(numbers[TOLERANCE], numbers[RELATIVE_GAP] * value)
            steps = int(numbers[STEPS])
            ub, mu, k = relax(q, G, delta[d], ids_, cc, b, x, g, m, steps, stop, lag[d], 1e-7, 0.4)
            numbers[WORK] += EXCHANGE * k * m
            bound[d] = min(bound[d], ub)
            if bound[d] > stop and 2 < m <= _LARGEST_FACTOR and m <= _RETRY_AT * measured[d]:
                # Fewer items need less of a diagonal to stay concave. Would as much less prune here?
                least = np.inf
                spread = 0.0
                for t in range(m):
                    least = min(least, G[ids_[t], ids_[t]])
                    spread += x[t] * (1.0 - x[t])
                wanted = delta[d] + 2.0 * _MARGIN * (bound[d] - stop) / max(spread, 1e-9)
                if wanted < _LARGEST_SHARE * least:
                    numbers[WORK] += FACTOR * m * m * m
                    if is_positive_definite(G, ids_, m, wanted, L, h):
                        for t in range(m):
                            g[t] -= (wanted - delta[d]) * x[t]
                            q[t] -= 0.5 * (wanted - delta[d])
                        delta[d] = wanted
                        ub, mu, k = relax(q, G, wanted, ids_, cc, b, x, g, m, steps, stop, lag[d], 1e-7, 0.4)
                        numbers[WORK] += EXCHANGE * k * m
                        bound[d] = min(bound[d], ub)
                    else:
                        measured[d] = m
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
            numbers[DONE] += weight[d]
            d -= 1
            continue
        # Branch on the largest fraction: most likely in, and the include branch is searched first.
        at = ZERO
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
        delta[e] = delta[d]
        measured[e] = measured[d]
        weight[e] = 0.5 * weight[d]
        weight[d] = weight[e]
        for r in range(w.size):
            activity[e, r] = activity[d, r] + W[r, i]
        for t in range(count[d]):
            chosen[e, t] = chosen[d, t]
        chosen[e, count[d]] = i
        count[e] = count[d] + 1
        d = e
    numbers[DEPTH] = d
