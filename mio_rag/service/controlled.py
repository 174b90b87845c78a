"""Answers of a service in which a router or a planner decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from mio_rag.errors import InfeasibleError
from mio_rag.generation import Generator
from mio_rag.learning.router_model import KEY
from mio_rag.policies.make import in_force, make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.service.requests import Asked
from mio_rag.service.settings import Planning
from mio_rag.session.budget import Limits
from mio_rag.session.loop import Session
from mio_rag.session.trace import Outcome, Trace
from mio_rag.types import Question

_MOST = 1_000_000  # tokens, where tiers decide how much is read
_SHARE = 0.7  # of the time that a request has left, after which no step begins: the answer is still given
_LEAST_SECONDS = 0.05


class Controlled(Protocol):
    """Decides for requests, whatever they set themselves."""

    def answer(self, question: Question, asked: Asked) -> tuple[Outcome, dict[str, Any]]:
        """Answer a question; also return what the response reports in addition. Raises `MioRagError`."""
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


class _Decided:
    """A controller by name, with the settings of its kind."""

    def __init__(self, name: str, kinds: dict[str, Any], index: CorpusIndex, generator: Generator) -> None:
        session = make_controller(name, Setup(ControlSettings(kinds=kinds), Retriever(index)))
        assert isinstance(session, Session)
        self.session, self.index, self.generator = session, index, generator

    def close(self) -> None:
        """Close the models that were opened for it."""
        self.session.close()


class Tiers(_Decided):
    """Answers at the tier that a router chooses; `routing` is `RouterSettings` as plain data.

    Raises `InputError` if the router's file cannot be used with this index.
    """

    def __init__(self, routing: Mapping[str, Any], index: CorpusIndex, generator: Generator) -> None:
        super().__init__("routed", {KEY: dict(routing)}, index, generator)

    def answer(self, question: Question, asked: Asked) -> tuple[Outcome, dict[str, Any]]:
        """As `Controlled.answer`; `InfeasibleError` if the deadline leaves no time to read anything."""
        selector = asked.timed()
        session = replace(self.session, kit=replace(self.session.kit, selector=selector))
        outcome = session.attempt(question, self.generator, _MOST).check()
        if outcome.selection is None:
            raise InfeasibleError("no time was left to read anything: give a later deadline")
        return outcome, in_force(outcome, selector)


class Plans(_Decided):
    """Answers by the workflow that a planner chooses.

    Raises `InputError` if the planner's file cannot be used here: another embedder, models without a price,
    no such file.
    """

    def __init__(self, planning: Planning, index: CorpusIndex, generator: Generator) -> None:
        super().__init__("planner", planning.kinds, index, generator)

    def answer(self, question: Question, asked: Asked) -> tuple[Outcome, dict[str, Any]]:
        """As `Controlled.answer`."""
        left = max(_LEAST_SECONDS, _SHARE * asked.seconds_left())
        limits, retriever = Limits(), Retriever(self.index, pool=asked.pool, counter=self.generator)
        session = replace(
            self.session,
            kit=replace(self.session.kit, retriever=retriever, selector=asked.timed()),
            limits=replace(limits, seconds=min(limits.seconds, left)),
            max_tokens=asked.max_tokens,
        )
        outcome = session.attempt(question, self.generator, asked.budget_tokens).check()
        return outcome, {"plan": _plan(outcome.trace)}


def _plan(trace: Trace) -> dict[str, Any]:
    costs = trace.by_step()
    return {
        "workflow": str(trace.workflow.get("name", "")),
        "worth": dict(trace.scores),
        "fallback": trace.fallback,
        "steps": [
            {
                "node": step.id,
                "executor": step.do,
                "gave": step.output,
                "note": step.note,
                "tokens": costs[step.id].prompt_tokens + costs[step.id].completion_tokens,
                "dropped": step.dropped,
            }
            for step in trace.steps
        ],
    }
