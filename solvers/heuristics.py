"""Fast selections without proof of their own; each still carries the proven bound of `bounds.upper_bound`.

    topk          by value alone, best first, skipping what does not fit                (rank and fill)
    density       by value per token                                                    (Dantzig's greedy)
    greedy        by marginal gain / cost^a given what is chosen, best of a = 0, 1/2, 1
    mmr           by value minus the largest penalty with a chosen item                 (rank and fill)
    local_search  greedy, then the best add, drop or swap until none improves

`topk` and `mmr` fill the budget even with items that lower the objective, as the ranking baselines that they
represent do (Carbonell and Goldstein, 1998, for MMR); the others stop when no item gains. All keep the
budget, the rows and the fixed items. Where rows demand more (a minimum count), items that bring the selection
closer to feasibility are added first. Gains and costs are those of what is not paid yet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.result import SolveOptions, SolveResult, conclude, upper_bound

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


class _State:
    """A selection under construction, with marginal gains and row activities kept up to date."""

    def __init__(self, program: SelectionProgram) -> None:
        assert program.fixed is not None
        self.program = program
        self.chosen: BoolArray = np.zeros(program.n, dtype=bool)
        #: Objective change of adding item i; of removing it, with a minus.
        self.gain: FloatArray = program.linear.copy()
        self.own_gain = self.gain  #: the same without prices of segments
        # The budget is the first row.
        self.rows: FloatArray = np.vstack([program.costs, *(r.coefficients for r in program.rows)])
        self.upper: FloatArray = np.array([program.most_cost, *(r.most for r in program.rows)])
        self.lower: FloatArray = np.array([-np.inf, *(r.least for r in program.rows)])
        #: What rounding may leave of a gain of nothing.
        self.nothing = 1e-12 * program.value_scale
        self.activity: FloatArray = np.zeros(self.rows.shape[0])
        self.shared = program.segments
        #: How many chosen items need each segment.
        self.users = np.zeros(0 if self.shared is None else self.shared.m, dtype=np.int64)
        if self.shared is not None:
            self._price_segments()
        for i in np.flatnonzero(program.fixed == 1):
            self.flip(int(i))

    def flip(self, i: int) -> None:
        sign = -1.0 if self.chosen[i] else 1.0
        self.chosen[i] = not self.chosen[i]
        self.activity += sign * self.rows[:, i]
        if self.shared is None:
            self.gain -= sign * self.program.pairwise[i]
            return
        self.users += int(sign) * self.shared.needs[i]
        self.own_gain -= sign * self.program.pairwise[i]
        self._price_segments()

    def _price_segments(self) -> None:
        """Gains and costs of flipping each item, with the segments that only this would pay, or spare."""
        assert self.shared is not None
        new, last = self.shared.needs * (self.users == 0), self.shared.needs * (self.users == 1)
        moved = np.where(self.chosen[:, None], last, new)
        self.rows[0] = self.program.costs + moved @ self.shared.costs
        self.gain = self.own_gain - moved @ self.shared.prices

    def violation(self, activity: FloatArray) -> FloatArray:
        """Total violation of activities, shape (rows,) or (rows, k)."""
        upper, lower = (b if activity.ndim == 1 else b[:, None] for b in (self.upper, self.lower))
        over = np.maximum(0.0, activity - upper)
        under = np.where(np.isfinite(lower), np.maximum(0.0, lower - activity), 0.0)
        return np.asarray((over + under).sum(axis=0))

    def addable(self) -> BoolArray:
        """Free items whose addition breaks no row that holds now, nor worsens one that does not."""
        after = self.activity[:, None] + self.rows
        over = after > np.maximum(self.upper, self.activity)[:, None]
        under = after < np.minimum(self.lower, self.activity)[:, None]
        fixed = self.program.fixed
        assert fixed is not None
        return np.asarray(~self.chosen & (fixed < 0) & ~over.any(axis=0) & ~under.any(axis=0))

    def repair(self) -> None:
        """Add (or drop) free items while that reduces the violation of the rows; ties by gain."""
        free = self.program.free
        while free.size and float(self.violation(self.activity)) > 0:
            sign = np.where(self.chosen[free], -1.0, 1.0)
            after = self.violation(self.activity[:, None] + sign * self.rows[:, free])
            best = np.lexsort((-sign * self.gain[free], after))[0]
            if after[best] >= (1 - 1e-12) * float(self.violation(self.activity)):
                break
            self.flip(int(free[best]))


_Score = Callable[[_State], FloatArray]


def _filled(
    program: SelectionProgram, score: _Score, allowed: Callable[[_State], BoolArray] | None = None
) -> _State:
    """Add the item of the best score, of those that may be added and are allowed, until there is none."""
    state = _State(program)
    state.repair()
    while True:
        addable = state.addable() if allowed is None else state.addable() & allowed(state)
        open_items = np.flatnonzero(addable)
        if open_items.size == 0:
            return state
        state.flip(int(open_items[int(np.argmax(score(state)[open_items]))]))


def _per_cost(state: _State, power: float, gain: FloatArray) -> FloatArray:
    tiny = max(1e-9 * min(1.0, float(state.program.all_costs.max(initial=0.0)) or 1.0), 1e-300)
    with np.errstate(over="ignore", divide="ignore"):  # next to no cost comes first
        return np.asarray(gain / np.maximum(state.rows[0], tiny) ** power)


def _mmr(program: SelectionProgram, deadline: float) -> BoolArray:
    def score(state: _State) -> FloatArray:
        chosen = state.chosen
        return program.linear - (program.pairwise[:, chosen].max(axis=1) if chosen.any() else 0.0)

    return _filled(program, score).chosen


def _greedy_starts(program: SelectionProgram) -> list[_State]:
    def start(power: float) -> _State:
        return _filled(program, lambda s: _per_cost(s, power, s.gain), lambda s: s.gain > s.nothing)

    return [start(power) for power in (0.0, 0.5, 1.0)]


def _worth(state: _State) -> tuple[bool, float]:
    return _is_feasible(state), state.program.objective(state.chosen)


def _is_feasible(state: _State) -> bool:
    return float(state.violation(state.activity)) <= 0


def _improve(state: _State, deadline: float) -> None:
    """Best improvement by add, drop or swap until a local optimum or the deadline."""
    free = state.program.free
    while time.perf_counter() < deadline:
        inside = free[state.chosen[free]]
        outside = free[~state.chosen[free]]
        moves: list[tuple[float, int, int]] = []
        addable = np.flatnonzero(state.addable() & (state.gain > 0))
        if addable.size:
            i = int(addable[int(np.argmax(state.gain[addable]))])
            moves.append((float(state.gain[i]), i, -1))
        if inside.size:
            kept = state.violation(state.activity[:, None] - state.rows[:, inside]) <= 0
            if kept.any():
                j = int(inside[kept][int(np.argmin(state.gain[inside[kept]]))])
                moves.append((-float(state.gain[j]), -1, j))
        if inside.size and outside.size:
            # delta[a, b]: drop inside[a], add outside[b]; the pair's own interaction is not lost twice
            delta = state.gain[outside][None, :] - state.gain[inside][:, None]
            delta = delta + state.program.pairwise[np.ix_(inside, outside)]
            change = state.rows[:, None, outside] - state.rows[:, inside, None]
            if (shared := state.shared) is not None:  # a swap keeps what one alone pays and the other needs
                last = (shared.needs[inside] * (state.users == 1)).astype(np.float64)
                needs = shared.needs[outside].T
                change[0] += last @ (needs * shared.costs[:, None])
                delta -= last @ (needs * shared.prices[:, None])
            after = state.activity[:, None, None] + change
            holds = (after <= state.upper[:, None, None]) & (after >= state.lower[:, None, None])
            delta = np.where(holds.all(axis=0), delta, -np.inf)
            a, b = np.unravel_index(int(np.argmax(delta)), delta.shape)
            moves.append((float(delta[a, b]), int(outside[b]), int(inside[a])))
        best = max(moves, default=(0.0, -1, -1))
        if best[0] <= 100 * state.nothing:
            return
        if best[2] >= 0:
            state.flip(best[2])
        if best[1] >= 0:
            state.flip(best[1])


def _local_search(program: SelectionProgram, deadline: float) -> BoolArray:
    states = _greedy_starts(program)
    for state in filter(_is_feasible, states):
        _improve(state, deadline)
    return max(states, key=_worth).chosen


HEURISTICS: dict[str, Callable[[SelectionProgram, float], BoolArray]] = {
    "topk": lambda p, _: _filled(p, lambda s: p.linear).chosen,
    "density": lambda p, _: _filled(p, lambda s: _per_cost(s, 1.0, p.linear), lambda s: p.linear > 0).chosen,
    "greedy": lambda p, _: max(_greedy_starts(p), key=_worth).chosen,
    "mmr": _mmr,
    "local_search": _local_search,
}


def solve(program: SelectionProgram, options: SolveOptions, method: str) -> SolveResult:
    """Run one heuristic and attach the bound.

    The result is OPTIMAL only where the bound happens to prove it, INFEASIBLE only where the bound excludes
    every selection, and NO_SOLUTION where the heuristic failed but nothing is proven.
    """
    start = time.perf_counter()
    limit = options.time_limit_seconds
    deadline = math.inf if limit is None else start + limit
    bound = upper_bound(program)
    infeasible, x = bound == -math.inf, None
    if not infeasible:
        chosen = HEURISTICS[method](program, deadline)
        x = None if program.violations(chosen) else chosen
    now = time.perf_counter()
    claims: dict[str, Any] = {"bound": None, "proven_infeasible": True} if infeasible else {"bound": bound}
    stopped = "time" if not infeasible and now >= deadline else None
    about: dict[str, Any] = {"limit": stopped, "version": f"numpy {np.__version__}"}
    return conclude(program, options, method, x=x, wall_seconds=now - start, **claims, **about)
