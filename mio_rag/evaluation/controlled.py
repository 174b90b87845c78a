"""Controllers in the harness: a question goes through one, and comes out as a row like any other.

A row's tokens, calls and seconds are those of all steps together; ``tokens_used`` is what the evidence takes
that was read in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mio_rag.control.controller import Controller
from mio_rag.control.trace import append_traces
from mio_rag.errors import InputError
from mio_rag.evaluation.contender import Taken, Task
from mio_rag.evaluation.expenses import PARTS, seconds_column
from mio_rag.measures import failed_measures
from mio_rag.types import Question

__all__ = ["Controlled"]


@dataclass(frozen=True, eq=False)
class Controlled:
    """A controller that is compared.

    Parameters
    ----------
    solver : str
        Of its selector.
    traces : Path or None
        File that takes a line for every question.
    """

    controller: Controller
    solver: str
    traces: Path | None

    @property
    def name(self) -> str:
        """Name of the controller."""
        return self.controller.name

    @property
    def questions_at_once(self) -> int:
        """One: it generates step by step, and takes its time."""
        return 1

    def prepare(
        self, questions: Sequence[Question], task: Callable[[Question], Task], budgets: Sequence[int]
    ) -> None:
        """Nothing: each question stands for itself."""

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Answer the question, or fail to, and keep the trace.

        Raises
        ------
        InputError
            If the trace cannot be written.
        """
        if task.generator is None:
            raise InputError("controllers need a model that answers: give --generator")
        found = self.controller.attempt(task.question, task.generator, budget_tokens, task.replies)
        if self.traces is not None:
            append_traces(self.traces, [found.trace])
        columns = dict.fromkeys(map(seconds_column, PARTS), 0.0) | found.trace.columns()
        if found.selection is None:  # nothing was read
            columns |= {"selected_ids": [], "tokens_used": 0, "passages_selected": 0}
            columns |= failed_measures(task.question, selection=True, answer=False)
        return Taken(found.costs, found.selection, None, found.reply, found.error, columns)
