"""The grid of programs: what is varied, and the program of a pool in a cell.

Dense cells are the nominal program and its termwise counterpart on raw cosines: every pair penalized by
lambda_1 times its similarity. Links cells are what calibrated relevance with evidence links makes of a pool:
values mostly near 0, a penalty on every pair, and 10 to 60 pairs that gain `LINK_WEIGHT` times the larger of
their two values when read together.
"""

from __future__ import annotations

import fnmatch
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.pools import Pool
from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.formulations.robust import nominal_program, termwise_program
from mio_rag.formulations.uncertainty import NormBall

LINK_WEIGHT = 0.2
#: Expected number of needed passages in a pool.
EXPECTED = 2.5
_FEWEST, _MOST = 10, 60  # links of a pool


@dataclass(frozen=True, order=True)
class Cell:
    """One setting: kind ("dense" or "links"), items n, lambda_1, radius rho, budget in tokens."""

    kind: str
    n: int
    redundancy: float
    radius: float
    budget: int

    @property
    def name(self) -> str:
        """As `--cells` matches it, for instance ``dense/n50/l0.1/r0/b1024``."""
        return f"{self.kind}/n{self.n}/l{self.redundancy:g}/r{self.radius:g}/b{self.budget}"


def grid() -> list[Cell]:
    """Every cell, the small ones first."""
    dense = [
        Cell("dense", n, weight, radius, budget)
        for n in (20, 50, 100, 200, 500)
        for weight in (0.05, 0.1, 0.3, 0.5, 1.0)
        for radius in (0.0, 0.05, 0.1)
        for budget in (512, 1024, 2048)
    ]
    links = [
        Cell("links", 60, weight, 0.0, budget)
        for weight in (0.0, 0.05, 0.1, 0.3)
        for budget in (256, 512, 1024)
    ]
    return links + dense


def chosen_cells(cells: Sequence[Cell], patterns: str) -> list[Cell]:
    """Those whose names match one of the comma-separated patterns (``dense/n50/*,links/*``).

    Raises
    ------
    InputError
        For a pattern that matches nothing.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    names = [cell.name for cell in cells]
    idle = [pattern for pattern in wanted if not fnmatch.filter(names, pattern)]
    if idle or not wanted:
        raise InputError(
            f"'{', '.join(idle) or patterns}' matches no cell: names look like {names[0]}, {names[-1]}"
        )
    return [c for c in cells if any(fnmatch.fnmatchcase(c.name, pattern) for pattern in wanted)]


def build(pool: Pool, cell: Cell, seed: int) -> SelectionProgram | None:
    """The program of a pool in a cell; None where the pool is too small."""
    n = cell.n
    if len(pool) < n:
        return None
    vectors, cosine, tokens = pool.embeddings[:n].astype(np.float64), pool.cosine[:n], pool.tokens[:n]
    if cell.kind == "links":
        value = calibrated(cosine)
        base = nominal_program(
            value, vectors @ vectors.T, tokens, cell.budget, redundancy_weight=cell.redundancy
        )
        pairwise = base.pairwise.copy()
        for i, j in links(pool, n, seed):
            pairwise[i, j] = pairwise[j, i] = pairwise[i, j] - LINK_WEIGHT * max(value[i], value[j])
        return SelectionProgram(base.linear, pairwise, base.costs, base.budget)
    if cell.radius > 0:
        return termwise_program(
            cosine,
            vectors,
            pool.query,
            tokens,
            cell.budget,
            NormBall(cell.radius, "l2"),
            redundancy_weight=cell.redundancy,
        )
    return nominal_program(
        cosine, vectors @ vectors.T, tokens, cell.budget, redundancy_weight=cell.redundancy
    )


def calibrated(cosine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities that look like those of a calibrated model, `EXPECTED` in sum.

    The slopes are those of a logistic model of the gap to the best cosine and of the log rank, fitted to the
    gold passages of 500 HotpotQA questions (n = 60); the intercept is set for each pool by bisection.
    """
    gap, rank = cosine[0] - cosine, np.arange(1, cosine.size + 1)
    score = -4.2 * gap - 1.7 * np.log(rank)
    low, high = -50.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        total = float((1 / (1 + np.exp(-score - middle))).sum())
        low, high = (middle, high) if total < min(EXPECTED, cosine.size / 2) else (low, middle)
    return np.asarray(1 / (1 + np.exp(-score - low)))


def links(pool: Pool, n: int, seed: int) -> list[tuple[int, int]]:
    """Pairs with a benefit: the pool's mentions, the best placed first, at most 60.

    A pool with fewer than 10 mentions (a corpus without titles) gets random pairs, up to some number
    between 10 and 60.
    """
    real = [(int(i), int(j)) for i, j in pool.mentions if j < n]
    pairs = sorted(real)[:_MOST]
    rng = np.random.default_rng([seed, zlib.crc32(pool.question.encode())])
    wanted = min(int(rng.integers(_FEWEST, _MOST + 1)), n * (n - 1) // 2)
    while len(real) < _FEWEST and len(pairs) < wanted:
        i, j = sorted(int(k) for k in rng.choice(n, 2, replace=False))
        if (i, j) not in pairs:
            pairs.append((i, j))
    return pairs
