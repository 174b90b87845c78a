"""Several programs of one question, turns of a conversation, and checked settings."""

import numpy as np
import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.load import Dataset
from mio_rag.pool import Candidates
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Conversation, Selector
from mio_rag.solvers import SolveOptions, branch_and_bound


@pytest.fixture(scope="module")
def pools(demo: Dataset, demo_index: CorpusIndex) -> list[Candidates]:
    retriever = Retriever(demo_index, pool=30)
    return [retriever.retrieve(q.text) for q in demo.questions[:10]]


def test_a_time_limit_is_of_the_question_not_of_each_of_its_programs(
    pools, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    selector.select(pools[0], 200)
    assert len(limits) >= 3
    spent = np.concatenate([[0.0], np.cumsum(seconds)[:-1]])
    assert limits == pytest.approx(60.0 - spent, abs=1e-9)


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
