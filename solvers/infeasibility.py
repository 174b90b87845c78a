"""Why a program is infeasible: a minimal set of conflicting requirements, and the smallest sufficient budget.

Requirements are the budget, the rows and the fixed items. The deletion filter drops one after another while
what remains is still infeasible; what is left conflicts, and no part of it does (Chinneck and Dravnieks,
1991). The budget is dropped first. If it stays in the conflict, a larger budget would be enough; the smallest
such budget is the cost of the cheapest selection that satisfies everything else, found by an exact solve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mio_rag.formulations.numbers import plural
from mio_rag.formulations.precedence import with_token_price
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import SolveOptions, Status

__all__ = ["Conflict", "find_conflict"]

#: Seconds for each of the small programs.
_SECONDS = 2.0


@dataclass(frozen=True)
class Conflict:
    """Requirements that cannot hold together.

    Parameters
    ----------
    parts : tuple of str
        In the user's words.
    minimal : bool
        Whether it is proven that every part is needed; False if a time limit came first.
    smallest_budget : float or None
        The least budget under which everything asked for could hold; None where no budget is large enough,
        or none was proven.
    """

    parts: tuple[str, ...]
    minimal: bool
    smallest_budget: float | None

    def explain(self) -> str:
        """One line for a person."""
        text = f"cannot hold together: {'; '.join(self.parts)}"
        if self.smallest_budget is not None:
            return f"{text}; a budget of {plural(self.smallest_budget, 'token')} would do"
        return text


def find_conflict(program: SelectionProgram, names: Sequence[str], solver: str = "highs") -> Conflict | None:
    """A minimal conflict of an infeasible program; None if it is feasible, or that is not proven.

    Parameters
    ----------
    names : sequence of str
        Of the items, for what is fixed.
    """
    assert program.fixed is not None
    most = float(program.all_costs.sum()) + 1.0
    shared = program.segments
    free = SelectionProgram(
        np.zeros(program.n),
        np.zeros((program.n, program.n)),
        program.costs,
        program.budget,
        segments=None if shared is None else replace(shared, prices=np.zeros(shared.m)),
    )
    # In the order in which they are given up.
    parts: list[tuple[str, int]] = [("budget", 0)]
    parts += [("out", int(i)) for i in np.flatnonzero(program.fixed == 0)]
    parts += [("row", k) for k in range(len(program.rows))]
    parts += [("in", int(i)) for i in np.flatnonzero(program.fixed == 1)]

    def limited(kept: list[tuple[str, int]]) -> SelectionProgram:
        fixed = np.full(program.n, -1, dtype=np.int8)
        for kind, k in kept:
            if kind in ("in", "out"):
                fixed[k] = kind == "in"
        return replace(
            free,
            rows=tuple(program.rows[k] for kind, k in kept if kind == "row"),
            budget=program.budget if ("budget", 0) in kept else max(most, program.budget),
            fixed=fixed,
        )

    options = SolveOptions(time_limit_seconds=_SECONDS)
    if solve(limited(parts), solver, options).status is not Status.INFEASIBLE:
        return None
    minimal, kept = True, list(parts)
    for part in parts:
        fewer = [p for p in kept if p != part]
        status = solve(limited(fewer), solver, options).status
        if status is Status.INFEASIBLE:
            kept = fewer
        elif status is Status.NO_SOLUTION:
            minimal = False
    smallest = None
    if ("budget", 0) in kept:
        rest = limited([p for p in parts if p[0] != "budget"])
        cheapest = solve(with_token_price(rest, 1.0), solver, options)
        if cheapest.is_optimal and cheapest.objective is not None:
            smallest = 0.0 - cheapest.objective  # never -0
    words = {
        "row": lambda k: program.rows[k].name,
        "in": lambda k: f"'{names[k]}' in",
        "out": lambda k: f"'{names[k]}' out",
        "budget": lambda k: f"at most {plural(program.budget, 'token')}",
    }
    order = ("budget", "row", "in", "out")
    kept.sort(key=lambda part: (order.index(part[0]), part[1]))
    return Conflict(tuple(words[kind](k) for kind, k in kept), minimal, smallest)
