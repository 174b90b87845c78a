"""Segments: text that several items share and that is paid once.

Windows that overlap, passages below one title and versions of one document repeat the same words. Whoever
reads two of them reads these words once. So cost sits on segments: an item needs its segments, and

    cost(x)  =  sum_i costs_i x_i  +  sum_s segment_costs_s y_s,      y_s = max of x_i over i that need s,

and in the same way a segment's price (a token price, say) is subtracted once from the objective. `precedence`
writes this as rows y_s >= x_i for solvers that know nothing of segments.

Source: the closure (selection) problem of Rhys (1970) and Balinski (1970), here with a budget and pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import numeric, size_of

__all__ = ["Segments"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Segments:
    """What items share: m segments, each paid once if any chosen item needs it.

    Parameters
    ----------
    costs : array_like, shape (m,)
        Tokens of each segment, >= 0.
    needs : boolean array, shape (n, m), or sequence of n sequences of int
        Which segments each item needs: as a matrix, or for each item their indices. An item may need none; a
        segment that no item needs costs nothing.
    prices : array_like, shape (m,), optional
        Subtracted from the objective once where the segment is read, >= 0; none by default. With a price of
        a token, that price times `costs` (`mio_rag.formulations.precedence.with_token_price`).

    Raises
    ------
    InputError
        With every problem found.

    Examples
    --------
    Two windows of 60 tokens that share 30:

    >>> halves = Segments(costs=[30, 30, 30], needs=[[0, 1], [1, 2]])
    >>> halves.cost([1, 1]), halves.cost([1, 0])
    (90.0, 60.0)
    """

    costs: FloatArray
    needs: BoolArray
    prices: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        put = object.__setattr__
        problems: list[str] = []
        m = size_of(self.costs)
        put(self, "costs", numeric("segment costs", self.costs, (m,), problems))
        prices = self.prices if size_of(self.prices) else np.zeros(m)
        put(self, "prices", numeric("segment prices", prices, (m,), problems))
        for name, values in (("cost", self.costs), ("price", self.prices)):
            if np.any(values < 0):
                s = int(np.flatnonzero(values < 0)[0])
                problems.append(f"the {name} of segment {s} is {values[s]:g}: it must be >= 0")
        put(self, "needs", _matrix(self.needs, m, problems))
        if problems:
            raise InputError(problems)

    @property
    def m(self) -> int:
        """Number of segments."""
        return int(self.costs.size)

    @property
    def n(self) -> int:
        """Number of items that they belong to."""
        return int(self.needs.shape[0])

    @cached_property
    def alone(self) -> FloatArray:
        """Cost of all segments of each item, shape (n,)."""
        return np.asarray(self.needs @ self.costs)

    def overlap(self, weights: FloatArray) -> FloatArray:
        """Sum of the weights of the segments that both of two items need, shape (n, n); zero diagonal."""
        shared = (self.needs * weights) @ self.needs.T.astype(np.float64)
        np.fill_diagonal(shared, 0.0)
        return np.asarray(shared)

    def paid(self, x: Sequence[int] | NDArray[Any]) -> BoolArray:
        """Which segments a 0/1 vector of the items pays for, shape (m,)."""
        return np.asarray(self.needs[np.asarray(x) > 0.5].any(axis=0))

    def cost(self, x: Sequence[int] | NDArray[Any]) -> float:
        """Cost of the segments that a 0/1 vector of the items needs, each once."""
        return float(self.costs[self.paid(x)].sum())

    def price(self, x: Sequence[int] | NDArray[Any]) -> float:
        """Prices of these segments."""
        return float(self.prices[self.paid(x)].sum())

    def with_items(self, more: int) -> Segments:
        """The same segments with `more` items behind, which need none."""
        return Segments(self.costs, np.pad(self.needs, ((0, more), (0, 0))), self.prices)

    def of_items(self, items: NDArray[np.int64]) -> Segments:
        """The segments as some of the items need them; those that none of them needs cost nothing."""
        return Segments(self.costs, self.needs[items], self.prices)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `needs` as indices, `prices` where there are any."""
        data: dict[str, Any] = {
            "costs": self.costs.tolist(),
            "needs": [np.flatnonzero(row).tolist() for row in self.needs],
        }
        return {**data, "prices": self.prices.tolist()} if self.prices.any() else data

    @classmethod
    def from_dict(cls, data: Any) -> Segments:
        """The segments of a JSON object with keys costs, needs (lists of indices) and optionally prices.

        Raises
        ------
        InputError
            With every problem found.
        """
        if not isinstance(data, dict):
            raise InputError("segments is not an object with 'costs', 'needs' and optionally 'prices'")
        problems = [
            f"segments: unknown key '{key}': expected costs, needs, prices"
            for key in data
            if key not in ("costs", "needs", "prices")
        ]
        problems += [f"segments: key '{key}' is missing" for key in ("costs", "needs") if key not in data]
        if problems:
            raise InputError(problems)
        prices = data.get("prices")
        return cls(data["costs"], data["needs"], np.zeros(0) if prices is None else prices)


def _matrix(given: Any, m: int, problems: list[str]) -> BoolArray:
    """`needs` as a read-only boolean matrix; problems noted."""
    matrix = np.zeros((0, m), dtype=bool)
    if isinstance(given, np.ndarray) and given.dtype == np.bool_:
        if given.ndim == 2 and given.shape[1] == m:
            matrix = given.copy()
        else:
            problems.append(f"needs has shape {given.shape}, expected (items, {m}): one column per segment")
    elif isinstance(given, (str, bytes)) or not isinstance(given, (Sequence, np.ndarray)):
        problems.append("needs is neither a boolean matrix nor a list of lists of segments' indices")
    else:
        matrix = np.zeros((len(given), m), dtype=bool)
        for i, row in enumerate(given):
            if isinstance(row, (str, bytes)) or not isinstance(row, (Sequence, np.ndarray)):
                problems.append(f"needs[{i}] is {row!r}, expected a list of segments' indices")
                continue
            for s in row:
                if isinstance(s, (bool, np.bool_)) or not isinstance(s, (int, np.integer)):
                    problems.append(f"needs[{i}] holds {s!r}, expected the index of a segment")
                elif not 0 <= s < m:
                    problems.append(f"needs[{i}] holds {s}, and there are segments 0 to {m - 1}")
                else:
                    matrix[i, s] = True
    matrix.flags.writeable = False
    return matrix
