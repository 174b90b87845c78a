"""Strategies search side by side; what they find is merged, known by who found it, and charged."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mio_rag.errors import InputError
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex, Retriever, TfidfEmbedder
from mio_rag.retrieval.retriever import reciprocal_rank_fusion
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Budget, Limits
from mio_rag.session.search import (
    STRATEGIES,
    Found,
    Names,
    Searched,
    SearchSettings,
    SearchTask,
    names_of,
    search,
    strategy_prompt,
)
from mio_rag.types import GenerationError, Passage, Question

QUESTION = Question("q", "Which river flows through Florence?")

PASSAGES = [
    Passage("florence", "Florence lies on the Arno and was the city of Dante Alighieri.", "Florence"),
    Passage("arno", "It rises on Mount Falterona and reaches the sea near Pisa.", "Arno"),
    Passage("dante", "The poet wrote the Divine Comedy in exile.", "Dante Alighieri"),
    Passage("rome", "The Tiber flows through the capital of Italy.", "Rome"),
    Passage("tiber", "It rises on Mount Fumaiolo, close to the source of another river.", "Tiber"),
    Passage("po", "The longest river of the peninsula, through Turin.", "Po"),
]


@pytest.fixture(scope="module")
def index() -> CorpusIndex:
    return CorpusIndex.build(PASSAGES, TfidfEmbedder(dimensions=5), "italy")


def model(grounded: str = "- Arno\n- Neptune") -> Callable[[Prompt], str]:
    kinds = {
        "You write passages": "The source is on Mount Falterona.",
        "You expand": "Arno Pisa sea",
        "You choose names": grounded,
        "You rewrite": "1. river of the peninsula\n2) the stream near Pisa",
    }
    return lambda prompt: next(reply for opening, reply in kinds.items() if prompt.system.startswith(opening))


def found(index: CorpusIndex, names: list[str], said: Callable[[Prompt], str] | None = None) -> Searched:
    retriever = Retriever(index, pool=4)
    return search(QUESTION, retriever, ScriptedGenerator(said or model()), names)


def test_each_strategy_searches_for_what_it_says(index: CorpusIndex) -> None:
    tried = {one.strategy: one.found for one in found(index, list(STRATEGIES)).tried}
    assert tried["raw"].queries == (QUESTION.text,)
    assert tried["hyde"].queries == ("The source is on Mount Falterona.",)
    assert tried["query2doc"].queries == (f"{QUESTION.text} Arno Pisa sea",)
    assert tried["grounded"].queries == (f"{QUESTION.text} Arno",)
    assert tried["multi-query"].queries == (QUESTION.text, "river of the peninsula", "the stream near Pisa")


def test_names_that_were_not_given_are_dropped_and_counted(index: CorpusIndex) -> None:
    one = found(index, ["grounded"], model("Arno\n* Neptune\nMount Olympus\nFlorence")).tried[0]
    assert (one.found.dropped, one.found.queries) == (2, (f"{QUESTION.text} Arno",))
    assert "2 names" in one.found.note
    nothing = found(index, ["raw", "grounded"], model("Neptune")).tried[1]
    assert (nothing.found.rows, nothing.found.dropped) == ((), 1)
    asked, generator = Question("q", "what is the longest one?"), ScriptedGenerator(model())
    tried = search(asked, Retriever(index, pool=4), generator, ["raw", "grounded"]).tried[1]
    assert "no name" in tried.found.note
    assert (tried.amount.lm_calls, len(generator.prompts)) == (0, 0)


def test_merging_is_weighted_reciprocal_rank_fusion(index: CorpusIndex) -> None:
    retriever = Retriever(index, pool=4, link_hops=0)
    weights = {"raw": 1.0, "query2doc": 3.0}
    merged = search(QUESTION, retriever, ScriptedGenerator(model()), ["raw", "query2doc"], weights=weights)
    expected: dict[int, float] = {}
    for one in merged.tried:
        for row, score in reciprocal_rank_fusion([one.found.rows]).items():
            expected[row] = expected.get(row, 0.0) + weights[one.strategy] * score
    best = sorted(expected, key=lambda row: (-expected[row], row))[:4]
    assert merged.pool.positions is not None
    assert merged.pool.positions.tolist() == best
    assert merged.pool.scores["fused"].tolist() == pytest.approx([expected[row] for row in best])


def test_every_passage_knows_who_found_it_and_where(index: CorpusIndex) -> None:
    merged = found(index, list(STRATEGIES))
    rows = {passage.id: row for row, passage in enumerate(PASSAGES)}
    for identity, ranks in merged.found.items():
        for one in merged.tried:
            own = one.found.rows[:4]
            if rows[identity] in own:
                assert ranks[one.strategy] == own.index(rows[identity]) + 1
            else:
                assert ranks.get(one.strategy, 0) == 0
    assert set(merged.found) == set(merged.pool.ids)


def test_a_strategy_that_fails_is_left_out_said_and_charged(index: CorpusIndex) -> None:
    def failing(prompt: Prompt) -> str:
        if prompt.system.startswith("You expand"):
            raise GenerationError("the server is gone")
        return model()(prompt)

    reader = ScriptedGenerator(failing)
    branch = Budget(reader, Limits()).branch()
    costs = branch.costs
    merged = search(QUESTION, Retriever(index, pool=4), reader, list(STRATEGIES), branch=branch)
    assert [one.strategy for one in merged.tried if one.failed] == ["query2doc"]
    assert any("query2doc" in note and "the server is gone" in note for note in merged.notes)
    assert all("query2doc" not in ranks for ranks in merged.found.values())
    amounts = {one.strategy: one.amount for one in merged.tried}
    assert amounts["query2doc"].seconds > 0
    assert amounts["hyde"].lm_calls == 1
    assert costs.total().retrieval_calls == 1 + 1 + 1 + 3
    assert costs.total().completion_tokens == sum(amount.completion_tokens for amount in amounts.values())


@dataclass(frozen=True)
class Slow:
    """Asks the model."""

    name: str = "slow"
    needs_model: bool = True
    needs_links: bool = False

    def find(self, task: SearchTask) -> Found:
        task.write("hyde", 7)
        return Found((0,), ("late",))


def test_a_late_strategy_is_left_out_and_charged_all_that_it_may_take(index: CorpusIndex) -> None:
    go = threading.Event()

    def waiting(prompt: Prompt) -> str:
        go.wait(20)
        return "too late"

    generator = ScriptedGenerator(waiting)
    how = SearchSettings(deadline_seconds=0.2)
    try:
        merged = search(QUESTION, Retriever(index, pool=4), generator, ["raw", Slow()], how)
    finally:
        go.set()
    late = merged.tried[1]
    assert late.failed
    assert "longer than 0.2 s" in late.found.note
    assert late.amount.completion_tokens == 7
    assert late.amount.prompt_tokens == generator.prompt_tokens(strategy_prompt("hyde", QUESTION, {}))
    assert {name for ranks in merged.found.values() for name in ranks} == {"raw"}


def test_strategies_run_side_by_side_and_no_more_than_allowed(index: CorpusIndex) -> None:
    at_once, lock = [0], threading.Lock()

    def counting(prompt: Prompt) -> str:
        with lock:
            at_once.append(at_once[-1] + 1)
        time.sleep(0.05)
        with lock:
            at_once.append(at_once[-1] - 1)
        return model()(prompt)

    for concurrency, most in ((1, {1}), (4, {2, 3, 4})):
        at_once[:] = [0]
        generator = ScriptedGenerator(counting)
        branch, how = Budget(generator, Limits()).branch(), SearchSettings(concurrency=concurrency)
        names = ["hyde", "query2doc", "multi-query"]
        search(QUESTION, Retriever(index, pool=4), generator, names, how, branch=branch)
        assert max(at_once) in most
    # The time in which strategies ran is theirs, and not that of the search once more.
    assert branch.costs.by_part()["search"].seconds < 0.2 * branch.costs.total().seconds


@pytest.mark.parametrize(
    ("names", "more", "wrong"),
    [
        (["raw", "hyde", "multi-query"], {}, r"hyde, multi-query.*need a language model"),
        (["bm26"], {}, "'bm26' is unknown"),
        (["raw", "raw"], {}, "'raw' is given twice"),
        ([], {}, "no strategy is given"),
        (["raw"], {"weights": {"raw": 0.0}}, "weight of 'raw'"),
        (["grounded"], {}, "grounded: this strategy needs an index with evidence links"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_asked(
    index: CorpusIndex, names: list[str], more: dict[str, Any], wrong: str
) -> None:
    unlinked = CorpusIndex(index.passages, index.embedder, index.name, index._dense, index._bm25, links=None)
    with pytest.raises(InputError, match=wrong):
        search(QUESTION, Retriever(unlinked, pool=4, link_hops=0), None, names, **more)


def test_names_and_neighbours_of_a_graph_of_ones_own(tmp_path: Path) -> None:
    """No evidence links are needed; the heaviest links come first, whichever way they were written."""
    graph = tmp_path / "graph.csv"
    graph.write_text("name,neighbour,weight\nFlorence,Medici,1\nUffizi,Florence,3\nRome,Tiber,\n")
    bare = replace(CorpusIndex.build(PASSAGES, TfidfEmbedder(dimensions=5), "bare"), links=None)
    grounds = names_of(bare, str(graph)).grounds(QUESTION.text)
    assert (grounds.entities, grounds.neighbours) == (("Florence",), ("Uffizi", "Medici"))
    how = SearchSettings(writing={"graph": str(graph)})
    generator = ScriptedGenerator(model("Medici\nArno"))
    one = search(QUESTION, Retriever(bare, pool=4), generator, ["grounded"], how).tried[0].found
    assert one.queries == (f"{QUESTION.text} Medici",)
    assert one.dropped == 1
    graph.write_text("name,neighbour\nheart failure,Digoxin\n")
    asked = Names.of_graph(str(graph)).grounds("What helps against heart failure?")
    assert (asked.entities, asked.neighbours) == (("heart failure",), ("Digoxin",))
    for text, said in (
        ("name,weight\nA,1", "lacks the column neighbour"),
        ("name,neighbour,weight\nA,B,-1\nA,,1", "line 2: give name"),
        ("name,neighbour\n", "is empty"),
    ):
        graph.write_text(text)
        with pytest.raises(InputError, match=said):
            Names.of_graph(str(graph))


def test_the_question_alone_is_searched_as_ever(demo_index: CorpusIndex) -> None:
    retriever = Retriever(demo_index, pool=20)
    question = Question("q", "Who rescued the survivors of a paddle steamer near the Longstone Lighthouse?")
    ours, theirs = search(question, retriever, None, ["raw"]), retriever.retrieve(question.text)
    assert list(ours.pool.ids) == list(theirs.ids)
    for name in ("dense", "bm25"):
        assert ours.pool.scores[name].tolist() == theirs.scores[name].tolist()
    selections = [Selector().select(pool, 200) for pool in (ours.pool, theirs)]
    assert selections[0].ids == selections[1].ids
    assert selections[0].result.objective == selections[1].result.objective
