"""Many questions side by side: as one by one, in order, one bad question reported and not fatal."""

import json

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.load import Dataset
from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Conversation, Selector
from mio_rag.solvers import SolveOptions, branch_and_bound


class Joins:
    """Every join of two passages costs `extra` tokens more than the passages: blocks come out too large."""

    name = "joins"

    def __init__(self, extra: int) -> None:
        self.extra, self._plain = extra, RegexCounter()

    def count(self, texts):
        return [
            n + self.extra * t.count("\n\n") for t, n in zip(texts, self._plain.count(texts), strict=True)
        ]


@pytest.fixture(scope="module")
def pools(demo: Dataset, demo_index: CorpusIndex) -> list[Candidates]:
    retriever = Retriever(demo_index, pool=30)
    return [retriever.retrieve(q.text) for q in demo.questions[:10]]


@pytest.mark.parametrize(("workers", "executor"), [(1, "threads"), (3, "threads"), (2, "processes")])
def test_as_one_by_one(pools, workers: int, executor: str) -> None:
    selector, counter = Selector.raw(radius=0.05, max_per_source=2), Joins(9)
    budgets = [120 + 20 * k for k in range(len(pools))]
    seen: list[int] = []
    many = selector.select_many(
        pools, budgets, counter, workers=workers, executor=executor, progress=seen.append
    )
    assert seen == [1] * len(pools)
    again = 0
    for pool, budget, got in zip(pools, budgets, many, strict=True):
        alone = selector.select(pool, budget, counter)
        assert got.candidates is pool
        assert (got.ids, got.tokens_used, got.budget_tokens) == (alone.ids, alone.tokens_used, budget)
        assert got.tokens_used <= budget
        assert got.result.objective == pytest.approx(alone.result.objective, abs=1e-12)
        assert got.program.budget == alone.program.budget
        assert [d.reason for d in got.decisions] == [d.reason for d in alone.decisions]
        again += got.program.budget < budget
    assert again, "no block came out too large: the second round was not tested"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_question_is_reported_and_not_fatal(pools, workers: int) -> None:
    empty = Candidates([], [], [], [])
    no_embeddings = Candidates(["a"], ["text"], [0.5], [10])
    mixed = [pools[0], empty, pools[1], no_embeddings]
    got = Selector.raw(radius=0.1).select_many(mixed, [200, 200, 1, 200], workers=workers)
    assert got[0].ids == Selector.raw(radius=0.1).select(pools[0], 200).ids
    assert [type(error) for error in (got[1], got[3])] == [InputError] * 2
    assert "no candidates" in str(got[1])
    assert got[2].ids == ()
    assert "the shortest passage has" in got[2].notes[0]
    assert "needs embeddings" in str(got[3])


def test_a_solver_that_refuses_is_reported(pools) -> None:
    got = Selector.raw(solver="exhaustive").select_many([pools[0], pools[1]], 200)
    assert [type(error) for error in got] == [InputError] * 2
    assert "at most 20" in str(got[0])


def test_what_would_fail_for_all_is_raised() -> None:
    with pytest.raises(InputError, match="workers=0"):
        Selector.raw().select_many([], 100, workers=0)
    with pytest.raises(InputError, match="unknown"):
        Selector.raw(solver="oracle").select_many([], 100)
    with pytest.raises(InputError, match="2 values, expected one, or 0"):
        Selector.raw().select_many([], [100, 200])
    assert Selector.raw().select_many([], np.int64(100)) == []


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_time_limit_is_of_the_question_not_of_each_of_its_programs(
    pools, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """The joint counterpart solves one program a round: each had the whole limit once more."""
    limits: list[float | None] = []
    seconds: list[float] = []

    def noted(program, options, **rest):
        limits.append(options.time_limit_seconds)
        result = solve(program, options, **rest)
        seconds.append(result.wall_seconds)
        return result

    solve = branch_and_bound.solve
    monkeypatch.setattr(branch_and_bound, "solve", noted)
    selector = Selector.raw(
        solver="branch_and_bound",
        counterpart="joint",
        radius=0.05,
        options=SolveOptions(time_limit_seconds=60.0),
    )
    if workers:
        selector.select_many(pools[:1], 200, workers=workers)
    else:
        selector.select(pools[0], 200)
    assert len(limits) >= 3
    spent = np.concatenate([[0.0], np.cumsum(seconds)[:-1]])
    assert limits == pytest.approx(60.0 - spent, abs=1e-9)


def test_options_after_a_time() -> None:
    options = SolveOptions(time_limit_seconds=0.3)
    assert options.after(0.1).time_limit_seconds == pytest.approx(0.2)
    assert options.after(5.0).time_limit_seconds == 1e-3
    assert SolveOptions(time_limit_seconds=None).after(5.0).time_limit_seconds is None


def test_a_conversation_keeps_its_units_from_turn_to_turn() -> None:
    text = "Rivers flow to the sea. The Arno rises on Monte Falterona. It is long. " * 3
    texts = [f"{text} Passage {k} names one more town." for k in range(4)]
    given = Candidates(
        [f"p{k}" for k in range(4)],
        texts,
        [0.9, 0.8, 0.7, 0.6],
        [60] * 4,
        question="Where does the Arno rise?",
    )
    for units in ("auto", "sentences"):
        talk = Conversation(Selector(units=units))
        assert [talk.select(given, 70, RegexCounter()).unit for _ in range(3)] == ["sentence"] * 3
    near = Conversation(Selector(units="auto", side=SideConstraints(change_price=0.01)))
    assert [near.select(given, 70, RegexCounter()).unit for _ in range(3)] == ["passage"] * 3


def test_settings_are_checked_when_they_are_made() -> None:
    assert Selector(token_price=np.float32(0.5), max_passages=np.int64(3)).token_price == 0.5
    made = Selector(must_include={"b", "a"}, max_per_source={"s": np.int64(2)})
    assert json.loads(json.dumps(made.to_dict()))["must_include"] == ["a", "b"]
    with pytest.raises(InputError) as error:
        Selector(token_price=float("nan"), max_passages="5", merge=1, prompt_order="best_at_ends")
    assert set(error.value.problems) == {
        "token_price must be a finite number, got nan",
        "max_passages must be a whole number, got '5'",
        "merge must be True or False, got 1",
        "prompt_order must be best_first or document, got 'best_at_ends'",
    }
