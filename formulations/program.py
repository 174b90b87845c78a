"""The deterministic selection program: a 0-1 quadratic knapsack with linear side rows and shared segments.

    maximise    linear . x  -  prices . y  -  1/2 x' pairwise x
    subject to  costs . x  +  segment_costs . y  <=  budget
                lower_r <= coefficients_r . x <= upper_r      for every row r
                y_s = max of x_i over the items i that need segment s
                x in {0, 1}^n,  x_i = fixed_i where fixed_i >= 0

A positive pairwise entry is a penalty for choosing both items, a negative one a benefit. Windows that
overlap, passages below one title and versions of one document repeat words: such a segment is paid once.

Sources: the quadratic knapsack problem of Gallo, Hammer and Simeone (1980), with side rows; the closure
problem of Rhys (1970) and Balinski (1970), here with a budget and pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, choose
from mio_rag.formulations.numbers import (
    LARGEST_NUMBER,
    feasibility_tolerance,
    is_setting,
    is_whole,
    number,
    numeric,
    size_of,
)
from mio_rag.storage import parse_json

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
T = TypeVar("T")


def _named(cls: type[T]) -> type[T]:
    """Make a dataclass refuse names that it does not know with the one that was probably meant."""
    made, known = cls.__init__, [field.name for field in fields(cls)]  # type: ignore[arg-type]

    @wraps(made)
    def checked(self: Any, *given: Any, **named: Any) -> None:
        if unknown := [name for name in named if name not in known]:
            raise InputError([f"{cls.__name__} has no '{name}': {choose(name, known)}" for name in unknown])
        made(self, *given, **named)

    cls.__init__ = checked  # type: ignore[method-assign]
    return cls


@dataclass(frozen=True, eq=False)
class LinearConstraint:
    """A side row lower <= coefficients . x <= upper; either bound may be infinite, not both.

    Explanations quote its `name`, which is in the user's words ("at most 2 passages from 'manual.pdf'").
    """

    coefficients: FloatArray
    lower: float = -math.inf
    upper: float = math.inf
    name: str = "row"

    def __post_init__(self) -> None:
        put, label = object.__setattr__, f"row '{self.name}'"
        problems: list[str] = []
        shape = (size_of(self.coefficients),)
        put(self, "coefficients", numeric(label, self.coefficients, shape, problems))
        for side in ("lower", "upper"):
            put(self, side, number(f"{label}: {side}", getattr(self, side), problems))
        lower, upper = self.lower, self.upper
        if not problems:
            if math.isnan(lower) or math.isnan(upper):
                problems.append(f"{label}: a bound is NaN")
            elif lower == math.inf or upper == -math.inf:
                problems.append(f"{label}: lower={lower}, upper={upper} admits no value")
            elif math.isinf(lower) and math.isinf(upper):
                problems.append(f"{label} has neither a lower nor an upper bound: give at least one")
            elif lower > upper:
                problems.append(f"{label}: lower={lower:g} is above upper={upper:g}: nothing can satisfy it")
            problems += [
                f"{label}: {side}={value:g} must be at most {LARGEST_NUMBER:g} in size, or infinite"
                for side, value in (("lower", lower), ("upper", upper))
                if not problems and LARGEST_NUMBER < abs(value) < math.inf
            ]
        if problems:
            raise InputError(problems)

    @cached_property
    def most(self) -> float:
        """The largest activity that counts as satisfying the row: `upper` and its tolerance."""
        return self.upper + feasibility_tolerance(self.coefficients, self.upper)

    @cached_property
    def least(self) -> float:
        """The smallest activity that counts as satisfying the row: `lower` less its tolerance."""
        return self.lower - feasibility_tolerance(self.coefficients, self.lower)

    def violation(self, activity: float) -> float:
        """How far `activity` lies outside the bounds; 0 when inside, or outside within the tolerance."""
        if self.least <= activity <= self.most:
            return 0.0
        return max(activity - self.upper, self.lower - activity)


@dataclass(frozen=True, eq=False)
class Segments:
    """What items share: m segments, each paid once if any chosen item needs it.

    costs: shape (m,); tokens of each segment, >= 0.
    needs: shape (n, m); which segments each item needs: as a matrix, or for each item their indices.
    prices: shape (m,); subtracted from the objective once where the segment is read, >= 0; none by default.

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
            for s in np.flatnonzero(values < 0)[:1] if values.min(initial=0.0) < 0 else ():
                problems.append(f"the {name} of segment {s} is {values[s]:g}: it must be >= 0")
        put(self, "needs", _needs(self.needs, m, problems))
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
        return np.asarray(self.needs.astype(np.float64) @ self.costs)

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
        needs = [np.flatnonzero(row).tolist() for row in self.needs]
        data: dict[str, Any] = {"costs": self.costs.tolist(), "needs": needs}
        return {**data, "prices": self.prices.tolist()} if self.prices.any() else data

    @classmethod
    def from_dict(cls, data: Any) -> Segments:
        """Return the segments of a JSON object: costs, needs (lists of indices), and optionally prices."""
        if not isinstance(data, dict):
            raise InputError("segments is not an object with 'costs', 'needs' and optionally 'prices'")
        keys = ("costs", "needs", "prices")
        problems = [f"segments: unknown key '{k}': expected {', '.join(keys)}" for k in data if k not in keys]
        problems += [f"segments: key '{key}' is missing" for key in keys[:2] if key not in data]
        if problems:
            raise InputError(problems)
        prices = data.get("prices")
        return cls(data["costs"], data["needs"], np.zeros(0) if prices is None else prices)


def _needs(given: Any, m: int, problems: list[str]) -> BoolArray:
    """`needs` as a read-only boolean matrix; problems noted."""
    matrix = np.zeros((0, m), dtype=bool)
    if isinstance(given, np.ndarray) and given.dtype == np.bool_:
        if given.ndim == 2 and given.shape[1] == m:
            matrix = given.copy() if given.flags.writeable or not given.flags.owndata else given
        else:
            problems.append(f"needs has shape {given.shape}, expected (items, {m}): one column per segment")
    elif not _is_list(given):
        problems.append("needs is neither a boolean matrix nor a list of lists of segments' indices")
    else:
        matrix = np.zeros((len(given), m), dtype=bool)
        for i, row in enumerate(given):
            if not _is_list(row):
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


def _is_list(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))


@_named
@dataclass(frozen=True, eq=False)
class SelectionProgram:
    """One selection problem as arrays; `InputError` lists every problem found, numbers above 1e303 included.

    linear, costs: shape (n,); value and token cost (>= 0) of each item on its own.
    pairwise: shape (n, n); symmetric with zero diagonal; entry (i, j) is subtracted when both i and j are
        selected.
    budget: largest total cost. Whole costs are compared exactly, others as `feasibility_tolerance` says.
    fixed: length n; 0 or 1 where the item is decided beforehand, -1 (or None) where it is free.
    segments: what items share and pay once, as soon as a chosen item needs it.
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
        for i in np.flatnonzero(self.costs < 0)[:1]:
            problems.append(f"costs[{i}] is {self.costs[i]:g}: costs must be >= 0")
        put(self, "pairwise", _pairs(self.pairwise, n, problems))
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
        put(self, "fixed", _fixed(self.fixed, n, problems))
        shared = self.segments
        if shared is not None and not isinstance(shared, Segments):
            problems.append(f"segments is a {type(shared).__name__}, expected Segments")
        elif shared is not None and shared.n != n:
            problems.append(f"segments are needed by {shared.n} items, and the program has {n}")
        elif shared is not None and shared.m == 0:
            put(self, "segments", None)
        if problems:
            raise InputError(problems)

    def with_values(self, linear: FloatArray, segments: Segments | None) -> SelectionProgram:
        """Return the program with other values, and segments that differ in their prices alone; the rest
        is not checked again.
        """
        problems: list[str] = []
        values = numeric("linear", linear, (self.n,), problems)
        if problems:
            raise InputError(problems)
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__, linear=values, segments=segments)
        changed.__dict__.pop("value_scale", None)
        return changed

    def within(self, budget: float) -> SelectionProgram:
        """Return the program with another finite budget; the rest is not checked again."""
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__, budget=float(budget))
        for name in ("value_scale", "most_cost"):
            changed.__dict__.pop(name, None)
        return changed

    def fixing(self, item: int, value: int) -> SelectionProgram:
        """Return the program with one item in (1), out (0) or free (-1); the rest is not checked again."""
        assert self.fixed is not None
        if self.fixed[item] == value:
            return self
        fixed, changed = self.fixed.copy(), object.__new__(type(self))
        fixed[item] = value
        fixed.flags.writeable = False
        changed.__dict__.update(self.__dict__, fixed=fixed)
        for name in ("free", "value_scale"):
            changed.__dict__.pop(name, None)
        return changed

    @property
    def n(self) -> int:
        """Number of items."""
        return int(self.linear.size)

    @cached_property
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
        """What tolerances of proofs are relative to: the largest value of an item, or benefit of a pair;
        without gains, the smallest loss. What is fixed or does not fit the budget does not count, nor do
        penalties and prices of segments.
        """
        assert self.fixed is not None
        alone = self.alone
        fits = alone <= self.most_cost
        gain = float(self.linear[(self.fixed < 0) & fits].max(initial=0.0))
        if float(self.pairwise.min(initial=0.0)) < 0:
            within = (self.fixed != 0) & fits
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
        cost = self.cost(chosen)
        if cost > self.most_cost:
            broken.append(f"cost {cost:.10g} exceeds the budget of {self.budget:.10g}")
        for row in self.rows:
            activity = float(row.coefficients[chosen].sum())
            if row.violation(activity) > 0:
                broken.append(
                    f"row '{row.name}': {activity:.10g} is outside [{row.lower:.10g}, {row.upper:.10g}]"
                )
        if self.free.size < self.n:
            wrong = np.flatnonzero((self.fixed >= 0) & (chosen != (self.fixed == 1)))
            broken += [f"item {int(i)} is fixed to {int(self.fixed[i])}" for i in wrong]
        return broken

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite bounds become null."""
        assert self.fixed is not None
        shared = {} if self.segments is None else {"segments": self.segments.to_dict()}
        rows = [
            {"name": row.name, "coefficients": row.coefficients.tolist()}
            | {side: v if math.isfinite(v := getattr(row, side)) else None for side in ("lower", "upper")}
            for row in self.rows
        ]
        arrays = {name: getattr(self, name).tolist() for name in ("linear", "pairwise", "costs")}
        fixed = [None if v < 0 else int(v) for v in self.fixed]
        return {**arrays, "budget": self.budget, "rows": rows, "fixed": fixed, **shared}

    @classmethod
    def from_dict(cls, data: Any) -> SelectionProgram:
        """Return the program of a JSON object with keys linear, costs, budget, and optionally pairwise, rows,
        fixed, segments.

        A row has coefficients, and lower and/or upper (null or absent: unbounded), and optionally a name.
        """
        if not isinstance(data, dict):
            raise InputError(f"a program is a JSON object, not {type(data).__name__}")
        required = ("linear", "costs", "budget")
        known = sorted((*required, "pairwise", "rows", "fixed", "segments"))
        problems = [f"unknown key '{key}': expected {', '.join(known)}" for key in data if key not in known]
        problems += (missing := [f"key '{key}' is missing" for key in required if key not in data])
        rows: list[LinearConstraint] = []
        given_rows = data.get("rows") or []
        if not isinstance(given_rows, list):
            problems.append("rows is not a list")
            given_rows = []

        def noting(make: Callable[[], T]) -> T | None:
            try:
                return make()
            except InputError as error:
                problems.extend(error.problems)
                return None

        for k, row in enumerate(given_rows):
            if not isinstance(row, dict) or "coefficients" not in row:
                problems.append(
                    f"rows[{k}] is not an object with 'coefficients', 'lower', 'upper' and 'name'"
                )
                continue
            stray = sorted(set(row) - {"coefficients", "lower", "upper", "name"})
            problems += [f"rows[{k}]: unknown key '{key}'" for key in stray[:1]]
            sides = {side: row[side] for side in ("lower", "upper") if row.get(side) is not None}
            name = str(row.get("name", f"row {k}"))
            made = noting(partial(LinearConstraint, row["coefficients"], name=name, **sides))
            rows += [] if made is None else [made]
        given, pairs = data.get("segments"), data.get("pairwise")
        shared = None if given is None else noting(lambda: Segments.from_dict(given))
        program = None
        if not missing:
            n = size_of(data["linear"])
            pairs = np.zeros((n, n)) if pairs is None else pairs
            more: dict[str, Any] = {"rows": tuple(rows), "fixed": data.get("fixed"), "segments": shared}
            program = noting(lambda: cls(data["linear"], pairs, data["costs"], data["budget"], **more))
        if problems or program is None:
            raise InputError(problems)
        return program

    @classmethod
    def from_json(cls, text: str) -> SelectionProgram:
        """The program in a JSON text; see `from_dict`."""
        return cls.from_dict(parse_json(text, "the program"))


@lru_cache(maxsize=64)
def no_pairs(n: int) -> FloatArray:
    """Return the zero matrix of n items, the same for all programs; read-only."""
    matrix = np.zeros((n, n))
    matrix.flags.writeable = False
    return matrix


def _pairs(given: Any, n: int, problems: list[str]) -> FloatArray:
    """`pairwise`, exactly symmetric; problems noted."""
    if given is no_pairs(n):
        return no_pairs(n)
    before = len(problems)
    matrix = numeric("pairwise", given, (n, n), problems)
    if len(problems) > before or not matrix.any():
        return matrix
    exact = bool((matrix == matrix.T).all())
    if not exact:
        skew = np.abs(matrix - matrix.T)
        if float(np.max(skew)) > 1e-9 * max(1.0, float(np.max(np.abs(matrix)))):
            i, j = (int(k) for k in np.unravel_index(int(np.argmax(skew)), skew.shape))
            problems.append(
                f"pairwise is not symmetric: entry ({i}, {j}) is {matrix[i, j]:g}, "
                f"({j}, {i}) is {matrix[j, i]:g}, and each must be the penalty of the pair: "
                + _mirrored(matrix)
            )
    for i in np.flatnonzero(np.diagonal(matrix))[:1]:
        problems.append(
            f"pairwise[{i}, {i}] is {matrix[i, i]:g}, expected 0: where it is how similar an item is to "
            "itself, set the diagonal to 0 (np.fill_diagonal(P, 0)); where it is a penalty for the item, "
            "subtract one half of it from `linear`, since x^2 = x"
        )
    if not exact and len(problems) == before:
        matrix = (matrix + matrix.T) / 2
        matrix.flags.writeable = False
    return matrix


def _mirrored(matrix: FloatArray) -> str:
    """What makes an asymmetric matrix symmetric and keeps the penalties that were meant."""
    if not (np.tril(matrix, -1).any() and np.triu(matrix, 1).any()):
        return "P has each pair once, so use P + P.T"
    return (
        "use P + P.T where the entries of a pair add up to its penalty, (P + P.T) / 2 where each of them is "
        "an estimate of it"
    )


def _fixed(given: Any, n: int, problems: list[str]) -> NDArray[np.int8]:
    """`fixed` as a read-only array; problems noted."""
    array = np.full(n, -1, dtype=np.int8)
    known = type(given) is np.ndarray and given.dtype == np.int8 and given.shape == (n,)
    if known and set(given.tolist()) <= {-1, 0, 1}:
        array = given.copy()
    elif given is not None and not isinstance(given, Iterable):
        problems.append(f"fixed is {given!r}, expected a list with an entry for each item")
    elif given is not None:
        values = [-1 if v is None else v for v in given]
        if len(values) != n:
            problems.append(f"fixed has {len(values)} entries, expected {n}")
        elif any(v not in (-1, 0, 1) for v in values):
            problems.append("fixed may hold only 0 (out), 1 (in) and -1 or null (free)")
        else:
            array = np.array(values, dtype=np.int8)
    array.flags.writeable = False
    return array


def precedence_program(program: SelectionProgram) -> SelectionProgram:
    """Return the program with its segments as items n, n + 1, ... and a row x_i - y_s <= 0 for every need.

    The first n entries of a decision are one of the given program, at the same objective and cost if its
    segments are no more than those that are needed. This form is tight: without pairs and budget its linear
    relaxation is integral.
    """
    shared = program.segments
    if shared is None:
        return program
    assert program.fixed is not None
    n, m = program.n, shared.m
    rows = [replace(row, coefficients=np.append(row.coefficients, np.zeros(m))) for row in program.rows]
    for i, s in zip(*np.nonzero(shared.needs), strict=True):
        need = np.zeros(n + m)
        need[i], need[n + s] = 1.0, -1.0
        rows.append(LinearConstraint(need, upper=0, name=f"item {i} needs segment {s}"))
    return SelectionProgram(
        linear=np.append(program.linear, -shared.prices),
        pairwise=np.pad(program.pairwise, (0, m)),
        costs=program.all_costs,
        budget=program.budget,
        rows=tuple(rows),
        fixed=np.append(program.fixed, np.full(m, -1, dtype=np.int8)),
    )


def with_token_price(program: SelectionProgram, price: float) -> SelectionProgram:
    """Return the program with a price >= 0, in units of the objective, for every token that is read."""
    if not is_setting(price):
        raise InputError(f"the price of a token is {price!r}: it must be a number from 0 to 1e50")
    shared = program.segments
    if shared is not None:
        shared = replace(shared, prices=shared.prices + price * shared.costs)
    return program.with_values(program.linear - price * program.costs, shared)
