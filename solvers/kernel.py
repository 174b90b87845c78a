"""The compiled part of the exact kernel: incumbents, the concave relaxation and the depth-first search.

All functions work on dense arrays of the items that presolve leaves, scaled to entries of about 1:

    maximise  p.x - prices.y - 1/2 x'A x      subject to  c.x + costs.y <= room,  W x <= w,
              y_s = max of x_i over the items i that need s,   x in {0, 1}^m

A is symmetric with a zero diagonal and entries of any sign. Item i needs segment[start[i] : start[i + 1]];
most programs have no segments (`Needs`). While a segment is not paid for, its open
users bear shares of its cost (`presolve.Sharing`): a program without segments whose relaxation bounds this
one. Where better shares may prune a node, subgradient steps move them to the users with the largest fraction.

The relaxation. With a positive semidefinite G that is at most A off the diagonal (`relaxation`), the concave
q.x - 1/2 x'G x, q = p + diag(G)/2, is nowhere below the objective. Over {0 <= x <= 1, c.x <= b} any point x
with gradient h = q - G x and any mu >= 0 give

    value of every feasible y  <=  base + 1/2 x'G x + mu b + sum_i max(0, h_i - mu c_i),

so the solver of the relaxation may stop anywhere. Rows enter through multipliers lam >= 0: p <- p - W'lam,
base <- base + lam.w.

All compiled functions of the kernel are in this file: numba discards its cached machine code when the file
of a function changes, but not when a function that it calls changes in another file.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np

from mio_rag.solvers.compiled import (
    Bits,
    BoolMatrix,
    Bools,
    Floats,
    IntMatrix,
    Ints,
    Matrix,
    Needs,
    Shared,
    compiled,
    inlined,
)

#: "No item", zero and one as arguments: for a plain number, numba would compile a second version.
NONE = cast(int, np.int64(-1))
ZERO = cast(int, np.int64(0))
ONE = cast(int, np.int64(1))

#: Places in the array `numbers` of `search`.
INCUMBENT, TOLERANCE, DEPTH, NODES, PRUNED, STEPS, RELATIVE_GAP, OFFSET, WORK, DONE = range(10)

# Work is counted in units of about a nanosecond, so that decisions do not depend on a clock: per node, per
# item of a node, per item and exchange, per item and row, per cubed item of a factorization, per need.
NODE, ITEM, EXCHANGE, ROW, FACTOR, NEED = 400.0, 45.0, 4.6, 2.4, 0.05, 3.0

_LARGEST_FACTOR = 64  # items; to factorize more costs too much in a node
_RETRY_AT = 0.9  # of the items that were open when the last try failed
_LARGEST_SHARE = 0.25  # of the smallest diagonal entry: more never comes off
_MARGIN = 1.75  # on what would prune if the relaxed point stayed where it is
_ROUNDS = 4  # of moving shares in a node
_HOPE = 1.5  # times what the present point promises of better shares
_SMALLEST_SHARE = 1e-3  # of a segment: less counts as nothing
_ROUNDING = 1.0 - 1e-13  # shares add up to no more than 1, in any order of summation


class Data(NamedTuple):
    """Items and rows of a program: own values and costs, without segments."""

    p: Floats
    A: Matrix
    c: Floats
    room: float
    W: Matrix
    w: Floats


class Tree(NamedTuple):
    """The state of a search, one row a depth.

    The open items `ids[: size]` with their marginal values P (multipliers subtracted), the relaxed point X,
    G X, and the items `chosen[: length]` with what follows from them. `delta` is what was taken off the
    diagonal of G; `measured` items were open when more could not be. `weight` is the share of the tree that
    is left, if every branching halves it. `paid` says which segments are paid for, `share` who bears how much
    of the others.
    """

    ids: IntMatrix
    P: Matrix
    X: Matrix
    GX: Matrix
    size: Ints
    room: Floats
    base: Floats
    lag: Floats
    activity: Matrix
    chosen: IntMatrix
    length: Ints
    bound: Floats
    delta: Floats
    measured: Ints
    weight: Floats
    paid: BoolMatrix
    share: Matrix


# The relaxation.


@compiled
def relax(
    q: Floats,
    G: Matrix,
    delta: float,
    ids: Ints,
    c: Floats,
    b: float,
    x: Floats,
    g: Floats,
    m: int,
    steps: int,
    stop: float,
    base: float,
    tol: float,
    early: float,
) -> tuple[float, float, int]:
    """Pair-exchange ascent on the concave relaxation, with the unused budget as one more item.

    The matrix is G - delta I on the items `ids`. x (feasible) and g, the matrix times x, are improved in
    place. Ends when the bound is at most `stop`, when the maximum is known to `tol`, after `steps` exchanges,
    or, with `early` > 0, once the maximum is above `stop` and known to that share of the distance. Returns
    the bound, its mu and the number of exchanges.
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
            g[up] -= delta * a
            full[up] = 0.0 if x[up] < 1.0 - 1e-12 else np.inf
            empty[up] = 0.0 if x[up] > 1e-12 else np.inf
        else:
            used -= t
        if down >= 0:
            d = t * per_token[down]
            x[down] = max(0.0, x[down] - d)
            g[down] += delta * d
            full[down] = 0.0 if x[down] < 1.0 - 1e-12 else np.inf
            empty[down] = 0.0 if x[down] > 1e-12 else np.inf
        else:
            used += t
        up_ratio, up = 0.0, -1
        down_ratio, down = np.inf, -2
        above, below = np.uint64(iu), np.uint64(jd)  # signed indices are checked for counting from the end
        for r in range(m):
            s = np.uint64(ids[r])
            g[r] += a * G[above, s] - d * G[below, s]
            ratio = (q[r] - g[r]) * per_token[r]
            if ratio - full[r] > up_ratio:
                up_ratio, up = ratio, r
            if ratio + empty[r] < down_ratio:
                down_ratio, down = ratio, r


@compiled
def is_positive_definite(G: Matrix, ids: Ints, m: int, delta: float, L: Matrix, column: Floats) -> bool:
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


@compiled
def probe(
    A: Matrix,
    G: Matrix,
    q: Floats,
    c: Floats,
    cr: Floats,
    room: float,
    extra: float,
    base: float,
    x: Floats,
    g: Floats,
    order: Ints,
    steps: int,
    stop: float,
    out: Bits,
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


# Shares of segments that are not paid for.


@inlined
def _size(array: Any) -> int:
    """The length of an array; 0 for None."""
    if array is None:
        return ZERO
    return array.size  # type: ignore[no-any-return]


@inlined
def _pay(i: int, start: Ints, segment: Ints, paid: Bools) -> None:
    """Mark what item i needs as paid."""
    if start is not None:
        for k in range(start[i], start[i + 1]):
            paid[segment[k]] = True


@compiled
def _share_out(
    ids: Ints, m: int, start: Ints, segment: Ints, paid: Bools, share: Floats, total: Floats, users: Ints
) -> None:
    """Let the open users of every unpaid segment bear all of it, in the proportions of their shares.

    `total` and `users` are room to work in, one entry a segment.
    """
    if start is None:
        return
    for s in range(total.size):
        total[s] = 0.0
        users[s] = 0
    for t in range(m):
        i = ids[t]
        for k in range(start[i], start[i + 1]):
            total[segment[k]] += share[k]
            users[segment[k]] += 1
    for t in range(m):
        i = ids[t]
        for k in range(start[i], start[i + 1]):
            s = segment[k]
            if paid[s]:
                share[k] = 0.0
            elif total[s] > 1e-9:
                share[k] *= _ROUNDING / total[s]
            else:
                share[k] = _ROUNDING / users[s]


@compiled
def _charge(
    ids: Ints,
    m: int,
    P: Floats,
    G: Matrix,
    delta: float,
    c: Floats,
    start: Ints,
    segment: Ints,
    cost: Floats,
    price: Floats,
    paid: Bools,
    share: Floats,
    room: float,
    q: Floats,
    cc: Floats,
) -> tuple[float, float]:
    """Write the data of the relaxation into q and cc: with shares of what is not paid, and no cost of zero.

    Returns the budget of the relaxation, which makes up for raised costs, and the two smallest costs, added.
    """
    largest = 0.0
    least = np.inf
    second = np.inf
    for t in range(m):
        i = ids[t]
        v = P[t]
        a = c[i]
        if start is not None:
            for k in range(start[i], start[i + 1]):
                s = segment[k]
                if not paid[s]:
                    v -= share[k] * price[s]
                    a += share[k] * cost[s]
        q[t] = v + 0.5 * (G[i, i] - delta)
        cc[t] = a
        largest = max(largest, a)
        if a < least:
            second = least
            least = a
        elif a < second:
            second = a
    b = room
    if least < 1e-9 * largest or least <= 0.0:
        tiny = max(1e-3 * largest, 1e-6) if largest > 0.0 else 1.0
        for t in range(m):
            a = cc[t]
            cc[t] = max(a, 1e-9 * largest) if a > 0.0 else tiny
            b += cc[t] - a
    return b, least + second


@compiled
def _promise(
    ids: Ints,
    m: int,
    x: Floats,
    start: Ints,
    segment: Ints,
    cost: Floats,
    price: Floats,
    paid: Bools,
    share: Floats,
    mu: float,
    most: Floats,
    borne: Floats,
) -> float:
    """How much the point x would lose if each segment cost what its largest fraction says.

    `most` gets that fraction of every segment, `borne` what its users bear of it.
    """
    if start is None:
        return 0.0
    for s in range(most.size):
        most[s] = 0.0
        borne[s] = 0.0
    for t in range(m):
        i = ids[t]
        for k in range(start[i], start[i + 1]):
            s = segment[k]
            most[s] = max(most[s], x[t])
            borne[s] += share[k] * x[t]
    total = 0.0
    for s in range(most.size):
        if not paid[s]:
            total += (mu * cost[s] + price[s]) * max(0.0, most[s] - borne[s])
    return total


@compiled
def _move_shares(
    ids: Ints,
    m: int,
    x: Floats,
    start: Ints,
    segment: Ints,
    cost: Floats,
    price: Floats,
    paid: Bools,
    share: Floats,
    mu: float,
    length: float,
    mean: Floats,
    users: Ints,
) -> bool:
    """A step of the subgradient: users with a larger fraction than the others bear more.

    The bound falls by `length` if it is linear. `mean` and `users` are room to work in. Returns whether
    anything moved.
    """
    if start is None:
        return False
    for s in range(mean.size):
        mean[s] = 0.0
        users[s] = 0
    for t in range(m):
        i = ids[t]
        for k in range(start[i], start[i + 1]):
            mean[segment[k]] += x[t]
            users[segment[k]] += 1
    for s in range(mean.size):
        mean[s] /= max(users[s], 1)
    norm = 0.0
    for t in range(m):
        i = ids[t]
        for k in range(start[i], start[i + 1]):
            s = segment[k]
            if not paid[s] and users[s] > 1:
                off = x[t] - mean[s]
                if off > 0.0 or share[k] > 0.0:
                    norm += off * off
    if norm < 1e-12:
        return False
    for t in range(m):
        i = ids[t]
        for k in range(start[i], start[i + 1]):
            s = segment[k]
            weight = mu * cost[s] + price[s]
            if not paid[s] and users[s] > 1 and weight > 0.0:
                moved = share[k] + length / norm * (x[t] - mean[s]) / weight
                share[k] = min(moved, 1.0) if moved > _SMALLEST_SHARE else 0.0
    return True


@compiled
def _within(x: Floats, g: Floats, c: Floats, m: int, b: float) -> None:
    """Shrink x, and g with it, to what fits."""
    used = 0.0
    for t in range(m):
        used += c[t] * x[t]
    if used > b:
        for t in range(m):
            x[t] *= b / used
            g[t] *= b / used


@compiled
def spread(
    P: Floats,
    G: Matrix,
    c: Floats,
    room: float,
    base: float,
    needs: Shared,
    share: Floats,
    x: Floats,
    stop: float,
    goal: float,
    rounds: int,
    steps: int,
) -> float:
    """Improve the shares at the root by Polyak's subgradient steps; `share` and the point x change in place.

    P are values with the rows' multipliers subtracted, c the items' own costs. Ends when the bound is at most
    `stop`; steps aim at `goal`, a value that is attained. Returns the bound of the best shares.
    """
    start, segment, cost, price = needs
    m, segments = P.size, cost.size
    ids = np.arange(m)
    paid = np.zeros(segments, dtype=np.bool_)
    users = np.zeros(segments, dtype=np.int64)
    work = np.zeros(segments)
    cc, q, g = np.empty(m), np.empty(m), np.empty(m)
    best_share, best_x = share.copy(), x.copy()
    best = np.inf
    step = 1.0
    since = 0
    for i in range(m):
        g[i] = 0.0
        for j in range(m):
            g[i] += G[i, j] * x[j]
    for r in range(rounds):
        _share_out(ids, m, start, segment, paid, share, work, users)
        b, _ = _charge(ids, m, P, G, 0.0, c, start, segment, cost, price, paid, share, room, q, cc)
        _within(x, g, cc, m, b)
        bound, mu, _ = relax(q, G, 0.0, ids, cc, b, x, g, m, steps, stop, base, 1e-9, 0.0)
        if bound < best - 1e-12:
            if bound < best - 1e-3 * (best - goal):
                since = 0
            best = bound
            for k in range(share.size):
                best_share[k] = share[k]
            for i in range(m):
                best_x[i] = x[i]
        else:
            since += 1
            if since >= 3:
                since = 0
                step *= 0.6
        if best <= stop or r == rounds - 1 or step < 1e-3:
            break
        length = step * max(bound - goal, 1e-9)
        if not _move_shares(ids, m, x, start, segment, cost, price, paid, share, mu, length, work, users):
            break
    for k in range(share.size):
        share[k] = best_share[k]
    for i in range(m):
        x[i] = best_x[i]
    _share_out(ids, m, start, segment, paid, share, work, users)
    return best


# The search.


@compiled
def _remove(ids: Ints, P: Floats, x: Floats, g: Floats, G: Matrix, m: int, t: int) -> int:
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
def _propagate(
    W: Matrix,
    w: Floats,
    most: Floats,
    activity: Floats,
    ids: Ints,
    P: Floats,
    x: Floats,
    g: Floats,
    G: Matrix,
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
def _record(numbers: Floats, best: Bits, chosen: Ints, count: int, value: float, item: int) -> None:
    """Take a node's selection (and one more item, if >= 0) as the incumbent."""
    numbers[INCUMBENT] = value
    for i in range(best.size):
        best[i] = 0
    for t in range(count):
        best[chosen[t]] = 1
    if item >= 0:
        best[item] = 1


@compiled
def _fix(
    G: Matrix,
    h: Floats,
    here: float,
    stop: float,
    numbers: Floats,
    ids: Ints,
    P: Floats,
    x: Floats,
    g: Floats,
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
def _drop_useless(
    A: Matrix,
    G: Matrix,
    c: Floats,
    start: Ints,
    segment: Ints,
    cost: Floats,
    shift: Floats,
    harmless: Bools,
    paid: Bools,
    room: float,
    ids: Ints,
    P: Floats,
    x: Floats,
    g: Floats,
    m: int,
    force: int,
) -> tuple[int, bool]:
    """Drop items that do not fit with what they need, and harmless ones that gain nothing with any others.

    Returns (new length, whether an item was dropped that must be in).
    """
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
            m = _remove(ids, P, x, g, G, m, t)
    return m, False


@compiled
def _best_single(
    W: Matrix,
    w: Floats,
    start: Ints,
    segment: Ints,
    price: Floats,
    shift: Floats,
    paid: Bools,
    activity: Floats,
    ids: Ints,
    P: Floats,
    m: int,
) -> tuple[int, float]:
    """The best item that may be added alone (-1: none), and its gain."""
    top = -np.inf
    single = NONE
    for t in range(m):
        i = ids[t]
        gain = P[t] + shift[i]
        if gain > top:
            gain -= _needed(i, start, segment, price, paid, ZERO)
            if gain > top and _holds(W, w, activity, i, NONE):
                top = gain
                single = i
    return single, top


@compiled
def search(
    A: Matrix,
    G: Matrix,
    c: Floats,
    W: Matrix,
    w: Floats,
    harmless: Bools,
    shift: Floats,
    needs: Needs,
    tree: Tree,
    best: Bits,
    numbers: Floats,
    max_nodes: int,
    max_work: float,
) -> None:
    """Depth-first search, include branch first, for `max_nodes` more nodes or until the work is `max_work`.

    The exclude branch of a node is the node itself without the item, so a depth is done when its list is
    pruned. `shift` is W'lam, which the values P have subtracted. The state is that of a `Tree`, so that
    the search can be stopped after any node, asked for its bound, and resumed. `numbers` is indexed by the
    constants at the top of this file; `best` takes the incumbent.
    """
    start, segment, cost, price = needs
    ids, P, X, GX, size, room, base, lag, activity = tree[:9]
    chosen, count, bound, delta, measured, weight, paid, share = tree[9:]
    n = c.size
    segments = _size(cost)
    per_item = NEED * _size(segment) / max(n, 1)  # work of needs
    q, cc, h = np.empty(n), np.empty(n), np.empty(n)
    work, other = np.empty(segments), np.empty(segments)
    users = np.empty(segments, dtype=np.int64)
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
        numbers[WORK] += NODE + (ITEM + ROW * w.size + 4.0 * per_item) * m
        ids_, p, x, g = ids[d], P[d], X[d], GX[d]
        paid_, share_ = paid[d], share[d]
        pruned = False
        while True:
            m, force, pruned = _propagate(W, w, most, activity[d], ids_, p, x, g, G, m)
            if pruned:
                break
            m, pruned = _drop_useless(
                A, G, c, start, segment, cost, shift, harmless, paid_, room[d], ids_, p, x, g, m, force
            )
            if pruned:
                break
            if base[d] > numbers[INCUMBENT] and _holds(W, w, activity[d], NONE, NONE):
                _record(numbers, best, chosen[d], count[d], base[d], NONE)
            single, gain = _best_single(W, w, start, segment, price, shift, paid_, activity[d], ids_, p, m)
            if single >= 0 and base[d] + gain > numbers[INCUMBENT]:
                _record(numbers, best, chosen[d], count[d], base[d] + gain, single)
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
                b, two = _charge(
                    ids_, m, p, G, delta[d], c, start, segment, cost, price, paid_, share_, room[d], q, cc
                )
                if r == 0 and two > room[d] + 1e-9 * two:
                    pruned = True  # no two of them fit, and the best single one has been tried
                    break
                _within(x, g, cc, m, b)
                ub, mu, k = relax(q, G, delta[d], ids_, cc, b, x, g, m, steps, stop, lag[d], 1e-7, 0.4)
                numbers[WORK] += EXCHANGE * k * m
                bound[d] = min(bound[d], ub)
                if segments == 0 or bound[d] <= stop or r == _ROUNDS:
                    break
                hope = _promise(ids_, m, x, start, segment, cost, price, paid_, share_, mu, work, other)
                if ub - _HOPE * hope > stop:
                    break
                if not _move_shares(
                    ids_, m, x, start, segment, cost, price, paid_, share_, mu, ub - stop, work, users
                ):
                    break
                numbers[WORK] += 6.0 * per_item * m
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
                gain = p[take] - _needed(i, start, segment, price, paid_, ZERO)
                m = _remove(ids_, p, x, g, G, m, take)
                for u in range(m):
                    p[u] -= A[i, ids_[u]]
                base[d] += gain + shift[i]
                lag[d] += gain
                room[d] -= c[i] + _needed(i, start, segment, cost, paid_, ZERO)
                _pay(i, start, segment, paid_)
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
        gain = p[at] - _needed(i, start, segment, price, paid_, ZERO)
        m = _remove(ids_, p, x, g, G, m, at)
        size[d] = m
        e = d + 1
        for t in range(m):
            ids[e, t] = ids_[t]
            P[e, t] = p[t] - A[i, ids_[t]]
            X[e, t] = x[t]
            GX[e, t] = g[t]
        size[e] = m
        room[e] = room[d] - c[i] - _needed(i, start, segment, cost, paid_, ZERO)
        base[e] = base[d] + gain + shift[i]
        lag[e] = lag[d] + gain
        bound[e] = bound[d]
        delta[e] = delta[d]
        measured[e] = measured[d]
        weight[e] = 0.5 * weight[d]
        weight[d] = weight[e]
        for s in range(segments):
            paid[e, s] = paid_[s]
        _pay(i, start, segment, paid[e])
        for k in range(share_.size):
            share[e, k] = share_[k]
        for r in range(w.size):
            activity[e, r] = activity[d, r] + W[r, i]
        for t in range(count[d]):
            chosen[e, t] = chosen[d, t]
        chosen[e, count[d]] = i
        count[e] = count[d] + 1
        d = e
    numbers[DEPTH] = d


# Incumbents: the moves of `heuristics`, in microseconds.


@inlined
def _holds(W: Matrix, w: Floats, activity: Floats, add: int, drop: int) -> bool:
    """Whether all rows hold after adding one item and dropping another (-1: none)."""
    for r in range(w.size):
        a = activity[r]
        if add >= 0:
            a += W[r, add]
        if drop >= 0:
            a -= W[r, drop]
        if a > w[r]:
            return False
    return True


@inlined
def _needed(i: int, start: Ints, segment: Ints, weight: Floats, users: Any, count: int) -> float:
    """Cost (or price) of the segments of item i that `count` chosen items use.

    0: what is still to be paid for i; 1: what i alone pays, if chosen.
    """
    total = 0.0
    if start is not None:
        for k in range(start[i], start[i + 1]):
            total += weight[segment[k]] if users[segment[k]] == count else 0.0
    return total


@inlined
def _use(i: int, by: int, start: Ints, segment: Ints, users: Ints) -> None:
    """Count item i as a user of what it needs, or no longer (`by` = -1)."""
    if start is not None:
        for k in range(start[i], start[i + 1]):
            users[segment[k]] += by


@compiled
def _begin(
    data: Data, needs: Needs, x: Bits, g: Floats, users: Ints, activity: Floats
) -> tuple[float, float]:
    """Fill in gains, users and activities for the items of x; returns their cost and value."""
    _, A, c, _, W, w = data
    start, segment, cost, price = needs
    used = value = 0.0
    for i in range(g.size):
        if x[i]:
            used += c[i] + _needed(i, start, segment, cost, users, ZERO)
            value += g[i] - _needed(i, start, segment, price, users, ZERO)
            _use(i, ONE, start, segment, users)
            for k in range(g.size):
                g[k] -= A[i, k]
            for r in range(w.size):
                activity[r] += W[r, i]
    return used, value


@compiled
def _local_search(data: Data, needs: Needs, x: Bits) -> float:
    """Best add, drop or swap until none improves; the feasible x is changed in place. Returns the value."""
    p, A, c, room, W, w = data
    start, segment, cost, price = needs
    n = p.size
    g, gain = p.copy(), np.empty(n)
    users, activity = np.zeros(_size(cost), np.int64), np.zeros(w.size)
    used, value = _begin(data, needs, x, g, users, activity)
    for _ in range(10 * n + 50):
        best = 1e-10
        add = NONE
        drop = NONE
        for i in range(n):
            if x[i]:
                gain[i] = -np.inf
                change = _needed(i, start, segment, price, users, ONE) - g[i]
                if change > best and _holds(W, w, activity, NONE, i):
                    best = change
                    add = NONE
                    drop = i
            else:
                gain[i] = g[i] - _needed(i, start, segment, price, users, ZERO)
                if gain[i] > best:
                    spend = c[i] + _needed(i, start, segment, cost, users, ZERO)
                    if used + spend <= room and _holds(W, w, activity, i, NONE):
                        best = gain[i]
                        add = i
                        drop = NONE
        for j in range(n):
            if x[j]:
                left = room - used + c[j] + _needed(j, start, segment, cost, users, ONE)
                lost = g[j] - _needed(j, start, segment, price, users, ONE)
                _use(j, NONE, start, segment, users)
                for i in range(n):  # the rarest condition first: mispredicted branches are slow
                    change = gain[i] + A[j, i] - lost
                    if change > best:
                        change = g[i] - _needed(i, start, segment, price, users, ZERO) + A[j, i] - lost
                        spend = c[i] + _needed(i, start, segment, cost, users, ZERO)
                        if change > best and spend <= left and _holds(W, w, activity, i, j):
                            best = change
                            add = i
                            drop = j
                _use(j, ONE, start, segment, users)
        if add < 0 and drop < 0:
            break
        if drop >= 0:
            x[drop] = 0
            used -= c[drop] + _needed(drop, start, segment, cost, users, ONE)
            _use(drop, NONE, start, segment, users)
            for k in range(n):
                g[k] += A[drop, k]
            for r in range(w.size):
                activity[r] -= W[r, drop]
        if add >= 0:
            x[add] = 1
            used += c[add] + _needed(add, start, segment, cost, users, ZERO)
            _use(add, ONE, start, segment, users)
            for k in range(n):
                g[k] -= A[add, k]
            for r in range(w.size):
                activity[r] += W[r, add]
        value += best
    return value


@compiled
def _greedy(data: Data, needs: Needs, x: Bits, power: float, banned: Ints) -> bool:
    """Add to x what repairs most of the broken rows, then the best gain / cost^power until nothing gains.

    x is completed in place; items with `banned` > 0 stay out. Returns whether all rows hold.
    """
    p, A, c, room, W, w = data
    start, segment, cost, price = needs
    n = p.size
    g = p.copy()
    users, activity = np.zeros(_size(cost), np.int64), np.zeros(w.size)
    used, _ = _begin(data, needs, x, g, users, activity)
    spend, toll, weight = np.empty(n), np.empty(n), np.empty(n)  # with what is not paid for yet
    for i in range(n):
        if x[i] or banned[i]:
            g[i] = -np.inf
    stale = True
    while True:
        if stale:
            for i in range(n):
                spend[i] = c[i] + _needed(i, start, segment, cost, users, ZERO)
                toll[i] = _needed(i, start, segment, price, users, ZERO)
                weight[i] = 1.0 / (1.0 if power == 0.0 else max(spend[i], 1e-3))
                if power == 0.5:
                    weight[i] = math.sqrt(weight[i])
        broken = False
        for r in range(w.size):
            if activity[r] > w[r]:
                broken = True
        best = 0.0
        add = NONE
        for i in range(n):
            gain = g[i] - toll[i]
            score = gain * weight[i]
            if broken:
                if gain == -np.inf or used + spend[i] > room:
                    continue
                repair = 0.0
                harm = False
                for r in range(w.size):
                    over = activity[r] - w[r]
                    if over > 0:
                        repair += max(0.0, min(over, -W[r, i]))
                    elif over + W[r, i] > 0:
                        harm = True
                if harm or repair <= 0.0:
                    continue
                score = repair * (1e6 + score)
                if score > best:
                    best = score
                    add = i
            elif (
                score > best and used + spend[i] <= room and gain > 1e-12 and _holds(W, w, activity, i, NONE)
            ):
                best = score
                add = i
        if add < 0:
            return not broken
        x[add] = 1
        used += spend[add]
        stale = _size(start) > 0
        _use(add, ONE, start, segment, users)
        for k in range(n):
            g[k] -= A[add, k]
        g[add] = -np.inf
        for r in range(w.size):
            activity[r] += W[r, add]


def incumbent(
    data: Data, needs: Needs, point: Floats, starts: int, rounds: int, known: Bits, seed: int
) -> tuple[bool, float, Bits]:
    """Local optima from greedy starts, then from the best one with part of it taken out and banned.

    Starts are a `known` feasible selection, or, where that is empty, three scores and `starts` forced first
    items in order of density; and, where `point` is not empty, a relaxed point rounded down in order of its
    fractions. `seed` decides what is taken out. Returns (whether one is feasible, its value, the selection).
    """
    # Sorted here: numba's sorting alone would take seconds to compile.
    alone, worth = data.c, data.p
    if needs.start is not None:
        of = np.repeat(np.arange(data.p.size), np.diff(needs.start))
        alone = data.c + np.bincount(of, needs.cost[needs.segment], data.c.size)
        worth = data.p - np.bincount(of, needs.price[needs.segment], data.p.size)
    first = np.argsort(-worth / np.sqrt(np.maximum(alone, 1e-3)), kind="stable")[:starts]
    first = first[alone[first] <= data.room]
    order = np.argsort(-point, kind="stable")
    return local_optima(data, needs, first, point, order, rounds, known, seed)


@compiled
def local_optima(
    data: Data, needs: Needs, first: Ints, point: Floats, order: Ints, rounds: int, known: Bits, seed: int
) -> tuple[bool, float, Bits]:
    """Do the work of `incumbent`, with the forced first items and the order of fractions given."""
    start, segment, cost, _ = needs
    n = data.p.size
    found = False
    best = -np.inf
    best_x = np.zeros(n, np.int8)
    x = np.zeros(n, np.int8)
    banned = np.zeros(n, np.int64)
    users = np.zeros(_size(cost), np.int64)
    if known.size:
        found = True
        for i in range(n):
            best_x[i] = known[i]
        best = _local_search(data, needs, best_x)
    state = seed
    greedy = 3 + first.size
    begin = greedy if known.size else 0
    end = greedy + (1 if point.size else 0)
    for k in range(begin, end + rounds):
        power = 0.5
        if k >= end:
            if not found:
                break
            power = 0.5 * ((k - end) % 3)
            for i in range(n):
                x[i] = best_x[i]
                banned[i] = 0
                if x[i]:
                    state = (1103515245 * state + 12345) % 2147483648
                    if state % 1000 < 200:
                        x[i] = 0
                        banned[i] = 1
        else:
            for i in range(n):
                x[i] = 0
            if k < 3:
                power = 0.5 * k
            elif k < greedy:
                x[first[k - 3]] = 1
            else:
                used = 0.0
                for i in order:
                    spend = data.c[i] + _needed(i, start, segment, cost, users, ZERO)
                    if point[i] > 0.3 and used + spend <= data.room:
                        x[i] = 1
                        used += spend
                        _use(i, ONE, start, segment, users)
        if not _greedy(data, needs, x, power, banned):
            continue
        value = _local_search(data, needs, x)
        if value > best + (1e-12 if k >= end else 0.0):
            found = True
            best = value
            for i in range(n):
                best_x[i] = x[i]
    return found, best, best_x


# Programs without interactions and rows.


def knapsack_search(p: Floats, c: Floats, room: float, limit: int) -> tuple[bool, Bits]:
    """0-1 knapsack by depth-first search with Dantzig's bound (Horowitz and Sahni, 1974); any costs >= 0.

    Returns (whether the search was over within `limit` fillings, the best selection found).
    """
    density = p / np.maximum(c, 1e-300)
    return dantzig_search(p, c, room, density, np.argsort(-density, kind="stable"), limit)


@compiled
def dantzig_search(
    p: Floats, c: Floats, room: float, density: Floats, order: Ints, limit: int
) -> tuple[bool, Bits]:
    """What `knapsack_search` does, with value per cost and its falling order given."""
    n = p.size
    last = 0  # items before this place gain something
    while last < n and p[order[last]] > 0:
        last += 1
    best_x = np.zeros(n, np.int8)
    x = np.zeros(n, np.int8)
    best = 0.0
    value = 0.0
    left = room
    j = 0
    fillings = 0
    while True:
        fillings += 1
        if fillings > limit:
            return False, best_x
        bound = value
        space = left
        k = j
        while k < last and c[order[k]] <= space:
            space -= c[order[k]]
            bound += p[order[k]]
            k += 1
        if k < last:
            bound += space * density[order[k]]
        if bound > best:
            while j < last:
                i = order[j]
                if c[i] > left:
                    break
                x[i] = 1
                left -= c[i]
                value += p[i]
                j += 1
            if value > best:
                best = value
                for t in range(n):
                    best_x[t] = x[t]
            if j < last - 1:
                j += 1  # this one does not fit: without it
                continue
        j -= 1
        while j >= 0 and x[order[j]] == 0:
            j -= 1
        if j < 0:
            return True, best_x
        i = order[j]
        x[i] = 0
        left += c[i]
        value -= p[i]
        j += 1


def knapsack_table(p: Floats, c: Ints, capacity: int) -> Bits:
    """0-1 knapsack by dynamic programming over whole costs; O(n capacity) time and bytes."""
    value = np.zeros(capacity + 1)
    taken = np.zeros((p.size, capacity + 1), np.bool_)
    for i in np.flatnonzero((p > 0) & (c <= capacity)):
        with_i = value[: capacity + 1 - c[i]] + p[i]
        better = with_i > value[c[i] :]
        taken[i, c[i] :] = better
        value[c[i] :] = np.where(better, with_i, value[c[i] :])
    x = np.zeros(p.size, np.int8)
    left = capacity
    for t in range(p.size - 1, -1, -1):
        if taken[t, left]:
            x[t] = 1
            left -= int(c[t])
    return x
