"""A kind of controller is registered by one call, and then runs wherever controllers are named."""

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet
import pytest
from mio_rag.control.mdp.trace import ProcessTrace
from mio_rag.control.steps.find import SelectingFinder
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.control import make
from mio_rag.control.controller import Failure, Kind, Outcome, Setup
from mio_rag.control.make import check_controllers, make_controller, register
from mio_rag.control.settings import ControlSettings
from mio_rag.corpora.load import Dataset
from mio_rag.errors import InputError, MioRagError
from mio_rag.evaluation.contenders import default_baseline
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.generation import Generator, Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.session.budget import Meter, Replies, Reply
from mio_rag.session.costs import Costs, Prices, totals
from mio_rag.session.trace import Step, Trace, read_passages, read_traces
from mio_rag.session.values import LmDecomposer, LmSynthesizer, Memory
from mio_rag.types import GenerationError, Question
from tests.control.scripted import COMPARISON, SELECTOR, never, said


@dataclass(frozen=True)
class Twice:
    """Retrieves for the question, then for what the model asks next, then answers."""

    name: str
    setup: Setup

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        costs, memory, steps = Costs(), Memory(question, budget_tokens), list[Step]()
        reply: Reply | None = None
        failed: MioRagError | None = None
        try:
            assert self.setup.retriever is not None
            meter = Meter(generator, self.setup.settings.limits, 500, replies, costs)
            finder = SelectingFinder(self.setup.retriever, self.setup.selector)
            for k in range(2):
                with costs.part("plan"):
                    query = LmDecomposer().next_query(memory, 1.0, meter)
                new = finder.find(memory, query, meter)
                memory.queries.append(query)
                ids = () if memory.selection is None else memory.selection.ids
                steps.append(Step(k, "retrieve", query, "", new, ids, meter.take()))
            reply = LmSynthesizer(self.setup.max_tokens).answer(memory, meter)
        except MioRagError as error:
            failed = error
        calls = costs.calls[sum(len(step.calls) for step in steps) :]
        trace = Trace(
            question_id=question.id,
            question=question.text,
            choices=question.choices,
            controller=self.name,
            budget_tokens=budget_tokens,
            settings={},
            steps=tuple(steps),
            ended="stop" if failed is None else "error",
            passages=read_passages(memory.selection),
            answer="" if reply is None else reply.answer.text,
            choice=None if reply is None else reply.choice,
            generator=generator.name,
            closing=calls,
            parts=totals(costs.calls),
            error=None if failed is None else f"{type(failed).__name__}: {failed}",
        )
        if reply is None:
            assert failed is not None
            return Failure(failed, memory.selection, trace, costs)
        return Outcome(reply, memory.selection, trace, costs)


def check_twice(name: str, settings: ControlSettings, closed_book: bool) -> None:
    if closed_book:
        raise InputError(f"controller '{name}' needs a corpus: leave it out, or give one")


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "_KINDS", list(make._KINDS))
    register(Kind("twice", Twice, check_twice))


@pytest.mark.usefixtures("twice")
def test_a_new_kind_runs_through_the_harness_by_its_name(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    settings = EvaluationSettings(
        methods=("topk",),
        budgets=(60,),
        controllers=("twice", "fixed-1"),
        prices=Prices({"scripted": (2.0, 8.0)}),
    )
    result = evaluate(rivers, river_index, ScriptedGenerator(said), settings, tmp_path)
    rows = {(row["question_id"], row["method"]): row for row in result.rows}
    assert len(rows) == 4 * 3
    traces = {t.question_id: t for t in read_traces(tmp_path, Trace) if t.controller == "twice"}
    for question in rivers.questions:
        row, trace = rows[question.id, "twice"], traces[question.id]
        assert (row["error"], row["answer"], row["steps"], row["ended"]) == (None, "the Tiber", 2, "stop")
        assert (row["lm_calls"], row["retrieval_calls"]) == (2, 2)
        assert row["selected_ids"] == [p["id"] for p in trace.passages]
        assert row["prompt_tokens"] == sum(call.prompt_tokens for call in trace.calls)
        assert row["dollars"] == pytest.approx(
            (2 * row["prompt_tokens"] + 8 * row["completion_tokens"]) / 1e6
        )
        assert row["plan_seconds"] > 0
        seconds = [row[name] for name in row if name.endswith("_seconds")]
        assert sum(seconds) - row["solve_seconds"] == pytest.approx(2 * row["total_seconds"])
        assert row["peak_memory_mb"] is None or row["peak_memory_mb"] > 10
    # The readers of one kind of traces pass over those of others.
    assert {t.controller for t in read_traces(tmp_path, ProcessTrace)} == {"fixed-1"}
    table = pyarrow.parquet.read_table(tmp_path / "ledger.parquet").to_pylist()
    assert [row["dollars"] for row in table] == [row["dollars"] for row in result.rows]
    again = evaluate(rivers, river_index, ScriptedGenerator(never), settings, tmp_path, resume=True)
    assert again.rows == result.rows


@pytest.mark.usefixtures("twice")
def test_where_it_fails_its_row_holds_what_it_cost(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    def falls_over(prompt: Prompt) -> str:
        if not prompt.system.startswith("You write") and prompt.question.id == "b":
            raise GenerationError("the model fell over")
        return said(prompt)

    settings = EvaluationSettings(methods=("topk",), budgets=(60,), controllers=("twice",))
    result = evaluate(rivers, river_index, ScriptedGenerator(falls_over), settings, tmp_path)
    rows = {(row["question_id"], row["method"]): row for row in result.rows}
    failed = rows["b", "twice"]
    assert (failed["error"], failed["status"], failed["token_f1"]) == ("the model fell over", "error", 0.0)
    assert (failed["lm_calls"], failed["retrieval_calls"], failed["ended"]) == (1, 2, "error")
    assert failed["prompt_tokens"] > 20
    assert failed["plan_seconds"] > 0
    selected = rows["b", "topk"]  # its reader failed: nothing is known to be spent but the selection
    assert (selected["lm_calls"], selected["prompt_tokens"], selected["completion_tokens"]) == (0, 0, 0)
    assert selected["total_seconds"] == selected["retrieve_seconds"] + selected["select_seconds"]
    assert "dollars" not in failed


@pytest.mark.usefixtures("twice")
def test_a_new_kind_is_checked_and_asked_like_any_other(river_index: CorpusIndex, tmp_path: Path) -> None:
    check_controllers(["twice", "mdp@evidence"], ControlSettings(), False)
    with pytest.raises(InputError, match="'twice' needs a corpus"):
        check_controllers(["twice"], ControlSettings(), True)
    with pytest.raises(InputError, match=r"'zzz' is unknown: choose mdp, .*, fixed-N, .*twice \(for"):
        EvaluationSettings(controllers=("zzz",))
    with pytest.raises(InputError, match="known already"):
        register(Kind("twice", Twice))
    with pytest.raises(InputError, match="known already"):
        register(Kind("fixed-best", Twice))
    made = make_controller("twice:a@b", Setup(ControlSettings(), Retriever(river_index, pool=4), SELECTOR))
    assert made.name == "twice:a@b"
    assert isinstance(made.attempt(COMPARISON, ScriptedGenerator(said), 60), Outcome)
    river_index.save(tmp_path / "index")
    (tmp_path / "says.json").write_text(json.dumps({COMPARISON.text: "the Tiber"}))
    shown = CliRunner().invoke(
        app,
        [
            "ask", str(tmp_path / "index"), COMPARISON.text, "--controller", "twice",
            "--generator", f"scripted:{tmp_path}/says.json", "--trace", str(tmp_path / "traces.jsonl"),
        ],
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "the Tiber" in shown.output
    assert "ended: stop" in shown.output
    assert len(read_traces(tmp_path / "traces.jsonl", Trace)) == 1
    with pytest.raises(InputError, match="holds no traces of mdp, only of steps"):
        read_traces(tmp_path / "traces.jsonl", ProcessTrace)


def test_baselines_are_rivals_where_there_are_any() -> None:
    assert default_baseline(("exact", "topk", "fused", "mdp")) == "fused"
    assert default_baseline(("exact", "topk", "mdp")) == "topk"
    assert default_baseline(("mdp@evidence", "fixed-1", "random")) == "fixed-1"
    assert default_baseline(("mdp", "mdp@evidence")) == "mdp"
