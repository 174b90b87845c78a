"""A question set under every setting of a grid, and at every price of a token.

Each question's pool is retrieved once and solved along the whole grid, each program started from the one
before. Stability solves pools whose embeddings were moved by a random error of the reference radius: the
share of the selection that stays (Jaccard).
"""

from __future__ import annotations

import itertools
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from mio_rag.allocation.workload import selector_problems, workload_of
from mio_rag.context import TokenCounter, block_tokens, in_prompt_order
from mio_rag.errors import InputError, SolverError
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.rows import count_problem
from mio_rag.frontier.query import check_selector, check_values, tokens_read
from mio_rag.measures import evidence_found, quick_measures
from mio_rag.pool import Candidates
from mio_rag.retrieval.retriever import Retriever
from mio_rag.retrieval.settings import RetrievalSettings
from mio_rag.selection.explain import decisions
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Penalty, Selector
from mio_rag.solvers.paths import solve_path
from mio_rag.solvers.result import SolveOptions, SolveResult, Status
from mio_rag.types import Question


def _exactly(value: float) -> str:
    """Write a number so that no other one is written alike."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    redundancy_weight: float
    radius: float
    passage_penalty: Penalty
    budget_tokens: int

    @property
    def name(self) -> str:
        """Return all but the budget, as the ledger names it."""
        penalty = self.passage_penalty
        shown = penalty if isinstance(penalty, str) else _exactly(penalty)
        return f"lambda_1={_exactly(self.redundancy_weight)} rho={_exactly(self.radius)} lambda_2={shown}"

    def applied(self, selector: Selector) -> Selector:
        """Return the selector with these weights."""
        changed = ("redundancy_weight", "radius", "passage_penalty")
        return selector.replace(**{name: getattr(self, name) for name in changed})


@dataclass(frozen=True)
class FrontierSettings:
    """The grid, and how its points are measured.

    weights, radii, penalties: lambda_1, rho and lambda_2 (also "adaptive", "auto").
    selector: all other settings. Its own weights and the reference radius make the reference program that
        measures the guaranteed value.
    reference_radius: the embedding error of guaranteed value and stability.
    draws: pools with random errors for each question. 0: stability is not measured.
    token_prices: of `price_curve`. Empty: no curve.
    """

    budgets: Sequence[int] = (128, 256, 512)
    weights: Sequence[float] = (0.0, 0.1)
    radii: Sequence[float] = (0.0, 0.05)
    penalties: Sequence[Penalty] = ("adaptive", 0.05)
    selector: Selector = field(
        default_factory=lambda: Selector(options=SolveOptions(time_limit_seconds=2.0, relative_gap=1e-3))
    )
    reference_radius: float = 0.05
    draws: int = 3
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    limit: int | None = None
    max_tokens: int = 32
    seed: int = 0
    token_prices: Sequence[float] = ()

    def __post_init__(self) -> None:
        fixed = [p for p in self.penalties if not isinstance(p, str)]
        problems = check_values("weights", self.weights) + check_values("radii", self.radii)
        problems += check_selector(self.selector)
        if self.token_prices:
            problems += check_values("token_prices", self.token_prices) + selector_problems(self.selector)
        problems += check_values("reference_radius", [self.reference_radius])
        problems += check_values("passage penalties", fixed or [0.0])
        problems += [] if self.penalties else ["no passage penalty is given"]
        problems += [] if self.budgets else ["no token budget is given"]
        counts = [("budget_tokens", b, 1) for b in self.budgets] + [("draws", self.draws, 0)]
        counts += [("limit", self.limit, 1)] if self.limit is not None else []
        for name, count, least in [*counts, ("max_tokens", self.max_tokens, 1)]:
            low = f"{name}={count} must be >= {least}"
            problems += filter(None, [count_problem(name, count) or (low if count < least else None)])
        if len(set(self.budgets)) < len(self.budgets) or len(set(self.penalties)) < len(self.penalties):
            problems.append("a token budget or passage penalty is listed twice")
        if not 0 <= self.seed < 2**31:
            problems.append(f"seed={self.seed} must be between 0 and 2^31 - 1")
        if problems:
            raise InputError(problems)

    @property
    def grid(self) -> tuple[Setting, ...]:
        """Return every setting; neighbours differ in their budget first."""
        return tuple(
            Setting(float(w), float(r), p, int(b))
            for w, r, p, b in itertools.product(self.weights, self.radii, self.penalties, self.budgets)
        )


def perturbed(pool: Candidates, radius: float, norm: str, rng: np.random.Generator) -> Candidates:
    """Move every passage's embedding by a random error of that size; cosines are those that result."""
    if pool.embeddings is None or pool.query_embedding is None:
        raise InputError("stability needs embeddings of passages and question: set draws=0")
    noise = rng.normal(size=pool.embeddings.shape)
    size = np.linalg.norm(noise, ord={"l2": 2, "l1": 1, "linf": np.inf}[norm], axis=1, keepdims=True)
    moved = pool.embeddings + radius * noise / size
    cosine = moved @ pool.query_embedding.astype(np.float64)
    scores = dict(pool.scores) | ({"dense": cosine} if "dense" in pool.scores else {})
    return replace(pool, embeddings=moved.astype(np.float32), relevance=cosine, scores=scores)


def question_rows(
    question: Question, retriever: Retriever, settings: FrontierSettings
) -> list[tuple[dict[str, Any], Selection]]:
    """Return one row and selection for each setting of the grid; `SolverError` if the solver broke."""
    selector, grid, counter = settings.selector.whole(), settings.grid, retriever.counter
    nominal = retriever.retrieve(question.text)
    # Seeded by the question, so that a resumed run draws what an uninterrupted one would have drawn.
    rng = np.random.default_rng([settings.seed, zlib.crc32(question.id.encode("utf-8", "replace"))])
    others = [
        perturbed(nominal, settings.reference_radius, selector.norm, rng) for _ in range(settings.draws)
    ]
    pool = selector.valued(nominal)
    solved = _along(pool, selector, grid, counter)
    elsewhere = [_along(selector.valued(other), selector, grid, counter) for other in others]
    worst = selector.replace(radius=settings.reference_radius)
    reference = worst.program(pool, max(settings.budgets), counter)
    is_merged = selector.merge and pool.spans is not None
    found = []
    for k, (setting, (program, result)) in enumerate(zip(grid, solved, strict=True)):
        chosen = in_prompt_order(pool, result.selected, selector.prompt_order)
        used = tokens_read(pool, chosen, selector, counter)
        why = partial(decisions, pool, program, result, robust=setting.radius > 0, is_merged=is_merged)
        selection = Selection(
            pool, chosen, used, setting.budget_tokens, result, program, why, is_merged=is_merged
        )
        overlaps = [_jaccard(result.selected, other[k][1].selected) for other in elsewhere]
        row = {
            "question_id": question.id,
            "method": setting.name,
            "budget_tokens": setting.budget_tokens,
            "status": result.status.value,
            "gap": result.gap,
            "tokens_used": used,
            "passages_selected": len(chosen),
            "selected_ids": list(selection.ids),
            "relevance": [round(float(pool.relevance[i]), 4) for i in chosen],
            **quick_measures(question, selection),
            "guaranteed": reference.objective(np.zeros(len(pool)) if result.x is None else result.x),
            "stability": float(np.mean(overlaps)) if overlaps else None,
            "solve_seconds": result.wall_seconds,
            "error": None,
        }
        found.append((json.loads(json.dumps(row)), selection))
    return found


def _along(
    pool: Candidates, selector: Selector, grid: Sequence[Setting], counter: TokenCounter
) -> list[tuple[SelectionProgram, SolveResult]]:
    """Program and result at every setting, each solve started from the one before."""
    programs = [s.applied(selector).program(pool, s.budget_tokens, counter) for s in grid]
    results = list(solve_path(programs, selector.solver, selector.options))
    for result in results:
        if result.status is Status.ERROR:
            raise SolverError(result.message)
    return list(zip(programs, results, strict=True))


def _jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """Shared part of two selections; 1 where both are empty."""
    either = set(one) | set(other)
    return len(set(one) & set(other)) / len(either) if either else 1.0


def price_curve(
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    selector: Selector,
    token_prices: Sequence[float],
    budgets: Sequence[int],
    seed: int = 0,
    counter: TokenCounter | None = None,
) -> dict[str, Any]:
    """Compute what questions spend and find at each price of a token, and under each budget.

    token_prices: no question takes more than the largest budget.
    counter: the reader's tokenizer: shared text is then paid once, and tokens are those of what is read.

    Keys: ceiling; prices: token_price, tokens, evidence and everything (the share of questions with all of
    it; both None without labels), and gap: how much more any allocation of the same tokens could be worth,
    as a share; budgets: budget_tokens and the same figures.
    """
    ceiling = max(budgets)
    labelled = [k for k, q in enumerate(questions) if q.gold_ids or (q.gold_sources and pools[k].sources)]

    def figures(chosen: Sequence[Sequence[int]], tokens: Sequence[float]) -> dict[str, Any]:
        found = [evidence_found(questions[k], pools[k], chosen[k]) for k in labelled]
        return {
            "tokens": mean_interval(tokens, seed),
            "evidence": mean_interval(found, seed) if found else None,
            "everything": mean_interval([float(f == 1) for f in found], seed) if found else None,
        }

    workload = workload_of(pools, selector, ceilings=ceiling, counter=counter)
    prices = []
    for price in sorted(map(float, token_prices)):
        totals, decided = workload.at(price), workload.decisions(price)
        chosen = [
            [] if one.x is None else np.flatnonzero(one.x[: len(pool)]).tolist()
            for one, pool in zip(decided, pools, strict=True)
        ]
        read = [one.tokens for one in decided]
        if counter is not None:
            read = [
                block_tokens(pool, own, counter, selector.merge and pool.spans is not None)
                for pool, own in zip(pools, chosen, strict=True)
            ]
        missing = totals.bound(totals.tokens) - totals.value
        gap = missing / abs(totals.value) if totals.value and math.isfinite(missing) else None
        prices.append({"token_price": price, **figures(chosen, list(map(float, read))), "gap": gap})
    alike = []
    for budget in sorted(budgets):
        choices = [selector.whole().choose(pool, budget, counter) for pool in pools]
        same = figures([list(c.chosen) for c in choices], [float(c.used) for c in choices])
        alike.append({"budget_tokens": int(budget), **same})
    return {"ceiling": int(ceiling), "prices": prices, "budgets": alike}
