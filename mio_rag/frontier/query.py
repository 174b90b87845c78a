"""One question's frontier: budgets, passage penalties, and the grid of redundancy weight and radius."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mio_rag.context import TokenCounter, block_tokens
from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting
from mio_rag.formulations.rows import count_problem
from mio_rag.frontier.paths import BudgetPath, Chain, PenaltyPath, budget_path, dominated, penalty_path
from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector
from mio_rag.solvers.result import Status


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
