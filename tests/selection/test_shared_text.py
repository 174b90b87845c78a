"""Text that passages share: paid once by the program, worth once on request, versions read once, and said."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import numpy as np
import pytest

from mio_rag import Selector
from mio_rag.context import RegexCounter, block_tokens, passage_tokens
from mio_rag.formulations import NormBall
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.program import shared_costs
from mio_rag.types import Passage

_COUNTER = RegexCounter()
_WORDS = [f"w{k}" for k in range(90)]


def pool(n=6, size=20, step=10, title="Title", sources=None, relevance=None, **more):
    """Windows of a document, each with half of the one before."""
    starts = np.concatenate([[0], np.cumsum([len(word) + 1 for word in _WORDS])])
    places = [(int(starts[k * step]), int(starts[k * step + size]) - 1) for k in range(n)]
    document = " ".join(_WORDS)
    texts = [document[a:b] for a, b in places]
    sources = sources or ["d"] * n
    tokens = passage_tokens([Passage("x", text, title) for text in texts], _COUNTER)
    given = {"relevance": np.linspace(0.9, 0.4, n) if relevance is None else relevance, **more}
    return Candidates(
        ids=[f"p{k}" for k in range(n)],
        texts=texts,
        tokens=tokens,
        titles=[title] * n,
        sources=sources,
        spans=places,
        **given,
    )


def plain(**settings):
    return Selector.raw(**{"redundancy_weight": 0.0, "passage_penalty": 0.0, **settings})


class TestSegments:
    @pytest.mark.parametrize("title", ["Title", ""])
    @pytest.mark.parametrize("sources", [None, ["d", "d", "e", "e", "d", "f"]])
    def test_the_costs_of_any_choice_add_up_to_its_merged_text(self, title, sources):
        candidates = pool(title=title, sources=sources)
        shared = shared_costs(candidates, _COUNTER)
        for size in range(1, 7):
            for chosen in combinations(range(6), size):
                x = np.isin(np.arange(6), chosen)
                counted = block_tokens(candidates, chosen, _COUNTER, True)
                added = shared.own @ x + shared.segments.cost(x)
                # Between stretches of one run that do not touch stands a mark that no segment holds, and an
                # untitled document pays for one mark too many: it has no heading to take it from.
                assert added - 1 <= counted <= added + 3 * size

    def test_stretches_far_apart_pay_for_their_mark(self):
        candidates = pool(4)
        spans = np.array(candidates.spans)
        spans[2:] += 5000
        far = dataclasses.replace(candidates, spans=spans)
        shared = shared_costs(far, _COUNTER)
        for chosen in ([0, 1, 2, 3], [0, 2], [1, 3]):
            x = np.isin(np.arange(4), chosen)
            counted = block_tokens(far, chosen, _COUNTER, True)
            assert shared.own @ x + shared.segments.cost(x) == counted

    def test_without_places_or_company_nothing_is_shared(self):
        candidates = pool()
        assert shared_costs(dataclasses.replace(candidates, spans=None), _COUNTER) is None
        alone = dataclasses.replace(candidates, sources=[str(k) for k in range(6)])
        assert shared_costs(alone, _COUNTER) is None

    def test_the_program_finds_what_enumeration_finds(self):
        rng = np.random.default_rng(3)
        for _ in range(20):
            candidates = pool(relevance=rng.uniform(0.1, 1, 6))
            budget = int(rng.integers(20, 90))
            price = float(rng.choice([0.0, 0.01]))
            found = plain(token_price=price).select(candidates, budget, _COUNTER)
            best = max(
                (
                    sum(candidates.relevance[list(c)]) - price * block_tokens(candidates, c, _COUNTER, True)
                    for size in range(1, 7)
                    for c in combinations(range(6), size)
                    if block_tokens(candidates, c, _COUNTER, True) <= budget
                ),
                default=0.0,
            )
            assert found.result.is_optimal
            value = sum(candidates.relevance[list(found.chosen)]) - price * found.tokens_used
            # Marks between stretches are read and not in the program; a solve within less follows from them.
            assert value >= best - 0.35 - 1e-9
            assert found.tokens_used <= budget

    def test_a_price_of_tokens_counts_what_is_shared_once(self):
        candidates = pool(2, relevance=[0.5, 0.12])
        each = int(candidates.tokens[1])
        price = 0.12 / (each - 1)  # the second is not worth all of its text, and well worth half of it
        assert plain(token_price=price).select(candidates, 100, _COUNTER).ids == ("p0", "p1")
        assert plain(token_price=price, merge=False).select(candidates, 100, _COUNTER).ids == ("p0",)

    @pytest.mark.parametrize("solver", ["auto", "branch_and_bound", "exhaustive", "highs", "greedy", "topk"])
    def test_every_solver_keeps_the_budget(self, solver):
        for budget in (15, 40, 70):
            found = plain(solver=solver).select(pool(), budget, _COUNTER)
            assert found.tokens_used == block_tokens(found.candidates, found.chosen, _COUNTER, True) <= budget

    def test_side_rows_and_prices_stand_beside_segments(self):
        from mio_rag.selection.constraints import SideConstraints

        side = SideConstraints(conflicts=[("p0", "p1")], prices={"conflicts": 0.05})
        found = plain(side=side, max_passages=4).select(pool(), 200, _COUNTER)
        assert len(found.ids) == 4
        assert found.result.is_optimal


class TestValue:
    def test_shared_text_can_count_once_in_value(self):
        candidates = pool(2, relevance=[0.9, 0.4])
        program = plain(shared_text_weight=1.5).program(candidates, 100)
        common = int(candidates.spans[0, 1] - candidates.spans[1, 0])
        assert program.pairwise[0, 1] == pytest.approx(1.5 * 0.4 * common / len(candidates.texts[0]))
        assert plain().program(candidates, 100).pairwise[0, 1] == 0


class TestNearDuplicates:
    def versions(self, dates=None, **more):
        alike = np.zeros((3, 3), dtype=np.float32)
        alike[0, 1] = alike[1, 0] = 0.9
        return Candidates(
            ids=["old", "new", "other"],
            texts=["the rule is this", "the rule is that", "something else"],
            relevance=[0.9, 0.8, 0.7],
            tokens=[5, 5, 5],
            duplicates=alike,
            dates=dates,
            **more,
        )

    def test_at_most_one_is_read(self):
        assert plain().select(self.versions(), 100).ids == ("old", "other")
        assert plain(near_duplicates="all").select(self.versions(), 100).ids == ("old", "new", "other")

    def test_the_newest_where_they_are_dated_and_the_reasons_say_so(self):
        found = plain().select(self.versions(["2023-01-01", "2024-06-30", ""]), 100)
        assert found.ids == ("new", "other")
        said = found.decisions[0].reason
        assert said == "not read: an older version of 'new' (2024-06-30)"

    @pytest.mark.parametrize(
        ("older", "newer"),
        [
            ("2024-05-01T09:00", "2024-05-01 10:00"),  # a blank sorts before a T
            ("2024-05-01T10:00+05:00", "2024-05-01T08:00Z"),
            ("2024-05-01T08:00", "2024-05-01T08:00:00.5"),
            ("2024-05", "2024-05-01"),
        ],
    )
    @pytest.mark.parametrize("units", ["passages", "sentences"])
    def test_the_newest_in_time_however_it_is_written(self, older, newer, units):
        same = (
            "The bridge over the river closes at nine in the evening from spring to autumn and all carts wait"
        )
        passages = [
            Passage("old", f"{same} until the morning bell rings on the left bank.", date=older),
            Passage("new", f"{same} until the morning bell rings on the right bank.", date=newer),
        ]
        counter = RegexCounter()
        index = CorpusIndex.build(passages, "tfidf", "rules", sentences=True)
        pool = Retriever(index, counter=counter).retrieve("When does the bridge close?")
        found = Selector(passage_penalty=0.0, units=units).select(pool, 100, counter)
        assert found.ids == ("new",)

    def test_a_newer_version_that_must_not_be_read_replaces_nothing_and_is_not_named(self):
        given = dataclasses.replace(
            self.versions(),
            dates=["2024-01-31", "2024-06-30", "2025-01-01"],
            duplicates=np.full((3, 3), 0.9) - 0.9 * np.eye(3),
        )
        found = plain(must_exclude=("other",)).select(given, 100)
        said = next(d.reason for d in found.decisions if d.id == "old")
        assert found.ids == ("new",)
        assert said == "not read: an older version of 'new' (2024-06-30)"

    def test_what_must_be_read_is_read(self):
        dated = self.versions(["2023-01-01", "2024-06-30", ""])
        assert plain(must_include=("old",)).select(dated, 100).ids == ("old", "other")
        assert plain(must_exclude=("new",)).select(dated, 100).ids == ("old", "other")
        both = plain(must_include=("old", "new")).select(dated, 100)
        assert set(both.ids) == {"old", "new", "other"}


class TestAttacks:
    def embedded(self, **more):
        rng = np.random.default_rng(5)
        vectors = rng.normal(size=(6, 4)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        query = np.abs(vectors).mean(axis=0)
        return pool(
            relevance=(vectors @ query).astype(np.float64) + 1, embeddings=vectors, query_embedding=query
        )

    @pytest.mark.parametrize("settings", [{}, {"shared_text_weight": 0.4}, {"redundancy_weight": 0.1}])
    def test_an_attack_that_moves_nothing_finds_what_the_program_found(self, settings):
        """Shared tokens and shared text are charged once, there as here."""
        found = plain(token_price=0.004, **settings).select(self.embedded(), 150, _COUNTER)
        assert len(found.ids) > 2
        assert found.program.segments is not None
        still = found.attack(NormBall(0.0), restarts=0, random=0)
        for value in (still.nominal, still.certified, still.worst):
            assert value == pytest.approx(found.result.objective, abs=1e-5)


def test_texts_that_count_as_nothing_in_pieces_cost_something() -> None:
    class Fourths:
        """A token for each four characters begun and ended."""

        name = "fourths"

        def count(self, texts):
            return [len(text) // 4 for text in texts]

    given = Candidates(
        ["a", "b"], ["No.", "Yes"], [0.5, 0.4], [1, 1], sources=["s", "s"], spans=[(0, 3), (9, 12)]
    )
    found = Selector(relevance_model="given", passage_penalty=0.0).select(given, 1, Fourths())
    assert found.ids == ("a",)
    assert found.tokens_used <= 1


class TestAnotherBudget:
    def test_what_is_known_of_a_pool_serves_another_budget(self):
        selector = Selector(relevance_model="given", token_price=0.001)  # the price of a passage is adaptive
        candidates = dataclasses.replace(pool(), tokens=np.array([60, 21, 21, 21, 21, 21]))
        known = selector.choose(candidates, 30, _COUNTER).formulation
        for budget in (200, 100, 30):
            made = selector.choose(candidates, budget, _COUNTER, known=known)
            fresh = selector.choose(candidates, budget, _COUNTER)
            assert made.chosen == fresh.chosen
            assert made.result.objective == pytest.approx(fresh.result.objective, abs=1e-12)
            assert made.formulation.penalty(budget) == fresh.formulation.penalty(budget)
            known = made.formulation


class TestReasons:
    def test_a_note_says_what_reading_once_saves(self):
        found = plain().select(pool(3), 100, _COUNTER)
        saved = int(found.candidates.tokens.sum()) - found.tokens_used
        assert found.notes == (f"3 passages of the same documents joined into 1 text: {saved} tokens saved",)
        assert plain(max_passages=1).select(pool(3), 100, _COUNTER).notes == ()
