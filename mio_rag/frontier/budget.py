"""Every budget at which the best selection changes, and the gain from more tokens.

The best value V(B) is a staircase in the budget B: it only rises, and it is constant between the cost of an
optimal selection and the budget that selection was optimal for. So one solve at B settles every budget from
cost(x) to B, and the next one is at cost(x) - 1: as many solves as there are steps (and ties). For a solve
that a limit stopped, the same argument gives bounds: its value from below and its bound from above hold for
all of these budgets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mio_rag.errors import InputError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.frontier.chain import Chain, supported

_SAME = 1e-9  # relative: values that differ by the order of summation only


@dataclass(frozen=True)
class BudgetStep:
    """One step of the staircase.

    Parameters
    ----------
    tokens, until : int
        The budgets from the first to the last at which this selection is the best.
    value, bound : float
        What it is worth, and what no selection within `until` tokens can exceed.
    certified : bool
        Whether bound - value is within the solver's stated tolerance.
    supported : bool
        Whether the step lies on the concave hull of the staircase: some price per token singles it out.
    next_price : float or None
        The shadow price of a token: value gained per token on the way to the next step; None for the last.
    """

    tokens: int
    until: int
    value: float
    bound: float
    certified: bool
    selected: tuple[int, ...]
    supported: bool = False
    next_price: float | None = None


@dataclass(frozen=True)
class BudgetPath:
    """The staircase from the smallest feasible budget to the largest asked for.

    Parameters
    ----------
    steps : tuple of BudgetStep
        By rising tokens. Together they cover every budget from the first `tokens` to the last `until`.
    complete : bool
        False where a limit left the lower end open.
    solves : int
    """

    steps: tuple[BudgetStep, ...]
    complete: bool
    solves: int

    def at(self, budget_tokens: int) -> BudgetStep | None:
        """The step that holds at a budget; None outside the path."""
        return next((s for s in self.steps if s.tokens <= budget_tokens <= s.until), None)

    def gain(self, budget_tokens: int, more_tokens: int) -> dict[str, Any] | None:
        """The gain from `more_tokens` above a budget.

        Returns
        -------
        dict or None
            gain, with low and high between which it is proven to lie, the ids' positions added and removed,
            tokens_used (how many of the additional tokens the better selection takes), certified. None where
            the path does not reach.
        """
        now, then = self.at(budget_tokens), self.at(budget_tokens + more_tokens)
        if now is None or then is None:
            return None
        return {
            "budget_tokens": budget_tokens,
            "more_tokens": more_tokens,
            "gain": then.value - now.value,
            "low": max(0.0, then.value - now.bound),
            "high": then.bound - now.value,
            "tokens_used": then.tokens - now.tokens,
            "added": sorted(set(then.selected) - set(now.selected)),
            "removed": sorted(set(now.selected) - set(then.selected)),
            "certified": now.certified and then.certified,
        }


def budget_path(
    program: SelectionProgram, chain: Chain | None = None, *, progress: Callable[[int], None] | None = None
) -> BudgetPath:
    """The staircase of a program over all budgets up to its own.

    Parameters
    ----------
    program : SelectionProgram
        With whole-number costs. Its budget is the largest one looked at.
    chain : Chain, optional
        Who solves; by default a new one.
    progress : callable, optional
        Called with the number of tokens just settled; they add up to the budget + 1.

    Raises
    ------
    InputError
        If costs are not whole numbers, or the budget is below 0.
    SolverError
        If the solver broke.
    """
    if program.budget < 0 or not program.has_whole_costs:
        raise InputError("a budget path needs a budget >= 0 and costs that are whole numbers of tokens")
    chain = chain or Chain()
    advance = progress or (lambda _: None)
    before, budget = chain.solves, int(program.budget)
    falling: list[BudgetStep] = []  # from the largest budget down
    top, ceiling, complete = 0.0, float("inf"), True
    while budget >= 0:
        result = chain.solve(replace(program, budget=budget))
        if result.x is None:
            complete = result.status.value == "infeasible"
            advance(budget + 1)
            break
        assert result.objective is not None
        value, tokens = result.objective, int(program.cost(result.x))
        ceiling = min(ceiling, float("inf") if result.bound is None else result.bound)
        last = falling[-1] if falling else None
        if last is not None and value >= top - _SAME * max(1.0, abs(top)):
            # Not worse for fewer tokens: the step above was none, or a limit had hidden this selection.
            falling.pop()
            until, bound, top = last.until, last.bound, max(top, value)
        else:
            until, bound, top = budget, ceiling, value
        falling.append(
            BudgetStep(
                tokens, until, value, max(bound, value), chain.certifies(value, bound), result.selected
            )
        )
        advance(budget + 1 - tokens)
        budget = tokens - 1
    return BudgetPath(_priced(falling[::-1]), complete, chain.solves - before)


def _priced(steps: list[BudgetStep]) -> tuple[BudgetStep, ...]:
    """The steps with their prices, and which of them are on the hull."""
    on_hull = supported([s.tokens for s in steps], [s.value for s in steps])
    nexts = [*steps, None][1:]
    return tuple(
        replace(
            step,
            supported=hull,
            next_price=None if other is None else (other.value - step.value) / (other.tokens - step.tokens),
        )
        for step, other, hull in zip(steps, nexts, on_hull, strict=True)
    )
