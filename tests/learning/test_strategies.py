"""What strategies add, by the selection program and by enumeration; sessions that search by strategies."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.deciders.steps import Search
from mio_rag.errors import DataError, Notice
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.learning.strategist import contributions, sets_to_compare
from mio_rag.policies.compose import compose
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.policy import Policy
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session import search as search_module
from mio_rag.session.search import Found, SearchTask, Strategy, search
from mio_rag.session.trace import Trace
from mio_rag.types import GenerationError, Question
from tests.session.scripted import said

SELECTOR = Selector.raw(passage_penalty=0.05, redundancy_weight=0.3)
PLAIN = Selector.raw(passage_penalty=0.0)
QUESTION = Question("b", "How long is the Tiber?", ("406 kilometres",), ("r3",))
FOUND: dict[str, set[str]] = {
    "a": {"raw"},
    "b": {"raw", "hyde"},
    "c": {"hyde"},
    "d": {"grounded"},
    "e": {"hyde", "grounded"},
    "f": set(),
}


def pool() -> Candidates:
    vectors = np.random.default_rng(3).standard_normal((6, 4))
    return Candidates(
        ids=list(FOUND),
        texts=[f"text {name}" for name in FOUND],
        relevance=np.array([0.4, 0.5, 0.6, 0.3, 0.45, 0.2]),
        tokens=np.array([3, 4, 5, 2, 4, 1]),
        embeddings=vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
    )


def best(*strategies: str, budget: int = 10) -> float:
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
    """Pools without a limit: whatever one of the set found, and what needs no finder."""
    return {
        names: {name for name, finders in FOUND.items() if not finders or finders & names}
        for names in sets_to_compare(ran, ("raw",))
    }


def test_contributions_are_differences_of_best_values() -> None:
    ran = ("raw", "hyde", "grounded")
    found = contributions(SELECTOR, pool(), alone(*ran), ran, ("raw",), 10)
    assert found is not None
    start, total = best("raw"), best(*ran)
    assert (found["base"], found["total"]) == pytest.approx((start, total))
    own = {name: best("raw", name) - start for name in ran[1:]}
    assert found["own"] == pytest.approx(own)
    assert found["overlap"] == [(*ran[1:], pytest.approx(sum(own.values()) - (total - start)))]
    strict = Selector.raw(passage_penalty=0.0, min_passages=5)  # cannot be met without hyde
    names = ("raw", "hyde")
    assert contributions(strict, pool(), alone(*names), names, ("raw",), 100) is None


def known(name: str, rows: list[int]) -> Strategy:
    """A strategy that finds given rows."""
    return Strategy(name, lambda task: Found(tuple(rows)), needs_model=False)


def test_displacing_passages_of_others_counts_against_a_strategy(river_index: CorpusIndex) -> None:
    """Each set is held against what it would have found by itself, in a pool with room for two."""
    retriever = Retriever(river_index, pool=2, link_hops=0)
    selector = Selector.raw(passage_penalty=0.0, redundancy_weight=0.0)
    first, second, third = retriever.ranked(QUESTION.text)[:3]
    ran, names = [known("raw", [first, second]), known("hyde", [third, first])], ("raw", "hyde")
    searched = search(QUESTION, retriever, None, ran, alone=sets_to_compare(names, ("raw",)))
    assert searched.every is not None

    def useful(found: Candidates) -> Candidates:
        return replace(found, relevance=found.relevance + 0.1)

    worth = []
    for members in (("raw",), names):
        found = search(QUESTION, retriever, None, [one for one in ran if one.name in members]).pool
        assert searched.alone[frozenset(members)] == set(found.ids)
        worth.append(selector.select(useful(found), 1000).result.objective or 0.0)
    added = contributions(selector, useful(searched.every), searched.alone, names, ("raw",), 1000)
    assert added is not None
    assert added["own"]["hyde"] == pytest.approx(worth[1] - worth[0])
    assert added["own"]["hyde"] < 0


def test_units_are_those_that_would_be_read(demo_index: CorpusIndex) -> None:
    found = Retriever(demo_index, pool=12).retrieve("How tall is the tower of Skerryvore?")
    every = {frozenset(["raw"]): frozenset(found.ids)}
    for budget, units in ((60, "sentences"), (600, "passages")):
        added = [
            contributions(Selector(units=u), found, every, ["raw"], ["raw"], budget, RegexCounter())
            for u in ("auto", units)
        ]
        assert added[0] is not None
        assert added[1] is not None
        assert added[0]["total"] == pytest.approx(added[1]["total"])
        assert added[0]["total"] > 0


# --- sessions --------------------------------------------------------------------------------------------


def spoken(prompt: Prompt) -> str:
    if prompt.system.startswith("You write passages"):
        return "The Tiber is a river of 406 kilometres."
    if prompt.system.startswith("You expand"):
        raise GenerationError("no words")
    if prompt.system.startswith(("You choose", "You rewrite")):
        return "length of the Tiber"
    return said(prompt)


def bandit_setup(index: CorpusIndex, path: Path, **bandit: Any) -> Setup:
    kinds = {"strategies": {"state": str(path), "bandit": bandit}}
    return Setup(ControlSettings(kinds=kinds), Retriever(index, pool=4), PLAIN)


def chooser_of(session: Any) -> Any:
    return next(one.chooser for one in session.deciders if isinstance(one, Search))


def test_nothing_is_learned_where_what_always_runs_has_failed(
    river_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured against nothing, the others would be credited with all that is read."""
    session = make_controller(
        "strategies:bandit", bandit_setup(river_index, tmp_path / "s.sqlite", cold_share=1.0)
    )

    def fails(self: object, task: SearchTask) -> Found:
        raise DataError("the disk is gone")

    monkeypatch.setitem(search_module._FINDERS, "raw", fails)
    trace = session.attempt(QUESTION, ScriptedGenerator(spoken), 60).check().trace
    assert "raw: left out, the disk is gone" in trace.search["notes"]
    assert chooser_of(session).learned.questions == 0


def test_a_bandit_learns_no_label(river_index: CorpusIndex, tmp_path: Path) -> None:
    found = []
    for name, gold in (("none", ()), ("all", river_index.ids)):
        given = {"state": str(tmp_path / f"{name}.sqlite"), "possible": ["raw", "hyde", "multi-query"]}
        settings = ControlSettings(kinds={"strategies": given | {"bandit": {"cold_share": 1.0}}})
        session: Any = make_controller("strategies:bandit", Setup(settings, Retriever(river_index, pool=2)))
        reader = ScriptedGenerator(lambda _: "The Arno rises on Mount Falterona and flows through Florence.")
        session.select(Question("q", "How long is the Tiber?", gold_ids=tuple(gold)), reader, 60).check()
        tallies = chooser_of(session).learned.tallies
        found.append({n: (kept["own"], kept["ran"]) for n, kept in tallies.items()})
    assert found[0]["hyde"][1] == found[0]["multi-query"][1] == 1
    assert any(own for own, _ in found[0].values())  # there is something to be learned
    assert found[0] == found[1]


def test_a_total_is_kept_and_its_price_decides_over_threads(river_index: CorpusIndex, tmp_path: Path) -> None:
    """The bandit chooses at the price of its own question, and the account is never overspent."""
    total = 6000
    policy = Policy(
        search={
            "by": "bandit",
            "strategies": ("raw", "hyde", "multi-query"),
            "state": str(tmp_path / "s.db"),
        },
        price={"total": total, "questions": 24, "state": str(tmp_path / "p.db")},
        limits={"budget": 60, "max_tokens": 8, "max_total_tokens": 900},
    )
    session = compose(policy, Setup(retriever=Retriever(river_index, pool=4)))
    try:
        with ThreadPoolExecutor(6) as threads:
            asked = [replace(QUESTION, id=f"q{k}") for k in range(24)]
            reader = ScriptedGenerator(spoken)
            outcomes = list(threads.map(lambda q: session.attempt(q, reader, 60), asked))
        account = session.account.account()  # type: ignore[union-attr]
    finally:
        session.close()
    spent = [one.costs.total() for one in outcomes]
    assert account.spent == sum(one.prompt_tokens + one.completion_tokens for one in spent) <= total
    assert account.reserved == 0
    answered = [one for one in outcomes if one.error is None]
    assert len(answered) > 6
    prices = {one.trace.search["token_price"] for one in answered}
    assert len(prices) > 3
    for one in answered:
        assert one.trace.search["token_price"] == one.trace.token_price


@pytest.mark.parametrize("broken", ["the log", "the account"])
def test_an_answer_is_kept_where_its_books_cannot_be_written(
    broken: str, river_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(
        search={"by": "bandit", "strategies": ("raw", "hyde"), "state": str(tmp_path / "s.db")},
        price={"total": 10_000, "questions": 5},
        limits={"budget": 60, "max_tokens": 8, "max_total_tokens": 900},
    )
    session = compose(policy, Setup(retriever=Retriever(river_index, pool=4)))

    def full(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    try:
        with monkeypatch.context() as patched:
            if broken == "the log":
                patched.setattr("mio_rag.learning.bandit_log.Events.append", full)
            else:
                patched.setattr("mio_rag.allocation.pacer.Pacer.spent", full)
            with pytest.warns(Notice, match="disk is full"):
                outcome = session.attempt(QUESTION, ScriptedGenerator(spoken), 60)
        assert outcome.error is None
        assert outcome.reply is not None
        assert outcome.trace.answer == "the Tiber"
        key = "not_learned" if broken == "the log" else "not_settled"
        assert "disk is full" in outcome.trace.about[key]
        assert Trace.from_dict(json.loads(json.dumps(outcome.trace.to_dict()))) == outcome.trace
        account = session.account.account()  # type: ignore[union-attr]
        spent = outcome.costs.total()
        # What was not settled stays reserved, and counts in full in the end.
        held = account.spent if broken == "the log" else account.reserved
        assert held >= spent.prompt_tokens + spent.completion_tokens
        assert chooser_of(session).learned.questions == (broken != "the log")
    finally:
        session.close()
