"""Answers of a service whose planner chooses a workflow for each question."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from mio_rag.control.controller import Setup, answered
from mio_rag.control.make import make_controller
from mio_rag.control.meter import Limits
from mio_rag.control.planner.planning import PlannerController
from mio_rag.control.planner.trace import PlanTrace
from mio_rag.control.settings import ControlSettings
from mio_rag.generation import Generator
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["Planned", "Planning", "read_nothing"]

_SHARE = 0.7  # of the time that a request has left, after which no executor begins: the answer is still given
_LEAST_SECONDS = 0.05


@dataclass(frozen=True)
class Planning:
    """A planner for a service.

    Parameters
    ----------
    kinds : dict
        Of `ControlSettings`: the planner's file and price, and the models that its workflows may ask.
    """

    kinds: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Answered:
    """What came of a question: the answer, what was read for it, and what a response says of the way."""

    text: str
    selection: Selection | None
    prompt_tokens: int
    completion_tokens: int
    plan: dict[str, Any]


class Planned:
    """Answers questions by the workflow that a planner chooses, one at a time.

    Raises
    ------
    InputError
        If the planner's file cannot be used here: another embedder, models without a price, no such file.
    """

    def __init__(self, given: Planning, index: CorpusIndex, generator: Generator) -> None:
        self._index, self._generator = index, generator
        self._limits = Limits()
        made = make_controller(
            "planner", Setup(ControlSettings(kinds=given.kinds), Retriever(index), Selector())
        )
        assert isinstance(made, PlannerController)
        self._controller = made

    def answer(
        self,
        question: str,
        size: int,
        selector: Selector,
        budget_tokens: int,
        max_tokens: int,
        deadline: float,
    ) -> Answered:
        """Answer a question.

        Parameters
        ----------
        size : int
            Passages that a search finds at most.
        deadline : float
            Of the request, by `time.monotonic`.

        Raises
        ------
        MioRagError
            If there is no answer in any way.
        """
        left = max(_LEAST_SECONDS, _SHARE * (deadline - time.monotonic()))
        kit = replace(
            self._controller.kit,
            retriever=Retriever(self._index, pool=size, counter=self._generator),
            selector=selector,
            limits=replace(self._limits, seconds=min(self._limits.seconds, left)),
            max_tokens=max_tokens,
        )
        controller = replace(self._controller, kit=kit)
        found = answered(controller.attempt(Question("question", question), self._generator, budget_tokens))
        spent, trace = found.costs.total(), found.trace
        assert isinstance(trace, PlanTrace)
        return Answered(
            found.reply.answer.text,
            found.selection,
            spent.prompt_tokens,
            spent.completion_tokens,
            _plan(trace),
        )

    def close(self) -> None:
        """Close the models that were opened for nodes of workflows."""
        self._controller.kit.models.close()


def _plan(trace: PlanTrace) -> dict[str, Any]:
    costs = trace.by_node()
    return {
        "workflow": str(trace.workflow.get("name", "")),
        "worth": dict(trace.choice_of),
        "fallback": trace.fallback,
        "steps": [
            {
                "node": step.node,
                "executor": step.action,
                "gave": step.gave,
                "note": step.note,
                "tokens": costs[step.node].prompt_tokens + costs[step.node].completion_tokens,
                "dropped": step.dropped,
            }
            for step in trace.steps
        ],
    }


def read_nothing(budget_tokens: int) -> dict[str, Any]:
    """What a response says of the selection where a workflow answered from memory."""
    why = "the workflow searches for nothing"
    return {
        "status": "optimal",
        "objective": 0.0,
        "bound": 0.0,
        "gap": 0.0,
        "limit": None,
        "solver": "none",
        "version": "",
        "wall_seconds": 0.0,
        "nodes": None,
        "message": "",
        "unit": "passage",
        "tokens_used": 0,
        "budget_tokens": budget_tokens,
        "certified_tokens": 0,
        "certified_budget": budget_tokens,
        "redundancy_weight": 0.0,
        "passage_penalty": 0.0,
        "selected_ids": [],
        "worst_case": None,
        "relevance_source": {"kind": "given", "why": why},
        "notes": [f"Nothing was read: {why}."],
        "conflict": None,
        "passages": [],
        "read": [],
    }
