"""Which set of strategies: a selection program whose items are the strategies.

    maximise  sum_a (value_a - cost_a) y_a - sum_{a<b} overlap_ab y_a y_b,   y_a in {0, 1}

over the strategies beside those that always run. It is solved by the same kernel as the selection of
passages, and proven like it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import SolveOptions

__all__ = ["Program", "chosen_set", "every_set", "margin_set", "worths"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Program:
    """What each of k strategies is expected to add, and cost.

    Parameters
    ----------
    value : array, shape (k,)
        Upper confidence, or mean, of the own contribution.
    overlap : array, shape (k, k)
        What two add twice; symmetric, the diagonal is ignored.
    cost : array, shape (k,)
        In the same units, >= 0.
    """

    value: FloatArray
    overlap: FloatArray
    cost: FloatArray


def chosen_set(program: Program, allowed: Sequence[bool]) -> tuple[IntArray, str]:
    """The best set, shape (k,), and its certificate in words.

    Parameters
    ----------
    allowed : sequence of bool
        Strategies that may be chosen.
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

    Parameters
    ----------
    values : array, shape (draws, k)
    """
    sets = every_set(cost.size).astype(np.float64)
    pairs = np.triu(overlap, 1)
    return np.asarray((values - cost) @ sets.T - ((sets @ pairs) * sets).sum(axis=1))
