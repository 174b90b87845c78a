"""What a bandit chooses, by a program over sets of strategies; and what each strategy added, by the selection
program."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import TokenCounter
from mio_rag.errors import SolverError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.learning.bandit import Learned
from mio_rag.pool import Candidates
from mio_rag.selection.program import Formulation
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import SolveOptions, Status

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int8]
Members = tuple[int, ...]
Names = frozenset[str]

_DRAWS = 128  # of the posterior: Thompson's distribution over sets is that of so many draws
_SURE = 1e-12

# -- choice -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Program:
    """What each of k strategies is expected to add, and cost.

    value: shape (k,); upper confidence, or mean, of the own contribution.
    overlap: shape (k, k); what two add twice; symmetric, the diagonal is ignored.
    cost: shape (k,); in the same units, >= 0.
    """

    value: FloatArray
    overlap: FloatArray
    cost: FloatArray


def chosen_set(program: Program, allowed: Sequence[bool]) -> tuple[IntArray, str]:
    """Return the best set of allowed strategies, shape (k,), and its certificate in words."""
    k = program.value.size
    if not k:
        return np.zeros(0, dtype=np.int8), "there is nothing to choose"
    pairwise = program.overlap.copy()
    np.fill_diagonal(pairwise, 0.0)
    may, net = np.asarray(allowed, dtype=bool), program.value - program.cost
    if not (net[may] > 0).any() and not (pairwise < 0).any():
        # No term of any set is above 0: what is usual where little pays needs no solver.
        return np.zeros(k, dtype=np.int8), "proven optimal: none is expected to be worth its cost"
    fixed = np.where(may, -1, 0).astype(np.int8)
    result = solve(SelectionProgram(net, pairwise, np.zeros(k), 0.0, fixed=fixed), "auto", SolveOptions())
    assert result.x is not None
    return np.asarray(result.x, dtype=np.int8), result.certificate()


def margin_set(program: Program, allowed: Sequence[bool], margin: float) -> IntArray:
    """Return the set of the published rule: all whose net value lies within a margin of the best.

    The margin is a share of the spread between best and worst, so that scores may be negative. Only net
    values above 0 count.
    """
    net = program.value - program.cost
    may = np.asarray(allowed, dtype=bool) & (net > 0)
    least = net.max() - margin * (net.max() - net.min()) if net.size else 0.0
    return (may & (net >= least)).astype(np.int8)


@lru_cache(maxsize=16)
def every_set(k: int) -> IntArray:
    """Return all sets of k strategies, shape (2^k, k)."""
    made = np.array(list(product((0, 1), repeat=k)), dtype=np.int8).reshape(2**k, k)
    made.setflags(write=False)
    return made


def worths(values: FloatArray, overlap: FloatArray, cost: FloatArray) -> FloatArray:
    """Return the net value of every set under every draw, shape (draws, 2^k), for values of (draws, k)."""
    sets = every_set(cost.size).astype(np.float64)
    pairs = np.triu(overlap, 1)
    return np.asarray((values - cost) @ sets.T - ((sets @ pairs) * sets).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Mixture:
    """A distribution over sets of strategies, given by 0 and 1 in the order of `Learned.strategies`.

    mode: cold, all, or mixed.
    share: probability of exploring.
    explored: shape (k,); probability of each strategy when exploring.
    greedy: set -> probability when not.
    program: by which the sets were chosen.
    """

    mode: str
    share: float
    explored: FloatArray
    greedy: dict[Members, float]
    program: Program
    why: str

    def probability(self, members: Members) -> float:
        """Return the probability that exactly these run."""
        inside = np.array(members, dtype=bool)
        free = float(np.prod(np.where(inside, self.explored, 1 - self.explored)))
        return self.share * free + (1 - self.share) * self.greedy.get(members, 0.0)

    @property
    def each(self) -> FloatArray:
        """The probability of each strategy to run, shape (k,)."""
        greedy = sum((p * np.array(s) for s, p in self.greedy.items()), np.zeros(self.explored.size))
        return np.asarray(self.share * self.explored + (1 - self.share) * greedy)


@dataclass(frozen=True)
class Drawn:
    """A set that was drawn, its probability, and how: cold, all, explore or exploit."""

    members: Members
    propensity: float
    mode: str


def mixture(
    learned: Learned, x: FloatArray, kind: str, identity: str, runnable: Collection[str] | None = None
) -> Mixture:
    """Return with which probability each set is run for a question.

    x, kind: its context and type.
    identity: its id, the seed of posterior draws.
    runnable: strategies that can run here; by default all.
    """
    settings, names = learned.settings, learned.strategies
    k, models = len(names), [learned.models[name] for name in names]
    means = np.array([model.mean(x) for model in models])
    cost, overlap = learned.costs(), learned.overlap(means)
    may = np.array([runnable is None or name in runnable for name in names], dtype=bool)
    everyone = {tuple(int(can) for can in may): 1.0}
    begun = learned.questions - learned.since
    after = begun - settings.cold_start
    if k and after < 0:
        why = f"question {begun + 1} of {settings.cold_start} at the start"
        why += " after a change" if learned.changes else ""
        share = 0.0 if settings.cold_share == 1.0 else 1.0
        return Mixture("cold", share, settings.cold_share * may, everyone, Program(means, overlap, cost), why)
    if k and settings.all_every and (after + 1) % settings.all_every == 0:
        why = f"every {settings.all_every}th: all run"
        return Mixture("all", 0.0, 1.0 * may, everyone, Program(means, overlap, cost), why)
    pruned = learned.pruned(kind)
    widths = np.array([model.width(x) for model in models])
    noise = np.array([model.noise for model in models])
    optimism = settings.alpha if settings.policy == "linucb" else 0.0
    program = Program(means + optimism * noise * widths, overlap, cost)
    widest = np.array([model.widest(x) for model in models])
    confidence = float(1 - np.mean(widths / np.maximum(widest, _SURE))) if k else 1.0
    share = settings.share_exploring(after, confidence)
    greedy, why = _greedy(learned, program, may & ~pruned, x, identity)
    explored = np.where(pruned, settings.retrial, 0.5)
    if settings.policy == "uniform":
        share, why, explored = 1.0, "drawn at random", np.full(k, 0.5)
    return Mixture("mixed", share, explored * may, greedy, program, why)


def draw(found: Mixture, seed: int, identity: str) -> Drawn:
    """Return one set, the same for the same id and seed."""
    return drawn_by(found, _rng(seed, identity, "draw").random(found.explored.size + 2))


def drawn_by(found: Mixture, numbers: FloatArray) -> Drawn:
    """Return the set that k + 2 uniform numbers in [0, 1) give, each set with its probability."""
    explore = bool(numbers[0] < found.share)
    if explore:
        members = tuple(int(v) for v in numbers[2:] < found.explored)
    else:
        reached = np.cumsum(list(found.greedy.values()))
        place = int(np.searchsorted(reached, numbers[1] * reached[-1], side="right"))
        members = list(found.greedy)[place]
    mode = found.mode if found.mode != "mixed" else ("explore" if explore else "exploit")
    return Drawn(members, found.probability(members), mode)


def _greedy(
    learned: Learned, program: Program, allowed: NDArray[np.bool_], x: FloatArray, identity: str
) -> tuple[dict[Members, float], str]:
    settings = learned.settings
    if settings.policy == "thompson" and program.cost.size:
        rng = _rng(settings.seed, identity, "posterior")
        models = [learned.models[name] for name in learned.strategies]
        drawn = [m.samples(x, rng.standard_normal(_DRAWS), settings.alpha * m.noise) for m in models]
        sets = every_set(program.cost.size)
        may = ~(sets.astype(bool) & ~allowed).any(axis=1)
        worth = np.where(may, worths(np.stack(drawn, axis=1), program.overlap, program.cost), -np.inf)
        best, counts = np.unique(np.argmax(worth, axis=1), return_counts=True)
        found = {tuple(sets[i].tolist()): c / _DRAWS for i, c in zip(best, counts.tolist(), strict=True)}
        return found, f"best in {max(counts) / _DRAWS:.0%} of the draws of what is known"
    if settings.rule == "margin":
        members = margin_set(program, allowed.tolist(), settings.margin)
        why = f"within {settings.margin:g} of the best"
    else:
        members, why = chosen_set(program, allowed.tolist())
    return {tuple(members.tolist()): 1.0}, why


def _rng(seed: int, *parts: str) -> np.random.Generator:
    digest = hashlib.sha256("\0".join((str(seed), *parts)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


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
        self._known: dict[Names, float | None] = {}
        self.proven = True

    def of(self, strategies: Collection[str]) -> float | None:
        """Return the best value with these strategies alone; None where the constraints cannot be met."""
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
            self._known[key] = None if result.objective is None else float(result.objective)
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
        value = values.of(ground.union(added))
        return np.nan if value is None else value

    start, total = worth(), worth(*others)
    own = {a: worth(a) - start for a in others}
    overlap = {(a, b): own[a] + own[b] - (worth(a, b) - start) for a, b in combinations(others, 2)}
    last = {a: total - worth(*(o for o in others if o != a)) for a in others}
    numbers = [start, total, *own.values(), *overlap.values(), *last.values()]
    if not np.isfinite(numbers).all():
        return None
    return Contributions(start, total, own, last, overlap, values.proven)
