"""Totals where passages share text that is read once: against every allocation, and as a reader counts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mio_rag import Candidates, InputError, Selector
from mio_rag.allocation import allocate, at_prices, price_for
from mio_rag.context import RegexCounter, block_tokens
from mio_rag.selection.program import Formulation
from tests.allocation.test_allocate import optimum

COUNTER = RegexCounter()
SELECTOR = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0)
APART = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, merge=False)


def windows(seed: int, count: int = 5, size: int = 24) -> Candidates:
    """Windows of two documents, each sharing half of its words with the next."""
    rng = np.random.default_rng(seed)
    words = [f"w{k}" for k in range(size * (count + 1))]
    starts = np.concatenate([[0], np.cumsum([len(word) + 1 for word in words])])
    document = " ".join(words)
    step = size // 2
    spans = [(int(starts[k * step]), int(starts[k * step + size]) - 1) for k in range(count)]
    texts = [document[a:b] for a, b in spans]
    return Candidates(
        ids=[f"p{k}" for k in range(count)],
        texts=texts,
        relevance=rng.uniform(0.05, 1.0, count),
        tokens=np.array(COUNTER.count(texts)) + 2,
        titles=["Title"] * count,
        sources=["d" if k < count - 2 else "e" for k in range(count)],
        spans=spans,
    )


def every(candidates: Candidates) -> list[tuple[int, float]]:
    """Tokens and value of each selection of a pool, shared text once."""
    program = Formulation(SELECTOR, candidates, COUNTER).program(10**6)
    assert program.segments is not None
    vectors = [np.array(x) for x in product((0, 1), repeat=len(candidates))]
    return [(round(program.cost(x)), program.objective(x)) for x in vectors]


@pytest.mark.parametrize("total", [60, 110, 200, 333])
def test_no_allocation_is_beyond_the_certified_gap(total: int) -> None:
    given = [windows(seed) for seed in range(3)]
    weights = [1.0, 0.5, 2.0]
    found = allocate(given, total, selector=SELECTOR, weights=weights, counter=COUNTER)
    best = optimum([every(pool) for pool in given], total, weights)
    assert found.bound is not None
    assert found.value <= best + 1e-6 <= found.bound + 2e-6
    counted = [
        block_tokens(pool, choice.chosen, COUNTER, True)
        for pool, choice in zip(given, found.choices, strict=True)
    ]
    assert counted == list(found.tokens)
    assert sum(counted) <= total
    assert all(selection.is_merged for selection in found.selections)


def test_the_price_is_that_at_which_a_selector_spends_as_much() -> None:
    given = [windows(seed, 8) for seed in range(12)]
    found = price_for(given, 70, selector=SELECTOR, ceilings=400, counter=COUNTER)
    priced = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, token_price=found.token_price)
    spent = [priced.choose(pool, 400, COUNTER) for pool in given]
    assert np.mean([round(one.found.program.cost(one.result.x)) for one in spent]) == pytest.approx(
        found.at.mean_tokens
    )
    assert [one.chosen for one in spent] != [SELECTOR.choose(pool, 400, COUNTER).chosen for pool in given]
    dear, free = at_prices(given, [10.0, 0.0], selector=SELECTOR, counter=COUNTER)
    assert dear.mean_tokens == 0
    assert free.mean_tokens == pytest.approx(np.mean([max(t for t, _ in every(pool)) for pool in given]))


def test_a_floor_needs_passages_that_are_read_apart() -> None:
    given = [windows(seed) for seed in range(8)]
    with pytest.raises(InputError, match=r"question 0: floor=30 .* share text .*merge=False") as told:
        allocate(given, 400, selector=SELECTOR, floors=30, counter=COUNTER)
    assert len(told.value.problems) == 6
    assert told.value.problems[-1] == "and 3 problems more, of other questions"
    apart = allocate(given, 500, selector=APART, floors=30, counter=COUNTER)
    assert min(apart.tokens) >= 30
