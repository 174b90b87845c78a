"""What is left of a total, spent by the best steps: most value per token first, and never above the total."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence

from mio_rag.allocation.question import Decided, PricedQuestion
from mio_rag.allocation.workload import Workload
from mio_rag.selection.selector import Selector
from mio_rag.solvers.many import solve_as_completed

__all__ = ["filled"]

#: Prices just below the one found, as shares of it: they show each question's next steps.
_LOWER = (0.95, 0.8, 0.5)
#: Questions that are solved again for exactly what is left, in one round.
_AGAIN = 64
_ROUNDS = 20


def filled(
    workload: Workload, selector: Selector, price: float, total_tokens: int, workers: int
) -> list[Decided]:
    """The decisions at a price that spends no more than the total, and steps from there with what is left.

    Parameters
    ----------
    price : float
        One that was tried.
    """
    current = workload.decisions(price)
    left = total_tokens - sum(decided.tokens for decided in current)
    if price == 0:  # each has its best, whatever is left
        return current
    for share in _LOWER:
        if left < _cheapest(workload.questions, current):
            return current
        workload.at(share * price)
        left = _stepped(workload.questions, current, left)
    for _ in range(_ROUNDS):
        if left < _cheapest(workload.questions, current):
            break
        again = sorted(range(len(current)), key=lambda k: -_steepest(workload.questions[k], current[k]))
        found = _solved_again(workload, selector, current, left, again[:_AGAIN], workers)
        after = _stepped(workload.questions, current, left, found)
        if after == left:
            break
        left = after
    return current


def _cheapest(questions: Sequence[PricedQuestion], current: Sequence[Decided]) -> float:
    """Fewest tokens of any passage that is not chosen."""
    pairs = zip(questions, current, strict=True)
    return min(question.smallest_missing(decided) for question, decided in pairs)


def _better(decided: Decided, options: Sequence[Decided]) -> list[tuple[float, Decided]]:
    """Decisions that are worth more for more tokens, with the value of each token more."""
    return [
        ((other.value - decided.value) / max(other.tokens - decided.tokens, 1), other)
        for other in options
        if other.x is not None and other.value > decided.value and other.tokens >= decided.tokens
    ]


def _options(question: PricedQuestion) -> list[Decided]:
    return [probe.decided for probe in question.probes]


def _steepest(question: PricedQuestion, decided: Decided) -> float:
    return max((gain for gain, _ in _better(decided, _options(question))), default=0.0)


def _stepped(
    questions: Sequence[PricedQuestion],
    current: list[Decided],
    left: int,
    more: Mapping[int, Sequence[Decided]] | None = None,
) -> int:
    """Take steps while any fits, the best first; what is left afterwards."""
    heap: list[tuple[float, int, int, int, Decided]] = []
    taken = [0] * len(current)  # steps of each question: those that lead on from an earlier decision are off
    serial = itertools.count()

    def push(k: int) -> None:
        for gain, other in _better(current[k], [*_options(questions[k]), *(more or {}).get(k, ())]):
            if other.tokens - current[k].tokens <= left:
                heapq.heappush(heap, (-gain, k, taken[k], next(serial), other))

    for k in range(len(current)):
        push(k)
    while heap:
        _, k, since, _, other = heapq.heappop(heap)
        step = other.tokens - current[k].tokens
        if since != taken[k] or step > left:
            continue
        left -= step
        current[k] = other
        taken[k] += 1
        push(k)
    return left


def _solved_again(
    workload: Workload,
    selector: Selector,
    current: Sequence[Decided],
    left: int,
    which: Sequence[int],
    workers: int,
) -> dict[int, list[Decided]]:
    """The best of some questions within what they have and all that is left."""
    budgets = {k: min(workload.questions[k].ceiling, current[k].tokens + left) for k in which}
    tasks = (
        (k, workload.questions[k].program(0.0, budget))
        for k, budget in budgets.items()
        if budget > current[k].tokens
    )
    found = {}
    for k, result in solve_as_completed(tasks, selector.solver, selector.options, workers=workers):
        workload.programs += 1
        found[k] = [workload.questions[k].decided(0.0, budgets[k], result)]
    return found
