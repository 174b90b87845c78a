"""Where the budget decides what is chosen: sentences where whole passages that are wanted do not fit."""

from dataclasses import replace

import numpy as np
import pytest

from mio_rag.candidates import Candidates
from mio_rag.context import RegexCounter
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector

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
    pools: list[Candidates], penalty: float | str
) -> None:
    """Held against both, and against what passages would be read if there were room for all of them."""
    seen = set()
    for pool in pools:
        for budget in (20, 60, 120, 200, 250, 300, 900):
            ways = {
                units: Selector(units=units, passage_penalty=penalty)  # type: ignore[arg-type]
                for units in ("passages", "sentences", "auto")
            }
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


def test_all_at_once_are_chosen_as_one_by_one(pools: list[Candidates]) -> None:
    selector = Selector(units="auto")
    for budget in (60, 250):
        together = selector.select_many(pools, budget, COUNTER)
        for pool, found in zip(pools, together, strict=True):
            alone = selector.select(pool, budget, COUNTER)
            assert (found.unit, found.ids, found.texts) == (alone.unit, alone.ids, alone.texts)  # type: ignore[union-attr]


def test_the_time_limit_is_that_of_the_question(pools: list[Candidates]) -> None:
    from mio_rag.solvers.result import SolveOptions

    hasty = Selector(units="auto", passage_penalty=0.0, options=SolveOptions(time_limit_seconds=1e-9))
    found = hasty.select(pools[0], 120, COUNTER)
    assert found.tokens_used <= 120
    assert (
        found.result.bound is None
        or found.result.objective is None
        or (found.result.bound >= found.result.objective - 1e-9)
    )


def test_a_selection_is_printed_on_a_line(pools: list[Candidates]) -> None:
    found = Selector(units="auto").select(pools[0], 100, COUNTER)
    told = repr(found)
    assert "\n" not in told
    assert told.startswith(
        f"<Selection: {len(found.chosen)} sentences, {found.tokens_used} of 100 tokens, optimal; "
    )
    assert len(told) < 300
