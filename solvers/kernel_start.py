"""Compiled starts of the exact kernel: greedy and local search for an incumbent, and the linear case.

The same moves as in `heuristics`, on bare arrays and without side rows, in microseconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.compiled import compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BitArray = NDArray[np.int8]


@compiled
def local_search(p: FloatArray, A: FloatArray, c: FloatArray, room: float, x: BitArray) -> float:
    """Best add, drop or swap until none improves; x is changed in place. Returns the value."""
    n = p.size
    g = p.copy()
    used = 0.0
    for i in range(n):
        if x[i]:
            used += c[i]
            for j in range(n):
                g[j] -= A[i, j]
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
                if used + c[i] <= room and g[i] > best:
                    best = g[i]
                    add = i
                    drop = -1
            elif -g[i] > best:
                best = -g[i]
                add = -1
                drop = i
        for j in range(n):
            if x[j]:
                left = room - used + c[j]
                for i in range(n):
                    if x[i] == 0 and c[i] <= left:
                        change = g[i] + A[i, j] - g[j]
                        if change > best:
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
        if add >= 0:
            x[add] = 1
            used += c[add]
            for k in range(n):
                g[k] -= A[add, k]
        value += best
    return value


@compiled
def greedy(
    p: FloatArray, A: FloatArray, c: FloatArray, room: float, x: BitArray, power: float, start: int
) -> None:
    """Add the best gain / cost^power from an optional first item until nothing gains; x is overwritten."""
    n = p.size
    g = p.copy()
    used = 0.0
    x[:] = 0
    if start >= 0 and c[start] <= room:
        x[start] = 1
        used = c[start]
        for k in range(n):
            g[k] -= A[start, k]
    while True:
        best = 0.0
        add = -1
        for i in range(n):
            if x[i] == 0 and used + c[i] <= room and g[i] > 1e-12:
                score = g[i] / max(c[i], 1e-3) ** power
                if score > best:
                    best = score
                    add = i
        if add < 0:
            return
        x[add] = 1
        used += c[add]
        for k in range(n):
            g[k] -= A[add, k]


@compiled
def incumbent(
    p: FloatArray, A: FloatArray, c: FloatArray, room: float, starts: int
) -> tuple[float, BitArray]:
    """Local optima from greedy starts: three scores, then forced first items in order of density."""
    n = p.size
    best_x = np.zeros(n, np.int8)
    best = 0.0
    x = np.zeros(n, np.int8)
    for power in (0.0, 0.5, 1.0):
        greedy(p, A, c, room, x, power, -1)
        value = local_search(p, A, c, room, x)
        if value > best:
            best = value
            best_x[:] = x
    order = np.argsort(-p / np.sqrt(np.maximum(c, 1e-3)))
    for k in range(min(starts, n)):
        greedy(p, A, c, room, x, 0.5, order[k])
        value = local_search(p, A, c, room, x)
        if value > best:
            best = value
            best_x[:] = x
    return best, best_x


@compiled
def knapsack(p: FloatArray, c: IntArray, capacity: int) -> BitArray:
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
