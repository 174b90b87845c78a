"""The choice of a bandit: the program over sets of strategies, and the mixture that is drawn from."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.program import SelectionProgram
from mio_rag.learning.bandit import Learned
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import SolveOptions

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int8]


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
    """The best set, shape (k,), and its certificate in words.

    allowed: strategies that may be chosen.
    """
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
    problem = SelectionProgram(net, pairwise, np.zeros(k), 0.0, fixed=fixed)
    result = solve(problem, "auto", SolveOptions())
    assert result.x is not None
    return np.asarray(result.x, dtype=np.int8), result.certificate()


def margin_set(program: Program, allowed: Sequence[bool], margin: float) -> IntArray:
    """The published rule, made to work for any scores: all whose net value lies within a margin of the best.

    The margin is a share of the spread between best and worst, so that it neither lets everybody pass nor
    breaks where scores are negative. Nobody is taken whose net value is not above 0.
    """
    net = program.value - program.cost
    may = np.asarray(allowed, dtype=bool) & (net > 0)
    if not may.any():
        return np.zeros(net.size, dtype=np.int8)
    best, worst = float(net.max()), float(net.min())
    return (may & (net >= best - margin * (best - worst))).astype(np.int8)


@lru_cache(maxsize=16)
def every_set(k: int) -> IntArray:
    """All sets of k strategies, shape (2^k, k)."""
    made = np.array(list(product((0, 1), repeat=k)), dtype=np.int8).reshape(2**k, k)
    made.setflags(write=False)
    return made


def worths(values: FloatArray, overlap: FloatArray, cost: FloatArray) -> FloatArray:
    """What every set is worth under every draw, shape (draws, 2^k).

    values: shape (draws, k).
    """
    sets = every_set(cost.size).astype(np.float64)
    pairs = np.triu(overlap, 1)
    return np.asarray((values - cost) @ sets.T - ((sets @ pairs) * sets).sum(axis=1))


Members = tuple[int, ...]

_DRAWS = 128  # of the posterior: Thompson's distribution over sets is that of so many draws
_SURE = 1e-12


@dataclass(frozen=True, eq=False)
class Mixture:
    """A distribution over sets of strategies, given by 0 and 1 in the order of `Learned.strategies`.

    mode: cold, all, or mixed.
    share: of exploration.
    explored: shape (k,); probability of each strategy when exploring.
    greedy: set -> probability when not.
    program: what the sets were chosen by.
    """

    mode: str
    share: float
    explored: FloatArray
    greedy: dict[Members, float]
    program: Program
    why: str

    def probability(self, members: Members) -> float:
        """The probability that exactly these run."""
        inside = np.array(members, dtype=bool)
        free = float(np.prod(np.where(inside, self.explored, 1 - self.explored)))
        return self.share * free + (1 - self.share) * self.greedy.get(members, 0.0)

    @property
    def each(self) -> FloatArray:
        """The probability of each strategy to run, shape (k,)."""
        greedy = sum(
            (p * np.array(s, dtype=np.float64) for s, p in self.greedy.items()), np.zeros(self.explored.size)
        )
        return np.asarray(self.share * self.explored + (1 - self.share) * greedy)


@dataclass(frozen=True)
class Drawn:
    """A set that was drawn.

    mode: cold, all, explore or exploit.
    propensity: probability of this set, in (0, 1].
    """

    members: Members
    propensity: float
    mode: str


def mixture(
    learned: Learned, x: FloatArray, kind: str, identity: str, runnable: Collection[str] | None = None
) -> Mixture:
    """With which probability each set is run for a question.

    x: shape (d,); its context.
    kind: its type.
    identity: its id: posterior draws are seeded by it.
    runnable: strategies that can run here; others have probability 0. All by default.
    """
    settings, names = learned.settings, learned.strategies
    k = len(names)
    means = np.array([learned.models[name].mean(x) for name in names])
    widths = np.array([learned.models[name].width(x) for name in names])
    noise = np.array([learned.models[name].noise for name in names])
    cost, overlap = learned.costs(), learned.overlap(means)
    may = np.array([runnable is None or name in runnable for name in names], dtype=bool)
    everyone = tuple(int(can) for can in may)
    begun = learned.questions - learned.since
    after = begun - settings.cold_start
    if k and after < 0:
        why = f"question {begun + 1} of {settings.cold_start} at the start"
        why += " after a change" if learned.changes else ""
        chances = settings.cold_share * may
        drawn = 0.0 if settings.cold_share == 1.0 else 1.0
        return Mixture("cold", drawn, chances, {everyone: 1.0}, Program(means, overlap, cost), why)
    if k and settings.all_every and (after + 1) % settings.all_every == 0:
        why = f"every {settings.all_every}th: all run"
        return Mixture("all", 0.0, 1.0 * may, {everyone: 1.0}, Program(means, overlap, cost), why)
    pruned = learned.pruned(kind)
    optimism = settings.alpha if settings.policy == "linucb" else 0.0
    program = Program(means + optimism * noise * widths, overlap, cost)
    # Largest width: that of a context of which nothing is known.
    widest = np.array([learned.models[name].widest(x) for name in names])
    confidence = float(1 - np.mean(widths / np.maximum(widest, _SURE))) if k else 1.0
    share = settings.share_exploring(after, confidence)
    greedy, why = _greedy(learned, program, may & ~pruned, x, identity)
    explored = np.where(pruned, settings.retrial, 0.5)
    if settings.policy == "uniform":
        share, why, explored = 1.0, "drawn at random", np.full(k, 0.5)
    return Mixture("mixed", share, explored * may, greedy, program, why)


def draw(found: Mixture, seed: int, identity: str) -> Drawn:
    """One set; the same for the same id and seed."""
    return drawn_by(found, _rng(seed, identity, "draw").random(found.explored.size + 2))


def drawn_by(found: Mixture, numbers: FloatArray) -> Drawn:
    """The set that numbers give: uniform ones in [0, 1), shape (k + 2,), give each its probability."""
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
        drawn = np.stack(
            [
                model.samples(x, rng.standard_normal(_DRAWS), settings.alpha * model.noise)
                for model in (learned.models[name] for name in learned.strategies)
            ],
            axis=1,
        )
        sets = every_set(program.cost.size)
        may = ~(sets.astype(bool) & ~allowed).any(axis=1)
        worth = np.where(may, worths(drawn, program.overlap, program.cost), -np.inf)
        best, counts = np.unique(np.argmax(worth, axis=1), return_counts=True)
        found = {
            tuple(int(v) for v in sets[i]): c / _DRAWS for i, c in zip(best, counts.tolist(), strict=True)
        }
        return found, f"best in {max(counts) / _DRAWS:.0%} of the draws of what is known"
    if settings.rule == "margin":
        members = margin_set(program, allowed.tolist(), settings.margin)
        return {tuple(int(v) for v in members): 1.0}, f"within {settings.margin:g} of the best"
    members, why = chosen_set(program, allowed.tolist())
    return {tuple(int(v) for v in members): 1.0}, why


def _rng(seed: int, *parts: str) -> np.random.Generator:
    digest = hashlib.sha256("\0".join((str(seed), *parts)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
