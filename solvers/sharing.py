"""What the items of a problem share: segments, and how their cost is shared out for the relaxation.

A segment s costs c_s once, however many of its users are chosen. With shares u_is >= 0 that add up to at most
1 over its users,

    sum over chosen i of u_is c_s  <=  c_s  if any user is chosen,  and  0  otherwise,

so items that cost  c_i + sum_s u_is c_s  each never cost more together than they really do: a problem
without segments, and a relaxation of the one with them. Prices of segments lower values in the same way. With
the best shares its linear relaxation is as tight as that of the rows x_i <= y_s (the shares are their
multipliers). A segment of one user is its own; those that the same items need are one.

Source: multipliers of precedence rows, as in Lagrangian bounds of the precedence-constrained knapsack (Park
and Park, 1997).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sharing"]

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
    def of(
        cls,
        p: FloatArray,
        c: FloatArray,
        needs: BoolArray,
        cost: FloatArray,
        price: FloatArray,
        unpaid: BoolArray,
    ) -> Sharing:
        """The segments that are shared; what one item alone needs becomes its own. Equal shares."""
        matters = unpaid & ((cost > 0) | (price > 0))
        needs, cost, price = needs[:, matters], cost[matters], price[matters]
        single = needs & (needs.sum(axis=0) == 1)
        p, c = p - single @ price, c + single @ cost
        several = np.flatnonzero(needs.sum(axis=0) > 1)
        group: dict[bytes, list[int]] = {}
        for s in several:
            group.setdefault(needs[:, s].tobytes(), []).append(int(s))
        first = [members[0] for members in group.values()]
        needs = np.ascontiguousarray(needs[:, first])
        cost = np.array([cost[members].sum() for members in group.values()], dtype=np.float64)
        price = np.array([price[members].sum() for members in group.values()], dtype=np.float64)
        return cls(p, c, needs, cost, price, _normalized(needs.astype(np.float64), needs))

    def scaled(self, values: float, costs: float) -> Sharing:
        """In other units."""
        return replace(
            self,
            p=self.p / values,
            price=self.price / values,
            c=self.c / costs,
            cost=self.cost / costs,
        )

    def keep(self, k: IntArray) -> Sharing:
        """The same for some of the items; what the others bore goes to them."""
        needs = self.needs[k]
        used = needs.any(axis=0)
        needs = np.ascontiguousarray(needs[:, used])
        share = _normalized(self.share[np.ix_(k, np.flatnonzero(used))], needs)
        return replace(
            self,
            p=self.p[k],
            c=self.c[k],
            needs=needs,
            cost=self.cost[used],
            price=self.price[used],
            share=share,
        )

    def with_shares(self, share: FloatArray) -> Sharing:
        """With other shares, one for each entry of `users`."""
        matrix = np.zeros(self.needs.shape)
        matrix[self.users] = share
        return replace(self, share=matrix)

    @cached_property
    def users(self) -> tuple[IntArray, IntArray]:
        """Items and segments of every need, by item."""
        i, s = np.nonzero(self.needs)
        return i, s

    @cached_property
    def start(self) -> IntArray:
        """Where the needs of each item begin in `users`, and where the last ones end."""
        return np.concatenate(([0], np.cumsum(self.needs.sum(axis=1)))).astype(np.int64)

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
