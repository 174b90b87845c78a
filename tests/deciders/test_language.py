"""A model that writes workflows: under the grammar it cannot err, and freely it may."""

import json
import re

import numpy as np
import pytest

from mio_rag.deciders.planner import STEPS, grammar, parse_plan, plans
from mio_rag.errors import InputError
from mio_rag.generation import Prompt
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.session.trace import Trace
from mio_rag.types import Answer
from tests.session.scripted import COMPARISON, SELECTOR
from tests.session.test_loop import Watched, check, said


def drawn(rng: np.random.Generator) -> str:
    """A text of the grammar, drawn rule by rule."""
    rules = dict(line.split(" ::= ", 1) for line in grammar().splitlines())

    def text(name: str) -> str:
        option = str(rng.choice(rules[name].split(" | ")))
        if name == "root":
            return text(option)
        found = re.fullmatch(r'"([a-z-]+)"(?: \(" > " (r\d+)\)(\?)?)?', option)
        assert found is not None, option
        word, rest, optional = found.groups()
        if rest is None or (optional and rng.random() < 0.5):
            return str(word)
        return f"{word} > {text(rest)}"

    return text("root")


def test_whatever_the_grammar_allows_is_a_workflow() -> None:
    rng = np.random.default_rng(0)
    texts = {drawn(rng) for _ in range(600)}
    assert len(texts) > 100
    known = {" > ".join(path) for path in plans()}
    assert texts <= known
    for path in plans()[::7]:
        workflow = parse_plan(" > ".join(path))
        assert workflow.nodes
    assert ("retrieve", "select", "answer") in plans()
    assert ("answer",) in plans()
    assert {name for path in plans() for name in path} == set(STEPS)


@pytest.mark.parametrize(
    "text", ["", "  \n", "fly > answer", "select > answer", "rewrite", "retrieve > answer"]
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_plan(text)


class Writer(Watched):
    """Writes a plan when it is held to the grammar."""

    plan = "decompose-parallel > each > summarise"
    grammars: list[str]

    def write(self, prompt: Prompt, grammar: str, *, max_tokens: int) -> Answer:
        self.grammars = [grammar]
        self.asked.append(prompt)
        self.given.append(Answer(self.plan, 40, 9, 0.1, self.name))
        return self.given[-1]


def test_the_plan_that_is_written_is_run_and_charged(river_index: CorpusIndex) -> None:
    controller = make_controller(
        "planner-lm", Setup(ControlSettings(), Retriever(river_index, pool=4), SELECTOR)
    )
    model = Writer()
    found = controller.attempt(COMPARISON, model, 60)
    assert found.error is None
    trace = check(found, model)
    assert model.grammars == [grammar()]
    assert trace.workflow["name"] == "decompose-parallel > each > summarise"
    assert (trace.parts["plan"].prompt_tokens, trace.parts["plan"].completion_tokens) == (40, 9)
    assert trace.fallback is None
    with pytest.raises(InputError, match="cannot be held to a grammar"):
        controller.attempt(COMPARISON, Watched(), 60).check()


@pytest.mark.parametrize(
    ("written", "ran", "broken"),
    [("rewrite > retrieve > select > answer", "rewrite > retrieve > select > answer", False),
     ("I would search first.", "plain", True), ("retrieve > answer", "plain", True)],
)  # fmt: skip
def test_free_plans_that_are_none_become_plain(
    written: str, ran: str, broken: bool, river_index: CorpusIndex
) -> None:
    def writing(prompt: Prompt) -> str:
        return written if prompt.system.startswith("You plan") else said(prompt)

    setup = Setup(ControlSettings(), Retriever(river_index, pool=4), SELECTOR)
    found = make_controller("planner-lm:free", setup).attempt(COMPARISON, model := Watched(writing), 60)
    trace = check(found, model)
    assert isinstance(trace, Trace)
    assert trace.workflow["name"] == ran
    assert (trace.fallback is not None) == broken
    assert not broken or str(trace.fallback).startswith("format: ")
    assert json.loads(json.dumps(trace.to_dict()))["fallback"] == trace.fallback
