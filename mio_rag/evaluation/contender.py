"""What the harness compares, whatever it is: all are asked the same questions, and their rows look alike.

A method selects from the pool that all methods share, and leaves the answer to the reader. A controller
answers by itself. The harness asks neither which it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mio_rag.candidates import Candidates
from mio_rag.control.costs import Call, Costs
from mio_rag.control.meter import Replies, Reply
from mio_rag.errors import InputError, MioRagError
from mio_rag.generation import Generator, Prompt
from mio_rag.generation.window import context_budget
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.result import Selection
from mio_rag.types import Question

__all__ = ["Contender", "Taken", "Task"]


@dataclass(eq=False)
class Task:
    """One question, with what every contender may use.

    Parameters
    ----------
    generator : Generator or None
        None: selections are compared, and nobody answers.
    max_tokens : int
        Longest answer.
    replies : dict
        What the generator said to controllers: the same prompt is asked once, and charged to each.
    """

    question: Question
    retriever: Retriever | None
    generator: Generator | None
    max_tokens: int
    replies: Replies = field(default_factory=dict)
    _found: Candidates | MioRagError | None = None
    _seconds: float = 0.0

    def pool(self, costs: Costs) -> Candidates:
        """The candidates, retrieved once and charged to each who asks.

        Raises
        ------
        MioRagError
            As retrieval does, each time.
        """
        if self.retriever is None:
            raise InputError("there is no corpus to select from: give one, or compare controllers alone")
        if self._found is None:
            start = time.perf_counter()
            try:
                self._found = self.retriever.retrieve(self.question.text)
            except MioRagError as error:
                self._found = error
            self._seconds = time.perf_counter() - start
        costs.add(Call("retrieve", self._seconds, retrieval_calls=1))
        if isinstance(self._found, MioRagError):
            raise self._found
        return self._found

    def allowed(self, budget_tokens: int) -> int:
        """The budget, or what the reader's window leaves where that is less; as `context_budget`."""
        if self.generator is None:
            return budget_tokens
        return context_budget(self.generator, self.question, budget_tokens, max_tokens=self.max_tokens)


@dataclass(eq=False)
class Taken:
    """What a contender made of a question.

    Parameters
    ----------
    selection : Selection or None
        What is read; None: nothing was selected.
    prompt : Prompt or None
        What the reader is to answer; None: nothing is left to answer.
    reply : Reply or None
        The answer, where there is one already.
    error : MioRagError or None
        What failed.
    columns : dict
        What only this kind of contender says of itself in a row.
    """

    costs: Costs
    selection: Selection | None = None
    prompt: Prompt | None = None
    reply: Reply | None = None
    error: MioRagError | None = None
    columns: dict[str, Any] = field(default_factory=dict)


class Contender(Protocol):
    """Takes questions under a token budget."""

    @property
    def name(self) -> str:
        """As the ledger shows it."""
        ...

    @property
    def solver(self) -> str:
        """What is to be compiled before anything is timed; see `mio_rag.solvers.registry`."""
        ...

    @property
    def questions_at_once(self) -> int:
        """How many questions it is best asked before the reader answers them together."""
        ...

    def prepare(
        self, questions: Sequence[Question], task: Callable[[Question], Task], budgets: Sequence[int]
    ) -> None:
        """Look at all questions of a run, before any is taken.

        Parameters
        ----------
        task : callable
            Lays a question out.
        budgets : sequence of int
            Those with questions that are not finished.
        """
        ...

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Take up the question of a task; what fails with a `MioRagError` is told, and all else is raised."""
        ...
