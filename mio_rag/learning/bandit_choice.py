"""What a bandit chooses among sets of strategies; and what each strategy added, by the selection program."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import TokenCounter
from mio_rag.errors import SolverError
from mio_rag.learning.bandit import Learned
from mio_rag.pool import Candidates
from mio_rag.selection.program import Formulation
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import Status

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Names = frozenset[str]

_DRAWS = 128  # of the posterior: Thompson's distribution over sets is that of so many draws
_SURE = 1e-12

# -- choice -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def every_set(k: int) -> BoolArray:
    """Return all sets of k strategies, shape (2^k, k); the empty one first."""
    made = np.array(list(product((False, True), repeat=k)), dtype=bool).reshape(2**k, k)
    made.setflags(write=False)
    return made


def worths(values: FloatArray, overlap: FloatArray, cost: FloatArray) -> FloatArray:
    """Return the net value of every set under every draw, shape (draws, 2^k).

    values: shape (draws, k); what each strategy is expected to add.
    overlap: shape (k, k); what two add twice; symmetric, the diagonal is ignored.
    cost: shape (k,); in the same units.
    """
    sets = every_set(cost.size).astype(np.float64)
    pairs = np.triu(overlap, 1)
    return np.asarray((values - cost) @ sets.T - ((sets @ pairs) * sets).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Mixture:
    """A distribution over all sets of strategies, in the order of `every_set`.

    mode: cold, all, or mixed.
    share: probability of exploring.
    explored, greedy: shape (2^k,); probability of each set when exploring, and when not.
    expected: shape (2^k,); net value of each set.
    """

    mode: str
    share: float
    explored: FloatArray
    greedy: FloatArray
    expected: FloatArray
    why: str

    @property
    def chances(self) -> FloatArray:
        """The probability of each set, shape (2^k,)."""
        return np.asarray(self.share * self.explored + (1 - self.share) * self.greedy)

    def draw(self, one: float, other: float) -> tuple[int, str]:
        """Return the place of the set that two uniform numbers in [0, 1) give, and how it was drawn."""
        explores = one < self.share
        reached = np.cumsum(self.explored if explores else self.greedy)
        place = int(np.searchsorted(reached, other * reached[-1], side="right"))
        return place, self.mode if self.mode != "mixed" else "explore" if explores else "exploit"


def uniform(seed: int, *parts: str) -> np.random.Generator:
    """Return a generator that depends on these alone."""
    digest = hashlib.sha256("\0".join((str(seed), *parts)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def mixture(
    learned: Learned, x: FloatArray, kind: str, identity: str, runnable: Collection[str] | None = None
) -> Mixture:
    """Return with which probability each set is run for a question.

    x, kind: its context and type.
    identity: its id, the seed of posterior draws.
    runnable: strategies that can run here; by default all.
    """
    settings, names = learned.settings, learned.strategies
    models, sets = [learned.models[name] for name in names], every_set(len(names))
    means = np.array([model.mean(x) for model in models])
    cost, overlap = learned.costs(), learned.overlap(means)
    expected = worths(means[None], overlap, cost)[0]
    may = np.array([runnable is None or name in runnable for name in names], dtype=bool)

    def alone(members: BoolArray) -> FloatArray:
        return np.asarray((sets == members).all(axis=1), dtype=np.float64)

    def apart(chances: FloatArray | float) -> FloatArray:
        """Each strategy by itself, with its probability."""
        return np.asarray(np.where(sets, chances * may, 1 - chances * may).prod(axis=1))

    begun = learned.questions - learned.since
    after = begun - settings.cold_start
    if names and after < 0:
        why = f"question {begun + 1} of {settings.cold_start} at the start"
        why += " after a change" if learned.changes else ""
        return Mixture("cold", 1.0, apart(settings.cold_share), alone(may), expected, why)
    if names and settings.all_every and (after + 1) % settings.all_every == 0:
        every = f"every {settings.all_every}th: all run"
        return Mixture("all", 0.0, alone(may), alone(may), expected, every)
    if settings.policy == "uniform":
        return Mixture("mixed", 1.0, apart(0.5), alone(may), expected, "drawn at random")
    pruned, noise = learned.pruned(kind), np.array([model.noise for model in models])
    widths = np.array([model.width(x) for model in models])
    widest = np.array([model.widest(x) for model in models])
    confidence = float(1 - np.mean(widths / np.maximum(widest, _SURE))) if names else 1.0
    share = settings.share_exploring(after, confidence)
    allowed = may & ~pruned
    if settings.policy == "thompson" and names:
        draws = uniform(settings.seed, identity, "posterior").standard_normal((len(names), _DRAWS)).T
        values = means + settings.alpha * noise * widths * draws
    else:
        values = (means + (settings.alpha * noise * widths if settings.policy == "linucb" else 0.0))[None]
    if settings.rule == "margin" and settings.policy != "thompson":
        greedy = alone(margin_set(values[0] - cost, allowed, settings.margin))
        why = f"within {settings.margin:g} of the best"
    else:
        closed = (sets & ~allowed).any(axis=1)
        best = np.argmax(np.where(closed, -np.inf, worths(values, overlap, cost)), axis=1)
        greedy = np.bincount(best, minlength=len(sets)) / len(best)
        why = f"best in {greedy.max():.0%} of the draws of what is known"
        if len(best) == 1:
            why = f"proven optimal: best of all {int((~closed).sum())} sets"
    return Mixture("mixed", share, apart(np.where(pruned, settings.retrial, 0.5)), greedy, expected, why)


def margin_set(net: FloatArray, allowed: BoolArray, margin: float) -> BoolArray:
    """Return the set of the published rule, shape (k,): all whose net value lies within a margin of the best.

    The margin is a share of the spread between best and worst, so that scores may be negative. Only net
    values above 0 count.
    """
    least = net.max() - margin * (net.max() - net.min()) if net.size else 0.0
    return np.asarray(allowed & (net > 0) & (net >= least))


# -- contributions ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contributions:
    """What each strategy added to what is read, in units of the program's value.

    With V(S) the best value of the program when only passages may be chosen of the pool that the strategies
    in S alone would have given, and B the strategies that always run:

        own(a)        = V(B + a) - V(B)                               what a adds to the base
        overlap(a, b) = own(a) + own(b) - (V(B + a + b) - V(B))       what two of them add twice
        last(a)       = V(all) - V(all without a)                     what would be lost without a

    All values are of one program over everything that any of these pools holds. A pool takes a limited number
    of passages; what a strategy displaces counts against it, so contributions can be below 0. Own
    contributions and overlaps do not depend on which others ran, so they can be learned from questions on
    which different strategies ran.

    base, total: V of those that always run; V of all that ran.
    own, last: of every strategy besides the base.
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

    pool: everything that any of the pools holds: `Searched.every`.
    alone: strategies -> ids of the pool that they alone would have given: `Searched.alone`.
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
        self._known: dict[Names, float] = {}
        self.proven = True

    def of(self, strategies: Collection[str]) -> float:
        """Return the best value with these strategies alone; nan where the constraints cannot be met."""
        key = frozenset(strategies)
        if key not in self._known:
            may = frozenset(self._alone[key])
            assert self._program.fixed is not None
            fixed = self._program.fixed.copy()
            fixed[[p for p, name in enumerate(self._items) if name not in may and fixed[p] < 0]] = 0
            result = solve(replace(self._program, fixed=fixed), self._selector.solver, self._selector.options)
            if result.status is Status.ERROR:
                raise SolverError(result.message)
            self.proven &= result.status in (Status.OPTIMAL, Status.INFEASIBLE)
            self._known[key] = np.nan if result.objective is None else float(result.objective)
        return self._known[key]


def _parted(ran: Iterable[str], base: Collection[str]) -> tuple[list[str], Names]:
    names = list(ran)
    return [name for name in names if name not in base], frozenset(n for n in names if n in base)


def sets_to_compare(ran: Iterable[str], base: Collection[str]) -> list[Names]:
    """Return the sets S whose V(S) `contributions` needs: what to ask `search` for as ``alone``."""
    others, ground = _parted(ran, base)
    sets = [ground, ground.union(others)]
    sets += [ground | {a} for a in others] + [ground | set(pair) for pair in combinations(others, 2)]
    sets += [ground.union(others) - {a} for a in others]
    return list(dict.fromkeys(sets))


def contributions(values: Values, ran: Iterable[str], base: Collection[str]) -> Contributions | None:
    """Return what each strategy added; None where constraints cannot be met without some of them.

    ran: strategies that were run, also those that found nothing.
    base: those that always run; the others are measured against them.
    """
    others, ground = _parted(ran, base)

    def worth(*added: str) -> float:
        return values.of(ground.union(added))

    start, total = worth(), worth(*others)
    own = {a: worth(a) - start for a in others}
    overlap = {(a, b): own[a] + own[b] - (worth(a, b) - start) for a, b in combinations(others, 2)}
    last = {a: total - worth(*(o for o in others if o != a)) for a in others}
    numbers = [start, total, *own.values(), *overlap.values(), *last.values()]
    if not np.isfinite(numbers).all():
        return None
    return Contributions(start, total, own, last, overlap, values.proven)
