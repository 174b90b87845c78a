"""An upper bound for any selection program, in a few array operations.

Fix the number t of selected items. Each selected i then has t - 1 partners, and half of every pair's penalty
can be charged to either end, so i is worth at most

    v_i(t) = p_i - 1/2 (sum of the t - 1 smallest P_ij, j != i),

whatever the partners are. The bound for t is the smaller of the t largest v_i(t) and the fractional knapsack
over them; the bound is its maximum over every t that the budget (t cheapest items) and the count rows allow.
It is valid for negative pairs and with fixed items; other side rows are relaxed. The cost (and price) of a
segment is charged in equal shares to the items that need it: never more than all of it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.linearize import knapsack_bound
from mio_rag.formulations.program import SelectionProgram

__all__ = ["upper_bound"]

FloatArray = NDArray[np.float64]


def upper_bound(program: SelectionProgram) -> float:
    """A proven upper bound on the objective; -inf when the fixed items alone break the budget.

    Notes
    -----
    O(n^2 log n) for the sorted pairs plus O(n log n) for each possible count.
    """
    assert program.fixed is not None
    inside = np.flatnonzero(program.fixed == 1)
    free = program.free
    room = program.most_cost - float(program.costs[inside].sum())
    base = float(program.linear[inside].sum() - 0.5 * program.pairwise[np.ix_(inside, inside)].sum())
    cost, price = program.costs, np.zeros(program.n)
    if program.segments is not None:
        room -= program.segments.cost(program.fixed == 1)
        base -= program.segments.price(program.fixed == 1)
        cost, price, alone = _shared_out(program, room)
        free = free[alone[free] <= room]
    if room < 0:
        return -math.inf
    free = free[cost[free] <= room]
    value = program.linear[free] - price[free] - program.pairwise[np.ix_(free, inside)].sum(axis=1)
    cost = cost[free]
    m = free.size
    most = int(np.searchsorted(np.cumsum(np.sort(cost)), room, side="right"))
    least = 0
    for row in program.rows:
        if m and np.all(row.coefficients == 1.0):  # a count row
            if math.isfinite(row.upper):
                most = min(most, math.floor(row.most) - inside.size)
            if math.isfinite(row.lower):
                least = max(least, math.ceil(row.least) - inside.size)
    if m == 0 or least > most:
        return base if least <= 0 else -math.inf
    pairs = program.pairwise[np.ix_(free, free)].copy()
    np.fill_diagonal(pairs, np.inf)
    smallest = np.cumsum(np.sort(pairs, axis=1)[:, : m - 1], axis=1)
    best = -math.inf if least > 0 else 0.0
    for t in range(max(1, least), most + 1):
        worth = value if t == 1 else value - 0.5 * smallest[:, t - 2]
        top = float(np.partition(worth, m - t)[m - t :].sum())
        best = max(best, min(top, knapsack_bound(worth, cost, room)) if least == 0 else top)
    return base + best


def _shared_out(program: SelectionProgram, room: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Cost and price of each item with equal shares of what is still to be paid, and its cost alone."""
    shared = program.segments
    assert shared is not None
    assert program.fixed is not None
    left = ~shared.paid(program.fixed == 1)
    needs = shared.needs * left
    alone = program.costs + needs @ shared.costs
    open_items = (program.fixed < 0) & (alone <= room)
    share = needs / np.maximum(needs[open_items].sum(axis=0), 1)
    rounding = 1.0 - 1e-12
    return program.costs + rounding * (share @ shared.costs), rounding * (share @ shared.prices), alone
