from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mio_rag.context import render_context
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Selector
from mio_rag.solvers import Status
from tests.selection.pools import PLAIN, pool, simple


class Whole:
    """Counts a block higher than its parts: `each` tokens a passage, and `extra` for every join."""

    name = "whole"

    def __init__(self, each: int, extra: int) -> None:
        self.each, self.extra = each, extra

    def count(self, texts: Sequence[str]) -> list[int]:
        passages = [text.count("passage number") for text in texts]
        return [self.each * k + self.extra * max(0, k - 1) for k in passages]


@pytest.mark.parametrize("budget", [10, 25, 40, 100])
@pytest.mark.parametrize("extra", [0, 1, 7, 50])
def test_the_assembled_block_never_exceeds_the_budget(budget: int, extra: int) -> None:
    counter = Whole(10, extra)
    chosen = PLAIN.select(pool(tokens=[10] * 12), budget, counter)
    block = render_context(chosen.passages)
    assert chosen.tokens_used == counter.count([block])[0] <= budget
    # one passage always fits, and as many as the counter admits
    assert len(chosen.chosen) == max(k for k in range(1, 13) if 10 * k + extra * (k - 1) <= budget)


def test_what_is_asked_for_may_not_fit_as_a_block() -> None:
    both = Selector.raw(redundancy_weight=0, must_include=["p0", "p1"])
    chosen = both.select(pool(tokens=[10] * 12), 20, Whole(10, 5))
    assert chosen.result.status is Status.INFEASIBLE
    assert chosen.chosen == ()
    assert chosen.tokens_used == 0
    assert "within" in chosen.result.message
    assert "of 20" in chosen.result.message


def test_counts_sources_and_wishes() -> None:
    base = pool()
    assert len(Selector.raw(max_passages=2).select(base, 400).chosen) == 2
    assert len(Selector.raw(min_passages=9, passage_penalty=5).select(base, 400).chosen) == 9
    capped = Selector.raw(redundancy_weight=0, passage_penalty=0, max_per_source={"doc1": 1, "elsewhere": 0})
    sources = [base.sources[i] for i in capped.select(base, 400).chosen]
    assert sources.count("doc1") == 1
    assert sources.count("doc0") > 1
    worst, best = f"p{int(np.argmin(base.relevance))}", f"p{int(np.argmax(base.relevance))}"
    wished = Selector.raw(must_include=[worst], must_exclude=[best]).select(base, 90)
    assert worst in wished.ids
    assert best not in wished.ids


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (Selector.raw(must_include=["p0", "p1"]), "'p0' in; 'p1' in"),
        (Selector.raw(min_passages=2, max_per_source=0), "at least 2 passages; at most 0 from source 's'"),
    ],
)
def test_infeasible_wishes_are_a_result(selector: Selector, message: str) -> None:
    chosen = selector.select(simple([0.5, 0.4], [8, 9], embeddings=np.eye(2), sources=["s", "s"]), 10)
    assert chosen.result.status is Status.INFEASIBLE
    assert chosen.chosen == ()
    assert chosen.tokens_used == 0
    assert message in chosen.explain()
    assert all(not d.selected for d in chosen.decisions)


@pytest.mark.parametrize(
    ("settings", "relevance", "tokens", "note"),
    [
        ({}, [0.5, 0.4], [412, 500], "the shortest passage has 412 tokens, the budget is 300"),
        (
            {"passage_penalty": 0.02},
            [1 / 61, 1 / 62],
            [50, 50],
            "worth its price (the highest relevance is 0.0164; charged are passage_penalty 0.02)",
        ),
        (
            {"token_price": 0.1},
            [0.5, 0.4],
            [50, 50],
            "charged are 5 for its 50 tokens (token_price 0.1)): lower these prices, or give relevance on",
        ),
        ({}, [-1.0, -2.0], [50, 50], "(the highest relevance is -1): relevance must be above 0"),
        (
            {"max_passages": 0},
            [0.5, 0.9],
            [50, 50],
            "'p1' is worth more than its price (by 0.9), and a constraint keeps it out (at most 0 passages)",
        ),
        (
            {"max_passages": 0, "passage_penalty": 2.0},
            [0.5, 0.9],
            [50, 50],
            "no passage is worth its price (the highest relevance is 0.9; charged are passage_penalty 2)",
        ),
    ],
)
def test_an_empty_selection_says_why_and_what_would_change_it(settings, relevance, tokens, note: str) -> None:
    chosen = Selector.raw(**({"redundancy_weight": 0, "passage_penalty": 0} | settings)).select(
        simple(relevance, tokens), 300
    )
    assert chosen.ids == ()
    assert chosen.result.is_optimal
    assert len(chosen.notes) == 1
    assert chosen.notes[0].startswith("nothing is chosen: ")
    assert note in chosen.notes[0]
    assert chosen.notes[0] in chosen.explain()


def test_a_question_beside_the_collection_is_noted(demo_index: CorpusIndex) -> None:
    retriever, asked = Retriever(demo_index), "What is the capital of Peru?"
    chosen = Selector().select(retriever.retrieve(asked), 256)
    assert "the collection may not hold the answer" in chosen.notes[-1]
    assert len(Selector.preset("frugal").select(retriever.retrieve(asked), 256).ids) <= len(chosen.ids)
    inside = retriever.retrieve("Which tower is taller, Bell Rock Lighthouse or Skerryvore?")
    assert Selector().select(inside, 256).notes == ()


def test_what_the_pool_lacks_is_named() -> None:
    bare = simple([0.5], [4])
    for selector, message in (
        (Selector.raw(), "redundancy_weight=0.1 needs embeddings"),
        (Selector.raw(redundancy_weight=0, max_per_source=1), "max_per_source needs candidates with sources"),
        (Selector.raw(redundancy_weight=0, radius=0.1), "radius > 0 needs embeddings and query_embedding"),
        (Selector.raw(redundancy_weight=0, side=SideConstraints(cover="labels")), "candidates with clusters"),
        (Selector.raw(redundancy_weight=0, side=SideConstraints(cover="kmeans:2")), "with embeddings"),
        (Selector.raw(redundancy_weight=0, must_include=["x"]), "'x', which is not among the 1 candidates"),
        (Selector.raw(redundancy_weight=0, solver="best"), "solver 'best' is unknown"),
    ):
        with pytest.raises(InputError, match=message):
            selector.select(bare, 9)
    with pytest.raises(InputError, match="no candidates"):
        Selector.raw().choose(Candidates([], [], [], []), 9)


def test_the_radius_of_the_candidates_takes_precedence() -> None:
    base = pool()
    own = pool(radius=0.2)
    robust = Selector.raw(radius=0.2).program(base, 90)
    assert np.array_equal(Selector.raw(radius=0.7).program(own, 90).linear, robust.linear)
    assert np.all(robust.linear < Selector.raw().program(base, 90).linear)
    assert np.array_equal(
        Selector.raw(radius=0.7).program(pool(radius=0), 90).linear, Selector.raw().program(base, 90).linear
    )


POOLS = st.builds(pool, st.integers(2, 9), st.integers(0, 10**6))


@given(POOLS, st.integers(40, 120), st.integers(0, 60), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=30, deadline=None)
def test_value_grows_with_the_budget(candidates: Candidates, budget: int, more: int, weight: float) -> None:
    selector = Selector.raw(redundancy_weight=weight)
    small, large = selector.select(candidates, budget), selector.select(candidates, budget + more)
    assert small.result.objective <= large.result.objective + 1e-9
    for chosen, limit in ((small, budget), (large, budget + more)):
        assert chosen.tokens_used <= limit
        assert chosen.result.bound >= chosen.result.objective


@given(
    POOLS,
    st.randoms(use_true_random=False),
    st.sampled_from(["exhaustive", "highs", "highs-glover", "cpsat"]),
)
@settings(max_examples=30, deadline=None)
def test_the_order_of_the_candidates_does_not_matter(candidates: Candidates, random, solver: str) -> None:
    order = list(range(len(candidates)))
    random.shuffle(order)
    shuffled = Candidates(
        ids=[candidates.ids[i] for i in order],
        texts=[candidates.texts[i] for i in order],
        relevance=candidates.relevance[order],
        tokens=candidates.tokens[order],
        embeddings=candidates.embeddings[order],
        query_embedding=candidates.query_embedding,
    )
    selector = Selector.raw(redundancy_weight=0.5, radius=0.05, solver=solver)
    first, second = selector.select(candidates, 60), selector.select(shuffled, 60)
    assert first.result.objective == pytest.approx(second.result.objective, abs=1e-6)


@given(POOLS, st.floats(0, 0.5), st.sampled_from(["l2", "l1", "linf"]))
@settings(max_examples=40, deadline=None)
def test_robust_is_never_above_nominal(candidates: Candidates, radius: float, norm: str) -> None:
    nominal = Selector.raw(redundancy_weight=0.4).select(candidates, 60).result.objective
    robust = (
        Selector.raw(redundancy_weight=0.4, radius=radius, norm=norm).select(candidates, 60).result.objective
    )
    assert robust <= nominal + 1e-9


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=12, unique=True), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_equal_costs_without_redundancy_are_top_k(scores: list[int], k: int) -> None:
    chosen = PLAIN.select(simple([s / 10**6 for s in scores], [7] * len(scores)), 7 * k)
    assert [scores[i] for i in chosen.chosen] == sorted(scores, reverse=True)[:k]


def test_the_door_checks_the_whole_block_by_the_counter_that_priced_it() -> None:
    class WholeIsMore:
        name = "whole-is-more"

        def count(self, texts: Sequence[str]) -> list[int]:
            """Five tokens a passage, and three more for every seam inside a text."""
            return [5 + 8 * text.strip().count("\n\n") for text in texts]

    chosen = Selector(redundancy_weight=0).select(simple([4, 3, 2, 1], [5] * 4), 20, WholeIsMore())
    assert chosen.ids == ("p0", "p1")
    assert chosen.tokens_used == 13


def test_an_automatic_penalty_is_the_median_of_the_pool_and_never_negative() -> None:
    scores = [0.9, 0.8, 0.5, 0.3, 0.2]
    automatic = Selector(relevance_model="given", passage_penalty="auto", redundancy_weight=0)
    chosen = automatic.select(simple(scores, [1] * 5), 5)
    assert chosen.ids == ("p0", "p1")  # the median itself is worth nothing
    assert chosen.result.objective == pytest.approx(0.9 - 0.5 + 0.8 - 0.5)
    below = Selector.raw(passage_penalty="auto", redundancy_weight=0)
    pool = Candidates(
        ids=["a", "b", "c"], texts=["x", "y", "z"], relevance=[-0.2, -0.1, 0.4], tokens=[1, 1, 1]
    )
    assert below.penalty(pool) == 0.0
    with pytest.raises(InputError, match="passage_penalty must be a number, auto or adaptive"):
        Selector.raw(passage_penalty="automatic")
