"""Why each candidate is in or out, from the program and the decision alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.program import SelectionProgram, feasibility_tolerance
from mio_rag.solvers.result import SolveResult, Status
from mio_rag.types import Candidates, Decision

__all__ = ["decisions"]


def decisions(candidates: Candidates, program: SelectionProgram, result: SolveResult) -> tuple[Decision, ...]:
    """One `Decision` for each candidate, in candidate order."""
    n = program.n
    x = np.zeros(n, dtype=np.int8) if result.x is None else result.x
    chosen = np.flatnonzero(x)
    # Marginal value of i beside the selected others: what it adds, or what its removal would lose.
    value = program.linear - program.pairwise[:, chosen].sum(axis=1)
    made = []
    for i in range(n):
        others = chosen[chosen != i]
        rival = None
        if others.size and float(program.pairwise[i, others].max()) > 0:
            rival = int(others[int(np.argmax(program.pairwise[i, others]))])
        reason = (
            _why_in(candidates, program, i, float(value[i]), rival, others)
            if x[i]
            else _why_out(candidates, program, result, i, value, chosen, rival)
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


def _why_in(
    candidates: Candidates,
    program: SelectionProgram,
    i: int,
    value: float,
    rival: int | None,
    others: NDArray[np.int64],
) -> str:
    assert program.fixed is not None
    relevance, alone = float(candidates.relevance[i]), float(program.linear[i])
    gains = np.maximum(-program.pairwise[i, others], 0.0)
    gain = float(gains.sum())
    losses = []
    if relevance - alone > 0.0005:
        losses.append(f"{relevance - alone:.3f} for penalties and radius")
    if rival is not None and alone + gain - value > 0.0005:
        losses.append(f"{alone + gain - value:.3f} for overlap, most with '{candidates.ids[rival]}'")
    text = f"relevance {relevance:.3f}, adds {value:+.3f}"
    if gain > 0.0005:
        partner = candidates.ids[others[int(np.argmax(gains))]]
        text += f" with {gain:.3f} for its links, most with '{partner}'"
    if losses:
        text += f" after {' and '.join(losses)}"
    if program.fixed[i] == 1:
        return f"asked for (must include); {text}"
    if value < 0:
        held = [row.name for row in program.rows if row.coefficients[i] > 0 and np.isfinite(row.lower)]
        if held:
            return f"{text}, which '{held[0]}' requires"
    return text


def _why_out(
    candidates: Candidates,
    program: SelectionProgram,
    result: SolveResult,
    i: int,
    value: NDArray[np.float64],
    chosen: NDArray[np.int64],
    rival: int | None,
) -> str:
    assert program.fixed is not None
    if program.fixed[i] == 0:
        return "asked not to be used (must exclude)"
    if result.x is None:
        return {
            Status.INFEASIBLE: "no selection satisfies the constraints",
            Status.NO_SOLUTION: "the solver found no selection",
        }.get(result.status, "there is no selection")
    cost = float(program.costs[i])
    if cost > program.budget:
        return f"its {cost:.10g} tokens exceed the whole budget of {program.budget:.10g}"
    alone, gain = float(program.linear[i]), float(value[i])
    if gain <= 1e-9:  # an item worth nothing alone may still gain beside the chosen ones
        if alone <= 0:
            relevance = f"relevance {candidates.relevance[i]:.3f}"
            return f"{relevance} does not pay for penalties and uncertainty ({alone:+.3f})"
        if rival is None:
            return f"would add {gain:+.3f}"
        overlap = f"most with '{candidates.ids[rival]}'{_similarity(candidates, i, rival)}"
        return f"would add {gain:+.3f}: overlaps with what is chosen, {overlap}"
    blocked = _blocking_row(program, result.x, i)
    if blocked is not None:
        return f"worth {gain:+.3f}, but '{blocked}' is full"
    left = program.budget - program.cost(result.x)
    if cost > left + 1e-9:
        swap = _best_swap(candidates, program, i, value, chosen)
        return f"worth {gain:+.3f}, but needs {cost:.10g} tokens and {max(left, 0):.10g} are left; {swap}"
    if result.status is Status.OPTIMAL:
        return f"would add {gain:+.3g}, within the tolerance of the proof"
    return f"would add {gain:+.3f} and fits: '{result.solver}' did not take it (it proves no optimum)"


def _similarity(candidates: Candidates, i: int, j: int) -> str:
    if candidates.embeddings is None:
        return ""
    return f" (similarity {float(candidates.embeddings[i] @ candidates.embeddings[j]):.2f})"


def _blocking_row(program: SelectionProgram, x: NDArray[np.int8], i: int) -> str | None:
    for row in program.rows:
        activity = float(row.coefficients[x > 0].sum())
        after = activity + float(row.coefficients[i])
        if row.violation(after) > row.violation(activity):
            return row.name
    return None


def _best_swap(
    candidates: Candidates,
    program: SelectionProgram,
    i: int,
    value: NDArray[np.float64],
    chosen: NDArray[np.int64],
) -> str:
    """The one exchange that breaks nothing and loses least."""
    assert program.fixed is not None
    out = chosen[program.fixed[chosen] < 0]
    left = program.budget - float(program.costs[chosen].sum())
    out = out[program.costs[i] - program.costs[out] <= left + feasibility_tolerance(program.budget)]
    change = value[i] + program.pairwise[i, out] - value[out]
    for k in np.argsort(-change, kind="stable"):
        if program.rows:  # the budget has been looked at
            swapped = np.zeros(program.n, dtype=np.int8)
            swapped[[*chosen[chosen != out[k]], i]] = 1
            if program.violations(swapped):
                continue
        return f"in place of '{candidates.ids[out[k]]}' it would change the objective by {change[k]:+.3f}"
    return "no single passage could make room"
