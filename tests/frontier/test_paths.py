"""Paths over budget, passage penalty and (lambda_1, rho), against enumeration."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.errors import InputError
from mio_rag.formulations.program import LinearConstraint, Segments, SelectionProgram
from mio_rag.frontier import budget_path, penalty_path, query_frontier, weight_grid
from mio_rag.frontier.paths import Chain, PenaltyPath, PenaltyPiece
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions


def program(seed: int, n: int, *, rows: int = 0, links: bool = False) -> SelectionProgram:
    """A random pool: unit vectors, token costs, and on request evidence links and a count row."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 4)) + 1.0
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pairwise = 0.3 * vectors @ vectors.T
    if links:
        gain = np.triu((rng.random((n, n)) < 0.1) * rng.random((n, n)), 1)
        pairwise = pairwise - gain - gain.T
    np.fill_diagonal(pairwise, 0)
    return SelectionProgram(
        rng.random(n) - 0.05,
        (pairwise + pairwise.T) / 2,
        rng.integers(5, 30, n),
        90,
        tuple([LinearConstraint(np.ones(n), lower=2, name="at least 2")] * rows),
    )


def table(p: SelectionProgram) -> list[tuple[int, int, float]]:
    """(cost, passages, value) of every selection that keeps the rows."""
    every = (np.array(x) for x in itertools.product((0, 1), repeat=p.n))
    free = replace(p, budget=float(p.costs.sum()))
    return [(int(p.cost(x)), int(x.sum()), p.objective(x)) for x in every if not free.violations(x)]


POOLS = [(0, 9, 0, False), (1, 10, 0, True), (2, 9, 1, False), (3, 12, 0, True), (4, 13, 1, False)]


@pytest.mark.parametrize(("seed", "n", "rows", "links"), POOLS)
def test_budget_path_has_every_breakpoint(seed: int, n: int, rows: int, links: bool) -> None:
    p = program(seed, n, rows=rows, links=links)
    every = table(p)
    values = [max((v for c, _, v in every if b >= c), default=None) for b in range(91)]
    path = budget_path(p)
    assert path.complete
    assert all(step.certified for step in path.steps)
    before = [None, *values]
    changes = [
        b for b, v in enumerate(values) if v is not None and (before[b] is None or v > before[b] + 1e-9)
    ]
    assert [step.tokens for step in path.steps] == changes
    hull = [s.supported for s in path.steps]
    for step, on_hull in zip(path.steps, hull, strict=True):  # a price per token for which it is the best
        prices = np.linspace(0, 1, 20001)
        worth = np.array([[s.value - price * s.tokens for s in path.steps] for price in prices])
        best = worth.argmax(axis=1) == path.steps.index(step)
        assert on_hull or not best.any()
    for budget, value in enumerate(values):
        step = path.at(budget)
        assert (step is None) == (value is None)
        if step is not None:
            x = np.isin(np.arange(n), step.selected)
            assert step.value == pytest.approx(value, abs=1e-6) == p.objective(x)
            assert not replace(p, budget=budget).violations(x)
    assert path.solves <= 2 * len(path.steps) + 2


def test_what_more_tokens_buy() -> None:
    p = SelectionProgram([1.0, 0.9, 0.4], np.zeros((3, 3)), [10, 20, 5], 40)
    path = budget_path(p)
    ranges = [(0, 4), (5, 9), (10, 14), (15, 29), (30, 34), (35, 40)]
    assert [(s.tokens, s.until) for s in path.steps] == ranges
    assert [s.supported for s in path.steps] == [True, False, True, True, False, True]
    assert path.steps[1].next_price == pytest.approx((1.0 - 0.4) / 5)
    gain = path.gain(14, 20)
    assert gain is not None
    assert gain["gain"] == pytest.approx(0.9)
    assert (gain["added"], gain["removed"], gain["tokens_used"]) == ([1], [], 20)
    assert gain["low"] <= gain["gain"] <= gain["high"]
    assert path.gain(30, 100) is None
    with pytest.raises(InputError, match="whole numbers of tokens"):
        budget_path(SelectionProgram([1.0], [[0.0]], [1.5], 10))


def test_a_path_of_a_heuristic_is_bounded_not_certified() -> None:
    p = program(5, 12)
    every = table(p)
    path = budget_path(p, Chain("topk"))
    assert not all(step.certified for step in path.steps)
    for step in path.steps:
        best = max(v for c, _, v in every if c <= step.until)
        assert step.value - 1e-9 <= best <= step.bound + 1e-9


def piece_at(path: PenaltyPath, penalty: float) -> PenaltyPiece | None:
    return next((p for p in path.pieces if p.low <= penalty <= p.high), None)


@pytest.mark.parametrize(("seed", "n", "rows", "links"), POOLS)
def test_penalty_path_is_the_envelope(seed: int, n: int, rows: int, links: bool) -> None:
    p = program(seed, n, rows=rows, links=links)
    fits = [(k, v) for c, k, v in table(p) if c <= p.budget]
    path = penalty_path(p)
    pieces = path.pieces
    assert all(piece.certified for piece in pieces)
    assert pieces[0].low == 0
    assert pieces[-1].high == np.inf
    assert pieces[-1].passages == min(k for k, _ in fits)
    assert [a.high for a in pieces[:-1]] == pytest.approx([b.low for b in pieces[1:]])
    for penalty in np.linspace(0, pieces[-1].low * 1.5 + 0.1, 60):
        piece = piece_at(path, penalty)
        assert piece is not None
        best = max(v - penalty * k for k, v in fits)
        assert piece.value - penalty * piece.passages == pytest.approx(best, abs=1e-6)
    assert len({piece.passages for piece in pieces}) == len(pieces)


def test_an_infeasible_program_has_no_paths() -> None:
    p = program(2, 9, rows=1)
    tight = replace(p, budget=5)
    assert budget_path(tight).steps == ()
    assert budget_path(tight).complete
    assert penalty_path(tight).pieces == ()


@pytest.fixture(scope="module")
def pool(demo_index: CorpusIndex) -> Candidates:
    return Retriever(demo_index, pool=20).retrieve(
        "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
    )


def test_grid_points_are_optimal_and_marked(pool: Candidates) -> None:
    selector = Selector.raw(passage_penalty="auto")
    points = weight_grid(pool, selector, 200, (0.0, 0.2, 0.6), (0.0, 0.1))
    assert [(p.redundancy_weight, p.radius) for p in points] == [
        (w, r) for w in (0.0, 0.2, 0.6) for r in (0.0, 0.1)
    ]
    reference = selector.replace(radius=0.1).program(pool, 200)
    for p in points:
        alone = selector.replace(redundancy_weight=p.redundancy_weight, radius=p.radius).select(pool, 200)
        assert p.certified
        assert p.value == pytest.approx(alone.result.objective, abs=1e-6)
        assert p.tokens <= 200
        assert p.guaranteed == pytest.approx(reference.objective(np.isin(np.arange(20), p.selected)))
    assert any(p.dominated is False for p in points)
    for p in (p for p in points if p.dominated):
        assert any(
            o.tokens <= p.tokens
            and o.relevance >= p.relevance - 1e-9
            and o.redundancy <= p.redundancy + 1e-9
            and o.guaranteed >= p.guaranteed - 1e-9
            for o in points
            if o is not p
        )


def test_query_frontier_agrees_with_select(pool: Candidates) -> None:
    selector = Selector.raw(passage_penalty="auto", options=SolveOptions(time_limit_seconds=None))
    found = query_frontier(pool, selector, 200, up_to=400)
    for budget in (150, 200, 333, 400):
        step = found.budget.at(budget)
        assert step is not None
        assert step.value == pytest.approx(selector.select(pool, budget).result.objective, abs=1e-6)
    for penalty in (0.0, 0.07, selector.penalty(pool), 0.5):
        piece = piece_at(found.penalty, penalty)
        alone = selector.replace(passage_penalty=penalty).select(pool, 200).result.objective
        assert piece is not None
        assert piece.value - penalty * piece.passages == pytest.approx(alone, abs=1e-6)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["budget"]["certified"]
    assert [g["more_tokens"] for g in data["budget"]["buys"]] == [50, 100, 200]
    assert data["penalty"]["pieces"][-1]["high"] is None
    with pytest.raises(InputError, match="up_to=100 is below"):
        query_frontier(pool, selector, 200, up_to=100)


def test_budget_path_pays_for_shared_text_once() -> None:
    plain = program(5, 9)
    windows = np.array([[s in (i, i + 1) for s in range(10)] for i in range(9)])
    shared = replace(plain, costs=np.zeros(9), segments=Segments(np.arange(4.0, 14.0), windows))
    every = [(np.array(x), shared.cost(x)) for x in itertools.product((0, 1), repeat=9)]
    path = budget_path(shared)
    assert path.complete
    for step in path.steps:
        best = max(shared.objective(x) for x, cost in every if cost <= step.until)
        assert step.value == pytest.approx(best)
        assert step.tokens == shared.cost([int(i in step.selected) for i in range(9)])


def test_a_frontier_counts_what_is_read() -> None:
    text = " ".join(
        f"The {word} met the {word} at the river." for word in ("cat", "dog", "fox", "owl", "bee")
    )
    spans = [(a, a + 67) for a in (0, 34, 68)]  # two sentences each
    parts = [text[a:b] for a, b in spans]
    pool = Candidates(
        ["a", "b", "c"], parts, [0.9, 0.8, 0.7], RegexCounter().count(parts), np.eye(3), np.ones(3),
        titles=["River"] * 3, sources=["river.md"] * 3, spans=spans,
    )  # fmt: skip
    selector = Selector(relevance_model="given", link_benefit=0.0, passage_penalty=0.0)
    found = query_frontier(pool, selector, 100, weights=[0.0], radii=[0.0], counter=RegexCounter())
    whole = RegexCounter().count([f"River\n{text[:135]}"])[0]
    assert found.budget.steps[-1].tokens == found.grid[0].tokens == whole < int(pool.tokens.sum())
    apart = query_frontier(pool, selector, 100, weights=[0.0], radii=[0.0])
    assert apart.grid[0].tokens == pool.tokens.sum()
    with pytest.raises(InputError, match="a frontier is one of passages"):
        query_frontier(pool, selector.replace(units="sentences"), 100)
