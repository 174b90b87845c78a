"""Controllers that run workflows: one of a name, on every question."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mio_rag.control.controller import Failure, Outcome, Setup
from mio_rag.control.costs import totals
from mio_rag.control.meter import Replies, Reply
from mio_rag.control.planner.named import find_workflow, inner_hashes, misfits, workflow_problems
from mio_rag.control.planner.run import Kit, Run
from mio_rag.control.planner.settings import Models, WorkflowSettings
from mio_rag.control.planner.trace import PlanTrace
from mio_rag.control.planner.workflow import Workflow
from mio_rag.control.settings import ControlSettings
from mio_rag.control.trace import read_passages
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation import Generator
from mio_rag.types import Question

__all__ = [
    "WorkflowController",
    "attempted",
    "check_workflow",
    "kit_of",
    "make_workflow",
    "workflow_files",
    "workflow_settings",
]


def workflow_settings(settings: ControlSettings) -> WorkflowSettings:
    """Those of workflows among the settings of controllers.

    Raises
    ------
    InputError
        As `WorkflowSettings`.
    """
    return WorkflowSettings.of(settings.kinds.get("workflow"))


def kit_of(setup: Setup, models: Models | None = None) -> Kit:
    """What workflows run with; by default models are opened as the settings say."""
    given = workflow_settings(setup.settings)
    found = Models(given.models) if models is None else models
    return Kit(setup.retriever, setup.selector, found, given, setup.settings.limits, setup.max_tokens)


def attempted(
    run: Run,
    act: Callable[[Run], tuple[Reply, Workflow]],
    name: str,
    settings: dict[str, Any],
    worth: dict[str, float] | None = None,
) -> Outcome | Failure:
    """Act, and tell what came of it; whatever is raised as `MioRagError` makes a failure."""
    begun, asked = time.perf_counter(), run.budget_tokens
    reply: Reply | None = None
    ran: Workflow | None = None
    error: MioRagError | None = None
    try:
        reply, ran = act(run)
    except MioRagError as failed:
        error = failed
    steps, costs, read = run.steps(), run.costs(), run.selection()
    trace = PlanTrace(
        question_id=run.question.id,
        question=run.question.text,
        choices=tuple(run.question.choices),
        controller=name,
        budget_tokens=asked,
        settings=settings,
        steps=steps,
        ended="stop" if error is None else "error",
        passages=read_passages(read),
        answer="" if reply is None else reply.answer.text,
        choice=None if reply is None else reply.choice,
        generator=run.reader.name,
        opening=tuple(spent.call for spent in run.opening),
        parts=totals(costs.calls),
        error=None if error is None else f"{type(error).__name__}: {error}",
        workflow={} if ran is None else ran.to_dict(),
        seconds=time.perf_counter() - begun,
        choice_of=dict(worth or {}),
        fallback=run.fallback,
    )
    if error is not None or reply is None:
        return Failure(error or MioRagError("there is no answer"), read, trace, costs)
    return Outcome(reply, read, trace, costs)


@dataclass(frozen=True, eq=False)
class WorkflowController:
    """Runs one workflow on every question.

    Parameters
    ----------
    name : str
        As the ledger shows it.
    settings : dict
        As traces hold them.
    """

    name: str
    workflow: Workflow
    kit: Kit
    settings: dict[str, Any] = field(default_factory=dict)

    def attempt(
        self, question: Question, generator: Generator, budget_tokens: int, replies: Replies | None = None
    ) -> Outcome | Failure:
        """Answer a question; see `mio_rag.control.controller.Controller`."""
        if budget_tokens < 1:
            raise InputError(f"budget_tokens={budget_tokens} must be >= 1")
        run = Run(self.kit, question, generator, int(budget_tokens), {} if replies is None else replies)
        return attempted(
            run, lambda run: (run.workflow(self.workflow), self.workflow), self.name, self.settings
        )


def _named(name: str) -> Workflow:
    stem, _, given = name.partition(":")
    if not given:
        raise InputError(f"controller '{name}' names no workflow: for instance {stem}:plain")
    return find_workflow(given)


def check_workflow(name: str, settings: ControlSettings, closed_book: bool) -> None:
    """Raise `InputError` for workflow:NAME where there is no such workflow, or it could not run here."""
    given = workflow_settings(settings)
    problems = workflow_problems(
        _named(name),
        models=tuple(given.models),
        prices=tuple(given.prices),
        depth=given.depth,
        closed_book=closed_book,
    )
    if problems:
        raise InputError(problems)


def workflow_files(name: str) -> dict[str, str]:
    """Digests of workflow:NAME and of all that it runs within, by name."""
    workflow = _named(name)
    return {workflow.name: workflow.sha256, **inner_hashes([workflow])}


def make_workflow(name: str, setup: Setup) -> WorkflowController:
    """The controller of workflow:NAME or workflow:FILE.json.

    Raises
    ------
    InputError
        As `check_workflow`.
    """
    check_workflow(name, setup.settings, setup.retriever is None)
    if setup.retriever is not None and (
        problems := misfits([_named(name)], setup.retriever.index, setup.selector)
    ):
        raise InputError(problems)
    told = {
        "limits": setup.settings.to_dict()["limits"],
        "seed": int(setup.seed),
        "closed_book": setup.retriever is None,
        "max_tokens": int(setup.max_tokens),
        "workflow": workflow_settings(setup.settings).to_dict(),
    }
    return WorkflowController(name, _named(name), kit_of(setup), told)
