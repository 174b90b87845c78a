"""A total of tokens, shared among questions so that they reach the most together, with a certified gap.

    maximise   sum_q w_q V_q(x_q)      subject to   sum_q c(x_q) <= T

with the selection program's value V_q of each question. One price of a token decides for all of them: the
bisection over it yields an allocation and, by Lagrangian duality, a bound on every other one. The gap is at
most what one question's next step is worth, so it vanishes as questions grow in number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mio_rag.allocation.filling import filled
from mio_rag.allocation.workload import Told, workload_of
from mio_rag.candidates import Candidates
from mio_rag.context import TokenCounter
from mio_rag.errors import InputError
from mio_rag.formulations.numbers import plural
from mio_rag.formulations.rows import count_problem
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector
from mio_rag.selection.solving import Choice, concluded

__all__ = ["Allocation", "allocate"]


@dataclass(frozen=True, eq=False)
class Allocation:
    """A total of tokens, shared among questions.

    Parameters
    ----------
    choices : tuple of Choice
        What was decided for each question; `selections` adds the reasons.
    tokens : tuple of int
        Of each question: the assembled block where a counter was given, else the sum over its passages.
        Together never above `total_tokens`.
    token_price : float
        mu: what one more token had to be worth; 0 where nothing had to be left out for its tokens.
    values : tuple of float
        w_q V_q of each choice, recomputed from it. 0 where nothing is feasible.
    bound : float or None
        Proven: no allocation of the total is worth more, where tokens are summed over passages and what they
        share. None where a solver proved nothing.
    programs : int
        Solved on the way.
    notes : tuple of str
        What a person should know.
    """

    choices: tuple[Choice, ...]
    tokens: tuple[int, ...]
    total_tokens: int
    token_price: float
    values: tuple[float, ...]
    bound: float | None
    programs: int
    notes: tuple[str, ...] = ()

    @cached_property
    def selections(self) -> tuple[Selection, ...]:
        """What each question reads, with reasons; the certificate is that of its own program at the price."""
        return tuple(concluded(choice) for choice in self.choices)

    @property
    def value(self) -> float:
        """What was reached: the sum of `values`."""
        return math.fsum(self.values)

    @property
    def tokens_used(self) -> int:
        """Of all questions."""
        return sum(self.tokens)

    @property
    def gap(self) -> float | None:
        """(bound - value) / |value|, at least 0; None without a bound, or where only the value is 0."""
        if self.bound is None:
            return None
        missing = max(0.0, self.bound - self.value)
        return 0.0 if missing == 0 else None if self.value == 0 else missing / abs(self.value)

    def explain(self) -> str:
        """A few lines for a person."""
        gap = "no bound was proven" if self.bound is None else f"none can exceed {self.bound:.6g}"
        if self.gap is not None:
            gap += f" (gap {self.gap:.3%})"
        lines = [
            f"{plural(len(self.choices), 'question')}, {self.tokens_used} of "
            f"{plural(self.total_tokens, 'token')}, price of a token {self.token_price:.4g}",
            f"value {self.value:.6g}; {gap}",
        ]
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the passages."""
        return {
            "questions": len(self.choices),
            "total_tokens": self.total_tokens,
            "tokens_used": self.tokens_used,
            "token_price": self.token_price,
            "value": self.value,
            "bound": self.bound,
            "gap": self.gap,
            "programs": self.programs,
            "notes": list(self.notes),
            "tokens": list(self.tokens),
            "values": list(self.values),
            "selected_ids": [[c.formulation.candidates.ids[i] for i in c.chosen] for c in self.choices],
        }


def allocate(
    pools: Sequence[Candidates],
    total_tokens: int,
    *,
    selector: Selector | None = None,
    weights: Sequence[float] | None = None,
    floors: int | Sequence[int] | None = None,
    ceilings: int | Sequence[int] | None = None,
    counter: TokenCounter | None = None,
    workers: int = 1,
    progress: Told | None = None,
) -> Allocation:
    """Share a total of tokens among questions so that their selections are worth the most together.

    Parameters
    ----------
    pools : sequence of Candidates
        One for each question.
    total_tokens : int
        T >= 1, of all questions together.
    selector : Selector, optional
        Whose program is solved for each question; without a token price, by default ``Selector()``. Its time
        limit is one for each program.
    weights : sequence of float, optional
        What each question counts, from 1e-9 to 1e9; 1 by default.
    floors, ceilings : int or sequence of int, optional
        Fewest and most tokens of any question, or of each. A question that cannot reach its floor is
        infeasible: it gets nothing, and its status says so.
    counter : TokenCounter, optional
        The reader's tokenizer. Text that passages share is then paid once, and each assembled block keeps the
        tokens that its question was given, so that the total holds as counted.
    workers : int
        Threads that solve.
    progress : callable, optional
        Told one line for each price that is tried.

    Returns
    -------
    Allocation
        Value, bound and gap are recomputed from the decisions.

    Raises
    ------
    InputError
        For weights, floors or ceilings of the wrong length or that contradict each other, empty pools,
        settings that do not fit, floors where passages share text, or a total below the shortest passage or
        what must be chosen.
    SolverError
        If the solver broke.
    """
    problem = count_problem("total_tokens", total_tokens)
    if problem is None and total_tokens < 1:
        problem = f"total_tokens={total_tokens} must be >= 1"
    if problem:
        raise InputError(problem)
    total, chooser = int(total_tokens), selector or Selector()
    workload = workload_of(
        pools,
        chooser,
        weights=weights,
        floors=floors,
        ceilings=ceilings,
        counter=counter,
        most=total,
        workers=workers,
        told=progress,
    )
    shortest = min(int(pool.tokens.min()) for pool in pools)
    if total < shortest:
        raise InputError(
            f"total_tokens={total} is below the shortest passage of all questions, {shortest} tokens: "
            "raise it, or split passages"
        )
    price = workload.bracket(total).high.price
    decided = filled(workload, chooser, price, total, workers)
    pairs = list(zip(workload.questions, decided, strict=True))
    choices = tuple(question.choice(one) for question, one in pairs)
    tokens = tuple(choice.used for choice in choices)
    if sum(tokens) > total:  # by construction it cannot be
        raise AssertionError(f"{sum(tokens)} tokens were allotted, of {total}")
    values = tuple(question.value_of(c) for question, c in zip(workload.questions, choices, strict=True))
    reached, bound = math.fsum(values), workload.bound(total)
    return Allocation(
        choices,
        tokens,
        total,
        price,
        values,
        max(bound, reached) if math.isfinite(bound) else None,
        workload.programs,
        _notes(choices),
    )


def _notes(choices: Sequence[Choice]) -> tuple[str, ...]:
    notes = []
    without = [k for k, choice in enumerate(choices) if choice.result.x is None]
    if without:
        named = ", ".join(map(str, without[:5])) + (", ..." if without[5:] else "")
        status = choices[without[0]].result.status.value.replace("_", " ")
        notes.append(f"{plural(len(without), 'question')} without a selection ({named}): {status}")
    return tuple(notes)
