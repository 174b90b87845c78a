"""Every budget, and every passage penalty, at which the best selection of a program changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError, SolverError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.paths import solve_path
from mio_rag.solvers.result import SolveOptions, SolveResult, Status

_SAME = 1e-9  # relative: values that differ by the order of summation only

Progress = Callable[[int], None]


class Chain:
    """Solves programs of one pool, each started from the one before and perhaps made of its result."""

    def __init__(self, solver: str = "auto", options: SolveOptions | None = None) -> None:
        self.options = options or SolveOptions()
        self.solves = 0
        self._waiting: SelectionProgram | None = None
        self._scale = 0.0  # of the values of all programs so far
        self._results = solve_path(self._programs(), solver, self.options)

    def _programs(self) -> Iterator[SelectionProgram]:
        while self._waiting is not None:
            yield self._waiting

    def solve(self, program: SelectionProgram) -> SolveResult:
        """Solve a program; `SolverError` if the solver broke."""
        self._waiting = program
        self._scale = max(self._scale, program.value_scale)
        result = next(self._results)
        self.solves += 1
        if result.status is Status.ERROR:
            raise SolverError(result.message)
        return result

    def certifies(self, value: float, bound: float | None) -> bool:
        """Whether nothing can be better than `value` by more than the stated tolerance."""
        return bound is not None and bound - value <= self.options.tolerance(value, self._scale)


def dominated(criteria: ArrayLike) -> NDArray[np.bool_]:
    """Return which points another one beats: at least as good in everything, and better in something.

    criteria: shape (m, c); larger is better, NaN is the worst, and differences up to 1e-9 are none.
    """
    values = np.asarray(criteria, dtype=np.float64)
    values = np.where(np.isnan(values), -np.inf, values)
    found = np.zeros(len(values), dtype=bool)
    for k, point in enumerate(values):
        slack = _SAME * np.where(np.isfinite(point), np.maximum(1.0, np.abs(point)), 0.0)
        with np.errstate(invalid="ignore"):
            better = (values >= point - slack).all(axis=1) & (values > point + slack).any(axis=1)
        found[k] = better.any()
    return found


@dataclass(frozen=True)
class BudgetStep:
    """The best selection for budgets from `tokens` to `until`.

    bound: what no selection within `until` tokens can exceed.
    certified: whether bound - value is within the solver's stated tolerance.
    supported: whether some price per token selects it.
    next_price: value gained per token up to the next step; None for the last.
    """

    tokens: int
    until: int
    value: float
    bound: float
    certified: bool
    selected: tuple[int, ...]
    supported: bool = False
    next_price: float | None = None


@dataclass(frozen=True)
class BudgetPath:
    """The staircase, by rising tokens; not `complete` where a limit left the lower end open."""

    steps: tuple[BudgetStep, ...]
    complete: bool
    solves: int

    def at(self, budget_tokens: int) -> BudgetStep | None:
        """Return the step that holds at a budget; None outside the path."""
        return next((s for s in self.steps if s.tokens <= budget_tokens <= s.until), None)

    def gain(self, budget_tokens: int, more_tokens: int) -> dict[str, Any] | None:
        """Return the gain from more tokens, with its proven range; None where the path does not reach."""
        now, then = self.at(budget_tokens), self.at(budget_tokens + more_tokens)
        if now is None or then is None:
            return None
        return {
            "budget_tokens": budget_tokens,
            "more_tokens": more_tokens,
            "gain": then.value - now.value,
            "low": max(0.0, then.value - now.bound),
            "high": then.bound - now.value,
            "tokens_used": then.tokens - now.tokens,
            "added": sorted(set(then.selected) - set(now.selected)),
            "removed": sorted(set(now.selected) - set(then.selected)),
            "certified": now.certified and then.certified,
        }


def budget_path(
    program: SelectionProgram, chain: Chain | None = None, *, progress: Progress | None = None
) -> BudgetPath:
    """Compute the staircase of a program over all budgets up to its own.

    A solve at B settles every budget from cost(x) to B, and the next one is at cost(x) - 1: as many solves as
    there are steps (and ties). For a solve that a limit stopped, its value from below and its bound from
    above hold for all of these budgets.

    program: with whole-number costs, else `InputError`. Its budget is the largest one of the path.
    progress: called with the number of tokens just settled; they add up to the budget + 1.
    """
    if program.budget < 0 or not program.has_whole_costs:
        raise InputError("a budget path needs a budget >= 0 and costs that are whole numbers of tokens")
    chain = chain or Chain()
    advance = progress or (lambda _: None)
    before, budget = chain.solves, int(program.budget)
    falling: list[BudgetStep] = []  # from the largest budget down
    top, ceiling, complete = 0.0, float("inf"), True
    while budget >= 0:
        result = chain.solve(replace(program, budget=budget))
        if result.x is None:
            complete = result.status is Status.INFEASIBLE
            advance(budget + 1)
            break
        assert result.objective is not None
        value, tokens = result.objective, int(program.cost(result.x))
        ceiling = min(ceiling, float("inf") if result.bound is None else result.bound)
        until, bound = budget, ceiling
        if falling and value >= top - _SAME * max(1.0, abs(top)):
            # As good for fewer tokens: the step above was none, or a limit had hidden this selection.
            last = falling.pop()
            until, bound, top = last.until, last.bound, max(top, value)
        else:
            top = value
        certified = chain.certifies(value, bound)
        falling.append(BudgetStep(tokens, until, value, max(bound, value), certified, result.selected))
        advance(budget + 1 - tokens)
        budget = tokens - 1
    steps = falling[::-1]
    hull: list[int] = []  # concave
    for k, step in enumerate(steps):
        while len(hull) >= 2:
            first, second = steps[hull[-2]], steps[hull[-1]]
            here = (second.value - first.value) * (step.tokens - first.tokens)
            if here > (step.value - first.value) * (second.tokens - first.tokens):
                break
            hull.pop()
        hull.append(k)
    for k, (step, after) in enumerate(zip(steps, [*steps[1:], None], strict=False)):
        price = None if after is None else (after.value - step.value) / (after.tokens - step.tokens)
        steps[k] = replace(step, supported=k in hull, next_price=price)
    return BudgetPath(tuple(steps), complete, chain.solves - before)


@dataclass(frozen=True)
class PenaltyPiece:
    """One selection, the best for penalties from `low` to `high` (infinite for the last).

    value: without the penalty.
    gap: most by which another selection could be better on the piece; infinite where nothing was proven.
    """

    low: float
    high: float
    passages: int
    tokens: int
    value: float
    gap: float
    certified: bool
    selected: tuple[int, ...]


@dataclass(frozen=True)
class PenaltyPath:
    """Pieces by rising penalty, from 0; none where the program is infeasible."""

    pieces: tuple[PenaltyPiece, ...]
    solves: int


@dataclass(frozen=True)
class _Line:
    """f - lambda k of one selection."""

    k: int
    f: float
    x: tuple[int, ...]
    tokens: int

    def at(self, penalty: float) -> float:
        return self.f - penalty * self.k


def _envelope(lines: list[_Line]) -> list[tuple[float, _Line]]:
    """(penalty from which it is the highest, line) for penalties >= 0; k falls along it."""
    best: dict[int, _Line] = {}
    for line in lines:
        if line.k not in best or line.f > best[line.k].f:
            best[line.k] = line
    here = max(best.values(), key=lambda line: (line.f, -line.k))
    found, start = [(0.0, here)], 0.0
    while below := [line for line in best.values() if line.k < here.k]:
        crossings = [((here.f - line.f) / (here.k - line.k), line) for line in below]
        start, here = min(crossings, key=lambda c: (c[0], c[1].k))
        found.append((start, here))
    return found


def penalty_path(program: SelectionProgram, chain: Chain | None = None) -> PenaltyPath:
    """Compute the path of a program over the passage penalty lambda.

    The best value, the maximum over x of f(x) - lambda k(x) with f the value without a penalty and k the
    number of passages, is convex and piecewise linear in lambda. Its corners are found by solving where the
    known lines cross, until no crossing yields a better one (Eisner and Severance, 1976). A proof at both
    ends of a piece holds all along it. Numbers of passages that no price selects do not appear.

    program: without a passage penalty.
    """
    chain = chain or Chain()
    before = chain.solves
    lines: list[_Line] = []
    bounds: dict[float, float] = {}

    def look(penalty: float) -> _Line | None:
        result = chain.solve(replace(program, linear=program.linear - penalty))
        bounds[penalty] = np.inf if result.bound is None else result.bound
        if result.x is None:
            return None
        value, tokens = program.objective(result.x), int(program.cost(result.x))
        return _Line(len(result.selected), value, result.selected, tokens)

    # Above twice what all passages together can be worth, one passage fewer always pays.
    steep = 1.0 + 2.0 * float(np.abs(program.linear).sum() + 0.5 * np.abs(program.pairwise).sum())
    for penalty in (steep, 0.0):
        line = look(penalty)
        if line is None:
            return PenaltyPath((), chain.solves - before)
        lines.append(line)
    fewest = lines[0].k if chain.certifies(lines[0].at(steep), bounds[steep]) else -1
    while True:
        corners = _envelope(lines)
        waiting = [(start, line) for start, line in corners if start not in bounds]
        if not waiting:
            break
        penalty, line = waiting[0]
        better = look(penalty)
        # A line that is higher by rounding alone would be found again and again.
        if better is not None and better.at(penalty) > line.at(penalty) + _SAME * max(1.0, abs(line.f)):
            lines.append(better)
    pieces = []
    for k, (low, line) in enumerate(corners):
        last = k + 1 == len(corners)
        high = np.inf if last else corners[k + 1][0]
        if high - low <= 1e-12 and not last:  # three lines through one point
            continue
        # Beyond the last corner V falls at least as fast as the fewest passages do.
        proven = [low] if last else [low, high]
        certified = all(chain.certifies(line.at(p), bounds[p]) for p in proven)
        certified = certified and (not last or line.k == fewest)
        gap = max(0.0, *(bounds[p] - line.at(p) for p in proven))
        pieces.append(PenaltyPiece(low, high, line.k, line.tokens, line.f, gap, certified, line.x))
    return PenaltyPath(tuple(pieces), chain.solves - before)
