"""Shared totals: against every allocation of tiny workloads, never above the total, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from mio_rag import Candidates, InputError, Selector
from mio_rag.allocation import allocate, at_prices, price_for
from mio_rag.context import render_context
from mio_rag.solvers import SolveOptions

SELECTOR = Selector.raw(redundancy_weight=0.3, passage_penalty=0.02)


def pool(rng: np.random.Generator, n: int = 4, d: int = 5) -> Candidates:
    vectors = rng.normal(size=(n, d)) + 0.6
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Candidates(
        ids=[f"p{k}" for k in range(n)],
        texts=[f"text {k} " * (k + 1) for k in range(n)],
        relevance=vectors @ (np.ones(d) / d**0.5),
        tokens=rng.integers(10, 60, n),
        embeddings=vectors.astype(np.float32),
        query_embedding=np.full(d, d**-0.5, dtype=np.float32),
    )


def pools(count: int, seed: int = 0, n: int = 4) -> list[Candidates]:
    rng = np.random.default_rng(seed)
    return [pool(rng, n) for _ in range(count)]


def every(
    candidates: Candidates, selector: Selector = SELECTOR, floor: int = 0, ceiling: int = 10**6
) -> list[tuple[int, float]]:
    """Tokens and value of each feasible selection of a pool, in plain words of the program."""
    program = selector.program(candidates, 10**6)
    found = []
    for x in product((0, 1), repeat=len(candidates)):
        tokens = int(np.dot(x, candidates.tokens))
        if floor <= tokens <= ceiling and not program.violations(np.array(x)):
            found.append((tokens, program.objective(np.array(x))))
    return found


def optimum(options: Sequence[list[tuple[int, float]]], total: int, weights: Sequence[float]) -> float:
    """The best of all allocations, by dynamic programming over every number of tokens."""
    best = np.full(total + 1, -np.inf)
    best[0] = 0.0
    for choices, weight in zip(options, weights, strict=True):
        after = np.full(total + 1, -np.inf)
        for tokens, value in choices:
            if tokens <= total:
                after[tokens:] = np.maximum(after[tokens:], best[: total + 1 - tokens] + weight * value)
        best = after
    return float(best.max())


@pytest.mark.parametrize("seed", range(12))
def test_no_allocation_of_a_tiny_workload_is_beyond_the_certified_gap(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    given = pools(3, seed)
    total = int(rng.integers(20, 400))
    weights = rng.uniform(0.2, 3.0, 3).tolist()
    found = allocate(given, total, selector=SELECTOR, weights=weights)
    best = optimum([every(p) for p in given], total, weights)
    assert found.bound is not None
    assert found.tokens_used <= total
    assert found.value <= best + 1e-6 <= found.bound + 2e-6
    # Recomputed from nothing but the decisions.
    value = 0.0
    for candidates, selection, tokens, weight in zip(
        given, found.selections, found.tokens, weights, strict=True
    ):
        x = np.zeros(len(candidates))
        x[list(selection.chosen)] = 1
        value += weight * SELECTOR.program(candidates, 10**6).objective(x)
        assert tokens == int(x @ candidates.tokens)
    assert found.value == pytest.approx(value, abs=1e-9)


LIMITED = Selector.raw(redundancy_weight=0.5, options=SolveOptions(relative_gap=0.2))


@pytest.mark.parametrize(
    ("selector", "shares"),
    [
        (Selector.raw(redundancy_weight=0.3, max_passages=2), {}),
        (Selector.raw(redundancy_weight=0.3, min_passages=1), {}),
        (Selector.raw(redundancy_weight=0.3, must_include=["p1"]), {}),
        (LIMITED, {}),
        (Selector.raw(redundancy_weight=0.3, solver="greedy"), {}),
        (Selector.raw(redundancy_weight=0.3, solver="local_search"), {}),
        (SELECTOR, {"floors": [30, 0, 20], "ceilings": [120, 60, 90]}),
    ],
)
def test_constraints_limits_floors_and_ceilings_hold_and_so_does_the_bound(
    selector: Selector, shares: dict[str, Any]
) -> None:
    floors, ceilings = shares.get("floors", [0] * 3), shares.get("ceilings", [10**6] * 3)
    for seed in range(6):
        given = pools(3, 80 + seed)
        found = allocate(given, 190, selector=selector, **shares)
        options = [every(p, selector, f, c) for p, f, c in zip(given, floors, ceilings, strict=True)]
        best = optimum(options, 190, [1.0] * 3)
        assert found.tokens_used <= 190
        assert found.value <= best + 1e-6
        assert found.bound is None or best <= found.bound + 1e-6
        assert (found.bound is None) <= (selector.solver in ("greedy", "local_search"))
        for tokens, low, high in zip(found.tokens, floors, ceilings, strict=True):
            assert low <= tokens <= high
        for candidates, selection in zip(given, found.selections, strict=True):
            x = np.isin(np.arange(len(candidates)), selection.chosen).astype(int)
            assert selector.program(candidates, 10**6).violations(x) == []


def test_the_gap_vanishes_as_questions_grow_in_number() -> None:
    gaps = []
    for count in (4, 40, 200):
        found = allocate(pools(count, 7, n=9), 60 * count, selector=SELECTOR)
        assert found.gap is not None
        assert found.tokens_used <= 60 * count
        gaps.append(found.gap)
    assert gaps[2] < 0.001
    assert gaps[2] < gaps[0] + 1e-9


def test_spending_falls_as_the_price_rises_and_the_bound_holds() -> None:
    given = pools(30, 2, n=8)
    points = at_prices(given, [0.0, 1e-4, 1e-3, 3e-3, 1e-2, 0.1, 1.0], selector=SELECTOR)
    spent = [point.mean_tokens for point in points]
    assert spent == sorted(spent, reverse=True)
    assert spent[0] > spent[3] > spent[-1] == 0
    for point in points:
        assert point.mean_value <= point.mean_bound + 1e-9
        # The decision at a price is the best of its tokens, so that the bound is tight there.
        assert point.mean_bound == pytest.approx(point.mean_value, abs=1e-5)
    # The order in which prices are asked for changes nothing.
    assert at_prices(given, [1e-2, 1e-3], selector=SELECTOR) == [points[4], points[2]]


def test_the_price_of_mean_tokens_spends_no_more_and_a_selector_at_it_the_same() -> None:
    given = pools(40, 9, n=10)
    found = price_for(given, 75, selector=SELECTOR, ceilings=300)
    assert found.at.mean_tokens <= 75
    assert found.below is not None
    assert found.below.mean_tokens > 75
    assert found.below.token_price == pytest.approx(found.token_price, rel=5e-3)
    assert float(f"{found.token_price:.4g}") == found.token_price
    priced = Selector.raw(redundancy_weight=0.3, passage_penalty=0.02, token_price=found.token_price)
    spent = [priced.select(p, 300).tokens_used for p in given]
    assert np.mean(spent) == pytest.approx(found.at.mean_tokens)


class Wordy:
    """Counts a block higher than the sum of its passages."""

    name = "wordy"

    def count(self, texts: Sequence[str]) -> list[int]:
        return [len(text) * (2 if "\n\n" in text.strip() else 1) // 3 for text in texts]


@pytest.mark.parametrize("total", [60, 150, 400])
def test_never_above_the_total_as_a_reader_counts_the_blocks(total: int) -> None:
    counter = Wordy()
    given = pools(12, 6, n=6)
    found = allocate(given, total, selector=SELECTOR, counter=counter)
    counted = 0
    for selection in found.selections:
        counted += counter.count([render_context(selection.passages)])[0] if selection.texts else 0
    assert counted == found.tokens_used <= total
    assert found.bound is not None
    assert found.value <= found.bound


def test_a_total_below_every_passage_is_refused() -> None:
    given = pools(3, 1)
    shortest = min(int(pool.tokens.min()) for pool in given)
    with pytest.raises(
        InputError, match=f"total_tokens={shortest - 1} is below the shortest passage .* {shortest} "
    ):
        allocate(given, shortest - 1, selector=SELECTOR)
    assert allocate(given, shortest, selector=SELECTOR).tokens_used in (0, shortest)


def test_a_question_that_cannot_reach_its_floor_says_so_and_spends_nothing() -> None:
    found = allocate(pools(3, 1), 2000, selector=SELECTOR, floors=[0, 5000, 0])
    assert found.tokens[1] == 0
    assert found.selections[1].result.status.value == "infeasible"
    assert any("1 question without a selection (1): infeasible" in note for note in found.notes)


def test_workers_change_nothing() -> None:
    given = pools(20, 12, n=9)
    one = allocate(given, 1200, selector=SELECTOR)
    two = allocate(given, 1200, selector=SELECTOR, workers=2)
    assert one.to_dict() == two.to_dict()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"total_tokens": 0}, "total_tokens=0 must be >= 1"),
        ({"total_tokens": 2.5}, "total_tokens=2.5 must be a whole number"),
        ({"weights": [1.0]}, "weights has 1 values, expected 2"),
        ({"weights": [1.0, -1.0]}, r"weights\[1\] must be >= 1e-09, got -1.0"),
        ({"floors": [1, 2, 3]}, "floors has 3 values, expected one, or 2"),
        ({"ceilings": [1.5, 3]}, r"ceilings\[0\] must be a whole number, got 1.5"),
        ({"floors": 50, "ceilings": 40}, r"floors\[0\]=50 is above ceilings\[0\]=40"),
        ({"floors": 40}, "total_tokens=60 is too little: what must be chosen"),
        ({"selector": Selector(token_price=0.1)}, "token_price=0.1 is what is looked for here"),
        ({"selector": Selector(counterpart="joint", radius=0.1)}, "counterpart='joint' has no bound"),
        ({"selector": Selector(solver="topk")}, "solver 'topk' ranks without looking at a price"),
        ({"workers": 0}, "workers must be >= 1, got 0"),
        ({"pools": []}, "there are no pools"),
        (
            {"pools": [pools(1)[0], Candidates([], [], np.zeros(0), np.zeros(0, int))]},
            "question 1: there are",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"pools": pools(2), "total_tokens": 60, "selector": SELECTOR, **changes}
    with pytest.raises(InputError, match=words):
        allocate(**given)
