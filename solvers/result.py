"""Options and results of solvers, and a simple bound for any program.

The simple bound fixes the number t of selected items. Each selected i then has t - 1 partners, and half of
every pair's penalty can be charged to either end, so i is worth at most

    v_i(t) = p_i - 1/2 (sum of the t - 1 smallest P_ij, j != i).

The bound for t is the smaller of the t largest v_i(t) and the fractional knapsack over them; the bound is its
maximum over every t that the budget (t cheapest items) and the count rows allow. It is valid for negative
pairs and with fixed items; other rows are relaxed. Cost and price of a segment are charged in equal shares to
its users.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.linearize import knapsack_bound
from mio_rag.formulations.numbers import number
from mio_rag.formulations.program import SelectionProgram

_ROUNDING = 1.0 - 1e-12  # shares of a segment add up to no more than 1


def upper_bound(program: SelectionProgram) -> float:
    """Return a proven upper bound on the objective; -inf if no selection can keep budget and counts."""
    assert program.fixed is not None
    inside = np.flatnonzero(program.fixed == 1)
    free = program.free
    room = program.most_cost - float(program.costs[inside].sum())
    base = float(program.linear[inside].sum() - 0.5 * program.pairwise[np.ix_(inside, inside)].sum())
    cost, price = program.costs, np.zeros(program.n)
    if (shared := program.segments) is not None:  # equal shares of what is still to be paid
        held = program.fixed == 1
        room -= shared.cost(held)
        base -= shared.price(held)
        needs = shared.needs * ~shared.paid(held)
        alone = program.costs + needs @ shared.costs
        free = free[alone[free] <= room]
        share = needs / np.maximum(needs[free].sum(axis=0), 1)
        cost = program.costs + _ROUNDING * (share @ shared.costs)
        price = _ROUNDING * (share @ shared.prices)
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
    pairs = program.pairwise[np.ix_(free, free)]
    np.fill_diagonal(pairs, np.inf)
    smallest = np.cumsum(np.sort(pairs, axis=1)[:, : m - 1], axis=1)
    best = -math.inf if least > 0 else 0.0
    for t in range(max(1, least), most + 1):
        worth = value if t == 1 else value - 0.5 * smallest[:, t - 2]
        top = float(np.partition(worth, m - t)[m - t :].sum())
        best = max(best, min(top, knapsack_bound(worth, cost, room)) if least == 0 else top)
    return base + best


#: A bound - objective of that much is a proof: times `value_scale` where that is below 1.
ABSOLUTE_TOLERANCE = 1e-6
_SMALLEST_RELATIVE_GAP = 1e-9  # floating-point solvers cannot prove 10^9 to within 10^-6
_SMALLEST_SHARE = 1e-11  # of the largest value: next to values of 10^10, a bound of 10^-2 is one of 0

_Check = tuple[str, type, Callable[[float], bool], str]
_OPTIONS: tuple[_Check, ...] = (  # name, type, what holds, and that in words
    ("time_limit_seconds", float, lambda v: v > 0, "> 0, or None for no limit"),
    ("relative_gap", float, lambda v: 0 <= v < math.inf, ">= 0 and finite"),
    ("threads", int, lambda v: 1 <= v < 2**31 and v % 1 == 0, "a whole number >= 1"),
    ("seed", int, lambda v: 0 <= v < 2**31 and v % 1 == 0, "a whole number from 0 to 2^31 - 1"),
)


class Status(StrEnum):
    """What is known about the program."""

    OPTIMAL = "optimal"  #: proven: bound - objective is within the stated tolerance
    FEASIBLE = "feasible"  #: a selection and a bound, with a gap between them
    INFEASIBLE = "infeasible"  #: proven that no selection satisfies the constraints
    NO_SOLUTION = "no_solution"  #: none found, none excluded; the bound still holds
    ERROR = "error"  #: the back end broke or contradicted itself; `message` says how


@dataclass(frozen=True)
class SolveOptions:
    """Limits and tolerances that every back end honours.

    time_limit_seconds: wall time, > 0; None for no limit. At the limit the best selection comes back with a
        certified gap.
    relative_gap: stop once bound - objective <= max(1e-6 * min(1, scale), relative_gap * |objective|), where
        the scale is `SelectionProgram.value_scale`; from 1e5 on, 1e-11 * scale. 0: within 1e-9 of its size.
    threads: >= 1. One by default: many small programs are better solved side by side.
    seed: >= 0.
    """

    time_limit_seconds: float | None = 10.0
    relative_gap: float = 0.0
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        problems: list[str] = []
        for name, kind, holds, wanted in _OPTIONS:
            given, found = getattr(self, name), list[str]()
            if given is None and name == "time_limit_seconds":
                continue
            value = number(name, given, found)
            if not found and not holds(value):
                found.append(f"{name}={given!r} must be {wanted}")
            if not found:
                object.__setattr__(self, name, kind(value))
            problems += found
        if problems:
            raise InputError(problems)

    def after(self, seconds: float) -> SolveOptions:
        """The options with so many seconds less of the time limit; at least a millisecond is left."""
        if self.time_limit_seconds is None or seconds <= 0:
            return self
        return replace(self, time_limit_seconds=max(1e-3, self.time_limit_seconds - seconds))

    def tolerance(self, objective: float, scale: float) -> float:
        """Largest bound - objective that counts as optimal, for a program of this `value_scale`."""
        relative = max(self.relative_gap, _SMALLEST_RELATIVE_GAP) * abs(objective)
        return max(absolute_tolerance(scale), relative)


@dataclass(frozen=True, eq=False)
class SolveResult:
    """The answer of a solver.

    limit: what stopped the solver: "time", "nodes", "precision" (the numbers of the program lie too far apart
        to prove more in floating point), or None.
    x: shape (n,); the best selection found; `objective` is recomputed from it.
    bound: proven upper bound on the objective of every feasible selection.
    gap: (bound - objective) / |objective|, 0 when proven exact; None without both.
    nodes: branch-and-bound nodes or enumerated selections, where the back end counts them.
    """

    status: Status
    solver: str
    x: NDArray[np.int8] | None = None
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    limit: str | None = None
    wall_seconds: float = 0.0
    nodes: int | None = None
    version: str = ""
    message: str = ""

    @property
    def selected(self) -> tuple[int, ...]:
        """Indices of the selected items, ascending."""
        return () if self.x is None else tuple(int(i) for i in np.flatnonzero(self.x))

    @property
    def is_optimal(self) -> bool:
        """Whether optimality is proven."""
        return self.status is Status.OPTIMAL

    def certificate(self) -> str:
        """The proof in one line."""
        seconds = self.wall_seconds
        took = f"{self.solver}, {f'{seconds * 1e3:.1f} ms' if seconds < 1 else f'{seconds:.2f} s'}"
        if self.status is Status.OPTIMAL:
            return f"optimal: objective {self.objective:.6g}, proven bound {self.bound:.6g} ({took})"
        if self.status is Status.FEASIBLE and self.bound is not None and self.gap is not None:
            why = f", stopped by the {self.limit} limit" if self.limit else ""
            why = f"{why}, {self.message}" if self.message else why
            # What is not proven never reads as a gap of zero; next to an objective of 0 shares say nothing.
            gap = "< 0.01%" if 0 < self.gap < 1e-4 else f"{self.gap:.2%}"
            about = f"gap {gap}{why}" if self.gap < 1e6 else why.removeprefix(", ")
            return (
                f"feasible, not proven optimal: objective {self.objective:.6g}, no selection can exceed "
                f"{self.bound:.6g} ({'; '.join(filter(None, (about, took)))})"
            )
        bound = "" if self.bound is None else f"; none can exceed {self.bound:.6g}"
        return f"{self.status.value.replace('_', ' ')}: {self.message or 'no selection'}{bound} ({took})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without x."""
        names = "objective bound gap limit solver version wall_seconds nodes message"
        return {"status": self.status.value, **{name: getattr(self, name) for name in names.split()}}


def absolute_tolerance(scale: float) -> float:
    """`ABSOLUTE_TOLERANCE` for a program of this `value_scale`, never below what floating point proves."""
    return max(ABSOLUTE_TOLERANCE * min(1.0, scale), _SMALLEST_SHARE * scale)


def relative_gap(objective: float, bound: float, scale: float) -> float:
    """(bound - objective) / |objective|, at least 0.

    |objective| counts as no less than 1e-9, times the program's `value_scale` where that is below 1.
    """
    gap = max(0.0, bound - objective) / max(abs(objective), 1e-9 * min(1.0, scale), 1e-300)
    return min(gap, sys.float_info.max)


def conclude(
    program: SelectionProgram,
    options: SolveOptions,
    solver: str,
    *,
    x: NDArray[Any] | None,
    bound: float | None,
    proven_infeasible: bool = False,
    broken: bool = False,
    rounding: float = 0.0,
    limit: str | None = None,
    wall_seconds: float = 0.0,
    nodes: int | None = None,
    version: str = "",
    message: str = "",
) -> SolveResult:
    """Turn a back end's claims into a result that holds: everything is recomputed from `x`.

    x (n,) or None: the back end's decision, 0/1.
    bound: its upper bound; None or infinite when it proved nothing. After a limit, `upper_bound` where it is
        lower.
    proven_infeasible: whether it proved that nothing is feasible; with a feasible x, a contradiction.
    broken: whether the back end failed rather than stopped: without a selection, that is an error.
    rounding: how far the bound may lie below the objective by its arithmetic.
    """

    def made(status: Status, text: str = message, stopped: str | None = limit, **found: Any) -> SolveResult:
        about: dict[str, Any] = {"wall_seconds": wall_seconds, "nodes": nodes, "version": version}
        return SolveResult(status, solver, limit=stopped, message=text, **about, **found)

    known = None if bound is None or not math.isfinite(bound) else float(bound)
    if limit is not None:
        simple = upper_bound(program)
        if math.isfinite(simple):
            known = simple if known is None else min(known, simple)
    if x is None:
        if proven_infeasible:
            why = "no selection satisfies the constraints: mio_rag.solvers.find_conflict(program) says which"
            return made(Status.INFEASIBLE, message or why)
        status = Status.ERROR if broken else Status.NO_SOLUTION
        return made(status, message or "no feasible selection was found", bound=known)
    x = (np.asarray(x) > 0.5).astype(np.int8)
    violations = program.violations(x)
    if violations:
        return made(Status.ERROR, f"{solver} returned an infeasible selection: {'; '.join(violations)}")
    objective, scale = program.objective(x), program.value_scale
    if proven_infeasible:
        text = f"{solver} claims infeasibility, but returned a feasible selection"
        return made(Status.ERROR, text, x=x, objective=objective)
    if known is None:
        return made(Status.FEASIBLE, x=x, objective=objective)
    # A back end works to 1e-6 feasibility, so its bound may lie that far below what it found, not more; but
    # large values that cancel leave the rounding of their sums.
    short, chosen = objective - known, x > 0
    if short > 1e-5 * max(min(1.0, scale), abs(objective)):
        terms = np.abs(program.linear[chosen]).sum() + np.abs(program.pairwise[np.ix_(chosen, chosen)]).sum()
        if short > max(rounding, 1e-13 * terms):
            text = f"{solver} claims the bound {known:.9g} below its own objective {objective:.9g}"
            return made(Status.ERROR, text, x=x, objective=objective)
        known = objective + short  # it is off by that much, on either side
    known = max(known, objective)
    gap = relative_gap(objective, known, scale)
    found: dict[str, Any] = {"x": x, "objective": objective, "bound": known, "gap": gap}
    if known - objective <= options.tolerance(objective, scale):
        return made(Status.OPTIMAL, stopped=None, **found)
    return made(Status.FEASIBLE, **found)
