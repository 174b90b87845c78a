"""A method of the harness: it selects from the pool that all share, one question at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.control.costs import Costs
from mio_rag.errors import InfeasibleError, InputError, MioRagError
from mio_rag.evaluation.contender import Taken, Task
from mio_rag.generation import build_prompt
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["Method"]


@dataclass(frozen=True)
class Method:
    """A named decision rule.

    Parameters
    ----------
    selector : Selector
        Program and solver.
    score : str or None
        Which of `Candidates.scores` serves as relevance; None: the relevance itself.
    """

    name: str
    selector: Selector
    score: str | None = None

    def select(self, candidates: Candidates, budget_tokens: int, counter: TokenCounter) -> Selection:
        """Choose from the pool."""
        return self.selector.select(self.scored(candidates), budget_tokens, counter)

    def chosen(self, task: Task, candidates: Candidates, budget_tokens: int) -> Selection:
        """What is read of the pool of a task."""
        assert task.retriever is not None
        return self.select(candidates, task.allowed(budget_tokens), task.retriever.counter)

    @property
    def solver(self) -> str:
        """Of the program."""
        return self.selector.solver

    @property
    def questions_at_once(self) -> int:
        """Enough for a generator that answers several at a time."""
        return 4

    def prepare(
        self, questions: Sequence[Question], task: Callable[[Question], Task], budgets: Sequence[int]
    ) -> None:
        """Nothing: each question stands for itself."""

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Select from the shared pool; the answer is left to the reader."""
        taken = Taken(Costs())
        try:
            candidates = task.pool(taken.costs)
            with taken.costs.part("select"):
                taken.selection = self.chosen(task, candidates, budget_tokens)
                if taken.selection.result.x is None:
                    raise InfeasibleError(taken.selection.explain())
                taken.prompt = build_prompt(task.question, taken.selection.passages)
        except MioRagError as error:
            taken.error = error
        return taken

    def scored(self, candidates: Candidates) -> Candidates:
        """The candidates with the score of this method as their relevance."""
        if self.score is None:
            return candidates
        if self.score not in candidates.scores:
            raise InputError(
                f"method '{self.name}' needs candidates with scores['{self.score}']: a re-ranker's "
                "come with --rerank"
            )
        return dataclasses.replace(candidates, relevance=candidates.scores[self.score])
