"""The deterministic selection program: a 0-1 quadratic knapsack with linear side rows.

    maximise    linear . x  -  1/2 x' pairwise x
    subject to  costs . x <= budget
                lower_r <= coefficients_r . x <= upper_r      for every row r
                x in {0, 1}^n,  x_i = fixed_i where fixed_i >= 0

A positive pairwise entry is a penalty for choosing both items, a negative one a benefit. Text that items
share is a segment, which is paid once (`segments`). Every solver of `mio_rag.solvers` takes this one type;
every robust counterpart with a closed form returns it.

Source: the quadratic knapsack problem of Gallo, Hammer and Simeone (1980), with side rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.linear_constraint import LinearConstraint
from mio_rag.formulations.numbers import (
    LARGEST_NUMBER,
    feasibility_tolerance,
    is_whole,
    number,
    numeric,
    size_of,
)
from mio_rag.formulations.segments import Segments
from mio_rag.reading import parse_json

__all__ = ["LinearConstraint", "SelectionProgram"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SelectionProgram:
    """One selection problem as arrays, checked at construction.

    Parameters
    ----------
    linear : array_like, shape (n,)
        Value of each item on its own.
    pairwise : array_like, shape (n, n)
        Symmetric with zero diagonal; entry (i, j) is subtracted when both i and j are selected.
    costs : array_like, shape (n,)
        Token cost of each item, >= 0.
    budget : float
        Largest total cost. Whole costs are compared exactly, others as `feasibility_tolerance` says.
    rows : sequence of LinearConstraint
        Side constraints.
    fixed : sequence of length n, optional
        0 or 1 where the item is decided beforehand, -1 (or None) where it is free.
    segments : Segments, optional
        What items share and pay once: their costs count once to the budget, their prices once against the
        objective, as soon as a chosen item needs them. `costs` and `linear` are then what is the item's own.

    Raises
    ------
    InputError
        With every problem found; also for numbers above 1e303 in size.
    """

    linear: FloatArray
    pairwise: FloatArray
    costs: FloatArray
    budget: float
    rows: tuple[LinearConstraint, ...] = ()
    fixed: NDArray[np.int8] | None = None
    segments: Segments | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        problems: list[str] = []
        n = size_of(self.linear)
        put(self, "linear", numeric("linear", self.linear, (n,), problems))
        put(self, "costs", numeric("costs", self.costs, (n,), problems))
        if np.any(self.costs < 0):
            i = int(np.flatnonzero(self.costs < 0)[0])
            problems.append(f"costs[{i}] is {self.costs[i]:g}: costs must be >= 0")
        put(self, "pairwise", self._checked_pairwise(n, problems))
        put(self, "budget", number("budget", self.budget, problems))
        if not math.isfinite(self.budget):
            problems.append(f"budget is {self.budget}, expected a finite number of tokens")
        elif abs(self.budget) > LARGEST_NUMBER:
            problems.append(f"budget is {self.budget:g}: it may be at most {LARGEST_NUMBER:g} in size")
        put(self, "rows", tuple(self.rows))
        for row in self.rows:
            if not isinstance(row, LinearConstraint):
                problems.append(f"rows holds a {type(row).__name__}, expected LinearConstraint")
            elif row.coefficients.shape != (n,):
                problems.append(
                    f"row '{row.name}' has {row.coefficients.size} coefficients, expected {n}: one per item"
                )
        put(self, "fixed", self._checked_fixed(n, problems))
        shared = self.segments
        if shared is not None and not isinstance(shared, Segments):
            problems.append(f"segments is a {type(shared).__name__}, expected Segments")
        elif shared is not None and shared.n != n:
            problems.append(f"segments are needed by {shared.n} items, and the program has {n}")
        elif shared is not None and shared.m == 0:
            put(self, "segments", None)
        if problems:
            raise InputError(problems)

    def _checked_pairwise(self, n: int, problems: list[str]) -> FloatArray:
        before = len(problems)
        matrix = numeric("pairwise", self.pairwise, (n, n), problems)
        if len(problems) > before or n == 0:
            return matrix
        exact = bool((matrix == matrix.T).all())
        if not exact:
            scale = max(1.0, float(np.max(np.abs(matrix))))
            skew = np.abs(matrix - matrix.T)
            if float(np.max(skew)) > 1e-9 * scale:
                i, j = (int(k) for k in np.unravel_index(int(np.argmax(skew)), skew.shape))
                problems.append(
                    f"pairwise is not symmetric: entry ({i}, {j}) is {matrix[i, j]:g}, "
                    f"({j}, {i}) is {matrix[j, i]:g}; use (P + P.T) / 2"
                )
        if np.any(np.diagonal(matrix) != 0):
            i = int(np.flatnonzero(np.diagonal(matrix))[0])
            problems.append(
                f"pairwise[{i}, {i}] is {matrix[i, i]:g}, expected 0: since x^2 = x, move it into `linear` "
                "as minus one half of it"
            )
        if not exact and len(problems) == before:
            matrix = (matrix + matrix.T) / 2
            matrix.flags.writeable = False
        return matrix

    def _checked_fixed(self, n: int, problems: list[str]) -> NDArray[np.int8]:
        given = self.fixed
        if type(given) is np.ndarray and given.dtype == np.int8 and given.shape == (n,):
            array = given.copy()
            array.flags.writeable = False
            if ((array >= -1) & (array <= 1)).all():
                return array
        if given is not None and not isinstance(given, Iterable):
            problems.append(f"fixed is {given!r}, expected a list with an entry for each item")
            return np.full(n, -1, dtype=np.int8)
        values = [-1] * n if given is None else [-1 if v is None else v for v in given]
        if len(values) != n:
            problems.append(f"fixed has {len(values)} entries, expected {n}")
        elif any(v not in (-1, 0, 1) for v in values):
            problems.append("fixed may hold only 0 (out), 1 (in) and -1 or null (free)")
        else:
            array = np.array(values, dtype=np.int8)
            array.flags.writeable = False
            return array
        return np.full(n, -1, dtype=np.int8)

    def with_values(self, linear: FloatArray, segments: Segments | None) -> SelectionProgram:
        """The same program with other values, and segments that differ in their prices alone.

        For many programs of one pool: what is kept was checked before and is not checked again.

        Raises
        ------
        InputError
            For values that are no finite numbers, or too many or few.
        """
        problems: list[str] = []
        values = numeric("linear", linear, (self.n,), problems)
        if problems:
            raise InputError(problems)
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__, linear=values, segments=segments)
        changed.__dict__.pop("value_scale", None)
        return changed

    @property
    def n(self) -> int:
        """Number of items."""
        return int(self.linear.size)

    @property
    def free(self) -> NDArray[np.int64]:
        """Indices of the items that are not fixed."""
        assert self.fixed is not None
        return np.flatnonzero(self.fixed < 0)

    @cached_property
    def all_costs(self) -> FloatArray:
        """Costs of the items, then those of the segments: what a total cost is a sum of."""
        return self.costs if self.segments is None else np.append(self.costs, self.segments.costs)

    @cached_property
    def alone(self) -> FloatArray:
        """Cost of each item on its own, with all segments that it needs."""
        return self.costs if self.segments is None else self.costs + self.segments.alone

    @cached_property
    def most_cost(self) -> float:
        """The largest total cost that counts as within the budget: the budget and its tolerance."""
        return self.budget + feasibility_tolerance(self.all_costs, self.budget)

    @property
    def has_whole_costs(self) -> bool:
        """Whether every total cost is a whole number."""
        return is_whole(self.all_costs)

    @cached_property
    def value_scale(self) -> float:
        """The scale of the objective: the largest value of an item, or benefit of a pair.

        Tolerances of proofs are relative to it, see `mio_rag.solvers.SolveOptions`. Items that are fixed or
        do not fit the budget do not count, nor do penalties, however large. If no item gains anything, it is
        the smallest loss. Prices of segments do not lower it.
        """
        assert self.fixed is not None
        alone = self.alone
        open_items = (self.fixed < 0) & (alone <= self.most_cost)
        gain = float(self.linear[open_items].max(initial=0.0))
        if float(self.pairwise.min(initial=0.0)) < 0:
            within = (self.fixed != 0) & (alone <= self.most_cost)
            i, j = np.nonzero(np.triu(self.pairwise < 0) & np.logical_and.outer(within, within))
            costs = alone[i] + alone[j]
            if self.segments is not None:
                costs = costs - self.segments.overlap(self.segments.costs)[i, j]
            together = costs <= self.most_cost
            gain = max(gain, -float(self.pairwise[i[together], j[together]].min(initial=0.0)))
        if gain > 0:
            return gain
        losses = np.concatenate([-self.linear[self.linear < 0], self.pairwise[self.pairwise > 0]])
        return float(losses.min(initial=np.inf)) if losses.size else 1.0

    def objective(self, x: Sequence[int] | NDArray[Any]) -> float:
        """Objective of a 0/1 vector, in float64."""
        chosen = np.flatnonzero(np.asarray(x) > 0.5)
        pairs = self.pairwise[chosen[:, None], chosen]
        value = float(self.linear[chosen].sum() - 0.5 * pairs.sum())
        return value if self.segments is None else value - self.segments.price(x)

    def cost(self, x: Sequence[int] | NDArray[Any]) -> float:
        """Total cost of a 0/1 vector."""
        cost = float(self.costs[np.asarray(x) > 0.5].sum())
        return cost if self.segments is None else cost + self.segments.cost(x)

    def violations(self, x: Sequence[int] | NDArray[Any]) -> list[str]:
        """The constraints that a 0/1 vector violates, in words; empty if it is feasible."""
        assert self.fixed is not None
        chosen = np.asarray(x) > 0.5
        broken: list[str] = []
        cost = self.cost(x)
        if cost > self.most_cost:
            broken.append(f"cost {cost:.10g} exceeds the budget of {self.budget:.10g}")
        for row in self.rows:
            activity = float(row.coefficients[chosen].sum())
            if row.violation(activity) > 0:
                broken.append(
                    f"row '{row.name}': {activity:.10g} is outside [{row.lower:.10g}, {row.upper:.10g}]"
                )
        wrong = np.flatnonzero((self.fixed >= 0) & (chosen != (self.fixed == 1)))
        broken.extend(f"item {int(i)} is fixed to {int(self.fixed[i])}" for i in wrong)
        return broken

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite bounds become null."""
        assert self.fixed is not None
        shared = {} if self.segments is None else {"segments": self.segments.to_dict()}
        return {
            "linear": self.linear.tolist(),
            "pairwise": self.pairwise.tolist(),
            "costs": self.costs.tolist(),
            "budget": self.budget,
            "rows": [
                {
                    "name": row.name,
                    "coefficients": row.coefficients.tolist(),
                    "lower": row.lower if math.isfinite(row.lower) else None,
                    "upper": row.upper if math.isfinite(row.upper) else None,
                }
                for row in self.rows
            ],
            "fixed": [None if v < 0 else int(v) for v in self.fixed],
            **shared,
        }

    @classmethod
    def from_dict(cls, data: Any) -> SelectionProgram:
        """The program of a JSON object with keys linear, pairwise, costs, budget and optionally rows, fixed,
        segments.

        ``pairwise`` may be left out (no interactions). A row has coefficients, and lower and/or upper (null
        or absent: unbounded), and optionally a name. For segments see `Segments.from_dict`.

        Raises
        ------
        InputError
            With every problem found.
        """
        if not isinstance(data, dict):
            raise InputError(f"a program is a JSON object, not {type(data).__name__}")
        known = {"linear", "pairwise", "costs", "budget", "rows", "fixed", "segments"}
        problems = [
            f"unknown key '{key}': expected {', '.join(sorted(known))}" for key in data if key not in known
        ]
        problems += [f"key '{key}' is missing" for key in ("linear", "costs", "budget") if key not in data]
        rows: list[LinearConstraint] = []
        given_rows = data.get("rows") or []
        if not isinstance(given_rows, list):
            problems.append("rows is not a list")
            given_rows = []
        for k, row in enumerate(given_rows):
            if not isinstance(row, dict) or "coefficients" not in row:
                problems.append(
                    f"rows[{k}] is not an object with 'coefficients', 'lower', 'upper' and 'name'"
                )
                continue
            stray = sorted(set(row) - {"coefficients", "lower", "upper", "name"})
            if stray:
                problems.append(f"rows[{k}]: unknown key '{stray[0]}'")
            try:
                rows.append(
                    LinearConstraint(
                        coefficients=row["coefficients"],
                        lower=-math.inf if row.get("lower") is None else row["lower"],
                        upper=math.inf if row.get("upper") is None else row["upper"],
                        name=str(row.get("name", f"row {k}")),
                    )
                )
            except InputError as error:
                problems.extend(error.problems)
        shared: Segments | None = None
        if data.get("segments") is not None:
            try:
                shared = Segments.from_dict(data["segments"])
            except InputError as error:
                problems.extend(error.problems)
        if any(key not in data for key in ("linear", "costs", "budget")):
            raise InputError(problems)
        n = size_of(data["linear"])
        pairwise = data.get("pairwise")
        try:
            program = cls(
                linear=data["linear"],
                pairwise=np.zeros((n, n)) if pairwise is None else pairwise,
                costs=data["costs"],
                budget=data["budget"],
                rows=tuple(rows),
                fixed=data.get("fixed"),
                segments=shared,
            )
        except InputError as error:
            raise InputError([*problems, *error.problems]) from error
        if problems:
            raise InputError(problems)
        return program

    @classmethod
    def from_json(cls, text: str) -> SelectionProgram:
        """The program in a JSON text; see `from_dict`."""
        return cls.from_dict(parse_json(text, "the program"))
