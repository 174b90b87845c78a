"""A question set under every setting of a grid: one row for each question and setting.

Each question's pool is retrieved once, and solved along the whole grid, each program started from the one
before. Stability asks the same of pools whose embeddings were moved by a random error of the reference
radius: how much of the selection stays (Jaccard).
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from mio_rag.allocation.workload import selector_problems
from mio_rag.context import TokenCounter, in_prompt_order
from mio_rag.errors import InputError, SolverError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.formulations.rows import count_problem
from mio_rag.frontier.grid import check_selector, check_values, tokens_read
from mio_rag.measures import quick_measures
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
    """The number so that no other one is written alike; short where that is enough."""
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
        """All but the budget, as the ledger names it."""
        penalty = self.passage_penalty
        shown = penalty if isinstance(penalty, str) else _exactly(penalty)
        return f"lambda_1={_exactly(self.redundancy_weight)} rho={_exactly(self.radius)} lambda_2={shown}"

    def applied(self, selector: Selector) -> Selector:
        """A selector with these weights, and everything else as it was."""
        return selector.replace(
            redundancy_weight=self.redundancy_weight,
            radius=self.radius,
            passage_penalty=self.passage_penalty,
        )


@dataclass(frozen=True)
class FrontierSettings:
    """The grid, and how its points are measured.

    Parameters
    ----------
    budgets : sequence of int
        Token budgets, each >= 1.
    weights, radii : sequences of float
        lambda_1 and rho, each >= 0.
    penalties : sequence of float, "adaptive" or "auto"
        lambda_2, each >= 0.
    selector : Selector
        All other settings. Its own weights and the reference radius make the reference program in which the
        guaranteed value is measured.
    reference_radius : float
        >= 0: the embedding error that guaranteed value and stability are about.
    draws : int
        >= 0: pools with random errors for each question. 0: stability is not measured.
    retrieval : RetrievalSettings
        How the pools are found.
    limit : int or None
        Only the first so many questions.
    max_tokens : int
        Longest answer, in tokens, >= 1; where a generator reads.
    seed : int
        Of the random errors and the bootstrap.
    token_prices : sequence of float
        Prices of a token for all questions, each >= 0: what they spend and find, beside the budgets. Empty:
        not measured.

    Raises
    ------
    InputError
        With every problem found.
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
        problems = check_values("weights", self.weights) + check_values("radii", self.radii)
        problems += check_selector(self.selector)
        if self.token_prices:
            problems += check_values("token_prices", self.token_prices) + selector_problems(self.selector)
        problems += check_values("reference_radius", [self.reference_radius])
        problems += check_values(
            "passage penalties", [p for p in self.penalties if not isinstance(p, str)] or [0.0]
        )
        problems += ["no passage penalty is given"] if not self.penalties else []
        problems += ["no token budget is given"] if not self.budgets else []
        problems += [
            count_problem("budget_tokens", b) or f"budget_tokens={b} must be >= 1"
            for b in self.budgets
            if count_problem("budget_tokens", b) or b < 1
        ]
        if len(set(self.budgets)) < len(self.budgets) or len(set(self.penalties)) < len(self.penalties):
            problems.append("a token budget or passage penalty is listed twice")
        if problem := count_problem("draws", self.draws):
            problems.append(problem)
        if self.limit is not None and self.limit < 1:
            problems.append(f"limit={self.limit} must be >= 1")
        if self.max_tokens < 1:
            problems.append(f"max_tokens={self.max_tokens} must be >= 1")
        if not 0 <= self.seed < 2**31:
            problems.append(f"seed={self.seed} must be between 0 and 2^31 - 1")
        if problems:
            raise InputError(problems)

    @property
    def grid(self) -> tuple[Setting, ...]:
        """Every setting; neighbours differ in their budget first."""
        return tuple(
            Setting(float(w), float(r), p, int(b))
            for w, r, p, b in itertools.product(self.weights, self.radii, self.penalties, self.budgets)
        )


def perturbed(pool: Candidates, radius: float, norm: str, rng: np.random.Generator) -> Candidates:
    """The pool after a random error of that size in every passage's embedding.

    Relevance and the dense score are the cosines that a retriever would have seen then.

    Raises
    ------
    InputError
        If the candidates have no embeddings of passages and question.
    """
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
    """One row and selection for each setting of the grid, in its order.

    Raises
    ------
    SolverError
        If the solver broke.
    """
    selector, grid = settings.selector, settings.grid
    nominal = retriever.retrieve(question.text)
    # Seeded by the question, so that a resumed run draws what an uninterrupted one would have drawn.
    rng = np.random.default_rng([settings.seed, zlib.crc32(question.id.encode("utf-8", "replace"))])
    others = [
        perturbed(nominal, settings.reference_radius, selector.norm, rng) for _ in range(settings.draws)
    ]
    pool = selector.valued(nominal)
    counter = retriever.counter
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
        x = np.zeros(len(pool)) if result.x is None else result.x
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
            "guaranteed": reference.objective(x),
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
    broken = next((r for r in results if r.status is Status.ERROR), None)
    if broken is not None:
        raise SolverError(broken.message)
    return list(zip(programs, results, strict=True))


def _jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """Shared part of two selections; 1 where both are empty."""
    either = set(one) | set(other)
    return len(set(one) & set(other)) / len(either) if either else 1.0
