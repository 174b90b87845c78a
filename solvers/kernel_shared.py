"""The compiled search of the exact kernel where items share segments: branching on items, segments follow.

    maximise  p.x - prices.y - 1/2 x'A x      subject to  c.x + costs.y <= room,  W x <= w,
              y_s = max of x_i over the users i of s,   x in {0, 1}^m

As `kernel.search`, but at every node a segment that a chosen item has paid for costs nothing any more, and
the cost of every other one is shared out among its users that are still open (`sharing`): a problem without
segments, whose relaxation bounds this one. Where better shares may prune the node, subgradient steps move
them towards the users with the largest fraction. What an item costs when it is taken is all of what it needs
and is not paid.
"""

from __future__ import annotations

import numpy as np

from mio_rag.solvers.compiled import NONE, ZERO, compiled
from mio_rag.solvers.kernel import (
    _LARGEST_FACTOR,
    _LARGEST_SHARE,
    _MARGIN,
    _RETRY_AT,
    DEPTH,
    DONE,
    EXCHANGE,
    FACTOR,
    INCUMBENT,
    ITEM,
    NODE,
    NODES,
    OFFSET,
    PRUNED,
    RELATIVE_GAP,
    ROW,
    STEPS,
    TOLERANCE,
    WORK,
    BitArray,
    BoolArray,
    FloatArray,
    IntArray,
    _fix,
    _propagate,
    _record,
    _remove,
    _rows_hold,
)
from mio_rag.solvers.kernel_relax import is_positive_definite, relax
from mio_rag.solvers.kernel_shares import (
    _charge,
    _move_shares,
    _promise,
    _relaxed_room,
    _share_out,
    _unpaid,
    _within,
)

__all__ = ["search_shared"]

NEED = 3.0  # work of a need of an open item, see `kernel`

_ROUNDS = 4  # of moving shares in a node
_HOPE = 1.5  # times what the present point promises of better shares


@compiled
def _drop_useless(
    A: FloatArray,
    c: FloatArray,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    paid: BoolArray,
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
    """Drop items that do not fit with what they need, and harmless ones that gain nothing in any company.

    Returns (new length, whether an item was dropped that must be in).
    """
    for t in range(m - 1, -1, -1):
        i = ids[t]
        bad = c[i] + _unpaid(i, start, segment, cost, paid) > room
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
def search_shared(
    A: FloatArray,
    G: FloatArray,
    c: FloatArray,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    price: FloatArray,
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
    paid: BoolArray,
    share: FloatArray,
    best: BitArray,
    numbers: FloatArray,
    max_nodes: int,
    max_work: float,
) -> None:
    """Depth-first search as in `kernel.search`, with segments.

    c are the items' own costs, P their own values; item i needs segment[start[i] : start[i + 1]]. `paid` and
    `share` hold one row a depth: which segments are paid, and the share of each need.
    """
    n, segments = c.size, cost.size
    q, cc, h = np.empty(n), np.empty(n), np.empty(n)
    worth, charged = np.empty(n), np.empty(n)
    work, other = np.empty(segments), np.empty(segments)
    users = np.empty(segments, dtype=np.int64)
    L = np.empty((min(n, _LARGEST_FACTOR), min(n, _LARGEST_FACTOR)))
    most = np.zeros(w.size)
    for r in range(w.size):
        for i in range(n):
            most[r] = np.inf if W[r, i] < 0 else max(most[r], W[r, i])
    needs = float(segment.size) / max(n, 1)
    limit = numbers[NODES] + max_nodes
    d = int(numbers[DEPTH])
    while d >= 0 and numbers[NODES] < limit and numbers[WORK] < max_work:
        m = size[d]
        numbers[NODES] += 1
        numbers[WORK] += NODE + (ITEM + ROW * w.size + 4.0 * NEED * needs) * m
        ids_, p, x, g = ids[d], P[d], X[d], GX[d]
        paid_, share_ = paid[d], share[d]
        pruned = False
        while True:
            m, force, pruned = _propagate(W, w, most, activity[d], ids_, p, x, g, G, m)
            if pruned:
                break
            m, pruned = _drop_useless(
                A, c, start, segment, cost, paid_, shift, harmless, room[d], ids_, p, x, g, G, m, force
            )
            if pruned:
                break
            if base[d] > numbers[INCUMBENT] and _rows_hold(activity[d], W, w, NONE):
                _record(numbers, best, chosen[d], count[d], base[d], NONE)
            top = -np.inf
            single = NONE
            for t in range(m):
                i = ids_[t]
                gain = p[t] + shift[i]
                if gain > top:
                    gain -= _unpaid(i, start, segment, price, paid_)
                    if gain > top and _rows_hold(activity[d], W, w, i):
                        top = gain
                        single = i
            if single >= 0 and base[d] + top > numbers[INCUMBENT]:
                _record(numbers, best, chosen[d], count[d], base[d] + top, single)
            if m <= 1:
                pruned = True  # the single one has been tried
                break
            stop = -np.inf
            if numbers[INCUMBENT] > -np.inf:
                value = abs(numbers[OFFSET] + numbers[INCUMBENT])
                stop = numbers[INCUMBENT] + max(numbers[TOLERANCE], numbers[RELATIVE_GAP] * value)
            steps = int(numbers[STEPS])
            b = 0.0
            mu = 0.0
            for r in range(_ROUNDS + 1):
                _share_out(ids_, m, start, segment, paid_, share_, work, users)
                _charge(ids_, m, p, c, start, segment, cost, price, paid_, share_, worth, charged)
                if r == 0:
                    least = np.inf
                    second = np.inf
                    for t in range(m):
                        if charged[t] < least:
                            second = least
                            least = charged[t]
                        elif charged[t] < second:
                            second = charged[t]
                    if least + second > room[d] + 1e-9 * (least + second):
                        pruned = True  # no two of them fit, and the best single one has been tried
                        break
                b = _relaxed_room(charged, m, room[d], cc)
                for t in range(m):
                    i = ids_[t]
                    q[t] = worth[t] + 0.5 * (G[i, i] - delta[d])
                _within(x, g, cc, m, b)
                ub, mu, k = relax(q, G, delta[d], ids_, cc, b, x, g, m, steps, stop, lag[d], 1e-7, 0.4)
                numbers[WORK] += EXCHANGE * k * m
                bound[d] = min(bound[d], ub)
                if bound[d] <= stop or r == _ROUNDS:
                    break
                hope = _promise(ids_, m, x, start, segment, cost, price, paid_, share_, mu, work, other)
                if ub - _HOPE * hope > stop:
                    break
                if not _move_shares(
                    ids_, m, x, start, segment, cost, price, paid_, share_, mu, ub - stop, work, users
                ):
                    break
                numbers[WORK] += 6.0 * NEED * needs * m
            if pruned:
                break
            if bound[d] > stop and 2 < m <= _LARGEST_FACTOR and m <= _RETRY_AT * measured[d]:
                # Fewer items need less of a diagonal to stay concave. Would as much less prune here?
                least = np.inf
                loose = 0.0
                for t in range(m):
                    least = min(least, G[ids_[t], ids_[t]])
                    loose += x[t] * (1.0 - x[t])
                wanted = delta[d] + 2.0 * _MARGIN * (bound[d] - stop) / max(loose, 1e-9)
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
                gain = p[take] - _unpaid(i, start, segment, price, paid_)
                m = _remove(ids_, p, x, g, G, m, take)
                for u in range(m):
                    p[u] -= A[i, ids_[u]]
                base[d] += gain + shift[i]
                lag[d] += gain
                room[d] -= c[i] + _unpaid(i, start, segment, cost, paid_)
                for k in range(start[i], start[i + 1]):
                    paid_[segment[k]] = True
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
            f = x[t] if x[t] < 1.0 - 1e-6 else 1e-9
            if f > score:
                score = f
                at = t
        i = ids_[at]
        gain = p[at] - _unpaid(i, start, segment, price, paid_)
        m = _remove(ids_, p, x, g, G, m, at)
        size[d] = m
        e = d + 1
        for t in range(m):
            ids[e, t] = ids_[t]
            P[e, t] = p[t] - A[i, ids_[t]]
            X[e, t] = x[t]
            GX[e, t] = g[t]
        size[e] = m
        room[e] = room[d] - c[i] - _unpaid(i, start, segment, cost, paid_)
        base[e] = base[d] + gain + shift[i]
        lag[e] = lag[d] + gain
        bound[e] = bound[d]
        delta[e] = delta[d]
        measured[e] = measured[d]
        weight[e] = 0.5 * weight[d]
        weight[d] = weight[e]
        for s in range(segments):
            paid[e, s] = paid_[s]
        for k in range(start[i], start[i + 1]):
            paid[e, segment[k]] = True
        for k in range(segment.size):
            share[e, k] = share_[k]
        for r in range(w.size):
            activity[e, r] = activity[d, r] + W[r, i]
        for t in range(count[d]):
            chosen[e, t] = chosen[d, t]
        chosen[e, count[d]] = i
        count[e] = count[d] + 1
        d = e
    numbers[DEPTH] = d
