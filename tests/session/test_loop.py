"""Workflows that run: side by side, within limits, with honest books whatever fails."""

import dataclasses
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mio_rag.allocation.pacer import Pacer
from mio_rag.errors import InfeasibleError, InputError, StateError
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.policies.make import workflow_session
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import Call, Limits, Models, totals
from mio_rag.session.loop import Session
from mio_rag.session.state import Action, State
from mio_rag.session.trace import Outcome, Trace
from mio_rag.session.workflow import NAMED, Workflow, WorkflowSettings, chain
from mio_rag.types import Answer, GenerationError, Question
from tests.session.scripted import CHOICE, COMPARISON, SELECTOR, Sure


def said(prompt: Prompt) -> str:
    """A model that does what each executor asks of it."""
    system = prompt.system
    if system.startswith("You rewrite"):
        return "length of the Arno and the Tiber"
    if "one after another" in system:
        return "1. How long is the Arno?\n2. Is #1 longer than the Tiber?"
    if system.startswith("You break"):
        return "How long is the Arno?\nHow long is the Tiber?"
    if system.startswith("You check"):
        return "No"
    if system.startswith("You answer a question from the answers"):
        return "the Tiber, all things considered"
    return "B" if prompt.question.choices else f"the Tiber ({len(prompt.passages)} read)"


class Watched(ScriptedGenerator):
    """Says what it is told, and remembers what it was asked."""

    def __init__(self, answers: Callable[[Prompt], str] = said, name: str = "watched") -> None:
        super().__init__(answers)
        self.name = name
        self.asked: list[Prompt] = []
        self.given: list[Answer] = []

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        self.asked.append(prompt)
        self.given.append(super()._generate(prompt, max_tokens))
        return self.given[-1]


def controller(
    workflow: str | Workflow,
    index: CorpusIndex | None,
    models: dict[str, Any] | None = None,
    limits: Limits | None = None,
    **settings: Any,
) -> Session:
    chosen = NAMED[workflow] if isinstance(workflow, str) else workflow
    control = ControlSettings(
        limits=limits or Limits(), kinds={"workflow": WorkflowSettings(**settings).to_dict()}
    )
    retriever = None if index is None else Retriever(index, pool=4)
    return workflow_session("workflow:x", chosen, Setup(control, retriever, SELECTOR), Models(models or {}))


def check(found: Outcome, *models: Watched) -> Trace:
    """The books are those of the generators, by part and by node; the trace can be written and read."""
    trace, given = found.trace, [answer for model in models for answer in model.given]
    roots = [call for path, call in trace.by_step().items() if "/" not in path]
    for total in (found.costs.total(), sum((*trace.opening, *roots), Call("all", 0.0))):
        assert total.lm_calls == len(given)
        assert total.prompt_tokens == sum(answer.prompt_tokens for answer in given)
        assert total.completion_tokens == sum(answer.completion_tokens for answer in given)
    assert trace.parts == totals(found.costs.calls)
    for path, spent in trace.by_step().items():
        below = [s for s in trace.steps if s.id == path or s.id.startswith(f"{path}/")]
        assert spent.prompt_tokens == sum(c.prompt_tokens for s in below for c in s.calls)
    assert Trace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace
    return trace


def answered(
    workflow: str | Workflow,
    index: CorpusIndex | None,
    says: Callable[[Prompt], str] | None = None,
    **settings: Any,
) -> tuple[Trace, Watched]:
    """The checked trace of a question, and its model."""
    model = Watched(says or said)
    return check(controller(workflow, index, **settings).attempt(COMPARISON, model, 60), model), model


class Broken:
    """A decider that cannot decide for sub-questions, such as a bandit whose log cannot be read."""

    serves_parts = True

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        if state.parent is not None:
            raise StateError("the log cannot be read")
        return proposed


def test_options_in_every_order_undo_what_a_model_prefers_of_letters() -> None:
    model = Sure(lambda prompt: 0.6 if prompt.question.choices[0] == CHOICE.answers[0] else 0.5)
    model.inner = ScriptedGenerator(lambda prompt: "A")
    for workflow, choice, calls in (("no-retrieval", 0, 1), ("every-order", 1, 3)):
        found = controller(workflow, None).attempt(CHOICE, model, 60)
        assert (found.trace.choice, found.costs.total().lm_calls) == (choice, calls)
        assert found.trace.answer == CHOICE.choices[choice]


@pytest.mark.parametrize("name", NAMED)
def test_every_named_workflow_answers_and_counts(name: str, river_index: CorpusIndex) -> None:
    model = Watched()
    found = controller(name, river_index).attempt(COMPARISON, model, 60)
    trace = check(found, model)
    assert trace.answer
    assert (found.error, trace.dropped, trace.fallback) == (None, (), None)
    assert not [step.why for step in trace.steps if "did the step" in step.why]
    assert trace.workflow["name"] == name
    assert {step.id for step in trace.steps} >= {node.id for node in NAMED[name].nodes}
    assert (found.selection is None) == (name in ("no-retrieval", "every-order", "recall-parts"))


def test_words_of_the_user_are_never_edited(river_index: CorpusIndex) -> None:
    model = Watched()
    asked = Question("n", "Who fixed issue #12 of the Arno, after #1?")
    for name in ("plain", "decompose-serial", "search-parts", "verify-or-parts"):
        found = controller(name, river_index).attempt(asked, model := Watched(), 60)
        assert found.trace.question == asked.text
    assert any("issue #12 of the Arno, after #1" in prompt.user for prompt in model.asked)


def test_later_questions_of_a_series_see_earlier_answers(river_index: CorpusIndex) -> None:
    _, model = answered("decompose-serial", river_index)
    second = model.asked[2]
    assert second.question.text.startswith("Is the Tiber (")
    assert second.passages[-1].text.startswith("- How long is the Arno? the Tiber")
    _, model = answered("decompose-parallel", river_index)
    assert {p.question.text for p in model.asked[1:3]} == {"How long is the Arno?", "How long is the Tiber?"}
    assert all(p.passages[-1].title != "Notes" for p in model.asked[1:3])


def test_branches_really_run_side_by_side(river_index: CorpusIndex) -> None:
    meeting = threading.Barrier(2)

    def together(prompt: Prompt) -> str:
        if prompt.question.text.startswith("How long") or not prompt.system.startswith("You"):
            meeting.wait(timeout=20)  # breaks unless both are asked at once
        return said(prompt)

    def meets(prompt: Prompt) -> str:
        if not prompt.system.startswith("You check"):
            meeting.wait(timeout=20)
        return said(prompt)

    assert answered("decompose-parallel", river_index, together)[0].dropped == ()
    last = {"do": "verify", "from": ["a"], "after": ["b"]}
    nodes = {"a": {"do": "answer"}, "b": {"do": "answer"}, "v": last}
    both = Workflow.from_dict({"name": "two", "nodes": nodes, "answer": "v"})
    assert answered(both, None, meets)[0].dropped == ()


def test_a_branch_that_fails_is_dropped_said_and_charged(river_index: CorpusIndex) -> None:
    def failing(prompt: Prompt) -> str:
        if prompt.question.text == "How long is the Arno?":
            raise GenerationError("out of order", Answer("", 7, 3, 0.1, "watched"))
        return said(prompt)

    model = Watched(failing)
    trace = controller("decompose-parallel", river_index).attempt(COMPARISON, model, 60).check().trace
    assert [(s.id, s.dropped) for s in trace.dropped] == [("each/1/answer", "GenerationError: out of order")]
    spent = trace.by_step()["each/1"]
    assert (spent.prompt_tokens, spent.completion_tokens) == (7, 3)
    assert trace.columns()["dropped"] == 1
    assert "How long is the Tiber?" in model.asked[-1].user
    assert "How long is the Arno?" not in model.asked[-1].user


@pytest.mark.parametrize("error", [GenerationError("broken"), ValueError("a bug"), KeyError("x")])
def test_whatever_an_executor_raises_costs_its_branch_alone(
    error: Exception, river_index: CorpusIndex
) -> None:
    def failing(prompt: Prompt) -> str:
        if prompt.system.startswith("You rewrite"):
            raise error
        return said(prompt)

    model = Watched(failing)
    found = controller("rewrite-first", river_index).attempt(COMPARISON, model, 60)
    trace, total = found.trace, found.costs.total()
    lost = [call for call in trace.calls if call.part == "rewrite"]
    if isinstance(error, GenerationError):  # it says what it cost
        assert (total.lm_calls, lost[0].prompt_tokens) == (len(model.given), 0)
    else:  # nobody knows how far the call came: it may have been charged
        assert total.lm_calls == len(model.given) + 1
        assert (lost[0].prompt_tokens, lost[0].completion_tokens) == (lost[0].prompt_tokens or -1, 32)
    assert trace.dropped[0].id == "rewrite"
    assert type(error).__name__ in str(trace.dropped[0].dropped)
    assert trace.answer.startswith("the Tiber")  # the search went on with the question itself


def test_nothing_written_is_dropped(river_index: CorpusIndex) -> None:
    def mute(prompt: Prompt) -> str:
        return " - \n" if prompt.system.startswith(("You break", "You rewrite")) else said(prompt)

    for name, dropped in (
        ("rewrite-first", ["rewrite"]),
        ("search-parts", ["decompose"]),
        ("decompose-serial", ["decompose", "each", "summarise"]),
    ):
        trace, _ = answered(name, river_index, mute)
        assert [s.id for s in trace.dropped] == dropped
    assert "what it needs was dropped: facts" in str(trace.fallback)
    assert (trace.steps[-1].id, trace.answer) == ("fallback", "the Tiber (0 read)")


@dataclass
class Changing:
    """Changes every action."""

    change: Callable[[Action], Action]

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        return tuple(map(self.change, proposed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: replace(one, settings={**one.settings, "budget": 60}), "has a setting 'budget': choose"),
        (lambda one: replace(one, settings={"unit": "passages"}), "did you mean 'units'"),
        (lambda one: replace(one, do="chose"), "is to do 'chose'"),
    ],
)
def test_what_no_tool_would_do_is_refused(change, message: str, river_index: CorpusIndex) -> None:
    session = controller(chain("odd", "retrieve", "select", "answer"), river_index)
    first, *others = session.deciders
    changing = Changing(lambda one: change(one) if one.do == "select" else one)
    odd = replace(session, deciders=(first, changing, *others))
    with pytest.raises(InputError, match=message):
        odd.attempt(COMPARISON, Watched(said), 60).check()


def test_an_action_that_takes_too_long_is_given_up_and_charged(river_index: CorpusIndex) -> None:
    release = threading.Event()

    def slow(prompt: Prompt) -> str:
        if prompt.system.startswith("You rewrite"):
            release.wait(20)
        return said(prompt)

    workflow = chain("slow", {"do": "rewrite", "seconds": 0.2}, "retrieve", "select", "answer")
    model = Watched(slow)
    try:
        # With one place the slow one must give up its own, or nobody else could begin.
        session = controller(workflow, river_index, threads=1)
        trace = session.attempt(COMPARISON, model, 60).check().trace
    finally:
        release.set()
    assert trace.dropped[0].dropped == "took longer than 0.2 s"
    spent = trace.by_step()["rewrite"]
    assert spent.prompt_tokens == model.prompt_tokens(model.asked[0])
    assert spent.completion_tokens == 32  # all that it might have said
    assert spent.seconds >= 0.2


def test_limits_on_tokens_steps_and_time(river_index: CorpusIndex) -> None:
    whole = answered("decompose-parallel", river_index)[0]
    everything = sum(call.tokens for call in whole.calls)
    for tokens in range(400, 1200, 100):
        trace, _ = answered("decompose-parallel", river_index, limits=Limits(tokens=tokens))
        assert sum(call.tokens for call in trace.calls) <= tokens
        assert trace.answer
        if tokens < everything:
            assert any("limit of" in str(s.dropped) for s in trace.dropped)
    trace, _ = answered("decompose-parallel", river_index, limits=Limits(steps=2))
    assert [s.dropped for s in trace.dropped] == ["limit of 2 steps"]
    trace, _ = answered("rewrite-first", river_index, limits=Limits(seconds=1e-9))
    assert (trace.dropped[0].dropped, bool(trace.answer)) == ("limit of 1e-09 seconds", True)
    tight = controller("plain", river_index, limits=Limits(tokens=30)).attempt(COMPARISON, Watched(), 60)
    assert "is below the" in str(tight.error)


def test_an_empty_answer_is_asked_of_the_reader_but_not_twice(river_index: CorpusIndex) -> None:
    mute = Watched(lambda prompt: "", name="mute")
    workflow = chain("mute-in-the-end", "retrieve", "select", {"do": "answer", "model": "mute"})
    found = controller(workflow, river_index, {"mute": mute}).attempt(COMPARISON, reader := Watched(), 60)
    trace = check(found, reader, mute)
    assert trace.answer == said(reader.asked[-1]) != ""
    assert trace.fallback == "answer: the answer is empty"
    trace, silent = answered("plain", river_index, lambda prompt: "")
    assert (trace.answer, trace.fallback, len(silent.asked)) == ("", None, 1)


@pytest.mark.parametrize(
    ("answer", "fallback"),
    [
        ({"do": "answer"}, None),
        ({"do": "answer", "model": "mute"}, "answer: the answer is empty"),
        ({"do": "answer", "model": "broken"}, "answer: GenerationError: it is out of order"),
    ],
)
def test_what_is_reported_as_read_is_what_the_answer_rests_on(
    answer: dict[str, Any], fallback: str | None, river_index: CorpusIndex
) -> None:
    """Another selection comes last, and the answer does not read it."""
    nodes = {
        "retrieve": {"do": "retrieve"},
        "small": {"do": "select", "from": ["retrieve"], "share": 0.5},
        "large": {"do": "select", "from": ["retrieve"], "after": ["small"]},
        "answer": {**answer, "from": ["small"], "after": ["large"]},
    }
    workflow = Workflow.from_dict({"name": "two", "nodes": nodes, "answer": "answer"})

    def fails(prompt: Prompt) -> str:
        raise GenerationError("it is out of order")

    models = {"mute": Watched(lambda prompt: "", "mute"), "broken": Watched(fails, "broken")}
    found = controller(workflow, river_index, models).attempt(COMPARISON, reader := Watched(), 60)
    read = {step.id: step.selected_ids for step in found.trace.steps}
    assert len(read["small"]) < len(read["large"])
    assert found.trace.fallback == fallback
    assert found.selection is not None
    assert found.selection.passages == reader.asked[-1].passages
    assert found.selection.ids == read["small"]
    assert [one["id"] for one in found.trace.passages] == list(read["small"])


def test_an_answer_from_memory_rests_on_nothing_that_was_read(river_index: CorpusIndex) -> None:
    nodes = {
        "retrieve": {"do": "retrieve"},
        "select": {"do": "select", "from": ["retrieve"]},
        "answer": {"do": "answer", "after": ["select"]},
    }
    workflow = Workflow.from_dict({"name": "memory", "nodes": nodes, "answer": "answer"})
    found = controller(workflow, river_index).attempt(COMPARISON, reader := Watched(), 60)
    assert (found.selection, found.trace.passages, reader.asked[-1].passages) == (None, (), ())


@pytest.mark.parametrize("order", ["parallel", "serial"])
def test_what_breaks_in_a_sub_question_is_said(order: str, river_index: CorpusIndex) -> None:
    session = controller(f"decompose-{order}", river_index)
    session = dataclasses.replace(session, deciders=(*session.deciders, Broken()))
    trace = check(session.attempt(COMPARISON, model := Watched(), 60), model)
    assert any("the log cannot be read" in (step.dropped or "") for step in trace.steps)


def test_an_action_that_is_torn_down_does_not_hang_the_question(river_index: CorpusIndex) -> None:
    def torn(prompt: Prompt) -> str:
        if prompt.question.text.startswith("How long"):
            raise SystemExit(1)
        return said(prompt)

    found: list[Outcome] = []

    def ask() -> None:
        session = controller("decompose-parallel", river_index, seconds=30.0)
        found.append(session.attempt(COMPARISON, ScriptedGenerator(torn), 60))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert found
    assert any("SystemExit" in (step.dropped or "") for step in found[0].trace.steps)


@pytest.mark.parametrize("error", [OSError("the line is cut"), KeyboardInterrupt()])
def test_a_total_is_charged_for_what_an_unforeseen_error_may_have_cost(
    error: BaseException, river_index: CorpusIndex
) -> None:
    def broken(prompt: Prompt) -> str:
        raise error

    pacer = Pacer(5000, 10)
    session = dataclasses.replace(controller("plain", river_index), account=pacer, falls_back=False)
    with suppress(KeyboardInterrupt):
        assert session.attempt(COMPARISON, ScriptedGenerator(broken), 60).error is not None
    account = pacer.account()
    assert account.spent > 50
    assert account.reserved == 0


def test_a_selection_alone_asks_for_no_answer_and_its_results_need_not_run_again(
    river_index: CorpusIndex,
) -> None:
    session = controller("plain", river_index)
    model = Watched(said)
    selected = session.select(COMPARISON, model, 60)
    assert (selected.reply, selected.error, model.asked) == (None, None, [])
    assert [step.do for step in selected.trace.steps] == ["retrieve", "select"]
    assert selected.selection is not None
    found = session.attempt(COMPARISON, model, 60, known=list(selected.results.values()))
    assert found.selection is selected.selection
    assert found.costs.total().retrieval_calls == 0  # they were charged where they ran
    assert found.trace.answer == session.attempt(COMPARISON, model, 60).trace.answer
    impossible = dataclasses.replace(
        session, kit=dataclasses.replace(session.kit, selector=Selector(must_include=("r0", "r1", "r3")))
    )
    failed = impossible.select(COMPARISON, None, 5)
    assert isinstance(failed.error, InfeasibleError)
    assert failed.selection is not None
    assert failed.selection.result.x is None
