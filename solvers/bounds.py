"""Bounds of the exact kernel, compiled: the concave relaxation, and shares of segments that are not paid for.

With a positive semidefinite G that is at most A off the diagonal (`relaxation`), the concave q.x - 1/2 x'G x,
q = p + diag(G)/2, is nowhere below the objective. Over {0 <= x <= 1, c.x <= b} any point x with gradient
h = q - G x and any mu >= 0 give

    value of every feasible y  <=  base + 1/2 x'G x + mu b + sum_i max(0, h_i - mu c_i),

so the solver of the relaxation may stop anywhere. Rows enter through multipliers lam >= 0: p <- p - W'lam,
base <- base + lam.w.

While a segment is not paid for, its open users bear shares of its cost (`presolve.Sharing`): a program
without segments, whose relaxation bounds this one. Subgradient steps move them to the largest fractions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mio_rag.solvers.compiled import Bits, Bools, Floats, Ints, Matrix, Needs, Shared, compiled
from mio_rag.solvers.incumbents import ZERO

_SMALLEST_SHARE = 1e-3  # of a segment: less counts as nothing
_ROUNDING = 1.0 - 1e-13  # shares add up to no more than 1, in any order of summation


class Node(NamedTuple):
    """Rows of a tree: the open items in the first places of `ids`, P, x and g = G x."""

    ids: Ints
    P: Floats
    x: Floats
    g: Floats
    paid: Bools
    share: Floats


class Work(NamedTuple):
    """Values q and costs c of a node's relaxation; room to work in, one entry a segment."""

    q: Floats
    c: Floats
    one: Floats
    other: Floats
    users: Ints


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


@compiled
def _share_out(node: Node, m: int, start: Ints, needs: Needs, work: Work) -> None:
    """Let the open users of every unpaid segment bear all of it, in the proportions of their shares."""
    if start is None:
        return
    segment, ids, paid, share = needs.segment, node.ids, node.paid, node.share
    total, users = work.one, work.users
    for s in range(total.size):
        total[s] = 0.0
        users[s] = 0
    for t in range(m):
        i = ids[t]
        for k in range(start[i], start[i + 1]):
            total[segment[k]] += share[k]
            users[segment[k]] += 1
    for s in range(total.size):
        total[s] = _ROUNDING / total[s] if total[s] > 1e-9 else 0.0
    for t in range(m):
        i = ids[t]
        for k in range(start[i], start[i + 1]):
            s = segment[k]
            if paid[s]:
                share[k] = 0.0
            elif total[s] > 0.0:
                share[k] *= total[s]
            else:
                share[k] = _ROUNDING / users[s]


@compiled
def _charge(
    node: Node, m: int, G: Matrix, delta: float, c: Floats, start: Ints, needs: Needs, room: float, work: Work
) -> tuple[float, float]:
    """Write the data of the relaxation into `work`: with shares of what is not paid, and no cost of zero; and
    shrink x, and g with it, to what fits.

    Returns the budget of the relaxation, which makes up for raised costs, and the two smallest costs, added.
    """
    ids, P, x, g = node.ids, node.P, node.x, node.g
    q, cc = work.q, work.c
    largest = 0.0
    least = np.inf
    second = np.inf
    for t in range(m):
        i = ids[t]
        v = P[t]
        a = c[i]
        if start is not None:
            _, segment, cost, price = needs
            for k in range(start[i], start[i + 1]):
                s = segment[k]
                if not node.paid[s]:
                    v -= node.share[k] * price[s]
                    a += node.share[k] * cost[s]
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
    used = 0.0
    for t in range(m):
        used += cc[t] * x[t]
    if used > b:
        for t in range(m):
            x[t] *= b / used
            g[t] *= b / used
    return b, least + second


@compiled
def _promise(node: Node, m: int, start: Ints, needs: Needs, mu: float, work: Work) -> float:
    """How much the point x would lose if each segment cost what its largest fraction says."""
    if start is None:
        return 0.0
    _, segment, cost, price = needs
    ids, x, share = node.ids, node.x, node.share
    most, borne = work.one, work.other
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
        if not node.paid[s]:
            total += (mu * cost[s] + price[s]) * max(0.0, most[s] - borne[s])
    return total


@compiled
def _move_shares(node: Node, m: int, start: Ints, needs: Needs, mu: float, length: float, work: Work) -> bool:
    """A step of the subgradient: users with a larger fraction than the others bear more.

    The bound falls by `length` if it is linear. Returns whether anything moved.
    """
    if start is None:
        return False
    _, segment, cost, price = needs
    ids, x, paid, share = node.ids, node.x, node.paid, node.share
    mean, users = work.one, work.users
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
    start = needs.start
    m, segments = P.size, needs.cost.size
    g, paid = np.zeros(m), np.zeros(segments, dtype=np.bool_)
    node = Node(np.arange(m), P, x, g, paid, share)
    users = np.empty(segments, dtype=np.int64)
    work = Work(np.empty(m), np.empty(m), np.empty(segments), np.empty(segments), users)
    best_share, best_x = share.copy(), x.copy()
    best = np.inf
    step = 1.0
    since = 0
    for j in range(m):
        if x[j] != 0.0:
            for i in range(m):
                g[i] += G[i, j] * x[j]
    for r in range(rounds):
        _share_out(node, m, start, needs, work)
        b, _ = _charge(node, m, G, 0.0, c, start, needs, room, work)
        bound, mu, _ = relax(work.q, G, 0.0, node.ids, work.c, b, x, g, m, steps, stop, base, 1e-9, 0.0)
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
        if not _move_shares(node, m, start, needs, mu, step * max(bound - goal, 1e-9), work):
            break
    share[:] = best_share
    x[:] = best_x
    _share_out(node, m, start, needs, work)
    return best
