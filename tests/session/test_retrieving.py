"""The tools `retrieve` and `select` in workflows: strategies, sentences, costs and reasons."""

import threading

import pytest

from mio_rag.errors import InputError
from mio_rag.generation import Prompt
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.budget import Limits
from mio_rag.session.workflow import Workflow, chain
from tests.session.scripted import COMPARISON
from tests.session.test_loop import Watched, check, controller, said

WIDE = chain("wide", {"do": "retrieve", "strategies": ["raw", "hyde", "multi-query"]}, "select", "answer")


def writing(prompt: Prompt) -> str:
    if prompt.system.startswith("You write passages"):
        return "The Tiber is 406 km long."
    return "the longer one of two streams" if "rewordings" in prompt.system else said(prompt)


def test_strategies_search_within_a_workflow_and_are_charged_to_the_node(river_index: CorpusIndex) -> None:
    model = Watched(writing)
    found = controller(WIDE, river_index).attempt(COMPARISON, model, 60)
    trace = check(found, model)
    assert found.error is None
    assert len(model.asked) == 3  # HyDE, rewordings, the answer
    node = trace.by_step()["retrieve"]
    assert node.lm_calls == 2
    assert node.prompt_tokens == sum(model.prompt_tokens(prompt) for prompt in model.asked[:2])
    step = next(step for step in trace.steps if step.id == "retrieve")
    assert "raw 4, hyde" in step.note
    assert trace.dropped == ()


def test_strategies_never_exceed_the_limit_together(river_index: CorpusIndex) -> None:
    whole = Watched(writing)
    controller(WIDE, river_index).attempt(COMPARISON, whole, 60)
    left_out = 0
    for tokens in range(400, 700, 60):
        model = Watched(writing)
        found = controller(WIDE, river_index, limits=Limits(tokens=tokens)).attempt(COMPARISON, model, 60)
        trace = check(found, model)
        total = found.costs.total()
        assert total.prompt_tokens + total.completion_tokens <= tokens
        assert trace.answer
        left_out += any("left out, the limit of" in step.note for step in trace.steps)
    assert left_out


def test_a_node_that_is_given_up_is_charged_for_every_strategy_under_way(river_index: CorpusIndex) -> None:
    release, begun = threading.Event(), threading.Barrier(2)

    def slow(prompt: Prompt) -> str:
        if prompt.system.startswith("You write passages") or "rewordings" in prompt.system:
            begun.wait(5)  # both are under way
            release.wait(20)
        return writing(prompt)

    search = {"do": "retrieve", "strategies": ["hyde", "multi-query"], "seconds": 0.3}
    model = Watched(slow)
    try:
        session = controller(chain("slow", search, "select", "answer"), river_index)
        trace = session.attempt(COMPARISON, model, 60).trace
    finally:
        release.set()
    assert trace.dropped[0].dropped == "took longer than 0.3 s"
    spent = trace.by_step()["retrieve"]
    asked = [prompt for prompt in model.asked if not prompt.system.startswith("You answer")]
    assert (spent.lm_calls, spent.prompt_tokens) == (2, sum(map(model.prompt_tokens, asked)))
    assert spent.completion_tokens == 48 + 64  # all that they might have said
    assert trace.answer


def test_settings_are_checked_and_a_model_may_be_named(river_index: CorpusIndex) -> None:
    with pytest.raises(InputError, match="strategy 'hide' is unknown") as caught:
        chain("x", {"do": "retrieve", "strategies": ["hide"], "deadline": 0}, "select", "answer")
    assert "deadline=0" in str(caught.value)
    with pytest.raises(InputError, match="has a model, but retrieve asks none"):
        chain("x", {"do": "retrieve", "strategies": "raw", "model": "cheap"}, "select", "answer")
    cheap, reader = Watched(writing, "cheap"), Watched(writing)
    workflow = chain("x", {"do": "retrieve", "strategies": "hyde", "model": "cheap"}, "select", "answer")
    assert Workflow.from_dict(workflow.to_dict()) == workflow
    found = controller(workflow, river_index, {"cheap": cheap}).attempt(COMPARISON, reader, 60)
    check(found, cheap, reader)
    assert len(cheap.asked) == 1
