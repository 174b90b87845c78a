"""Uncertainty sets of every kind, drawn for a pool: what the attacks are tried on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mio_rag.formulations import DeviationBudget, Ellipsoid, NormBall, OwnSet, SparseBox
from mio_rag.formulations.uncertainty import UncertaintySet
from mio_rag.pool import Candidates

FloatArray = NDArray[np.float64]


def _mean_support(a: FloatArray) -> FloatArray:
    """Of half an l2 ball plus half an l1 ball."""
    return np.asarray(0.5 * np.linalg.norm(a, axis=-1) + 0.5 * np.abs(a).max(axis=-1))


def _mean_point(a: FloatArray) -> FloatArray:
    return 0.5 * NormBall(1.0).unit_point(a) + 0.5 * NormBall(1.0, "l1").unit_point(a)


def _box(radius: FloatArray) -> SparseBox:
    return SparseBox(radius, 4, (0, 1))


#: name -> (radii, dimensions, random numbers) -> set; scaled so that losses are of like size
SETS: dict[str, Callable[[FloatArray, int, np.random.Generator], UncertaintySet]] = {
    "l2": lambda r, d, rng: NormBall(r),
    "l1": lambda r, d, rng: NormBall(2 * r, "l1"),
    "linf": lambda r, d, rng: NormBall(r / 10, "linf"),
    "sparse box": lambda r, d, rng: _box(r),
    "ellipsoid": lambda r, d, rng: Ellipsoid(r, np.diag(rng.uniform(0.2, 1.0, d))),
    "deviations": lambda r, d, rng: DeviationBudget(NormBall(r), int(rng.integers(1, 5))),
    "deviations, box": lambda r, d, rng: DeviationBudget(_box(r), int(rng.integers(1, 5))),
    "own": lambda r, d, rng: OwnSet(r, _mean_support, 1.0, _mean_point),
}


def drawn_set(kind: str, pool: Candidates, rng: np.random.Generator) -> UncertaintySet:
    """A set of a kind: radii of .02 to .1, half of the time one of its own for each passage."""
    assert pool.embeddings is not None
    size = float(rng.choice([0.02, 0.05, 0.1]))
    spread = rng.uniform(0.0, 2.0, len(pool)) if rng.random() < 0.5 else np.ones(len(pool))
    return SETS[kind](size * spread, pool.embeddings.shape[1], rng)
