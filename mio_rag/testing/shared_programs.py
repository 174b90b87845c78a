"""Seeded random selection programs whose items share segments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations import Segments, SelectionProgram, with_token_price
from mio_rag.testing.programs import random_program

__all__ = ["SHARING", "random_shared_program"]

#: Ways in which items share segments.
SHARING = ("windows", "titles", "versions", "nested", "anyhow")


def random_shared_program(rng: np.random.Generator, n_max: int = 10) -> SelectionProgram:
    """A program of `random_program` with segments: cost moves from the items to what they share.

    Windows share halves with their neighbours, passages a title with all of their document, versions nearly
    everything; nested ones need all that the one before needs; or any item needs any segment. Some items need
    none, some segments are needed by nobody, some cost nothing. Half of the programs have prices of segments,
    most of these the price of a token. All data are decimals with at most five places.
    """
    program = random_program(rng, n_max)
    needs = _needs(rng, program.n, str(rng.choice(SHARING)))
    largest = float(program.costs.max(initial=1.0)) or 1.0
    whole = bool(np.all(program.costs % 1 == 0))
    costs = np.round(rng.random(needs.shape[1]) * largest * float(rng.choice([0.2, 1.0])), 0 if whole else 2)
    if rng.random() < 0.2:
        costs *= rng.random(costs.size) < 0.5
    prices = np.zeros(costs.size)
    if rng.random() < 0.2:
        prices = np.round(rng.random(costs.size) * float(rng.choice([0.1, 1.0])), 3)
    kept = np.round(program.costs * float(rng.choice([0.0, 0.3, 1.0])), 0 if whole else 2)
    shared = Segments(costs, needs, prices)
    program = replace(program, costs=kept, segments=shared, budget=_budget(rng, kept, shared))
    if rng.random() < 0.4 and program.segments is not None:
        price = float(10.0 ** -int(rng.integers(1, 4)))
        program = with_token_price(program, round(price / max(1.0, 10.0 ** np.ceil(np.log10(largest))), 5))
    return program


def _needs(rng: np.random.Generator, n: int, kind: str) -> NDArray[np.bool_]:
    """Which of a few segments each item needs, segments and items in random order."""
    if kind == "windows":
        needs = np.zeros((n, n + 1), dtype=bool)
        for i in range(n):
            needs[i, i : i + int(rng.integers(1, 4))] = True
    elif kind == "titles":
        needs = rng.integers(0, max(1, n // 3), n)[:, None] == np.arange(max(1, n // 3))
    elif kind == "versions":
        groups = rng.integers(0, 3, n)
        needs = (groups[:, None] == rng.integers(0, 3, 2 * n)) & (rng.random((n, 2 * n)) < 0.9)
    elif kind == "nested":
        needs = np.tri(n, dtype=bool)
    else:
        needs = rng.random((n, int(rng.integers(0, 2 * n + 1)))) < float(rng.choice([0.1, 0.3, 0.7]))
    if rng.random() < 0.3:
        needs &= rng.random(needs.shape) < 0.8
    return np.ascontiguousarray(needs[rng.permutation(n)][:, rng.permutation(needs.shape[1])])


def _budget(rng: np.random.Generator, costs: NDArray[np.float64], shared: Segments) -> float:
    """Exactly what some items cost together, a share of the total, or an odd number."""
    total = float(costs.sum() + shared.costs.sum())
    kind = rng.random()
    if kind < 0.5:
        chosen = rng.random(costs.size) < rng.random()
        return round(float(costs[chosen].sum()) + shared.cost(chosen), 3)
    if kind < 0.9:
        return round(total * float(rng.random()), 3)
    return [0.0, -1.0, total + 1.0][int(rng.integers(3))]
