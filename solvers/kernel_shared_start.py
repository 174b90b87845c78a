"""Compiled starts where items share segments: the moves of `kernel_start`, at marginal costs.

What an item costs, and what it gains, depends on the segments that chosen items already pay for. Item i needs
segment[start[i] : start[i + 1]]; `users` counts the chosen items that need each segment.
"""

from __future__ import annotations

import numpy as np

from mio_rag.solvers.compiled import NONE, compiled
from mio_rag.solvers.kernel_start import BitArray, FloatArray, IntArray, _holds

__all__ = ["shared_incumbent", "shared_optima"]


@compiled
def _unused(i: int, start: IntArray, segment: IntArray, weight: FloatArray, users: IntArray) -> float:
    """Cost (or price) of what item i needs and nobody chosen uses."""
    total = 0.0
    for k in range(start[i], start[i + 1]):
        if users[segment[k]] == 0:
            total += weight[segment[k]]
    return total


@compiled
def _last(i: int, start: IntArray, segment: IntArray, weight: FloatArray, users: IntArray) -> float:
    """Cost (or price) of what the chosen item i alone uses."""
    total = 0.0
    for k in range(start[i], start[i + 1]):
        if users[segment[k]] == 1:
            total += weight[segment[k]]
    return total


@compiled
def _use(i: int, by: int, start: IntArray, segment: IntArray, users: IntArray) -> None:
    """Count item i as a user of what it needs, or no longer (`by` = -1)."""
    for k in range(start[i], start[i + 1]):
        users[segment[k]] += by


@compiled
def _local_search(
    p: FloatArray,
    A: FloatArray,
    c: FloatArray,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    price: FloatArray,
    room: float,
    W: FloatArray,
    w: FloatArray,
    x: BitArray,
) -> float:
    """Best add, drop or swap until none improves; the feasible x is changed in place. Returns the value."""
    n = p.size
    g = p.copy()
    users = np.zeros(cost.size, np.int64)
    activity = np.zeros(w.size)
    used = 0.0
    value = 0.0
    for i in range(n):
        if x[i]:
            used += c[i] + _unused(i, start, segment, cost, users)
            value += g[i] - _unused(i, start, segment, price, users)
            _use(i, 1, start, segment, users)
            for j in range(n):
                g[j] -= A[i, j]
            for r in range(w.size):
                activity[r] += W[r, i]
    for _ in range(10 * n + 50):
        best = 1e-10
        add = NONE
        drop = NONE
        for i in range(n):
            if x[i] == 0:
                if g[i] > best:
                    gain = g[i] - _unused(i, start, segment, price, users)
                    spend = c[i] + _unused(i, start, segment, cost, users)
                    if gain > best and used + spend <= room and _holds(W, w, activity, i, NONE):
                        best = gain
                        add = i
                        drop = NONE
            else:
                gain = _last(i, start, segment, price, users) - g[i]
                if gain > best and _holds(W, w, activity, NONE, i):
                    best = gain
                    add = NONE
                    drop = i
        for j in range(n):
            if x[j]:
                left = room - used + c[j] + _last(j, start, segment, cost, users)
                lost = g[j] - _last(j, start, segment, price, users)
                _use(j, -1, start, segment, users)
                for i in range(n):
                    if x[i] == 0 and g[i] + A[j, i] - lost > best:
                        change = g[i] + A[j, i] - lost - _unused(i, start, segment, price, users)
                        spend = c[i] + _unused(i, start, segment, cost, users)
                        if change > best and spend <= left and _holds(W, w, activity, i, j):
                            best = change
                            add = i
                            drop = j
                _use(j, 1, start, segment, users)
        if add < 0 and drop < 0:
            break
        if drop >= 0:
            x[drop] = 0
            used -= c[drop] + _last(drop, start, segment, cost, users)
            _use(drop, -1, start, segment, users)
            for k in range(n):
                g[k] += A[drop, k]
            for r in range(w.size):
                activity[r] -= W[r, drop]
        if add >= 0:
            x[add] = 1
            used += c[add] + _unused(add, start, segment, cost, users)
            _use(add, 1, start, segment, users)
            for k in range(n):
                g[k] -= A[add, k]
            for r in range(w.size):
                activity[r] += W[r, add]
        value += best
    return value


@compiled
def _greedy(
    p: FloatArray,
    A: FloatArray,
    c: FloatArray,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    price: FloatArray,
    room: float,
    W: FloatArray,
    w: FloatArray,
    x: BitArray,
    power: float,
    banned: IntArray,
) -> bool:
    """Add to x what repairs most of the broken rows, then the best gain / cost^power until nothing gains.

    x is completed in place; items with `banned` > 0 stay out. Returns whether all rows hold.
    """
    n = p.size
    g = p.copy()
    users = np.zeros(cost.size, np.int64)
    activity = np.zeros(w.size)
    used = 0.0
    for i in range(n):
        if x[i]:
            used += c[i] + _unused(i, start, segment, cost, users)
            _use(i, 1, start, segment, users)
            for k in range(n):
                g[k] -= A[i, k]
            for r in range(w.size):
                activity[r] += W[r, i]
    for i in range(n):
        if x[i] or banned[i]:
            g[i] = -np.inf
    while True:
        broken = False
        for r in range(w.size):
            if activity[r] > w[r]:
                broken = True
        best = 0.0
        add = NONE
        for i in range(n):
            if g[i] == -np.inf or (not broken and g[i] <= 1e-12):
                continue
            spend = c[i] + _unused(i, start, segment, cost, users)
            if used + spend > room:
                continue
            gain = g[i] - _unused(i, start, segment, price, users)
            score = gain / max(spend, 1e-3) ** power
            if broken:
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
            elif score > best and gain > 1e-12 and _holds(W, w, activity, i, NONE):
                best = score
                add = i
        if add < 0:
            return not broken
        x[add] = 1
        used += c[add] + _unused(add, start, segment, cost, users)
        _use(add, 1, start, segment, users)
        for k in range(n):
            g[k] -= A[add, k]
        g[add] = -np.inf
        for r in range(w.size):
            activity[r] += W[r, add]


def shared_incumbent(
    p: FloatArray,
    A: FloatArray,
    c: FloatArray,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    price: FloatArray,
    room: float,
    W: FloatArray,
    w: FloatArray,
    point: FloatArray,
    starts: int,
    rounds: int,
    known: BitArray,
    seed: int,
) -> tuple[bool, float, BitArray]:
    """What `kernel_start.incumbent` does, with segments: first items are those of the best density alone."""
    needs = np.repeat(np.arange(p.size), np.diff(start))
    alone = c + np.bincount(needs, cost[segment], p.size)
    worth = p - np.bincount(needs, price[segment], p.size)
    first = np.argsort(-worth / np.sqrt(np.maximum(alone, 1e-3)), kind="stable")[:starts]
    order = np.argsort(-point, kind="stable")
    return shared_optima(
        p, A, c, start, segment, cost, price, room, W, w, alone, first, point, order, rounds, known, seed
    )


@compiled
def shared_optima(
    p: FloatArray,
    A: FloatArray,
    c: FloatArray,
    start: IntArray,
    segment: IntArray,
    cost: FloatArray,
    price: FloatArray,
    room: float,
    W: FloatArray,
    w: FloatArray,
    alone: FloatArray,
    first: IntArray,
    point: FloatArray,
    order: IntArray,
    rounds: int,
    known: BitArray,
    seed: int,
) -> tuple[bool, float, BitArray]:
    """What `shared_incumbent` does, with costs alone, first items and the order of fractions given."""
    n = p.size
    found = False
    best = -np.inf
    best_x = np.zeros(n, np.int8)
    x = np.zeros(n, np.int8)
    banned = np.zeros(n, np.int64)
    users = np.zeros(cost.size, np.int64)
    if known.size:
        found = True
        for i in range(n):
            best_x[i] = known[i]
        best = _local_search(p, A, c, start, segment, cost, price, room, W, w, best_x)
    for k in range(3 + first.size if known.size else 0, 3 + first.size + (1 if point.size else 0)):
        for i in range(n):
            x[i] = 0
        power = 0.5
        if k < 3:
            power = 0.5 * k
        elif k < 3 + first.size:
            if alone[first[k - 3]] <= room:
                x[first[k - 3]] = 1
        else:
            used = 0.0
            for s in range(users.size):
                users[s] = 0
            for i in order:
                spend = c[i] + _unused(i, start, segment, cost, users)
                if point[i] > 0.3 and used + spend <= room:
                    x[i] = 1
                    used += spend
                    _use(i, 1, start, segment, users)
        if not _greedy(p, A, c, start, segment, cost, price, room, W, w, x, power, banned):
            continue
        value = _local_search(p, A, c, start, segment, cost, price, room, W, w, x)
        if value > best:
            found = True
            best = value
            for i in range(n):
                best_x[i] = x[i]
    state = seed
    for k in range(rounds):
        if not found:
            break
        for i in range(n):
            x[i] = best_x[i]
            banned[i] = 0
            if x[i]:
                state = (1103515245 * state + 12345) % 2147483648
                if state % 1000 < 200:
                    x[i] = 0
                    banned[i] = 1
        if not _greedy(p, A, c, start, segment, cost, price, room, W, w, x, 0.5 * (k % 3), banned):
            continue
        value = _local_search(p, A, c, start, segment, cost, price, room, W, w, x)
        if value > best + 1e-12:
            best = value
            for i in range(n):
                best_x[i] = x[i]
    return found, best, best_x
