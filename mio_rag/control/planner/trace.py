"""The trace of a workflow: every node that ran, what it gave, what it cost, and what was dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mio_rag.control.costs import Call
from mio_rag.control.trace import Step, Trace, is_between

__all__ = ["PlanStep", "PlanTrace"]


@dataclass(frozen=True, kw_only=True)
class PlanStep(Step):
    """One node; its action is the executor.

    Parameters
    ----------
    node : str
        Its path: "facts/2/answer" is the node "answer" of the workflow that answers the second sub-question
        of the node "facts".
    model : str or None
        Who was asked, as the workflow names it.
    gave : str
        What came out, for people.
    signals : dict of str to float
        What can be seen of it: how much was found, how sure the answer is.
    dropped : str or None
        Why nothing of it was used.
    broken : bool
        Whether that was a model that failed, so that the answer rests on less than it should.
    """

    node: str
    model: str | None = None
    gave: str = ""
    signals: dict[str, float] = field(default_factory=dict)
    dropped: str | None = None
    broken: bool = False


@dataclass(frozen=True, kw_only=True)
class PlanTrace(Trace):
    """All of one question.

    Parameters
    ----------
    workflow : dict
        As it ran; with decisions on the way the one that it came to.
    seconds : float
        From beginning to end; parts that ran side by side add up to more.
    choice_of : dict
        What the policy saw in the workflows to choose from: name -> its worth. Empty: nothing was chosen.
    fallback : str or None
        Why the workflow itself gave no answer, where another way was taken.
    """

    kind: ClassVar[str] = "workflow"
    step_type: ClassVar[type[Step]] = PlanStep

    steps: tuple[PlanStep, ...]
    workflow: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    choice_of: dict[str, float] = field(default_factory=dict)
    fallback: str | None = None

    @property
    def dropped(self) -> tuple[PlanStep, ...]:
        """Nodes of which nothing was used."""
        return tuple(step for step in self.steps if step.dropped is not None)

    def by_node(self) -> dict[str, Call]:
        """What each node cost with everything inside it, by its path; also of those that were dropped."""
        found: dict[str, Call] = {}
        for step in self.steps:
            parts = step.node.split("/")
            for end in range(1, len(parts) + 1):
                path = "/".join(parts[:end])
                found[path] = _sum(path, (found.get(path, Call(path, 0.0)), *step.calls))
        return found

    def columns(self) -> dict[str, Any]:
        """With the workflow, how many nodes were dropped, and the time from beginning to end."""
        return super().columns() | {
            "workflow": str(self.workflow.get("name", "")),
            "dropped": len(self.dropped),
            "elapsed": self.seconds,
        }

    def problems(self) -> list[str]:
        """What no workflow writes."""
        problems = super().problems()
        if not isinstance(self.workflow, Mapping):
            problems.append(f"workflow is {self.workflow!r:.40}, not an object")
        if not is_between(self.seconds, 0, float("inf")):
            problems.append(f"seconds is {self.seconds!r}, not a number >= 0")
        return problems


def _sum(part: str, calls: tuple[Call, ...]) -> Call:
    return Call(
        part,
        sum(call.seconds for call in calls),
        sum(call.lm_calls for call in calls),
        sum(call.retrieval_calls for call in calls),
        sum(call.prompt_tokens for call in calls),
        sum(call.completion_tokens for call in calls),
    )
