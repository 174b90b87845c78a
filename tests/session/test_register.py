"""A decider of one's own is registered by one call, and then runs wherever policies are named."""

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet
import pytest

from mio_rag.corpora.load import Dataset
from mio_rag.deciders.steps import Order
from mio_rag.errors import InputError
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.generation import ScriptedGenerator
from mio_rag.policies import make
from mio_rag.policies.make import check_controllers, make_controller, register
from mio_rag.policies.setup import ControlSettings, Kind, Setup
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.session.budget import Prices
from mio_rag.session.loop import Session
from mio_rag.session.state import Action, State
from mio_rag.session.tools import Equipment
from mio_rag.session.trace import read_traces
from mio_rag.session.workflow import NAMED
from tests.session.scripted import COMPARISON, SELECTOR, never, said


@dataclass(frozen=True)
class ThinkFirst:
    """Lets the model write one note before every answer."""

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        answers = [action for action in proposed if action.final]
        if not answers or state.has_ended("note"):
            return tuple(
                replace(action, settings={"notes": (str(state.results["note"].value),)})
                if action.final and state.results["note"].value
                else action
                for action in proposed
            )
        read = {"loop": answers[0].inputs[0], "note_tokens": 20, "max_notes": 4}
        others = [action for action in proposed if not action.final]
        return (*others, Action("note", "reason", settings=read, why="thinks before it answers"))


def make_thinker(name: str, setup: Setup) -> Session:
    plan = Order(NAMED["plain"])
    kit = Equipment(setup.retriever, setup.selector)
    return Session(name, (plan, ThinkFirst()), plan, kit, limits=setup.settings.limits)


def check_thinker(name: str, settings: ControlSettings, closed_book: bool) -> None:
    if closed_book:
        raise InputError(f"controller '{name}' needs a corpus: leave it out, or give one")


@pytest.fixture
def thinker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "_KINDS", list(make._KINDS))
    register(Kind("thinker", make_thinker, check_thinker))


@pytest.mark.usefixtures("thinker")
def test_a_new_kind_runs_through_the_harness_by_its_name(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    settings = EvaluationSettings(
        methods=("topk",),
        budgets=(60,),
        controllers=("thinker", "fixed-1"),
        prices=Prices({"scripted": (2.0, 8.0)}),
    )
    result = evaluate(rivers, river_index, ScriptedGenerator(said), settings, tmp_path)
    rows = {(row["question_id"], row["method"]): row for row in result.rows}
    assert len(rows) == 4 * 3
    traces = {t.question_id: t for t in read_traces(tmp_path) if t.policy == "thinker"}
    for question in rivers.questions:
        row, trace = rows[question.id, "thinker"], traces[question.id]
        assert [step.do for step in trace.steps] == ["retrieve", "select", "reason", "answer"]
        assert (row["error"], row["answer"], row["steps"], row["ended"]) == (None, "the Tiber", 4, "stop")
        assert (row["lm_calls"], row["retrieval_calls"]) == (2, 1)
        assert row["selected_ids"] == [p["id"] for p in trace.passages]
        assert row["prompt_tokens"] == sum(call.prompt_tokens for call in trace.calls)
        assert row["dollars"] == pytest.approx(
            (2 * row["prompt_tokens"] + 8 * row["completion_tokens"]) / 1e6
        )
    table = pyarrow.parquet.read_table(tmp_path / "ledger.parquet").to_pylist()
    assert [row["dollars"] for row in table] == [row["dollars"] for row in result.rows]
    again = evaluate(rivers, river_index, ScriptedGenerator(never), settings, tmp_path, resume=True)
    assert again.rows == result.rows


@pytest.mark.usefixtures("thinker")
def test_a_new_kind_is_checked_and_asked_like_any_other(river_index: CorpusIndex) -> None:
    check_controllers(["thinker", "mdp@evidence"], ControlSettings(), False)
    with pytest.raises(InputError, match="'thinker' needs a corpus"):
        check_controllers(["thinker"], ControlSettings(), True)
    with pytest.raises(InputError, match=r"'zzz' is unknown: choose mdp, .*, fixed-N, .*thinker \(for"):
        EvaluationSettings(controllers=("zzz",))
    made = make_controller("thinker:a@b", Setup(ControlSettings(), Retriever(river_index, pool=4), SELECTOR))
    assert made.name == "thinker:a@b"
    assert made.attempt(COMPARISON, ScriptedGenerator(said), 60).check().trace.answer == "the Tiber"


@pytest.mark.usefixtures("thinker")
def test_a_wrong_name_is_refused_at_registration() -> None:
    for name in ("thinker", "mdp", "fixed-best", "", "a:b", "a@b", "two words", "9", 7):
        with pytest.raises(InputError, match="controller"):
            register(Kind(name, make_thinker))  # type: ignore[arg-type]
