"""What strategies add, by the selection program and by enumeration; and the controller around it."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.deciders.search import Search
from mio_rag.errors import DataError, InputError
from mio_rag.generation import ScriptedGenerator
from mio_rag.learning.contribution import Values, contributions, sets_to_compare
from mio_rag.policies.make import check_controllers, make_controller, make_pipeline
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.search import search
from mio_rag.session.strategies import Found, SearchTask
from mio_rag.session.trace import Trace, append_traces, read_traces, wrong_totals
from mio_rag.types import GenerationError, Question
from tests.session.scripted import said

SELECTOR = Selector.raw(passage_penalty=0.05, redundancy_weight=0.3)
FOUND = {
    "a": {"raw"},
    "b": {"raw", "hyde"},
    "c": {"hyde"},
    "d": {"grounded"},
    "e": {"hyde", "grounded"},
    "f": set(),
}


def pool() -> Candidates:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((6, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Candidates(
        ids=list(FOUND),
        texts=[f"text {name}" for name in FOUND],
        relevance=np.array([0.4, 0.5, 0.6, 0.3, 0.45, 0.2]),
        tokens=np.array([3, 4, 5, 2, 4, 1]),
        embeddings=vectors,
    )


def best(strategies: tuple[str, ...], budget: int = 10) -> float:
    """V(S) by enumeration."""
    candidates = pool()
    assert candidates.embeddings is not None
    similar = candidates.embeddings.astype(float) @ candidates.embeddings.astype(float).T
    may = [i for i, name in enumerate(FOUND) if not FOUND[name] or FOUND[name] & set(strategies)]
    values = [0.0]
    for size in range(1, len(may) + 1):
        for chosen in combinations(may, size):
            if candidates.tokens[list(chosen)].sum() <= budget:
                pairs = sum(similar[i, j] for i, j in combinations(chosen, 2))
                values.append(candidates.relevance[list(chosen)].sum() - 0.05 * size - 0.3 * pairs)
    return max(values)


def alone(*ran: str) -> dict[frozenset[str], set[str]]:
    """Pools without a limit: whatever somebody of the set found, and what nobody has to find."""
    return {
        names: {name for name, finders in FOUND.items() if not finders or finders & names}
        for names in sets_to_compare(ran, ("raw",))
    }


def test_contributions_are_differences_of_best_values() -> None:
    values = Values(SELECTOR, pool(), alone("raw", "hyde", "grounded"), 10)
    found = contributions(values, ("raw", "hyde", "grounded"), ("raw",))
    assert found is not None
    assert found.proven
    start = best(("raw",))
    assert found.base == pytest.approx(start)
    assert found.total == pytest.approx(best(("raw", "hyde", "grounded")))
    for name in ("hyde", "grounded"):
        assert found.own[name] == pytest.approx(best(("raw", name)) - start)
        assert found.own[name] >= 0
    assert found.last["hyde"] == pytest.approx(found.total - best(("raw", "grounded")))
    together = best(("raw", "hyde", "grounded")) - start
    assert found.overlap["hyde", "grounded"] == pytest.approx(sum(found.own.values()) - together)


def test_constraints_that_need_a_strategy_leave_nothing_to_learn() -> None:
    strict = Selector.raw(passage_penalty=0.0, min_passages=5)
    values = Values(strict, pool(), alone("raw", "hyde"), 100)
    assert contributions(values, ("raw", "hyde"), ("raw",)) is None


def test_who_pushes_passages_out_of_the_pool_is_not_paid_for_finding_them_again(
    river_index: CorpusIndex,
) -> None:
    # Each set is held against what it would have found by itself, in a pool with room for two.
    retriever = Retriever(river_index, pool=2, link_hops=0)
    selector = Selector.raw(passage_penalty=0.0, redundancy_weight=0.0)
    first, second, third = retriever.ranked(QUESTION.text)[:3]
    ran = [Known("raw", [first, second]), Known("hyde", [third, first])]
    names = ("raw", "hyde")
    searched = search(QUESTION, retriever, None, ran, alone=sets_to_compare(names, ("raw",)))
    assert searched.every is not None
    own_pools = {s: searched.alone[frozenset(s)] for s in (("raw",), names)}
    for members, held in own_pools.items():
        by_itself = search(QUESTION, retriever, None, [one for one in ran if one.name in members])
        assert held == set(by_itself.pool.ids)
    assert own_pools["raw",] - own_pools[names]  # something was pushed out
    values = Values(selector, useful(searched.every), searched.alone, 1000)
    added = contributions(values, names, ("raw",))
    assert added is not None

    def worth(members: tuple[str, ...]) -> float:
        chosen = [one for one in ran if one.name in members]
        found = search(QUESTION, retriever, None, chosen)
        objective = selector.select(useful(found.pool), 1000).result.objective
        assert objective is not None
        return objective

    assert added.own["hyde"] == pytest.approx(worth(names) - worth(("raw",)))
    assert added.own["hyde"] < 0
    # Against what is left of the base's passages in the shared pool it would have looked useful.
    shared = {s: held & own_pools[names] for s, held in own_pools.items()}
    kept = {frozenset(s): held for s, held in shared.items()}
    paid = contributions(Values(selector, useful(searched.pool), kept, 1000), names, ("raw",))
    assert paid is not None
    assert paid.own["hyde"] > 0


def useful(found: Candidates) -> Candidates:
    """The same, each passage worth something."""
    return replace(found, relevance=found.relevance + 0.1)


class Known:
    """A strategy that finds given rows."""

    needs_model = needs_links = False

    def __init__(self, name: str, rows: list[int]) -> None:
        self.name, self.rows = name, tuple(rows)

    def find(self, task: SearchTask) -> Found:
        return Found(self.rows)


QUESTION = Question("b", "How long is the Tiber?", ("406 kilometres",), ("r3",))


def chooser_of(session: Any) -> Any:
    return next(one.chooser for one in session.deciders if isinstance(one, Search))


def spoken(prompt):  # type: ignore[no-untyped-def]
    if prompt.system.startswith("You write passages"):
        return "The Tiber is a river of 406 kilometres."
    if prompt.system.startswith("You expand"):
        raise GenerationError("no words")
    if prompt.system.startswith(("You choose", "You rewrite")):
        return "length of the Tiber"
    return said(prompt)


def test_a_controller_answers_and_its_trace_tells_who_found_what(
    river_index: CorpusIndex, tmp_path: Path
) -> None:
    setup = Setup(retriever=Retriever(river_index, pool=4), selector=Selector.raw(passage_penalty=0.0))
    agent = make_controller("strategies:raw+hyde+query2doc+multi-query", setup)
    outcome = agent.attempt(QUESTION, ScriptedGenerator(spoken), 60).check()
    trace = outcome.trace
    assert isinstance(trace, Trace)
    assert trace.answer == "the Tiber"
    assert [step.do for step in trace.steps] == ["retrieve", "select", "answer"]
    assert outcome.selection is not None
    assert set(trace.search["found_by"]) == set(outcome.selection.ids)
    assert all(trace.search["found_by"].values())
    assert any("no words" in note for note in trace.search["notes"])
    assert wrong_totals(trace) == []
    total = outcome.costs.total()
    assert total.lm_calls == 3  # hyde, multi-query, the answer
    assert total.retrieval_calls == 1 + 1 + 2
    append_traces(tmp_path / "t.jsonl", [trace])
    (again,) = read_traces(tmp_path / "t.jsonl")
    assert again == trace
    assert read_traces(tmp_path / "t.jsonl")[0].answer == trace.answer
    assert trace.columns()["strategies"] == "raw+hyde+query2doc+multi-query"


def test_a_bandit_answers_learns_and_can_be_rated(river_index: CorpusIndex, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    settings = ControlSettings(kinds={"strategies": {"state": str(path), "bandit": {"cold_start": 1}}})
    setup = Setup(settings, Retriever(river_index, pool=4), Selector.raw(passage_penalty=0.0))
    agent = make_controller("strategies:bandit", setup)
    traces = [agent.attempt(QUESTION, ScriptedGenerator(spoken), 60).check().trace for _ in range(3)]
    assert all(isinstance(trace, Trace) for trace in traces)
    chooser = chooser_of(agent)
    assert chooser.learned.questions == 3
    assert traces[0].search["mode"] == "cold"
    assert chooser.feedback(traces[0].search["id"], 1)
    again = chooser_of(make_controller("strategies:bandit", setup))
    assert again.learned.dump() == chooser.learned.dump()


def test_nothing_is_learned_where_what_always_runs_has_failed(
    river_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held against nothing, the others would be credited with all that is read."""
    settings = ControlSettings(
        kinds={"strategies": {"state": str(tmp_path / "s.sqlite"), "bandit": {"cold_share": 1.0}}}
    )
    setup = Setup(settings, Retriever(river_index, pool=4), Selector.raw(passage_penalty=0.0))
    agent = make_controller("strategies:bandit", setup)

    def fails(self: object, task: SearchTask) -> Found:
        raise DataError("the disk is gone")

    monkeypatch.setattr("mio_rag.session.strategies._Raw.find", fails)
    trace = agent.attempt(QUESTION, ScriptedGenerator(spoken), 60).check().trace
    assert "raw: left out, the disk is gone" in trace.search["notes"]
    assert chooser_of(agent).learned.questions == 0


def test_what_makes_no_sense_is_refused(river_index: CorpusIndex) -> None:
    with pytest.raises(InputError, match="'bm25' is unknown"):
        check_controllers(["strategies:raw+bm25"], ControlSettings(), False)
    with pytest.raises(InputError, match="give --strategy-state"):
        check_controllers(["strategies:bandit"], ControlSettings(), False)
    with pytest.raises(InputError, match="closed-book"):
        check_controllers(["strategies:all"], ControlSettings(), True)
    with pytest.raises(InputError, match="need a language model"):
        make_pipeline("strategies:all", ControlSettings(), Retriever(river_index, pool=4), None, Selector())


def test_what_room_decides_is_decided_here_too(demo_index: CorpusIndex) -> None:
    found = Retriever(demo_index).retrieve("How tall is the tower of Skerryvore?")
    counter = RegexCounter()
    for budget in (60, 600):
        open_, decided = Selector(units="auto"), Selector(units="sentences" if budget == 60 else "passages")
        every = {frozenset(["raw"]): frozenset(found.ids)}
        value = Values(open_, found, every, budget, counter).of(["raw"])
        assert value == pytest.approx(Values(decided, found, every, budget, counter).of(["raw"]))


def test_a_bandit_learns_no_label(river_index: CorpusIndex, tmp_path: Path) -> None:
    """As the page on strategies says: of labelled questions, too, the program's estimate is learned."""
    told = {}
    for name, gold in (("none", ()), ("first", river_index.ids[:1]), ("all", river_index.ids)):
        kinds = {
            "strategies": {
                "state": str(tmp_path / f"{name}.sqlite"),
                "possible": ["raw", "hyde", "multi-query"],
                "bandit": {"cold_share": 1.0},  # all run, whatever the question's id
            }
        }
        pipeline = make_pipeline(
            "strategies:bandit",
            ControlSettings(kinds=kinds),
            Retriever(river_index, pool=2),
            ScriptedGenerator(lambda _: "The Arno rises on Mount Falterona and flows through Florence."),
            Selector(),
        )
        pipeline.run(Question("q", "How long is the Tiber?", gold_ids=tuple(gold)), 60)
        learned = pipeline.chooser.learned  # type: ignore[attr-defined]
        assert learned.questions == 1
        told[name] = {n: (kept["own"], kept["ran"]) for n, kept in learned.tallies.items()}
    assert told["none"]["hyde"][1] == told["none"]["multi-query"][1] == 1
    assert any(own for own, _ in told["none"].values()), told  # there is something to be learned
    assert told["none"] == told["first"] == told["all"]
