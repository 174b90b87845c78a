"""Incumbents of the exact kernel, compiled: greedy starts and local search; knapsacks without pairs.

The moves are those of `heuristics`, in microseconds; for the arrays see `kernel`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np

from mio_rag.solvers.compiled import Bits, Floats, Ints, Matrix, Needs, compiled, inlined

#: "No item", zero and one as arguments: for a plain number, numba would compile a second version.
NONE = cast(int, np.int64(-1))
ZERO = cast(int, np.int64(0))
ONE = cast(int, np.int64(1))


class Data(NamedTuple):
    """Items and rows of a program: own values and costs, without segments."""

    p: Floats
    A: Matrix
    c: Floats
    room: float
    W: Matrix
    w: Floats


@inlined
def _size(array: Any) -> int:
    """The length of an array; 0 for None."""
    if array is None:
        return ZERO
    return array.size  # type: ignore[no-any-return]


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
def _toll(i: int, start: Ints, segment: Ints, price: Floats, users: Any, count: int, priced: bool) -> float:
    """`_needed` of prices, which are mostly 0."""
    return _needed(i, start, segment, price, users, count) if priced else 0.0


@inlined
def _is_priced(price: Any) -> bool:
    """Whether any segment has a price."""
    if price is not None:
        for one in price:
            if one != 0.0:
                return True
    return False


@inlined
def _use(i: int, by: int, start: Ints, segment: Ints, users: Ints) -> None:
    """Count item i as a user of what it needs, or no longer (`by` = -1)."""
    if start is not None:
        for k in range(start[i], start[i + 1]):
            users[segment[k]] += by


@inlined
def _flip(
    i: int, by: int, A: Matrix, W: Matrix, start: Ints, segment: Ints, users: Ints, g: Floats, active: Floats
) -> None:
    """Gains, users and activities after adding item i, or dropping it (`by` = -1)."""
    _use(i, by, start, segment, users)
    for k in range(g.size):
        g[k] -= by * A[i, k]
    for r in range(active.size):
        active[r] += by * W[r, i]


@compiled
def _begin(
    data: Data, needs: Needs, x: Bits, g: Floats, users: Ints, activity: Floats
) -> tuple[float, float]:
    """Fill in gains, users and activities for the items of x; returns their cost and value."""
    _, A, c, _, W, _ = data
    start, segment, cost, price = needs
    used = value = 0.0
    for i in range(g.size):
        if x[i]:
            used += c[i] + _needed(i, start, segment, cost, users, ZERO)
            value += g[i] - _needed(i, start, segment, price, users, ZERO)
            _flip(i, ONE, A, W, start, segment, users, g, activity)
    return used, value


@compiled
def _local_search(data: Data, needs: Needs, x: Bits) -> float:
    """Best add, drop or swap until none improves; the feasible x is changed in place. Returns the value."""
    p, A, c, room, W, w = data
    start, segment, cost, price = needs
    n = p.size
    g, gain = p.copy(), np.empty(n)
    users, activity, priced = np.zeros(_size(cost), np.int64), np.zeros(w.size), _is_priced(price)
    used, value = _begin(data, needs, x, g, users, activity)
    for _ in range(10 * n + 50):
        best = 1e-10
        add = NONE
        drop = NONE
        for i in range(n):
            if x[i]:
                gain[i] = -np.inf
                change = _toll(i, start, segment, price, users, ONE, priced) - g[i]
                if change > best and _holds(W, w, activity, NONE, i):
                    best = change
                    add = NONE
                    drop = i
            else:
                gain[i] = g[i] - _toll(i, start, segment, price, users, ZERO, priced)
                if gain[i] > best:
                    spend = c[i] + _needed(i, start, segment, cost, users, ZERO)
                    if used + spend <= room and _holds(W, w, activity, i, NONE):
                        best = gain[i]
                        add = i
                        drop = NONE
        for j in range(n):
            if x[j]:
                left = room - used + c[j] + _needed(j, start, segment, cost, users, ONE)
                lost = g[j] - _toll(j, start, segment, price, users, ONE, priced)
                _use(j, NONE, start, segment, users)
                for i in range(n):  # the rarest condition first: mispredicted branches are slow
                    change = gain[i] + A[j, i] - lost
                    if change > best:
                        change = g[i] - _toll(i, start, segment, price, users, ZERO, priced) + A[j, i] - lost
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
            _flip(drop, NONE, A, W, start, segment, users, g, activity)
        if add >= 0:
            x[add] = 1
            used += c[add] + _needed(add, start, segment, cost, users, ZERO)
            _flip(add, ONE, A, W, start, segment, users, g, activity)
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
    users, activity, priced = np.zeros(_size(cost), np.int64), np.zeros(w.size), _is_priced(price)
    used, _ = _begin(data, needs, x, g, users, activity)
    spend, toll, weight = np.zeros(n), np.zeros(n), np.ones(n)  # with what is not paid for yet
    for i in range(n):
        if x[i] or banned[i]:
            g[i] = -np.inf
    stale = True
    while True:
        if stale:
            for i in range(n):
                if g[i] == -np.inf:
                    continue
                spend[i] = c[i] + _needed(i, start, segment, cost, users, ZERO)
                toll[i] = _toll(i, start, segment, price, users, ZERO, priced)
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
        stale = (
            _needed(add, start, segment, cost, users, ZERO) > 0.0
            or _toll(add, start, segment, price, users, ZERO, priced) > 0.0
        )
        _flip(add, ONE, A, W, start, segment, users, g, activity)
        g[add] = -np.inf


def incumbent(
    data: Data, needs: Needs, point: Floats, starts: int, rounds: int, known: Bits, seed: int
) -> tuple[bool, float, Bits]:
    """Local optima from greedy starts, then from the best one with part of it taken out and banned.

    Starts are a `known` feasible selection, or, where that is empty, three scores and `starts` forced first
    items in order of density; and a relaxed `point` (unless empty), rounded down in order of its fractions.
    `seed` decides what is taken out. Returns (whether one is feasible, its value, the selection).
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
        best_x[:] = known
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
            x[:] = best_x
            banned[:] = 0
            for i in range(n):
                if x[i]:
                    state = (1103515245 * state + 12345) % 2147483648
                    if state % 1000 < 200:
                        x[i] = 0
                        banned[i] = 1
        else:
            x[:] = 0
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
            best_x[:] = x
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
                best_x[:] = x
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
