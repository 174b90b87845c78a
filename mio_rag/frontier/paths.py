"""Where the best selection of a program changes: every budget and penalty; a question's frontier."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.context import TokenCounter, block_tokens
from mio_rag.errors import InputError, SolverError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.rows import count_problem
from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector
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


def check_values(name: str, values: Sequence[float]) -> list[str]:
    """Return the problems of a list of weights, radii or prices."""
    problems = [] if values else [f"{name} is empty: give at least one value"]
    problems += [
        f"{name} holds {v!r}: each must be a number from 0 to {LARGEST_SETTING:g}"
        for v in values
        if not is_setting(v)
    ]
    if len(set(values)) < len(values):
        problems.append(f"{name} lists a value twice")
    return problems


def check_selector(selector: Selector) -> list[str]:
    """Return the settings of a selector that a frontier does not support."""
    problems = []
    if selector.uncertainty is not None or selector.passage_radii:
        problems.append("a frontier sets the radius itself: leave uncertainty and passage_radii out")
    if selector.counterpart != "termwise":
        problems.append("a frontier supports only the termwise counterpart: leave counterpart out")
    if selector.units == "sentences":
        problems.append("a frontier is one of passages: leave units='sentences' out")
    if selector.side.prices or selector.side.change_price > 0:
        problems.append("a frontier supports only hard side constraints: leave prices and change_price out")
    return problems


def tokens_read(
    candidates: Candidates, chosen: Sequence[int], selector: Selector, counter: TokenCounter | None
) -> int:
    """Count the tokens of chosen passages: of the merged block with a counter, otherwise their sum."""
    if counter is None or candidates.spans is None or not selector.merge:
        return int(candidates.tokens[list(chosen)].sum())
    return block_tokens(candidates, chosen, counter, True)


@dataclass(frozen=True)
class GridPoint:
    """The selection at one (lambda_1, rho).

    value, bound: in its own program; those of different weights do not compare.
    relevance, redundancy: sums of the relevance, and of the cosines over the chosen pairs.
    guaranteed: value in one reference program: the termwise counterpart at the largest radius.
    dominated: whether another certified point is as good in tokens, relevance, redundancy and guaranteed
        value, and better in one. None where the point is not certified.
    """

    redundancy_weight: float
    radius: float
    status: str
    value: float | None
    bound: float | None
    selected: tuple[int, ...]
    tokens: int
    relevance: float
    redundancy: float
    guaranteed: float
    dominated: bool | None = None

    @property
    def certified(self) -> bool:
        """Whether the selection is optimal within the stated gap."""
        return self.status == Status.OPTIMAL.value


def weight_grid(
    candidates: Candidates,
    selector: Selector,
    budget_tokens: int,
    weights: Sequence[float],
    radii: Sequence[float],
    *,
    counter: TokenCounter | None = None,
) -> tuple[GridPoint, ...]:
    """Solve at every pair of a weight and a radius; return the points by weight, then radius.

    candidates: as `Selector.valued` returns them.
    selector: all other settings; the reference program has its redundancy weight.
    counter: the reader's tokenizer: shared text is then paid once, and tokens are those of what is read.

    Raises `InputError` for values out of range, candidates with their own radii, or unsupported settings.
    """
    problems = check_values("redundancy weights", weights) + check_values("radii", radii)
    problems += check_selector(selector)
    if candidates.radius is not None and tuple(radii) != (0.0,):
        problems.append("the candidates bring their own radii, which would override those of the grid")
    if problems:
        raise InputError(problems)
    selector = selector.whole()
    reference = selector.replace(radius=max(radii)).program(candidates, budget_tokens, counter)
    chain = Chain(selector.solver, selector.options)
    points: list[GridPoint] = []
    for k, weight in enumerate(weights):
        for radius in list(radii)[:: -1 if k % 2 else 1]:  # there and back: neighbours start each other
            at = selector.replace(redundancy_weight=weight, radius=radius)
            result = chain.solve(at.program(candidates, budget_tokens, counter))
            chosen = list(result.selected)
            vectors = np.zeros((1, 1)) if candidates.embeddings is None else candidates.embeddings[chosen]
            sums = np.square(vectors.sum(axis=0, dtype=np.float64)).sum()
            points.append(GridPoint(
                redundancy_weight=float(weight), radius=float(radius), status=result.status.value,
                value=result.objective, bound=result.bound, selected=result.selected,
                tokens=tokens_read(candidates, chosen, selector, counter),
                relevance=float(candidates.relevance[chosen].sum()),
                redundancy=float(sums - np.square(vectors.astype(np.float64)).sum()) / 2,
                guaranteed=reference.objective(np.zeros(len(candidates)) if result.x is None else result.x),
            ))  # fmt: skip
    points.sort(key=lambda p: (p.redundancy_weight, p.radius))
    proven = [p for p in points if p.certified]
    criteria = [(-p.tokens, p.relevance, -p.redundancy, p.guaranteed) for p in proven]
    beaten = dict(zip(map(id, proven), dominated(np.array(criteria).reshape(-1, 4)).tolist(), strict=True))
    return tuple(replace(p, dominated=beaten.get(id(p))) for p in points)


@dataclass(frozen=True, eq=False)
class QueryFrontier:
    """The three paths of one question; the penalty path and the grid are at `budget_tokens`."""

    candidates: Candidates
    selector: Selector
    budget_tokens: int
    budget: BudgetPath
    penalty: PenaltyPath
    grid: tuple[GridPoint, ...]

    def to_dict(self, more_tokens: Sequence[int] = (50, 100, 200)) -> dict[str, Any]:
        """Return plain data for JSON; selections are positions in `passages`, infinity is null."""
        pool, chosen, pieces, steps = self.candidates, self.selector, self.penalty.pieces, self.budget.steps
        gains = [self.budget.gain(self.budget_tokens, more) for more in more_tokens]
        names = ("redundancy_weight", "token_price", "radius", "norm", "solver")
        return {
            "question": pool.question,
            "budget_tokens": self.budget_tokens,
            "settings": {
                **{name: getattr(chosen, name) for name in names},
                "passage_penalty": chosen.penalty(pool, self.budget_tokens),
                "link_benefit": chosen.resolved(pool).link_benefit,
                "relative_gap": chosen.options.relative_gap,
            },
            "budget": {
                "steps": [asdict(step) | {"bound": _finite(step.bound)} for step in steps],
                "complete": self.budget.complete,
                "certified": self.budget.complete and all(step.certified for step in steps),
                "solves": self.budget.solves,
                "buys": [gain for gain in gains if gain is not None],
            },
            "penalty": {
                "pieces": [asdict(p) | {"high": _finite(p.high), "gap": _finite(p.gap)} for p in pieces],
                "certified": all(piece.certified for piece in pieces),
                "solves": self.penalty.solves,
            },
            "grid": [
                asdict(p) | {"certified": p.certified, "frontier": p.dominated is False} for p in self.grid
            ],
            "passages": [
                {name: getattr(pool.passage(i), name) for name in ("title", "source", "text")}
                | {"id": pool.ids[i], "tokens": int(pool.tokens[i]), "relevance": float(pool.relevance[i])}
                for i in range(len(pool))
            ],
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def query_frontier(
    candidates: Candidates,
    selector: Selector,
    budget_tokens: int,
    *,
    up_to: int | None = None,
    weights: Sequence[float] = (0.0, 0.05, 0.1, 0.2, 0.4),
    radii: Sequence[float] = (0.0, 0.05, 0.1),
    counter: TokenCounter | None = None,
    progress: Callable[[int], None] | None = None,
) -> QueryFrontier:
    """Compute all three paths for one pool, as it comes from retrieval.

    up_to: largest budget of the budget path; default: twice `budget_tokens`, and at least 200 above it.
    weights, radii, counter: see `weight_grid`.
    progress: called with the budgets just settled; they add up to `up_to` + 1.

    Raises `InputError` for an empty pool, budgets below 1, or settings that the candidates cannot serve.
    """
    problem = count_problem("budget_tokens", budget_tokens)
    if problem or budget_tokens < 1:
        raise InputError(problem or f"budget_tokens={budget_tokens} must be >= 1")
    largest = max(2 * budget_tokens, budget_tokens + 200) if up_to is None else up_to
    if largest < budget_tokens:
        raise InputError(f"up_to={largest} is below budget_tokens={budget_tokens}: the path ends there")
    if problems := check_selector(selector):
        raise InputError(problems)
    if len(candidates) == 0:
        raise InputError("there are no candidates to select from: retrieve a pool first")
    selector = selector.whole()
    pool = selector.valued(candidates)
    # One penalty along the path, that of the budget asked for: a larger budget must not raise it.
    priced = selector.replace(passage_penalty=selector.penalty(pool, budget_tokens))
    program = priced.program(pool, largest, counter)
    budgets = budget_path(program, Chain(selector.solver, selector.options), progress=progress)
    free = selector.replace(passage_penalty=0.0).program(pool, budget_tokens, counter)
    penalties = penalty_path(free, Chain(selector.solver, selector.options))
    grid = weight_grid(pool, selector, budget_tokens, weights, radii, counter=counter)
    return QueryFrontier(pool, selector, budget_tokens, budgets, penalties, grid)
