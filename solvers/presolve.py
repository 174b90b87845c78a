"""Presolve: a selection program -> the part of it that needs a search; and shares of segments.

A segment s costs c_s once, however many of its users are chosen. With shares u_is >= 0 that add up to at most
1 over its users,

    sum over chosen i of u_is c_s  <=  c_s  if any user is chosen,  and  0  otherwise,

so items that cost  c_i + sum_s u_is c_s  each never cost more together than they really do: a program
without segments, and a relaxation of the one with them. Prices of segments lower values in the same way. With
the best shares its linear relaxation is as tight as that of the rows x_i <= y_s. A segment of one user is the
user's own; those that the same items need are one.

Source: multipliers of precedence rows, as in Lagrangian bounds of the precedence-constrained knapsack (Park
and Park, 1997).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.program import Segments, SelectionProgram, no_pairs
from mio_rag.solvers.compiled import Needs
from mio_rag.solvers.incumbents import Data

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
_ROUNDING = 1.0 - 1e-13  # shares add up to no more than 1, in any order of summation


@dataclass(frozen=True, eq=False)
class Sharing:
    """Segments of m items, each with at least two users.

    `p` and `c` are the items' own values and costs; `needs` and `share`, shape (m, segments), say who uses
    what and who bears how much of it.
    """

    p: FloatArray
    c: FloatArray
    needs: BoolArray
    cost: FloatArray
    price: FloatArray
    share: FloatArray

    @classmethod
    def of(cls, p: FloatArray, c: FloatArray, shared: Segments, items: IntArray, paid: BoolArray) -> Sharing:
        """The segments that `items` share; what one item alone needs becomes its own. Equal shares."""
        matters = ~paid & ((shared.costs > 0) | (shared.prices > 0))
        needs, cost, price = shared.needs[items][:, matters], shared.costs[matters], shared.prices[matters]
        users = needs.sum(axis=0)
        single = needs & (users == 1)
        p, c = p - single @ price, c + single @ cost
        group: dict[bytes, list[int]] = {}
        by_segment = np.ascontiguousarray(needs.T)
        for s in np.flatnonzero(users > 1).tolist():
            group.setdefault(by_segment[s].tobytes(), []).append(s)
        first = [members[0] for members in group.values()]
        needs = np.ascontiguousarray(needs[:, first])
        merged = [(k, members) for k, members in enumerate(group.values()) if len(members) > 1]
        sums = []
        for values in (cost, price):
            total = values[first]
            for k, members in merged:
                total[k] = values[members].sum()
            sums.append(total)
        cost, price = sums
        return cls(p, c, needs, cost, price, _normalized(needs.astype(np.float64), needs))

    def keep(self, k: IntArray) -> Sharing:
        """The same for some of the items; what the others bore goes to them."""
        needs = self.needs.take(k, axis=0)
        used = np.flatnonzero(needs.any(axis=0))
        needs = needs.take(used, axis=1)
        share = _normalized(self.share.take(k, axis=0).take(used, axis=1), needs)
        return Sharing(self.p[k], self.c[k], needs, self.cost[used], self.price[used], share)

    @cached_property
    def users(self) -> tuple[IntArray, IntArray]:
        """Items and segments of every need, by item."""
        i, s = np.nonzero(self.needs)
        return i, np.ascontiguousarray(s)

    def shared_out(self) -> tuple[FloatArray, FloatArray]:
        """Values and costs of the items with their shares."""
        return self.p - self.share @ self.price, self.c + self.share @ self.cost

    def cost_of(self, x: NDArray[np.int8]) -> float:
        """True cost of a 0/1 vector of the items."""
        return float(self.c @ x) + float(self.cost[self.needs[x > 0].any(axis=0)].sum())

    def value_of(self, x: NDArray[np.int8]) -> float:
        """True value of a 0/1 vector, without pairs."""
        return float(self.p @ x) - float(self.price[self.needs[x > 0].any(axis=0)].sum())


def _normalized(share: FloatArray, needs: BoolArray) -> FloatArray:
    """Shares in the same proportions that add up to 1; equal ones where there are none."""
    total = share.sum(axis=0)
    none = total <= 1e-9
    if none.any():
        share = np.where(none, needs, share)
        total = share.sum(axis=0)
    return np.asarray(share * (_ROUNDING / total))


class Relaxed(NamedTuple):
    """Values and costs of items with their shares of segments, as the relaxation takes them.

    cr, extra: costs of which none is next to zero, and the room that makes up for it.
    """

    p: FloatArray
    c: FloatArray
    cr: FloatArray
    extra: float


@dataclass(frozen=True, eq=False)
class Problem:
    """max p.x - 1/2 x'A x over the m items that are left, scaled to entries of about 1.

    `items` are their indices in the program; the rows are W x <= w; a `harmless` item can be left out without
    breaking a row. With segments (`sharing`), p and c are without these.
    """

    items: IntArray
    p: FloatArray
    A: FloatArray
    c: FloatArray
    W: FloatArray
    w: FloatArray
    harmless: NDArray[np.bool_]
    room: float
    base: float
    scale: float
    sharing: Sharing | None = None

    @property
    def m(self) -> int:
        """Number of items left."""
        return int(self.p.size)

    def keep(self, k: IntArray) -> Problem:
        """The problem of some of the items, the others left out."""
        sharing, of_rows = self.sharing and self.sharing.keep(k), (self.W.take(k, axis=1), self.w)
        values = self.items[k], self.p[k], part_of(self.A, k), self.c[k]
        made = Problem(*values, *of_rows, self.harmless[k], self.room, self.base, self.scale, sharing)
        if sharing is None:
            made.__dict__["relaxed"] = Relaxed(made.p, made.c, self.relaxed.cr[k], self.relaxed.extra)
        return made

    def with_shares(self, share: FloatArray) -> Problem:
        """The problem with other shares, one for each entry of `Sharing.users`."""
        made, sharing = copy.copy(self), copy.copy(self.sharing)
        assert sharing is not None
        matrix = np.zeros(sharing.needs.shape)
        matrix[sharing.users] = share
        sharing.__dict__["share"], made.__dict__["sharing"] = matrix, sharing
        made.__dict__.pop("relaxed", None)
        return made

    @cached_property
    def relaxed(self) -> Relaxed:
        """What the relaxation takes, by the shares as they are."""
        p, c = (self.p, self.c) if self.sharing is None else self.sharing.shared_out()
        cr = _relaxed_costs(c)
        return Relaxed(p, c, cr, float((cr - c).sum()))

    def priced(self, lam: FloatArray) -> FloatArray:
        """Values of the relaxation without what the rows charge by their multipliers."""
        return self.relaxed.p - self.W.T @ lam if lam.size else self.relaxed.p

    @cached_property
    def needs(self) -> Needs:
        """The segments as the compiled code takes them."""
        if (shared := self.sharing) is None:
            return Needs()
        start = np.zeros(self.m + 1, dtype=np.int64)
        np.cumsum(shared.needs.sum(axis=1), out=start[1:])
        return Needs(start, shared.users[1], shared.cost, shared.price)

    @cached_property
    def data(self) -> Data:
        """The items' own values and costs, and the rows, as the compiled code takes them."""
        return Data(self.p, self.A, self.c, float(self.room), self.W, self.w)

    def feasible(self, x: NDArray[np.int8]) -> bool:
        """Whether a 0/1 vector of the items keeps room and rows."""
        cost = float(self.c @ x) if self.sharing is None else self.sharing.cost_of(x)
        return bool(cost <= self.room and np.all(self.W @ x <= self.w))

    def value(self, x: NDArray[np.int8]) -> float:
        """Scaled objective of a 0/1 vector of the items, without `base`."""
        own = float(self.p @ x) if self.sharing is None else self.sharing.value_of(x)
        return own if self.A is no_pairs(self.m) else own - float(0.5 * (x @ self.A @ x))


def presolve(program: SelectionProgram) -> Problem | None:
    """Fold in what is fixed, drop what cannot be chosen; None where what is fixed breaks the budget."""
    assert program.fixed is not None
    inside, free = np.flatnonzero(program.fixed == 1), program.free
    room = _limit(program.all_costs, program.budget, program.most_cost) - float(program.costs[inside].sum())
    shared, alone = program.segments, program.costs
    if shared is not None:
        paid = shared.paid(program.fixed == 1)
        room -= float(shared.costs[paid].sum())
        alone = (
            program.alone
            if not paid.any()
            else program.costs + shared.needs @ np.where(paid, 0.0, shared.costs)
        )
    if room < 0:
        return None
    rows, limits = [], []
    for row in program.rows:
        for sign, bound, most in ((1.0, row.upper, row.most), (-1.0, -row.lower, -row.least)):
            if math.isfinite(bound):
                rows.append(sign * row.coefficients[free])
                limit = _limit(row.coefficients, bound, most)
                limits.append(limit - sign * float(row.coefficients[inside].sum()))
    W, w = np.array(rows, dtype=np.float64).reshape(len(rows), free.size), np.array(limits, dtype=np.float64)
    base, p, A = 0.0, program.linear[free], part_of(program.pairwise, free)
    if inside.size:
        base = float(program.linear[inside].sum() - 0.5 * part_of(program.pairwise, inside).sum())
        p = p - program.pairwise[np.ix_(free, inside)].sum(axis=1)
    has_pairs = A is not no_pairs(free.size)
    most_gain = p - np.minimum(A, 0.0).sum(axis=1) if has_pairs and A.size and A.min() < 0 else p
    harmless = np.asarray(~(W < 0).any(axis=0)) if rows else np.ones(free.size, dtype=np.bool_)
    hopeless = harmless & (most_gain <= 0)
    k = np.flatnonzero((alone[free] <= room) & ~hopeless)
    if rows:
        binding = np.maximum(W[:, k], 0).sum(axis=1) > w
        W, w = W[binding], w[binding]
    W = np.ascontiguousarray(W[:, k])
    for r in range(w.size):
        unit = _unit(W[r])
        with np.errstate(over="ignore"):  # no sum of the entries comes near these limits of a limit
            W[r], w[r] = W[r] / unit, np.clip(w[r] / unit, -1e30, 1e30)
    p, A, c = p[k], part_of(A, k), program.costs[free][k].astype(np.float64)
    sharing = None
    if shared is not None:
        base -= float(shared.prices[paid].sum())
        sharing = Sharing.of(p, c, shared, free[k], paid)
        p, c = sharing.p, sharing.c
    total = c if sharing is None else np.append(c, sharing.cost)
    unit = _unit(total)
    if unit != 1.0:
        c, room = c / unit, min(room, 2 * float(total.sum())) / unit
    scale = max(float(np.abs(one).max(initial=0.0)) for one in ((p, A) if has_pairs else (p,))) or 1.0
    p = p / scale
    if sharing is not None:
        costs = sharing.cost / unit, sharing.price / scale
        sharing = Sharing(p, c, sharing.needs, *costs, sharing.share) if sharing.cost.size else None
    A = A / scale if has_pairs else A
    return Problem(free[k], p, A, c, W, w, harmless[k], room, base, scale, sharing)


def _relaxed_costs(c: FloatArray) -> FloatArray:
    """Costs for the relaxation: none is zero, or next to it beside the largest."""
    largest = float(c.max(initial=0.0))
    tiny = max(1e-3 * largest, 1e-6) if largest > 0 else 1.0
    return np.where(c > 0, np.maximum(c, 1e-9 * largest), tiny)


def fixed_in(program: SelectionProgram) -> NDArray[np.int8]:
    """The 0/1 vector of what is fixed to be in."""
    assert program.fixed is not None
    return np.asarray(program.fixed == 1, dtype=np.int8)


def _unit(values: FloatArray) -> float:
    """A power of two to divide by, where squares of the values might leave the range of float64; else 1."""
    largest = float(np.abs(values).max(initial=0.0))
    return 1.0 if largest == 0 or 1e-9 <= largest <= 1e15 else math.ldexp(1.0, math.frexp(largest)[1] - 1)


def _limit(coefficients: FloatArray, bound: float, most: float) -> float:
    """What coefficients . x may reach, for sums in any order to stay within `most`."""
    rounding = 2.0**-52 * (coefficients.size + 2) * (float(np.abs(coefficients).sum()) + abs(bound))
    return most - min((most - bound) / 2, rounding)


def part_of(M: FloatArray, k: IntArray) -> FloatArray:
    """Rows and columns k (rising) of M; M itself where that is all of it."""
    if M is no_pairs(M.shape[0]):
        return no_pairs(k.size)
    return M if k.size == M.shape[0] else M.take(k, axis=0).take(k, axis=1)
