"""One question's frontier: budgets, passage penalties, and (lambda_1, rho), as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mio_rag.context import TokenCounter
from mio_rag.errors import InputError
from mio_rag.formulations.rows import count_problem
from mio_rag.frontier.budget import BudgetPath, budget_path
from mio_rag.frontier.chain import Chain
from mio_rag.frontier.grid import GridPoint, check_selector, weight_grid
from mio_rag.frontier.penalty import PenaltyPath, penalty_path
from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector

Progress = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class QueryFrontier:
    """What there was to choose from for one question.

    Parameters
    ----------
    candidates : Candidates
        With the relevance that the selector gave them.
    selector : Selector
        The settings around which the paths run.
    budget_tokens : int
        Where the penalty path and the grid were made.
    """

    candidates: Candidates
    selector: Selector
    budget_tokens: int
    budget: BudgetPath
    penalty: PenaltyPath
    grid: tuple[GridPoint, ...]

    def to_dict(self, more_tokens: Sequence[int] = (50, 100, 200)) -> dict[str, Any]:
        """Plain data for JSON.

        Selections are positions in `passages`. An infinite end of a penalty range is null.

        Parameters
        ----------
        more_tokens : sequence of int
            Amounts for `buys`: what so many tokens above the budget buy, where the path reaches.
        """
        pool, steps = self.candidates, self.budget.steps
        gains = [self.budget.gain(self.budget_tokens, more) for more in more_tokens]
        current = self.selector.penalty(pool, self.budget_tokens)
        return {
            "question": pool.question,
            "budget_tokens": self.budget_tokens,
            "settings": {
                "redundancy_weight": self.selector.redundancy_weight,
                "passage_penalty": current,
                "token_price": self.selector.token_price,
                "radius": self.selector.radius,
                "norm": self.selector.norm,
                "link_benefit": self.selector.resolved(pool).link_benefit,
                "solver": self.selector.solver,
                "relative_gap": self.selector.options.relative_gap,
            },
            "budget": {
                "steps": [asdict(step) | {"bound": _finite(step.bound)} for step in steps],
                "complete": self.budget.complete,
                "certified": self.budget.complete and all(step.certified for step in steps),
                "solves": self.budget.solves,
                "buys": [gain for gain in gains if gain is not None],
            },
            "penalty": {
                "pieces": [
                    asdict(piece) | {"high": _finite(piece.high), "gap": _finite(piece.gap)}
                    for piece in self.penalty.pieces
                ],
                "certified": all(piece.certified for piece in self.penalty.pieces),
                "solves": self.penalty.solves,
            },
            "grid": [
                asdict(p) | {"certified": p.certified, "frontier": p.dominated is False} for p in self.grid
            ],
            "passages": [
                {
                    "id": pool.ids[i],
                    "title": pool.passage(i).title,
                    "source": pool.passage(i).source,
                    "tokens": int(pool.tokens[i]),
                    "relevance": float(pool.relevance[i]),
                    "text": pool.texts[i],
                }
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
    progress: Progress | None = None,
) -> QueryFrontier:
    """All three paths for one pool; each is warm-started along its way.

    Parameters
    ----------
    candidates : Candidates
        As they come from retrieval.
    budget_tokens : int
        >= 1.
    up_to : int, optional
        Largest budget of the budget path; by default twice `budget_tokens`, and at least 200 above it.
    weights, radii : sequences of float
        Of the grid. See `mio_rag.frontier.grid.weight_grid`.
    counter : TokenCounter, optional
        The reader's tokenizer: what passages share is then paid once.
    progress : callable, optional
        Called with the budgets just settled; they add up to `up_to` + 1. The other two paths are short.

    Raises
    ------
    InputError
        For an empty pool, budgets below 1, or settings that the candidates cannot serve.
    SolverError
        If the solver broke.
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
    pool = selector.valued(candidates)
    # One price along the path, that of the budget asked for: more tokens buy more, nothing becomes dearer.
    priced = selector.replace(passage_penalty=selector.penalty(pool, budget_tokens))
    program = priced.program(pool, largest, counter)
    budgets = budget_path(program, Chain(selector.solver, selector.options), progress=progress)
    free = selector.replace(passage_penalty=0.0).program(pool, budget_tokens, counter)
    penalties = penalty_path(free, Chain(selector.solver, selector.options))
    grid = weight_grid(pool, selector, budget_tokens, weights, radii, counter=counter)
    return QueryFrontier(pool, selector, budget_tokens, budgets, penalties, grid)
