"""Controllers in the harness: a question goes through an agent, and comes out as a row like any other.

A row's tokens, calls and seconds are those of all steps together; ``tokens_used`` is what the evidence takes
that was read in the end. Seconds are kept by part: decompose, retrieve, select, reason, measure, and generate
for the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mio_rag.control.costs import Replies
from mio_rag.control.mdp.agent import Agent, ControlSettings, Failure, Outcome, make_agent
from mio_rag.control.trace import append_traces
from mio_rag.errors import InputError
from mio_rag.generation import Generator
from mio_rag.measures import answer_measures, failed_measures
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["PARTS", "Controlled", "check_controllers", "make_controlled", "outcome_row"]

#: Parts of an agent as the ledger names their seconds.
PARTS = {
    "decompose": "decompose",
    "retrieve": "retrieve",
    "select": "select",
    "reason": "reason",
    "measure": "measure",
    "answer": "generate",
}


@dataclass(frozen=True, eq=False)
class Controlled:
    """An agent where the harness expects a method.

    Parameters
    ----------
    traces : Path or None
        File that takes a line for every question.
    """

    agent: Agent
    selector: Selector
    traces: Path | None

    @property
    def name(self) -> str:
        """Name of the controller."""
        return self.agent.name

    def run(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies
    ) -> Outcome | Failure:
        """Answer a question, or fail to, and keep the trace.

        Raises
        ------
        InputError
            If the trace cannot be written.
        """
        found = self.agent.attempt(question, generator, budget_tokens, replies)
        if self.traces is not None:
            append_traces(self.traces, [found.trace])
        return found


def check_controllers(names: Sequence[str], settings: ControlSettings, closed_book: bool) -> None:
    """Raise `InputError` with everything that is wrong with these names."""
    problems = [f"controller '{n}' is listed twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    for name in dict.fromkeys(names):
        try:
            agent = make_agent(name, settings, None, Selector())
        except InputError as error:
            needs_corpus = name.startswith("always-retrieve") and not closed_book
            problems += () if needs_corpus else error.problems
        else:
            assert agent.name == name
    if problems:
        raise InputError(problems)


def make_controlled(
    names: Sequence[str],
    settings: ControlSettings,
    retriever: Retriever | None,
    selector: Selector,
    *,
    max_tokens: int,
    seed: int,
    traces: Path | None,
) -> list[Controlled]:
    """The controllers of these names."""
    return [
        Controlled(
            make_agent(name, settings, retriever, selector, max_tokens=max_tokens, seed=seed),
            selector,
            traces,
        )
        for name in names
    ]


def outcome_row(question: Question, outcome: Outcome | Failure) -> dict[str, Any]:
    """What a row says of an outcome, its selection apart; of a failure what it took, and no answer."""
    trace = outcome.trace
    calls = trace.calls
    row: dict[str, Any] = {
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "completion_tokens": sum(call.completion_tokens for call in calls),
        "lm_calls": sum(call.lm_calls for call in calls),
        "retrieval_calls": sum(call.retrieval_calls for call in calls),
        "steps": len(trace.steps),
        "uncertainty": trace.uncertainty,
        "ended": trace.ended,
        "total_seconds": sum(call.seconds for call in calls),
        **{
            f"{name}_seconds": trace.parts[p].seconds if p in trace.parts else 0.0
            for p, name in PARTS.items()
        },
    }
    if isinstance(outcome, Outcome):
        text = outcome.reply.answer.text
        row |= {"answer": text, **answer_measures(question, text, outcome.reply.choice)}
    if outcome.selection is None:  # nothing was read
        row |= {"selected_ids": [], "tokens_used": 0, "passages_selected": 0}
        row |= failed_measures(question, selection=True, answer=False)
    return row
