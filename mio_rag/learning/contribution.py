"""What each strategy adds to what is read, by the selection program itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from mio_rag.context import TokenCounter
from mio_rag.errors import SolverError
from mio_rag.pool import Candidates
from mio_rag.selection.program import Formulation
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import Status

Names = frozenset[str]


@dataclass(frozen=True)
class Contributions:
    """What each strategy added to what is read, in units of the program's value.

    With V(S) the best value of the program when only passages may be chosen of the pool that the strategies
    in S alone would have given, and B the strategies that always run:

        own(a)        = V(B + a) - V(B)                               what a adds to the base
        overlap(a, b) = own(a) + own(b) - (V(B + a + b) - V(B))       what two of them add twice
        last(a)       = V(all) - V(all without a)                     what would be lost without a

    All values are of one program over everything that any of these pools holds. A pool takes a limited number
    of passages; what a strategy pushes out counts against it, so contributions can be below 0. Own
    contributions and overlaps do not depend on which others ran, so they can be learned from rounds in which
    different strategies ran.

    base, total: V of those that always run; V of all that ran.
    own, last: of every strategy beside the base.
    overlap: of every two of them, in the order in which they ran; below 0 where they need each other.
    proven: whether every program behind them was solved to optimality.
    """

    base: float
    total: float
    own: Mapping[str, float]
    last: Mapping[str, float]
    overlap: Mapping[tuple[str, str], float]
    proven: bool = True


class Values:
    """V(S), each solved once.

    selector: its constraints hold in every program.
    pool: everything that any of the pools holds: `Searched.every`.
    alone: strategies -> ids of the pool that they alone would have given: `Searched.alone`.
    counter: the reader's tokenizer, as for `Selector.select`.
    """

    def __init__(
        self,
        selector: Selector,
        pool: Candidates,
        alone: Mapping[Names, Collection[str]],
        budget_tokens: int,
        counter: TokenCounter | None = None,
    ) -> None:
        self._selector, self._alone = selector, alone
        if selector.units == "auto":  # of what is read, passages or sentences
            formulation = selector.choose(pool, budget_tokens, counter).formulation
        else:
            formulation = Formulation(selector, selector.valued(pool), counter)
        self._program = formulation.program(budget_tokens)
        self._items = formulation.candidates.passage_ids
        self._known: dict[Names, float | None] = {}
        self.proven = True

    def of(self, strategies: Collection[str]) -> float | None:
        """The best value with these strategies alone; None where the constraints cannot be met."""
        key = frozenset(strategies)
        if key not in self._known:
            self._known[key] = self._solved(frozenset(self._alone[key]))
        return self._known[key]

    def _solved(self, may: frozenset[str]) -> float | None:
        assert self._program.fixed is not None
        fixed = self._program.fixed.copy()
        for place, identity in enumerate(self._items):
            if identity not in may and fixed[place] < 0:
                fixed[place] = 0
        result = solve(replace(self._program, fixed=fixed), self._selector.solver, self._selector.options)
        if result.status is Status.ERROR:
            raise SolverError(result.message)
        self.proven &= result.status in (Status.OPTIMAL, Status.INFEASIBLE)
        return None if result.objective is None else float(result.objective)


def sets_to_compare(ran: Iterable[str], base: Collection[str]) -> list[Names]:
    """The sets S whose V(S) `contributions` looks at: what to ask `search` for as ``alone``."""
    others, ground = _parted(ran, base)
    sets = [ground, ground.union(others)]
    sets += [ground | {a} for a in others] + [ground | set(pair) for pair in combinations(others, 2)]
    sets += [ground.union(others) - {a} for a in others]
    return list(dict.fromkeys(sets))


def contributions(values: Values, ran: Iterable[str], base: Collection[str]) -> Contributions | None:
    """What each strategy added; None where constraints cannot be met without some of them.

    ran: strategies that were run, also those that found nothing.
    base: those that always run; the others are measured against them.
    """
    others, ground = _parted(ran, base)

    def worth(*added: str) -> float:
        value = values.of(ground.union(added))
        return np.nan if value is None else value

    start, total = worth(), worth(*others)
    own = {a: worth(a) - start for a in others}
    overlap = {(a, b): own[a] + own[b] - (worth(a, b) - start) for a, b in combinations(others, 2)}
    last = {a: total - worth(*(o for o in others if o != a)) for a in others}
    found = Contributions(start, total, own, last, overlap, values.proven)
    numbers = [start, total, *own.values(), *overlap.values(), *last.values()]
    return found if np.isfinite(numbers).all() else None


def _parted(ran: Iterable[str], base: Collection[str]) -> tuple[list[str], Names]:
    """Those beside the base, in their order; those of the base."""
    names = list(ran)
    return [name for name in names if name not in base], frozenset(n for n in names if n in base)
