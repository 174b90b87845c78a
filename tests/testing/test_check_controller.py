"""Every controller that ships keeps its promises; and every broken promise is caught."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from mio_rag.corpora.load import Dataset
from mio_rag.errors import InputError
from mio_rag.generation import Generator, build_prompt
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.budget import Call, Costs, Replies, Reply
from mio_rag.session.trace import Outcome
from mio_rag.testing import check_controller
from mio_rag.types import Answer, GenerationError, Question

NAMES = ["mdp", "always-reason", "random", "fixed-3@evidence", "threshold:.4"]


@pytest.mark.parametrize("name", NAMES)
def test_every_controller_keeps_its_promises(name: str) -> None:
    check_controller(lambda setup: make_controller(name, setup), name=name)


class Liar:
    """fixed-2, whose outcomes are changed on their way out."""

    def __init__(self, setup: Setup, tell: Callable[[Any, Question, Generator, int, Any], Any]) -> None:
        self.inner, self.tell = make_controller("fixed-2", setup), tell
        self.asked = 0

    @property
    def name(self) -> str:
        return self.inner.name

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome:
        self.asked += 1
        return self.tell(self, question, generator, budget_tokens, replies)


def honest(me: Liar, *asked: Any) -> Outcome:
    return me.inner.attempt(*asked)


def with_trace(me: Liar, *asked: Any, **changes: Any) -> Outcome:
    found = honest(me, *asked)
    if "settings" in changes:
        changes["settings"] = {**found.trace.settings, **changes["settings"]}
    return dataclasses.replace(found, trace=dataclasses.replace(found.trace, **changes))


def greedy(me: Liar, question: Question, generator: Generator, budget: int, replies: Any) -> Any:
    if budget < 1:
        raise InputError("no budget")
    return honest(me, question, generator, 10 * budget, replies)


def behind_its_back(me: Liar, question: Question, generator: Generator, budget: int, replies: Any) -> Any:
    with suppress(GenerationError):
        generator.generate(build_prompt(question))
    return honest(me, question, generator, budget, replies)


def forgetful(me: Liar, *asked: Any) -> Any:
    found, kept = honest(me, *asked), Costs()
    kept.spent = found.costs.spent[:-1]
    return dataclasses.replace(found, costs=kept)


def double(me: Liar, *asked: Any) -> Any:
    found = honest(me, *asked)
    found.costs.add(Call("answer", 0.5, 1, 0, 10, 1), model="extractive")
    return found


def moody(me: Liar, *asked: Any) -> Any:
    return with_trace(me, *asked, settings={"asked": me.asked})


def raising(me: Liar, *asked: Any) -> Any:
    found = honest(me, *asked)
    if found.error is not None:
        raise found.error
    return found


def hiding(me: Liar, *asked: Any) -> Any:
    found = honest(me, *asked)
    steps = tuple(dataclasses.replace(step, dropped=None) for step in found.trace.steps)
    if found.error is None or "Unplanned" not in str(found.error):
        return dataclasses.replace(found, trace=dataclasses.replace(found.trace, steps=steps))
    reply = Reply(Answer("", 0, 0, 0.0, "extractive"))
    trace = dataclasses.replace(found.trace, steps=steps, error=None, ended="stop")
    return dataclasses.replace(found, error=None, reply=reply, trace=trace)


def endless(me: Liar, question: Question, generator: Generator, budget: int, replies: Any) -> Any:
    inner: Any = me.inner
    free = ControlSettings(limits=inner.limits.replace(steps=99, tokens=10**6, seconds=1e6))
    setup = Setup(free, inner.kit.retriever, inner.kit.selector)
    found = make_controller("fixed-6", setup).attempt(question, generator, budget, replies)
    return dataclasses.replace(found, trace=dataclasses.replace(found.trace, policy="fixed-2"))


LIES: dict[str, tuple[Callable[..., Any], str]] = {
    "reads more than it may": (greedy, "are the budget"),
    "does not count": (behind_its_back, "the reader gave (replies, tokens in, tokens out)"),
    "forgets a call": (forgetful, "costs in the trace add up to"),
    "counts what was not": (double, "costs in the trace add up to"),
    "depends on what was asked": (moody, "with the same seed, other settings than the first time"),
    "raises": (raising, "raised GenerationError: "),
    "hides faults": (hiding, "it was swallowed"),
    "knows no limits": (endless, "are the limit"),
    "returns a text": (lambda *asked: "42", "returned a str, no Outcome"),
    "names another": (lambda *a: with_trace(*a, policy="other"), "the trace names 'other'"),
    "answers otherwise": (lambda *a: with_trace(*a, answer="42"), "the reply is another"),
    "writes no JSON": (lambda *a: with_trace(*a, settings={"x": {1}}), "cannot be written and read back"),
    "changes in JSON": (lambda *a: with_trace(*a, settings={"x": (1,)}), "comes back from JSON as another"),
    "decided otherwise": (
        lambda *a: with_trace(*a, about={"uncertainty": 0.123}),
        "made again, step 1: U became 0.123, the model gives",
    ),
    "has other totals": (lambda *a: with_trace(*a, parts={}), "do not add up"),
    "takes any budget": (
        lambda me, q, g, budget, replies: honest(me, q, g, max(1, budget), replies),
        "InputError was not raised",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_broken_promise_is_caught(lie: str, demo: Dataset, demo_index: CorpusIndex) -> None:
    tell, complaint = LIES[lie]
    with pytest.raises(AssertionError) as found:
        check_controller(
            lambda setup: Liar(setup, tell), name=lie, dataset=demo, index=demo_index, questions=2
        )
    assert str(found.value).startswith(f"controller '{lie}' fails ")
    assert complaint in str(found.value)


def test_a_failed_case_comes_with_its_trace_and_other_traces_are_replayed_by_their_own(
    demo: Dataset, demo_index: CorpusIndex
) -> None:
    replayed: list[Any] = []

    def again(trace: Any) -> list[str]:
        replayed.append(trace)
        return ["the second action was another"]

    with pytest.raises(AssertionError, match="made again, the second action was another") as found:
        check_controller(
            lambda setup: Liar(setup, lambda *asked: with_trace(*asked, answer="42")),
            name="mine",
            dataset=demo,
            index=demo_index,
            questions=1,
            budgets=(60,),
            replay=again,
        )
    assert replayed
    lines = str(found.value).splitlines()
    assert lines[1].startswith(f"1. question '{demo.questions[0].id}', budget 60: ")
    assert json.loads(lines[2])["answer"] == "42"
    with pytest.raises(InputError, match="dataset and index belong together"):
        check_controller(lambda setup: Liar(setup, honest), name="none", dataset=demo)
    for wrong in ({"questions": 0}, {"budgets": ()}, {"budgets": (0,)}):
        with pytest.raises(InputError, match="must be >= 1"):
            check_controller(lambda setup: Liar(setup, honest), name="none", **wrong)
