"""Seeded random selection programs that try to catch a solver out.

Every draw combines a kind of pairwise matrix, a kind of costs, a kind of budget and, each with some
probability, count rows, source caps, shares, coverage, changes against a previous selection, conflicts,
needs, rows of mixed signs, rows that may be broken at a price, and fixed items. All data are decimals with
at most three places, so that no sum lies near a tolerance and every exact solver must agree to the last digit
that it promises.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations import (
    LinearConstraint,
    Segments,
    SelectionProgram,
    passage_count,
    source_caps,
)
from mio_rag.formulations.rows import (
    SoftRow,
    change_rows,
    conflict_rows,
    coverage_rows,
    need_rows,
    share_rows,
    with_soft_rows,
)

__all__ = ["COSTS", "PAIRS", "SCALES", "at_scale", "hard_program", "random_program"]

FloatArray = NDArray[np.float64]

#: Kinds of pairwise matrices.
PAIRS = ("none", "mixed", "penalties", "few benefits", "gram", "duplicates", "ties")
#: Sizes of numbers that solvers must be right for.
SCALES = tuple(10.0**k for k in range(-10, 11, 2))
#: Kinds of costs.
COSTS = ("integer", "decimal", "some zero", "equal", "large")


def random_program(rng: np.random.Generator, n_max: int = 10) -> SelectionProgram:
    """One program with at most `n_max` items; one in thirty has none, one in thirty a single one.

    Parameters
    ----------
    n_max : int
        >= 2. Exhaustive enumeration, the oracle, takes up to 20.
    """
    few = int(rng.integers(30))
    n = few if few < 2 else int(rng.integers(2, n_max + 1))
    pairwise, linear = _values(rng, n, str(rng.choice(PAIRS)))
    costs = _costs(rng, n, str(rng.choice(COSTS)))
    fixed = rng.choice([-1, 0, 1], size=n, p=[0.8, 0.1, 0.1]) if rng.random() < 0.3 else np.full(n, -1)
    rows = _rows(rng, n)
    soft = []
    if rng.random() < 0.15:  # a source cap and coverage that may be broken at a price
        labels = [str(s) for s in rng.choice(["a", "b", "c", ""], n)]
        kinds = [*source_caps(labels, 1), *coverage_rows(labels)]
        soft = [SoftRow(row, round(float(rng.random()), 3)) for row in kinds[:3]]
    program = SelectionProgram(
        linear=linear,
        pairwise=pairwise,
        costs=costs,
        budget=_budget(rng, costs),
        rows=rows,
        fixed=fixed.astype(np.int8),
    )
    priced = with_soft_rows(program, soft)
    return priced if priced.n <= n_max else program


def at_scale(program: SelectionProgram, values: float, costs: float, rows: float) -> SelectionProgram:
    """The program with its values, its costs and its rows multiplied: the same selections are best."""
    shared = program.segments
    return replace(
        program,
        linear=values * program.linear,
        pairwise=values * program.pairwise,
        costs=costs * program.costs,
        budget=costs * program.budget,
        rows=tuple(
            replace(
                row,
                coefficients=rows * row.coefficients,
                lower=rows * row.lower,
                upper=rows * row.upper,
            )
            for row in program.rows
        ),
        segments=shared and Segments(costs * shared.costs, shared.needs, values * shared.prices),
    )


def hard_program(rng: np.random.Generator, n: int = 120) -> SelectionProgram:
    """Dense pairs of both signs, a third of the total cost: nothing proves 120 items in seconds."""
    pairwise = _symmetric(rng, n, rng.normal(size=(n, n)))
    costs = rng.integers(1, 50, n).astype(np.float64)
    return SelectionProgram(3 * rng.random(n), pairwise, costs, float(costs.sum() // 3))


def _symmetric(rng: np.random.Generator, n: int, raw: FloatArray) -> FloatArray:
    upper = np.triu(np.round(raw, 3), 1)
    return upper + upper.T


def _values(rng: np.random.Generator, n: int, kind: str) -> tuple[FloatArray, FloatArray]:
    """Pairwise matrix and linear values of one kind."""
    linear = np.round(rng.normal(0.4, 1.0, n), 3)
    raw = np.zeros((n, n))
    if kind == "mixed":
        raw = rng.normal(0, rng.choice([0.2, 1.0, 3.0]), (n, n)) * (
            rng.random((n, n)) < rng.choice([0.3, 1.0])
        )
    elif kind == "penalties":
        raw = rng.random((n, n)) * rng.choice([0.1, 0.5, 2.0])
    elif kind == "few benefits":  # evidence links: worthless items that pay in company
        raw = np.where(rng.random((n, n)) < 0.2, -rng.random((n, n)), 0.1 * rng.random((n, n)))
        linear = np.round(rng.normal(-0.1, 0.3, n), 3)
    elif kind in ("gram", "duplicates"):
        vectors = rng.normal(size=(n, 4)) + 1.0
        if kind == "duplicates" and n > 1:
            twins = rng.integers(0, n, n)
            vectors, linear = vectors[twins], linear[twins]
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        raw = rng.choice([0.1, 0.5, 1.0]) * unit @ unit.T
    elif kind == "ties":
        linear = rng.choice([0.0, 0.5], n)
        raw = rng.choice([-0.5, 0.0, 0.5], (n, n))
    return _symmetric(rng, n, raw), linear


def _costs(rng: np.random.Generator, n: int, kind: str) -> FloatArray:
    if kind == "decimal":
        return np.round(rng.random(n) * 10, int(rng.integers(1, 4)))
    if kind == "some zero":
        return rng.integers(0, 4, n).astype(np.float64)
    if kind == "equal":
        return np.full(n, float(rng.choice([1.0, 7.0, 0.1])))
    return rng.integers(1, 1_000_000 if kind == "large" else 60, n).astype(np.float64)


def _budget(rng: np.random.Generator, costs: FloatArray) -> float:
    """Mostly a share of the total; or exactly what some items cost, zero, below zero, more than all."""
    total = float(costs.sum())
    kind = rng.random()
    if kind < 0.6:
        return round(total * float(rng.random()), 3)
    if kind < 0.85:  # met exactly, if only up to rounding: 0.1 + 0.2 against 0.3
        return round(float(costs[rng.random(costs.size) < 0.5].sum()), 3)
    return [0.0, -1.0, total + 1.0][int(rng.integers(3))]


def _rows(rng: np.random.Generator, n: int) -> tuple[LinearConstraint, ...]:
    rows: list[LinearConstraint] = []
    if rng.random() < 0.25:
        low, high = sorted(int(k) for k in rng.integers(0, n + 1, 2))
        rows += passage_count(n, low if rng.random() < 0.6 else None, high if rng.random() < 0.6 else None)
    if rng.random() < 0.25:
        sources = [str(s) for s in rng.choice(["a", "b", "c", ""], n)]
        rows += source_caps(sources, int(rng.integers(0, 3)))
    rows += _side_rows(rng, n)
    for k in range(int(rng.integers(1, 3)) if rng.random() < 0.25 else 0):
        sides = np.sort(np.round(rng.normal(0, 2, 2), 3))
        both = rng.random() < 0.3
        rows.append(
            LinearConstraint(
                np.round(rng.normal(0, 1, n), int(rng.integers(0, 4))),
                lower=float(sides[0]) if both else -np.inf,
                upper=float(sides[1]),
                name=f"mixed {k}",
            )
        )
    return tuple(rows)


def _side_rows(rng: np.random.Generator, n: int) -> list[LinearConstraint]:
    """Shares, coverage, changes, conflicts and needs, each with some probability."""
    ids = [str(k) for k in range(n)]
    labels = [str(s) for s in rng.choice(["a", "b", "c", ""], n)]
    rows: list[LinearConstraint] = []
    if rng.random() < 0.1:
        rows += share_rows(labels, float(rng.choice([0.25, 1 / 3, 0.5, 0.8])))
    if rng.random() < 0.15:
        rows += coverage_rows(labels, int(rng.integers(1, 3)))
    if rng.random() < 0.15:
        previous = [i for i in ids if rng.random() < 0.4]
        rows += change_rows(ids, previous, int(rng.integers(0, 4)))
    if n > 1 and rng.random() < 0.2:
        pairs = np.argwhere(np.triu(rng.random((n, n)) < 0.3, 1))
        rows += conflict_rows(ids, [(int(i), int(j)) for i, j in pairs])
    if n > 1 and rng.random() < 0.15:
        rows += need_rows(ids, {i: [str(rng.choice([*ids, "gone"]))] for i in ids if rng.random() < 0.3})
    return rows
