"""What each strategy adds to what would be read, by the selection program itself.

With V(S) the best value of the program when only passages of the strategies in S may be chosen, on the
probabilities of the whole pool, and B the strategies that always run:

    own(a)        = V(B + a) - V(B)                               what a adds to the base, >= 0
    overlap(a, b) = own(a) + own(b) - (V(B + a + b) - V(B))       what two of them add twice
    last(a)       = V(all) - V(all without a)                     what would be lost without a, >= 0

Own contributions and overlaps do not depend on who else ran, so that they can be learned from rounds in which
different strategies ran; they are the value and the pairwise term of the program that chooses strategies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.errors import SolverError
from mio_rag.selection.program import Formulation
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import Status

__all__ = ["Contributions", "Values", "contributions"]


@dataclass(frozen=True)
class Contributions:
    """What the strategies that ran added, in units of the program's value.

    Parameters
    ----------
    base, total : float
        V of those that always run; V of all that ran.
    own, last : mapping of str to float
        Of every strategy beside the base.
    overlap : mapping of (str, str) to float
        Of every two of them, in the order in which they ran; below 0 where they need each other.
    proven : bool
        Whether every program behind them was solved to optimality.
    """

    base: float
    total: float
    own: Mapping[str, float]
    last: Mapping[str, float]
    overlap: Mapping[tuple[str, str], float]
    proven: bool = True


class Values:
    """V(S) of one pool, each solved once.

    Parameters
    ----------
    selector : Selector
        Its constraints hold in every program.
    pool : Candidates
    found : mapping of str to collection of str
        Passage -> strategies that found it. A passage of none may always be chosen.
    budget_tokens : int
    """

    def __init__(
        self,
        selector: Selector,
        pool: Candidates,
        found: Mapping[str, Collection[str]],
        budget_tokens: int,
    ) -> None:
        self._selector = selector
        self._program = Formulation(selector, selector.valued(pool)).program(budget_tokens)
        self._finders = [frozenset(found[i]) for i in pool.ids]
        self._known: dict[frozenset[str], float | None] = {}
        self.proven = True

    def of(self, strategies: Collection[str]) -> float | None:
        """The best value with these strategies alone; None where the constraints cannot be met."""
        key = frozenset(strategies)
        if key not in self._known:
            self._known[key] = self._solved(key)
        return self._known[key]

    def _solved(self, key: frozenset[str]) -> float | None:
        assert self._program.fixed is not None
        fixed = self._program.fixed.copy()
        for place, finders in enumerate(self._finders):
            if finders and not finders & key and fixed[place] < 0:
                fixed[place] = 0
        result = solve(replace(self._program, fixed=fixed), self._selector.solver, self._selector.options)
        if result.status is Status.ERROR:
            raise SolverError(result.message)
        self.proven &= result.status in (Status.OPTIMAL, Status.INFEASIBLE)
        return None if result.objective is None else float(result.objective)


def contributions(values: Values, ran: Collection[str], base: Collection[str]) -> Contributions | None:
    """What each strategy added; None where constraints cannot be met without some of them.

    Parameters
    ----------
    ran : collection of str
        Strategies that were run, also those that found nothing.
    base : collection of str
        Those that always run; the others are measured against them.
    """
    others = [name for name in ran if name not in base]
    ground = [name for name in ran if name in base]

    def worth(*added: str) -> float:
        value = values.of([*ground, *added])
        return np.nan if value is None else value

    start, total = worth(), worth(*others)
    own = {a: worth(a) - start for a in others}
    overlap = {(a, b): own[a] + own[b] - (worth(a, b) - start) for a, b in combinations(others, 2)}
    last = {a: total - worth(*(o for o in others if o != a)) for a in others}
    found = Contributions(start, total, own, last, overlap, values.proven)
    numbers = [start, total, *own.values(), *overlap.values(), *last.values()]
    return found if np.isfinite(numbers).all() else None
