"""The depth-first search of the exact kernel, compiled.

All compiled functions work on dense arrays of the items that presolve leaves, scaled to entries of about 1:

    maximise  p.x - prices.y - 1/2 x'A x      subject to  c.x + costs.y <= room,  W x <= w,
              y_s = max of x_i over the items i that need s,   x in {0, 1}^m

A is symmetric with a zero diagonal and entries of any sign. Item i needs segment[start[i] : start[i + 1]];
most programs have no segments (`Needs`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mio_rag.solvers.bounds import (
    Node,
    Work,
    _charge,
    _move_shares,
    _promise,
    _share_out,
    is_positive_definite,
    relax,
)
from mio_rag.solvers.compiled import (
    Bits,
    BoolMatrix,
    Bools,
    Floats,
    IntMatrix,
    Ints,
    Matrix,
    Needs,
    compiled,
    inlined,
)
from mio_rag.solvers.incumbents import NONE, ZERO, _holds, _needed, _size

#: Places in the array `numbers` of `search`.
INCUMBENT, TOLERANCE, DEPTH, NODES, PRUNED, STEPS, RELATIVE_GAP, OFFSET, WORK, DONE = range(10)
#: Columns of `Tree.at`.
ROOM, BASE, LAG, BOUND, DELTA, MEASURED, WEIGHT = range(7)
#: Columns of `Tree.sizes`.
OPEN, CHOSEN = range(2)

# Work is counted in units of about a nanosecond, so that decisions do not depend on a clock: per node, per
# item of a node, per item and exchange, per item and row, per cubed item of a factorization, per need.
NODE, ITEM, EXCHANGE, ROW, FACTOR, NEED = 400.0, 45.0, 4.6, 2.4, 0.05, 3.0

_LARGEST_FACTOR = 64  # items; to factorize more costs too much in a node
_RETRY_AT = 0.9  # of the items that were open when the last try failed
_LARGEST_SHARE = 0.25  # of the smallest diagonal entry: more never comes off
_MARGIN = 1.75  # on what would prune if the relaxed point stayed where it is
_ROUNDS = 4  # of moving shares in a node
_HOPE = 1.5  # times what the present point promises of better shares


class Given(NamedTuple):
    """What a search is about: items, rows, the relaxation's matrix G; `shift` is W'lam, which the values P of
    a tree have subtracted.
    """

    A: Matrix
    G: Matrix
    c: Floats
    W: Matrix
    w: Floats
    harmless: Bools
    shift: Floats


class Tree(NamedTuple):
    """The state of a search, one row a depth.

    `sizes[OPEN]` items `ids` are open, with their marginal values P, the relaxed point X and G X;
    `sizes[CHOSEN]` items are `chosen`. From these follow the activities of the rows and, in `at`, the room
    that is left, the value (`BASE`; `LAG`: that of the relaxation), the bound, what was taken off the
    diagonal of G (`DELTA`), how many items were open when more could not be (`MEASURED`), and the share of
    the tree that is left, if every branching halves it (`WEIGHT`). `paid` says which segments are paid for,
    `share` who bears how much of the others.
    """

    ids: IntMatrix
    P: Matrix
    X: Matrix
    GX: Matrix
    activity: Matrix
    chosen: IntMatrix
    sizes: IntMatrix
    at: Matrix
    paid: BoolMatrix
    share: Matrix


@inlined
def _pay(i: int, start: Ints, segment: Ints, paid: Bools) -> None:
    """Mark what item i needs as paid."""
    if start is not None:
        for k in range(start[i], start[i + 1]):
            paid[segment[k]] = True


@compiled
def _remove(node: Node, G: Matrix, m: int, t: int) -> int:
    """Take item t out of a node's list (its x goes to 0); returns the new length."""
    ids, P, x, g = node.ids, node.P, node.x, node.g
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
def _propagate(
    node: Node, m: int, G: Matrix, W: Matrix, w: Floats, most: Floats, activity: Floats
) -> tuple[int, int, bool]:
    """Drop what the rows forbid; find one item that they demand.

    `most` is what any single item can add to a row, infinite where one may take something away. Returns
    (new length, item that must be in or -1, whether the rows cannot hold any more).
    """
    force = -1
    ids = node.ids
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
                m = _remove(node, G, m, t)
            elif v < 0 and low - v > w[r]:
                force = ids[t]
    return m, force, False


@compiled
def _fix(
    node: Node, m: int, G: Matrix, h: Floats, here: float, stop: float, numbers: Floats, force: int
) -> tuple[int, int, int, bool]:
    """Fix by reduced costs h: drop what pushes the bound `here` below `stop`, find one item to keep.

    Returns (new length, position of an item to take in or -1, items dropped, whether an item was dropped
    that must be in).
    """
    dropped = 0
    ids = node.ids
    for t in range(m - 1, -1, -1):
        if h[t] < 0 and here + h[t] <= stop:
            numbers[PRUNED] = max(numbers[PRUNED], here + h[t])
            if ids[t] == force:
                return m, -1, dropped, True
            m = _remove(node, G, m, t)
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
def _drop_useless(
    node: Node, m: int, given: Given, start: Ints, segment: Ints, cost: Floats, room: float, force: int
) -> tuple[int, bool]:
    """Drop items that do not fit with what they need, and harmless ones that gain nothing with any others.

    Returns (new length, whether an item was dropped that must be in).
    """
    A, G, c, _, _, harmless, shift = given
    ids, P, paid = node.ids, node.P, node.paid
    for t in range(m - 1, -1, -1):
        i = ids[t]
        bad = c[i] + _needed(i, start, segment, cost, paid, ZERO) > room
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
            m = _remove(node, G, m, t)
    return m, False


@compiled
def search(
    given: Given, needs: Needs, tree: Tree, best: Bits, numbers: Floats, max_nodes: int, max_work: float
) -> None:
    """Depth-first search, include branch first, for `max_nodes` more nodes or until the work is `max_work`.

    The exclude branch of a node is the node itself without the item, so a depth is done when its list is
    pruned. The state is that of a `Tree`, so that the search can be stopped after any node, asked for its
    bound, and resumed. `numbers` is indexed by the constants at the top of this file; `best` takes the
    incumbent.
    """
    A, G, c, W, w, _, shift = given
    start, segment, cost, price = needs
    ids, P, X, GX, activity, chosen, count, at, paid, share = tree
    n = c.size
    segments = _size(cost)
    per_item = NEED * _size(segment) / max(n, 1)  # work of needs
    q, cc, h = np.empty(n), np.empty(n), np.empty(n)
    users = np.empty(segments, dtype=np.int64)
    work = Work(q, cc, np.empty(segments), np.empty(segments), users)
    L = np.empty((min(n, _LARGEST_FACTOR), min(n, _LARGEST_FACTOR)))
    most = np.zeros(w.size)
    for r in range(w.size):
        for i in range(n):
            most[r] = np.inf if W[r, i] < 0 else max(most[r], W[r, i])
    limit = numbers[NODES] + max_nodes
    steps = int(numbers[STEPS])
    d = int(numbers[DEPTH])
    while d >= 0 and numbers[NODES] < limit and numbers[WORK] < max_work:
        m = count[d, OPEN]
        numbers[NODES] += 1
        numbers[WORK] += NODE + (ITEM + ROW * w.size + 4.0 * per_item) * m
        ids_, p, x, g = ids[d], P[d], X[d], GX[d]
        now, active, paid_ = at[d], activity[d], paid[d]
        node = Node(ids_, p, x, g, paid_, share[d])
        pruned = False
        while True:
            m, force, pruned = _propagate(node, m, G, W, w, most, active)
            if pruned:
                break
            m, pruned = _drop_useless(node, m, given, start, segment, cost, now[ROOM], force)
            if pruned:
                break
            # The node's selection, or with the best item that may be added alone, may be the new incumbent.
            better = now[BASE] > numbers[INCUMBENT] and _holds(W, w, active, NONE, NONE)
            if better:
                numbers[INCUMBENT] = now[BASE]
            single = NONE
            top = -np.inf
            for t in range(m):
                gain = p[t] + shift[ids_[t]]
                if gain > top:
                    gain -= _needed(ids_[t], start, segment, price, paid_, ZERO)
                    if gain > top and _holds(W, w, active, ids_[t], NONE):
                        top = gain
                        single = ids_[t]
            more = single >= 0 and now[BASE] + top > numbers[INCUMBENT]
            if more:
                numbers[INCUMBENT] = now[BASE] + top
            if better or more:
                best[:] = 0
                for t in range(count[d, CHOSEN]):
                    best[chosen[d, t]] = 1
                if more:
                    best[single] = 1
            if m <= 1:
                pruned = True  # the single one has been tried
                break
            stop = -np.inf
            if numbers[INCUMBENT] > -np.inf:
                value = abs(numbers[OFFSET] + numbers[INCUMBENT])
                stop = numbers[INCUMBENT] + max(numbers[TOLERANCE], numbers[RELATIVE_GAP] * value)
            b = 0.0
            mu = 0.0
            for r in range(_ROUNDS + 1):
                _share_out(node, m, start, needs, work)
                b, two = _charge(node, m, G, now[DELTA], c, start, needs, now[ROOM], work)
                if r == 0 and two > now[ROOM] + 1e-9 * two:
                    pruned = True  # no two of them fit, and the best single one has been tried
                    break
                ub, mu, k = relax(q, G, now[DELTA], ids_, cc, b, x, g, m, steps, stop, now[LAG], 1e-7, 0.4)
                numbers[WORK] += EXCHANGE * k * m
                now[BOUND] = min(now[BOUND], ub)
                if segments == 0 or now[BOUND] <= stop or r == _ROUNDS:
                    break
                if ub - _HOPE * _promise(node, m, start, needs, mu, work) > stop:
                    break
                if not _move_shares(node, m, start, needs, mu, ub - stop, work):
                    break
                numbers[WORK] += 6.0 * per_item * m
            if pruned:
                break
            if now[BOUND] > stop and 2 < m <= _LARGEST_FACTOR and m <= _RETRY_AT * now[MEASURED]:
                # Fewer items need less of a diagonal to stay concave. Would as much less prune here?
                least = np.inf
                loose = 0.0
                for t in range(m):
                    least = min(least, G[ids_[t], ids_[t]])
                    loose += x[t] * (1.0 - x[t])
                wanted = now[DELTA] + 2.0 * _MARGIN * (now[BOUND] - stop) / max(loose, 1e-9)
                if wanted < _LARGEST_SHARE * least:
                    numbers[WORK] += FACTOR * m * m * m
                    if is_positive_definite(G, ids_, m, wanted, L, h):
                        for t in range(m):
                            g[t] -= (wanted - now[DELTA]) * x[t]
                            q[t] -= 0.5 * (wanted - now[DELTA])
                        now[DELTA] = wanted
                        ub, mu, k = relax(
                            q, G, wanted, ids_, cc, b, x, g, m, steps, stop, now[LAG], 1e-7, 0.4
                        )
                        numbers[WORK] += EXCHANGE * k * m
                        now[BOUND] = min(now[BOUND], ub)
                    else:
                        now[MEASURED] = m
            if now[BOUND] <= stop:
                numbers[PRUNED] = max(numbers[PRUNED], now[BOUND])
                pruned = True
                break
            here = now[LAG] + mu * b  # the bound at the point where the relaxation stopped
            for t in range(m):
                h[t] = q[t] - g[t] - mu * cc[t]
                here += 0.5 * x[t] * g[t] + max(0.0, h[t])
            before = m
            m, take, dropped, pruned = _fix(node, m, G, h, here, stop, numbers, force)
            if pruned:
                break
            if take >= 0:
                i = ids_[take]
                gain = p[take] - _needed(i, start, segment, price, paid_, ZERO)
                m = _remove(node, G, m, take)
                for u in range(m):
                    p[u] -= A[i, ids_[u]]
                now[BASE] += gain + shift[i]
                now[LAG] += gain
                now[ROOM] -= c[i] + _needed(i, start, segment, cost, paid_, ZERO)
                _pay(i, start, segment, paid_)
                for r in range(w.size):
                    active[r] += W[r, i]
                chosen[d, count[d, CHOSEN]] = i
                count[d, CHOSEN] += 1
                continue
            if dropped * 4 <= before:
                break
        if pruned:
            numbers[DONE] += now[WEIGHT]
            d -= 1
            continue
        # Branch on the largest fraction: most likely in, and the include branch is searched first.
        take = ZERO
        score = -1.0
        for t in range(m):
            f = x[t] if x[t] < 1.0 - 1e-6 else 1e-9
            if f > score:
                score = f
                take = t
        i = ids_[take]
        gain = p[take] - _needed(i, start, segment, price, paid_, ZERO)
        m = _remove(node, G, m, take)
        count[d, OPEN] = m
        now[WEIGHT] = 0.5 * now[WEIGHT]
        e = d + 1
        for t in range(m):
            ids[e, t] = ids_[t]
            P[e, t] = p[t] - A[i, ids_[t]]
            X[e, t] = x[t]
            GX[e, t] = g[t]
        at[e] = now
        at[e, ROOM] = now[ROOM] - c[i] - _needed(i, start, segment, cost, paid_, ZERO)
        at[e, BASE] = now[BASE] + gain + shift[i]
        at[e, LAG] = now[LAG] + gain
        paid[e] = paid_
        _pay(i, start, segment, paid[e])
        share[e] = share[d]
        for r in range(w.size):
            activity[e, r] = active[r] + W[r, i]
        for t in range(count[d, CHOSEN]):
            chosen[e, t] = chosen[d, t]
        chosen[e, count[d, CHOSEN]] = i
        count[e, OPEN] = m
        count[e, CHOSEN] = count[d, CHOSEN] + 1
        d = e
    numbers[DEPTH] = d
