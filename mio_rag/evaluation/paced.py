"""The method "paced": one price for the questions of a run, instead of one budget for each.

At a budget of B tokens it may spend B times the number of questions, in the order in which they come, as they
would come to a service: a hard one more than B, an easy one less (`mio_rag.allocation.pacer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mio_rag.allocation.pacer import Pacer
from mio_rag.control.costs import Costs
from mio_rag.errors import InfeasibleError, InputError, MioRagError
from mio_rag.evaluation.contender import Taken, Task
from mio_rag.generation import build_prompt
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["PACED", "Paced", "unpaced"]

PACED = "paced"
_MOST = 2048  # tokens of one question, where its share is not larger


def unpaced(names: Sequence[str]) -> list[str]:
    """The methods that decide question by question.

    Raises
    ------
    InputError
        If "paced" is listed twice.
    """
    if names.count(PACED) > 1:
        raise InputError(f"method '{PACED}' is listed twice")
    return [name for name in names if name != PACED]


class Paced:
    """A pacer for each budget.

    Parameters
    ----------
    selector : Selector
        Its price of a token is replaced.
    questions : int
        Of the run.
    rows : iterable of mapping
        What the run holds already, in the order in which it was found: what they spent is spent. So an
        interrupted run goes on as if it had not been, and nothing is counted twice.
    """

    name = PACED
    questions_at_once = 4

    def __init__(self, selector: Selector, questions: int, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._selector, self._questions = selector, questions
        self._spent: dict[int, list[int]] = {}
        for row in rows:
            if row["method"] == PACED and not row["error"]:
                self._spent.setdefault(int(row["budget_tokens"]), []).append(int(row["tokens_used"]))
        self._pacers: dict[int, Pacer] = {}

    @property
    def solver(self) -> str:
        """Of the program."""
        return self._selector.solver

    def prepare(
        self, questions: Sequence[Question], task: Callable[[Question], Task], budgets: Sequence[int]
    ) -> None:
        """Nothing: it learns of a question when that is asked."""

    def take(self, task: Task, budget_tokens: int) -> Taken:
        """Select at the price of the moment; the answer is left to the reader."""
        taken = Taken(Costs())
        try:
            candidates = task.pool(taken.costs)
            assert task.retriever is not None
            most = task.allowed(max(_MOST, budget_tokens))
            with taken.costs.part("select"):
                pacer = self._pacer(budget_tokens)
                made = pacer.select(candidates, self._selector, task.retriever.counter, most)
                taken.selection = made
                if made.result.x is None:
                    raise InfeasibleError(made.explain())
                taken.prompt = build_prompt(task.question, made.passages)
        except MioRagError as error:
            taken.error = error
        return taken

    def _pacer(self, budget: int) -> Pacer:
        if budget not in self._pacers:
            pacer = Pacer(budget * self._questions, self._questions, most=max(_MOST, budget))
            for used in self._spent.get(budget, ()):
                pacer.spent(pacer.ask(), used)
            self._pacers[budget] = pacer
        return self._pacers[budget]
