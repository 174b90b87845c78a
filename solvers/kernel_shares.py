"""Compiled shares of the cost of segments: who bears how much of what is not paid yet (`sharing`).

In all of it item i needs segment[start[i] : start[i + 1]], `share` has an entry for each of these needs, and
`paid` says which segments a chosen item has paid for. Open items are ids[:m].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.compiled import compiled
from mio_rag.solvers.kernel_relax import relax

__all__ = ["spread"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_SMALLEST_SHARE = 1e-3  # of a segment: less is nothing
_ROUNDING = 1.0 - 1e-13  # shares add up to no more than 1, in any order of summation


@compiled
def _share_out(
    ids: IntArray,
    m: int,
    start: IntArray,
    segment: IntArray,
    paid: BoolArray,
    share: FloatArray,
    total: FloatArray,
    users: IntArray,
) -> None:
    """Let the open users of every unpaid segment bear all of it, in the proportions of their shares.

    `total` and `users` are room to work in, one entry a segment.
    """
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
    ids: IntArray,
    m: int,
    P: FloatArray,
    c: FloatArray,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    price: FloatArray,
    paid: BoolArray,
    share: FloatArray,
    worth: FloatArray,
    charged: FloatArray,
) -> None:
    """Values and costs of the open items with their shares of what is not paid."""
    for t in range(m):
        i = ids[t]
        v = P[t]
        a = c[i]
        for k in range(start[i], start[i + 1]):
            s = segment[k]
            if not paid[s]:
                v -= share[k] * price[s]
                a += share[k] * cost[s]
        worth[t] = v
        charged[t] = a


@compiled
def _unpaid(i: int, start: IntArray, segment: IntArray, weight: FloatArray, paid: BoolArray) -> float:
    """Cost (or price) of what item i needs and is not paid."""
    total = 0.0
    for k in range(start[i], start[i + 1]):
        if not paid[segment[k]]:
            total += weight[segment[k]]
    return total


@compiled
def _promise(
    ids: IntArray,
    m: int,
    x: FloatArray,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    price: FloatArray,
    paid: BoolArray,
    share: FloatArray,
    mu: float,
    most: FloatArray,
    borne: FloatArray,
) -> float:
    """How much the point x would lose if each segment cost what its largest fraction says.

    `most` gets that fraction of every segment, `borne` what its users bear of it.
    """
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
    ids: IntArray,
    m: int,
    x: FloatArray,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    price: FloatArray,
    paid: BoolArray,
    share: FloatArray,
    mu: float,
    length: float,
    mean: FloatArray,
    users: IntArray,
) -> bool:
    """A step of the subgradient: users with a larger fraction than the others bear more.

    The bound falls by `length` if it is linear. `mean` and `users` are room to work in. Returns whether
    anything moved.
    """
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
def _relaxed_room(charged: FloatArray, m: int, room: float, cr: FloatArray) -> float:
    """Costs without zeros for the relaxation, into `cr`, and the room that makes up for it."""
    largest = 0.0
    for t in range(m):
        largest = max(largest, charged[t])
    tiny = max(1e-3 * largest, 1e-6) if largest > 0.0 else 1.0
    b = room
    for t in range(m):
        cr[t] = max(charged[t], 1e-9 * largest) if charged[t] > 0.0 else tiny
        b += cr[t] - charged[t]
    return b


@compiled
def _within(x: FloatArray, g: FloatArray, c: FloatArray, m: int, b: float) -> None:
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
    P: FloatArray,
    G: FloatArray,
    c: FloatArray,
    room: float,
    base: float,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    price: FloatArray,
    share: FloatArray,
    x: FloatArray,
    stop: float,
    goal: float,
    rounds: int,
    steps: int,
) -> float:
    """Better shares at the root, by Polyak's subgradient steps; `share` and the point x change in place.

    P are values with the rows' multipliers subtracted, c the items' own costs. Ends when the bound is at most
    `stop`; steps aim at `goal`, some value that is attained. Returns the bound of the best shares.
    """
    m, segments = P.size, cost.size
    ids = np.arange(m)
    paid = np.zeros(segments, dtype=np.bool_)
    users = np.zeros(segments, dtype=np.int64)
    work = np.zeros(segments)
    worth, charged, cr, q, g = np.empty(m), np.empty(m), np.empty(m), np.empty(m), np.empty(m)
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
        _charge(ids, m, P, c, start, segment, cost, price, paid, share, worth, charged)
        b = _relaxed_room(charged, m, room, cr)
        for i in range(m):
            q[i] = worth[i] + 0.5 * G[i, i]
        _within(x, g, cr, m, b)
        bound, mu, _ = relax(q, G, 0.0, ids, cr, b, x, g, m, steps, stop, base, 1e-9, 0.0)
        if bound < best - 1e-12:
            if bound < best - 1e-3 * (best - goal):
                since = 0
            best = bound
            best_share[:] = share
            best_x[:] = x
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
    share[:] = best_share
    x[:] = best_x
    _share_out(ids, m, start, segment, paid, share, work, users)
    return best
