"""Compiled starts of the exact kernel: greedy and local search for an incumbent, and the linear case.

The same moves as in `heuristics`, on bare arrays, in microseconds. Rows are W x <= w.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.compiled import NONE, compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BitArray = NDArray[np.int8]


@compiled
def _holds(W: FloatArray, w: FloatArray, activity: FloatArray, add: int, drop: int) -> bool:
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


@compiled
def _local_search(
    p: FloatArray, A: FloatArray, c: FloatArray, room: float, W: FloatArray, w: FloatArray, x: BitArray
) -> float:
    """Best add, drop or swap until none improves; the feasible x is changed in place. Returns the value."""
    n = p.size
    g = p.copy()
    gain = np.empty(n)
    activity = np.zeros(w.size)
    used = 0.0
    for i in range(n):
        if x[i]:
            used += c[i]
            for j in range(n):
                g[j] -= A[i, j]
            for r in range(w.size):
                activity[r] += W[r, i]
    value = 0.0
    for i in range(n):
        if x[i]:
            value += 0.5 * (g[i] + p[i])
    for _ in range(10 * n + 50):
        best = 1e-10
        add = -1
        drop = -1
        for i in range(n):
            if x[i] == 0:
                if used + c[i] <= room and g[i] > best and _holds(W, w, activity, i, NONE):
                    best = g[i]
                    add = i
                    drop = -1
            elif -g[i] > best and _holds(W, w, activity, NONE, i):
                best = -g[i]
                add = -1
                drop = i
        for i in range(n):
            gain[i] = g[i] if x[i] == 0 else -np.inf
        for j in range(n):
            if x[j]:
                left = room - used + c[j]
                for i in range(n):  # what seldom holds is asked first: branches taken at random are dear
                    change = gain[i] + A[j, i] - g[j]
                    if change > best and c[i] <= left and _holds(W, w, activity, i, j):
                        best = change
                        add = i
                        drop = j
        if add < 0 and drop < 0:
            break
        if drop >= 0:
            x[drop] = 0
            used -= c[drop]
            for k in range(n):
                g[k] += A[drop, k]
            for r in range(w.size):
                activity[r] -= W[r, drop]
        if add >= 0:
            x[add] = 1
            used += c[add]
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
    activity = np.zeros(w.size)
    weight = np.empty(n)
    used = 0.0
    for i in range(n):
        weight[i] = 1.0 / max(c[i], 1e-3) ** power
        if x[i]:
            used += c[i]
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
        add = -1
        for i in range(n):
            score = g[i] * weight[i]
            if broken:
                if g[i] == -np.inf or used + c[i] > room:
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
            elif score > best and used + c[i] <= room and g[i] > 1e-12 and _holds(W, w, activity, i, NONE):
                best = score
                add = i
        if add < 0:
            return not broken
        x[add] = 1
        used += c[add]
        for k in range(n):
            g[k] -= A[add, k]
        g[add] = -np.inf
        for r in range(w.size):
            activity[r] += W[r, add]


def incumbent(
    p: FloatArray,
    A: FloatArray,
    c: FloatArray,
    room: float,
    W: FloatArray,
    w: FloatArray,
    point: FloatArray,
    starts: int,
    rounds: int,
    known: BitArray,
    seed: int,
) -> tuple[bool, float, BitArray]:
    """Local optima from greedy starts, then from the best one with part of it taken out and banned.

    Starts are a `known` feasible selection, or, where that is empty, three scores and `starts` forced first
    items in order of density; and, where `point` is not empty, a relaxed point rounded down in order of its
    fractions. `seed` decides what is taken out. Returns (whether one is feasible, its value, the selection).
    """
    # Sorted out here: numba's sorting alone would take seconds to compile.
    first = np.argsort(-p / np.sqrt(np.maximum(c, 1e-3)), kind="stable")[:starts]
    return local_optima(
        p, A, c, room, W, w, first, point, np.argsort(-point, kind="stable"), rounds, known, seed
    )


@compiled
def local_optima(
    p: FloatArray,
    A: FloatArray,
    c: FloatArray,
    room: float,
    W: FloatArray,
    w: FloatArray,
    first: IntArray,
    point: FloatArray,
    order: IntArray,
    rounds: int,
    known: BitArray,
    seed: int,
) -> tuple[bool, float, BitArray]:
    """What `incumbent` does, with the forced first items and the order of the point's fractions given."""
    n = p.size
    found = False
    best = -np.inf
    best_x = np.zeros(n, np.int8)
    x = np.zeros(n, np.int8)
    banned = np.zeros(n, np.int64)
    if known.size:
        found = True
        for i in range(n):
            best_x[i] = known[i]
        best = _local_search(p, A, c, room, W, w, best_x)
    for k in range(3 + first.size if known.size else 0, 3 + first.size + (1 if point.size else 0)):
        for i in range(n):
            x[i] = 0
        power = 0.5
        if k < 3:
            power = 0.5 * k
        elif k < 3 + first.size:
            if c[first[k - 3]] <= room:
                x[first[k - 3]] = 1
        else:
            used = 0.0
            for i in order:
                if point[i] > 0.3 and used + c[i] <= room:
                    x[i] = 1
                    used += c[i]
        if not _greedy(p, A, c, room, W, w, x, power, banned):
            continue
        value = _local_search(p, A, c, room, W, w, x)
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
        if not _greedy(p, A, c, room, W, w, x, 0.5 * (k % 3), banned):
            continue
        value = _local_search(p, A, c, room, W, w, x)
        if value > best + 1e-12:
            best = value
            for i in range(n):
                best_x[i] = x[i]
    return found, best, best_x


def knapsack_search(p: FloatArray, c: FloatArray, room: float, limit: int) -> tuple[bool, BitArray]:
    """0-1 knapsack by depth-first search with Dantzig's bound (Horowitz and Sahni, 1974); any costs >= 0.

    Returns (whether the search was over within `limit` fillings, the best selection found).
    """
    density = p / np.maximum(c, 1e-300)
    return dantzig_search(p, c, room, density, np.argsort(-density, kind="stable"), limit)


@compiled
def dantzig_search(
    p: FloatArray, c: FloatArray, room: float, density: FloatArray, order: IntArray, limit: int
) -> tuple[bool, BitArray]:
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


@compiled
def knapsack_table(p: FloatArray, c: IntArray, capacity: int) -> BitArray:
    """0-1 knapsack by dynamic programming over whole costs; O(n capacity) time and bytes."""
    n = p.size
    value = np.zeros(capacity + 1)
    taken = np.zeros((n, capacity + 1), np.bool_)
    for i in range(n):
        if p[i] <= 0:
            continue
        for b in range(capacity, c[i] - 1, -1):
            with_i = value[b - c[i]] + p[i]
            if with_i > value[b]:
                value[b] = with_i
                taken[i, b] = True
    x = np.zeros(n, np.int8)
    b = capacity
    for i in range(n - 1, -1, -1):
        if taken[i, b]:
            x[i] = 1
            b -= c[i]
    return x
