"""Whatever part of an agent fails: what was done and spent until then is told; interrupts are passed on."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mio_rag.control.mdp.agent import Agent
from mio_rag.control.mdp.trace import ProcessTrace

from mio_rag.candidates import Candidates
from mio_rag.control.controller import Failure, Outcome
from mio_rag.control.mdp.replay import replay
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InfeasibleError, InputError, SolverError
from mio_rag.evaluation.contenders import Controlled
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.evaluation.rows import Pipeline
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Limits, Meter, Reply
from mio_rag.session.costs import totals
from mio_rag.session.trace import read_traces
from mio_rag.session.values import LmSynthesizer, Memory
from mio_rag.types import Answer, GenerationError, Question
from tests.control.scripted import CHOICE, COMPARISON, Sure, agent, said


class Failing(ScriptedGenerator):
    """Says what it is told to, until its n-th call fails; keeps what it said."""

    def __init__(self, calls: int, error: BaseException, answers: Callable[[Prompt], str] = said) -> None:
        super().__init__(answers)
        self.left, self.error, self.given = calls, error, list[Answer]()

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        if self.left == 0:
            raise self.error
        self.left -= 1
        self.given.append(super()._generate(prompt, max_tokens))
        return self.given[-1]


def check(found: Outcome | Failure, given: list[Answer]) -> ProcessTrace:
    """It failed; its books are those of the generator; its decisions come out again."""
    assert isinstance(found, Failure)
    trace = found.trace
    assert trace.ended == "error"
    assert trace.error == f"{type(found.error).__name__}: {found.error}"
    assert (trace.answer, trace.choice) == ("", None)
    assert sum(call.lm_calls for call in trace.calls) == len(given)
    assert sum(call.prompt_tokens for call in trace.calls) == sum(answer.prompt_tokens for answer in given)
    assert sum(call.completion_tokens for call in trace.calls) == sum(a.completion_tokens for a in given)
    assert trace.parts == totals(trace.calls)
    again = ProcessTrace.from_dict(json.loads(json.dumps(trace.to_dict())))
    assert again == trace
    assert replay(again) == []
    return trace


@pytest.mark.parametrize("calls", range(5))
def test_a_model_that_fails_later_is_charged_for_what_it_said(calls: int, river_index: CorpusIndex) -> None:
    model = Failing(calls, GenerationError("out of order"))
    found = agent("fixed-4", river_index).attempt(COMPARISON, model, 60)
    if calls == 4:  # two thoughts, a query and the answer
        assert isinstance(found, Outcome)
        assert found.trace.error is None
        return
    trace = check(found, model.given)
    assert len(trace.steps) == calls + 1
    assert trace.parts["retrieve"].retrieval_calls == 1 + (calls >= 2)
    failed = ("reason", "decompose", "reason", "answer")[calls]
    assert trace.closing[-1].part == failed
    assert trace.closing[-1].lm_calls == 0
    assert isinstance(found, Failure)
    assert found.selection is not None
    assert [p["id"] for p in trace.passages] == list(found.selection.ids)
    with pytest.raises(GenerationError, match="out of order"):
        agent("fixed-4", river_index).run(COMPARISON, Failing(calls, GenerationError("out of order")), 60)


def test_a_choice_that_names_no_option_is_paid_for() -> None:
    def mumbling(prompt: Prompt) -> str:
        return "I cannot say" if prompt.question.choices else said(prompt)

    model = Failing(9, ValueError(), mumbling)
    trace = check(agent("fixed-2", None).attempt(CHOICE, model, 60), model.given)
    assert trace.closing[-1].lm_calls == 1
    assert trace.closing[-1].completion_tokens == model.count(["I cannot say"])[0]

    class Unsure(Sure):
        given: list[Answer]

        def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
            self.given.append(super()._generate(prompt, max_tokens))
            return self.given[-1]

    unsure = Unsure(lambda prompt: 0.5)
    unsure.inner, unsure.given = ScriptedGenerator(mumbling), []
    trace = check(agent("fixed-2@confidence", None).attempt(CHOICE, unsure, 60), unsure.given)
    assert trace.parts["measure"].lm_calls == 1 + len(trace.steps)


class Broken(Retriever):
    """Finds something once."""

    left = 1

    def retrieve(self, question: str) -> Candidates:
        self.left -= 1
        if self.left < 0:
            raise InputError("re-ranker 'overlap' cannot be used")
        return super().retrieve(question)


def with_finder(agent_: Agent, **changes: Any) -> Agent:
    finder = dataclasses.replace(agent_.parts.finder, **changes)  # type: ignore[type-var]
    return dataclasses.replace(agent_, parts=dataclasses.replace(agent_.parts, finder=finder))


def test_a_retriever_or_selector_that_fails_leaves_what_was_read(river_index: CorpusIndex) -> None:
    def selecting(error: Exception) -> Callable[..., Selection]:
        calls = []

        def select(*arguments: Any) -> Selection:
            calls.append(arguments)
            if len(calls) > 1:
                raise error
            return Selector.raw(passage_penalty=0.0).select(*arguments)

        return select

    for kind in (SolverError("broke"), InfeasibleError("nothing fits"), InputError("no such id")):
        selector = Selector.raw(passage_penalty=0.0)
        object.__setattr__(selector, "select", selecting(kind))
        model = Failing(9, ValueError())
        found = with_finder(agent("fixed-6", river_index), selector=selector).attempt(COMPARISON, model, 60)
        trace = check(found, model.given)
        assert [s.action for s in trace.steps] == ["retrieve", "reason"]
        assert trace.closing[-1].part == "select"
        assert [call.part for call in trace.closing] == ["decompose", "retrieve", "select"]
        assert trace.passages
    model = Failing(9, ValueError())
    found = with_finder(agent("fixed-6", river_index), retriever=Broken(river_index, pool=4)).attempt(
        COMPARISON, model, 60
    )
    trace = check(found, model.given)
    assert [call.part for call in trace.closing] == ["decompose", "retrieve"]
    assert trace.closing[-1].retrieval_calls == 1


def test_what_fails_before_the_first_call_has_an_empty_trace() -> None:
    tight = agent("fixed-2", None, limits=Limits(tokens=30))
    trace = check(tight.attempt(COMPARISON, ScriptedGenerator(said), 60), [])
    assert (trace.steps, trace.calls) == ((), ())
    narrow = ScriptedGenerator(said, window=20)
    assert "no room" in str(check(agent("fixed-2", None).attempt(COMPARISON, narrow, 60), []).error)
    with pytest.raises(InputError, match="budget_tokens=0"):
        tight.attempt(COMPARISON, ScriptedGenerator(said), 0)


def test_an_answer_that_a_limit_refuses_is_a_failure() -> None:
    class Thrifty(LmSynthesizer):
        def answer(self, memory: Memory, meter: Meter) -> Reply:
            return Reply(meter.generate("answer", self.prompt(memory), self.max_tokens))

    made = agent("always-reason", None, limits=Limits(tokens=460))
    made = dataclasses.replace(made, parts=dataclasses.replace(made.parts, synthesizer=Thrifty()))
    model = Failing(9, ValueError())
    trace = check(made.attempt(COMPARISON, model, 60), model.given)
    assert trace.error == "GenerationError: the answer would go beyond the limit of 460 tokens: raise it"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_interrupts_and_faults_are_passed_on(
    calls: int, kind: type[BaseException], river_index: CorpusIndex
) -> None:
    with pytest.raises(kind):
        agent("fixed-4", river_index).attempt(COMPARISON, Failing(calls, kind()), 60)


def test_traces_without_an_error_field_are_read_and_contradictions_are_not(river_index: CorpusIndex) -> None:
    found = agent("fixed-1", river_index).attempt(COMPARISON, Failing(0, GenerationError("no")), 60)
    data = check(found, []).to_dict()
    older = json.loads(json.dumps(data | {"ended": "stop"}))
    del older["error"]
    assert ProcessTrace.from_dict(older).error is None
    with pytest.raises(DataError, match="ended is 'stop', but error is"):
        ProcessTrace.from_dict(json.loads(json.dumps(data | {"ended": "stop"})))


def test_numbers_of_numpy_make_a_trace_that_can_be_written(river_index: CorpusIndex) -> None:
    limits = Limits(np.int64(3), np.int64(9000), np.float64(60))
    made = dataclasses.replace(agent("fixed-2", river_index, limits=limits), seed=np.int64(3))
    trace = made.run(COMPARISON, ScriptedGenerator(said), np.int64(60)).trace
    assert ProcessTrace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace


SETTINGS = EvaluationSettings(methods=("topk",), budgets=(60,), controllers=("fixed-4", "fixed-0"))


def choosy(prompt: Prompt) -> str:
    if prompt.question.id == "b" and not prompt.system.startswith("You write"):
        if prompt.system.startswith("You think"):
            return said(prompt)
        raise GenerationError("the model fell over")
    return "mumble" if prompt.question.choices else said(prompt)


def test_failed_rows_hold_their_costs_and_traces(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    chosen = Question("m", "Which is longer?", ("Tiber",), ("r3",), choices=("Tiber", "Arno"))
    data = dataclasses.replace(rivers, questions=(*rivers.questions[:2], chosen))
    result = evaluate(data, river_index, ScriptedGenerator(choosy), SETTINGS, tmp_path)
    rows = {(row["question_id"], row["method"]): row for row in result.rows}
    traces = {(t.question_id, t.controller): t for t in read_traces(tmp_path, ProcessTrace)}
    assert len(traces) == 6
    for key, trace in traces.items():
        row = rows[key]
        assert (row["error"] is None) == (key[0] == "a") == (trace.error is None)
        for name in ("lm_calls", "prompt_tokens", "completion_tokens", "retrieval_calls"):
            assert row[name] == sum(getattr(call, name) for call in trace.calls), (key, name)
        assert row["total_seconds"] == pytest.approx(sum(call.seconds for call in trace.calls))
        assert row["ended"] == trace.ended
        assert row["steps"] == len(trace.steps)
    failed = rows["b", "fixed-4"]
    assert (failed["lm_calls"], failed["retrieval_calls"], failed["steps"]) == (3, 2, 4)
    assert failed["prompt_tokens"] > 100
    assert (failed["status"], failed["token_f1"], failed["error_kind"]) == ("error", 0.0, "GenerationError")
    assert failed["gold_recall"] == float("r3" in failed["selected_ids"])
    assert "answer" not in failed
    for method in ("topk", "fixed-0"):  # the reply named no option: it was paid for
        row = rows["m", method]
        assert (row["lm_calls"], row["completion_tokens"], row["accuracy"]) == (1, 1, 0.0)
        assert row["prompt_tokens"] > 20
        assert row["generate_seconds"] > 0
    entry = next(e for e in result.summary if e["method"] == "fixed-4")
    expected = np.mean([rows[q, "fixed-4"]["prompt_tokens"] for q in "abm"])
    assert entry["prompt_tokens"]["mean"] == pytest.approx(expected)


def test_a_trace_that_cannot_be_written_is_no_wrong_answer(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    method = Controlled(agent("fixed-0", river_index), "exact", tmp_path / "nowhere" / "traces.jsonl")
    pipeline = Pipeline(lambda _: None, ScriptedGenerator(said), 32)
    with pytest.raises(InputError, match=r"traces.jsonl' could not be written"):
        list(pipeline.rows([rivers.questions[0]], {"a": [(method, 60)]}))
