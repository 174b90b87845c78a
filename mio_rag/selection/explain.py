"""Why each candidate is in or out, from the program and the decision alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.formulations.program import LinearConstraint, SelectionProgram
from mio_rag.selection.result import Decision
from mio_rag.solvers.result import SolveResult, Status

__all__ = ["Priced", "decisions"]


@dataclass(frozen=True, eq=False)
class Priced:
    """What a decision pays for rules that may be broken at a price.

    Parameters
    ----------
    marginal : ndarray of shape (n,)
        What each passage adds to that.
    paid : callable
        Any decision -> what it pays.
    """

    marginal: NDArray[np.float64]
    paid: Callable[[NDArray[np.int8]], float]


def decisions(
    candidates: Candidates,
    program: SelectionProgram,
    result: SolveResult,
    priced: Priced | None = None,
    *,
    robust: bool = False,
) -> tuple[Decision, ...]:
    """One `Decision` for each candidate, in candidate order.

    Parameters
    ----------
    program : SelectionProgram
        Without what `priced` counts.
    robust : bool
        Whether relevance is also charged for embeddings that may be off.
    """
    n = program.n
    x = np.zeros(n, dtype=np.int8) if result.x is None else result.x
    chosen = np.flatnonzero(x)
    # Marginal value of i beside the selected others: what it adds, or what its removal would lose.
    value = program.linear - program.pairwise[:, chosen].sum(axis=1)
    if priced is not None:
        value = value - priced.marginal
    charges = "penalties and radius" if robust else "penalties"
    made = []
    for i in range(n):
        others = chosen[chosen != i]
        rival = None
        if others.size and float(program.pairwise[i, others].max()) > 0:
            rival = int(others[int(np.argmax(program.pairwise[i, others]))])
        reason = (
            _why_in(candidates, program, x, i, float(value[i]), rival, priced, charges)
            if x[i]
            else _why_out(candidates, program, result, i, value, chosen, rival, priced, charges)
        )
        made.append(
            Decision(
                id=candidates.ids[i],
                selected=bool(x[i]),
                tokens=int(candidates.tokens[i]),
                relevance=float(candidates.relevance[i]),
                value=float(value[i]),
                reason=reason,
                redundant_with=None if rival is None else candidates.ids[rival],
            )
        )
    return tuple(made)


def _nothing(program: SelectionProgram) -> float:
    """The size below which a value is rounding."""
    return 1e-9 * min(1.0, program.value_scale)


def _signed(value: float, nothing: float) -> str:
    """A value with its sign, never as +0.000."""
    if abs(value) < nothing:
        return "nothing"
    return f"{value:+.3f}" if abs(value) >= 0.0005 else f"{value:+.1g}"


def _why_in(
    candidates: Candidates,
    program: SelectionProgram,
    x: NDArray[np.int8],
    i: int,
    value: float,
    rival: int | None,
    priced: Priced | None,
    charges: str,
) -> str:
    assert program.fixed is not None
    others = np.flatnonzero(x)
    others = others[others != i]
    relevance, alone = float(candidates.relevance[i]), float(program.linear[i])
    gains = np.maximum(-program.pairwise[i, others], 0.0)
    gain, pays = float(gains.sum()), 0.0 if priced is None else float(priced.marginal[i])
    losses = []
    if relevance - alone > 0.0005:
        losses.append(f"{relevance - alone:.3f} for {charges}")
    if rival is not None and alone + gain - pays - value > 0.0005:
        overlap = alone + gain - pays - value
        losses.append(f"{overlap:.3f} for overlap, most with '{candidates.ids[rival]}'")
    if pays > 0.0005:
        losses.append(f"{pays:.3f} for what it breaks or changes")
    text = f"relevance {relevance:.3f}, adds {_signed(value, _nothing(program))}"
    if gain > 0.0005:
        partner = candidates.ids[others[int(np.argmax(gains))]]
        text += f" with {gain:.3f} for its links, most with '{partner}'"
    if pays < -0.0005:
        text += f" with {-pays:.3f} for what would break or change without it"
    if losses:
        text += f" after {' and '.join(losses)}"
    if program.fixed[i] == 1:
        return f"required (must include); {text}"
    if value < 0 and (held := _broken_row(program, x, i)) is not None:
        return f"{text}, which '{held.name}' requires"
    return text


def _why_out(
    candidates: Candidates,
    program: SelectionProgram,
    result: SolveResult,
    i: int,
    value: NDArray[np.float64],
    chosen: NDArray[np.int64],
    rival: int | None,
    priced: Priced | None,
    charges: str,
) -> str:
    assert program.fixed is not None
    if program.fixed[i] == 0:
        return "excluded (must exclude)"
    if result.x is None:
        return {
            Status.INFEASIBLE: "no selection satisfies the constraints",
            Status.NO_SOLUTION: "the solver found no selection",
        }.get(result.status, "there is no selection")
    cost = float(program.costs[i])
    if cost > program.most_cost:
        return f"its {cost:.10g} tokens exceed the whole budget of {program.budget:.10g}"
    for row in program.rows:
        least = float(np.minimum(row.coefficients, 0.0).sum() + max(row.coefficients[i], 0.0))
        if least > row.most:
            return f"cannot be read: {row.name}"
    alone, gain = float(program.linear[i]), float(value[i])
    pays = 0.0 if priced is None else float(priced.marginal[i])
    nothing = _nothing(program)
    if gain <= nothing:  # an item worth nothing alone may still gain beside the chosen ones
        if alone <= 0:
            left = "nothing is left" if alone > -nothing else _signed(alone, nothing)
            relevance = f"relevance {candidates.relevance[i]:.3f}"
            return f"{relevance} does not pay for {charges} ({left})"
        why = [] if pays <= 0.0005 else [f"{pays:.3f} goes to what it would break or change"]
        if rival is not None:
            overlap = f"most with '{candidates.ids[rival]}'{_similarity(candidates, i, rival)}"
            why.append(f"overlaps with what is chosen, {overlap}")
        return f"would add {_signed(gain, nothing)}{': ' if why else ''}{' and '.join(why)}"
    worth = f"worth {_signed(gain, nothing)}"
    blocked = _broken_row(program, result.x, i)
    if blocked is not None:
        full = blocked.name.startswith("at most") and blocked.coefficients.min() >= 0
        return f"{worth}, but '{blocked.name}' is full" if full else f"{worth}, but {blocked.name}"
    left_over = program.budget - program.cost(result.x)
    if cost > program.most_cost - program.cost(result.x):
        swap = _best_swap(candidates, program, i, value, chosen, priced)
        return f"{worth}, but needs {cost:.10g} tokens and {max(left_over, 0):.10g} are left; {swap}"
    if result.status is Status.OPTIMAL:
        return f"would add {gain:+.3g}, within the tolerance of the proof"
    told = f"would add {_signed(gain, nothing)} and fits"
    return f"{told}: '{result.solver}' did not take it (it proves no optimum)"


def _similarity(candidates: Candidates, i: int, j: int) -> str:
    if candidates.embeddings is None:
        return ""
    return f" (similarity {float(candidates.embeddings[i] @ candidates.embeddings[j]):.2f})"


def _broken_row(program: SelectionProgram, x: NDArray[np.int8], i: int) -> LinearConstraint | None:
    """The first row that would be broken if passage i came in, or went."""
    for row in program.rows:
        activity = float(row.coefficients[x > 0].sum())
        after = activity + float(row.coefficients[i]) * (-1 if x[i] else 1)
        if row.violation(after) > row.violation(activity):
            return row
    return None


def _best_swap(
    candidates: Candidates,
    program: SelectionProgram,
    i: int,
    value: NDArray[np.float64],
    chosen: NDArray[np.int64],
    priced: Priced | None,
) -> str:
    """The one exchange that breaks nothing and loses least."""
    assert program.fixed is not None
    out = chosen[program.fixed[chosen] < 0]
    left = program.most_cost - float(program.costs[chosen].sum())
    out = out[program.costs[i] - program.costs[out] <= left]
    swapped = np.zeros((out.size, program.n), dtype=np.int8)
    swapped[:, chosen], swapped[:, i], swapped[np.arange(out.size), out] = 1, 1, 0
    change = value[i] + program.pairwise[i, out] - value[out]
    if priced is not None:  # prices of two passages do not add up: each exchange pays as a whole
        now = np.isin(np.arange(program.n), chosen).astype(np.int8)
        change += priced.marginal[i] - priced.marginal[out] + priced.paid(now)
        change -= np.array([priced.paid(x) for x in swapped])
    for k in np.argsort(-change, kind="stable"):
        if program.rows and program.violations(swapped[k]):  # the budget has been looked at
            continue
        moves = "not change the objective"
        if abs(change[k]) >= (nothing := _nothing(program)):
            moves = f"change the objective by {_signed(float(change[k]), nothing)}"
        return f"in place of '{candidates.ids[out[k]]}' it would {moves}"
    return "no single passage could make room"
