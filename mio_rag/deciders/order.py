"""Order: which steps, in what order, by a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mio_rag.session.state import Action, State
from mio_rag.session.workflow import Node, Workflow, find_workflow


class Planning:
    """What deciders of steps have in common; as `mio_rag.session.loop.Plan`."""

    def inner(self, workflow: Any) -> Order:
        """Return the order of the steps for a sub-question: its own workflow."""
        return Order(inner_workflow(workflow), final=False)

    def scores(self, state: State) -> dict[str, float]:
        """Return what was chosen among; empty where nothing is scored."""
        return {}


@dataclass(frozen=True)
class Order(Planning):
    """Propose every step of a workflow whose inputs have ended.

    final: whether its answer is the answer to the question; not so for sub-questions.
    """

    workflow: Workflow
    final: bool = True

    def decide(self, state: State, proposed: tuple[Action, ...]) -> tuple[Action, ...]:
        """Add the steps that can begin."""
        ready = [
            action_of(node, final=self.final and node.id == self.workflow.answer)
            for node in self.workflow.nodes
            if not state.has_started(node.id) and state.has_ended(*node.takes, *node.after)
        ]
        return (*proposed, *ready)

    def described(self, state: State) -> dict[str, Any]:
        """Return the workflow, as plain data."""
        return self.workflow.to_dict()


def action_of(
    node: Node, *, final: bool, id: str | None = None, inputs: tuple[str, ...] | None = None
) -> Action:
    """The action of a step of a workflow."""
    return Action(
        node.id if id is None else id,
        node.do,
        node.takes if inputs is None else inputs,
        dict(node.settings),
        node.model,
        node.seconds,
        final,
    )


def inner_workflow(given: str | Workflow | Mapping[str, Any]) -> Workflow:
    """The workflow that a step names or holds."""
    return given if isinstance(given, Workflow) else find_workflow(str(given))
