"""Where the budget decides what is chosen: sentences where whole passages that are wanted do not fit."""

from typing import get_args

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Penalty, Selector, Units
from tests.selection.pools import replace

COUNTER = RegexCounter()
QUESTIONS = (
    "How tall is the tower of the Bell Rock Lighthouse?",
    "Which tower is taller, Bell Rock Lighthouse or Skerryvore?",
    "When was the Forth Bridge opened?",
    "Who won the 1998 World Cup?",
)


@pytest.fixture(scope="module")
def pools(demo_index: CorpusIndex) -> list[Candidates]:
    retriever = Retriever(demo_index, counter=COUNTER)
    return [retriever.retrieve(question) for question in QUESTIONS]


@pytest.mark.parametrize("penalty", ["adaptive", 0.0, 0.05, 0.3])
def test_sentences_are_chosen_where_a_wanted_passage_does_not_fit(
    pools: list[Candidates], penalty: Penalty
) -> None:
    """Held against both, and against what passages would be read if there were room for all of them."""
    seen = set()
    for pool in pools:
        for budget in (20, 60, 120, 200, 250, 300, 900):
            ways = {units: Selector(units=units, passage_penalty=penalty) for units in get_args(Units)}
            whole, parts, made = (ways[u].select(pool, budget, COUNTER) for u in ways)
            price = ways["passages"].penalty(whole.pool, budget)
            wanted = replace(ways["passages"], passage_penalty=price).select(pool, 10**6, COUNTER)
            likely = np.sort(whole.pool.relevance)[::-1][:5]
            tokens = whole.pool.tokens[np.argsort(-whole.pool.relevance, kind="stable")[:5]]
            assert len(likely) == 5
            tight = 3 * tokens.mean() > budget
            expected = parts if tight and set(wanted.ids) != set(whole.ids) else whole
            assert (made.unit, made.ids, made.result.objective) == (
                expected.unit,
                expected.ids,
                expected.result.objective,
            ), (pool.question, budget)
            assert made.tokens_used <= budget
            seen.add((bool(tight), made.unit))
    assert (True, "sentence") in seen
    assert (False, "passage") in seen
    if penalty == 0.3:
        assert (True, "passage") in seen  # all that is worth its price fits


class TestAuto:
    @pytest.fixture
    def given(self, demo_index: CorpusIndex) -> Candidates:
        return Retriever(demo_index, counter=COUNTER).retrieve("How tall is the tower of Skerryvore?")

    @pytest.fixture
    def room(self, given: Candidates) -> int:
        """What three passages take, by the mean of the five that are most likely to be needed."""
        likely = np.argsort(-Selector().valued(given).relevance, kind="stable")[:5]
        return int(np.ceil(3 * given.tokens[likely].mean()))

    def test_sentences_where_three_passages_do_not_fit(self, given: Candidates, room: int) -> None:
        auto = Selector(units="auto")
        assert auto.select(given, room, COUNTER).unit == "passage"
        found = auto.select(given, room - 1, COUNTER)
        assert found.unit == "sentence"
        whole, cut = (Selector(units=units) for units in ("passages", "sentences"))
        assert found.chosen == cut.select(given, room - 1, COUNTER).chosen
        assert auto.select(given, room, COUNTER).chosen == whole.select(given, room, COUNTER).chosen
        assert auto.program(auto.valued(given), room - 1, COUNTER).segments is not None
        assert len(auto.program(auto.valued(given), room, COUNTER).linear) == len(given)

    def test_from_budget_to_budget_nothing_stale_is_kept(self, given: Candidates, room: int) -> None:
        auto, known = Selector(units="auto"), None
        for budget in (room + 40, room - 40, room - 60, room + 60, room + 80):
            made = auto.choose(given, budget, COUNTER, known=known)
            fresh = Selector(units="auto").choose(given, budget, COUNTER)
            assert (made.chosen, made.used) == (fresh.chosen, fresh.used)
            known = made.formulation

    def test_passages_where_sentences_cannot_be_told_apart_or_are_excluded(self, given: Candidates) -> None:
        assert Selector(units="auto").select(given, 60, COUNTER).unit == "sentence"
        assert Selector(units="auto").select(given, 120).unit == "passage"  # nobody counts sentences
        assert not Selector(units="auto").select(given, 5000, COUNTER).notes
        assert Selector(units="auto").select(replace(given, question=""), 120, COUNTER).unit == "passage"
        for setting in (
            {"max_passages": 1},
            {"merge": False},
            {"radius": 0.01},
            {"max_per_source": 1},
            {"relevance_model": "given", "passage_penalty": 0.0},
        ):
            assert Selector(units="auto", **setting).select(given, 120, COUNTER).unit == "passage"

    def test_a_radius_of_the_candidates_is_not_passed_over(self, given: Candidates) -> None:
        unsure = replace(given, radius=0.05)
        found = Selector(units="auto").select(unsure, 120, COUNTER)
        assert (found.unit, found.worst_case is None) == ("passage", False)
        with pytest.raises(InputError, match="excludes a radius of the candidates"):
            Selector(units="sentences").select(unsure, 120, COUNTER)

    def test_places_in_a_large_corpus_are_places(self, given: Candidates) -> None:
        for moved in (given.positions + 2**40, given.positions - 10**6):
            far = replace(given, positions=moved)
            for units in ("sentences", "auto"):
                one, other = (Selector(units=units).select(p, 60, COUNTER) for p in (given, far))
                assert one.texts == other.texts
