"""A method that looks at all questions first: one total of tokens, shared where it adds most.

Under a budget of B it may spend B times the number of questions, so a single row may hold more than B. All
questions are retrieved before the first is answered; what that takes is charged to each alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mio_rag.allocation import allocate
from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.control.costs import Call, Costs
from mio_rag.errors import InputError, MioRagError
from mio_rag.evaluation.contender import Taken, Task
from mio_rag.evaluation.method import Method
from mio_rag.selection.result import Selection
from mio_rag.selection.solving import Choice, concluded
from mio_rag.types import Question

__all__ = ["Allocated"]


@dataclass(frozen=True)
class Allocated(Method):
    """The program under one total for all questions."""

    _choices: dict[tuple[int, str], Choice] = field(default_factory=dict, compare=False, repr=False)
    _seconds: dict[int, float] = field(default_factory=dict, compare=False, repr=False)

    def prepare(
        self, questions: Sequence[Question], task: Callable[[Question], Task], budgets: Sequence[int]
    ) -> None:
        """Share each total among all questions; one whose pool cannot be had gets nothing.

        Raises
        ------
        MioRagError
            If the totals cannot be shared.
        """
        if not budgets:
            return
        most = max(budgets) * len(questions)
        laid: list[tuple[Task, Candidates, int]] = []
        for question in questions:
            one = task(question)
            try:
                laid.append((one, one.pool(Costs()), max(1, one.allowed(most))))
            except MioRagError:  # it is told where the question is taken
                continue
        for budget in budgets if laid else ():
            began = time.perf_counter()
            found = allocate(
                [pool for _, pool, _ in laid],
                budget * len(questions),
                selector=self.selector,
                ceilings=[ceiling for *_, ceiling in laid],
                counter=_counter(laid[0][0]),
            )
            for (one, *_), choice in zip(laid, found.choices, strict=True):
                self._choices[budget, one.question.id] = choice
            self._seconds[budget] = (time.perf_counter() - began) / len(questions)

    def select(self, candidates: Candidates, budget_tokens: int, counter: TokenCounter) -> Selection:
        """Refused: a total has no meaning for one question.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(
            f"method '{self.name}' shares one total among all questions: use 'exact' for a single one"
        )

    def chosen(self, task: Task, candidates: Candidates, budget_tokens: int) -> Selection:
        """What the question was given.

        Raises
        ------
        InputError
            If it was not among those that were prepared.
        """
        choice = self._choices.get((budget_tokens, task.question.id))
        if choice is None:
            raise InputError(
                f"method '{self.name}' was not prepared for question '{task.question.id}' at "
                f"{budget_tokens} tokens: call prepare with all questions first"
            )
        return concluded(choice)

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """What the question was given; its share of the preparation counts as selection."""
        taken = super().take(task, budget_tokens)
        if taken.selection is not None:
            taken.costs.add(Call("select", self._seconds[budget_tokens]))
        return taken


def _counter(task: Task) -> TokenCounter:
    assert task.retriever is not None
    return task.retriever.counter
