"""The probability that the evidence is complete: that all passages which the answer needs are read.

It is what the chosen passages' probabilities cover. From the probabilities r of a pool and the passages that
were chosen, four numbers:

    missing   sum over the passages left out of log(1 - r): if passages were needed independently of each
              other, the log-probability that none of them is
    best      the largest r that was chosen, as a logit
    covered   log of the share of the sum of r that was chosen
    expected  log(1 + the sum of r over the pool): how many are expected to be needed

and a logistic regression on them, of questions whose evidence is known (``complete.json`` says which, and how
far its probabilities were off on sets that it was not fitted on; `python -m benchmarks composed` fits it).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import DataError, InputError
from mio_rag.reading import read_json

__all__ = ["SIGNALS", "Completeness", "complete", "shipped", "signals"]

FloatArray = NDArray[np.float64]

#: Names of the numbers, in order.
SIGNALS = ("missing", "best", "covered", "expected")

_FILE = Path(__file__).parent / "complete.json"
_EDGE = 1e-3  # probabilities are held so far from 0 and 1, where logarithms are taken


def signals(relevance: ArrayLike, chosen: Sequence[int]) -> FloatArray:
    """What the regression sees, shape (len(SIGNALS),).

    Parameters
    ----------
    relevance : array_like, shape (n,)
        Probability that each passage of the pool is needed.
    chosen : sequence of int
        Places in the pool of those that are read, at least one.
    """
    r = np.clip(np.asarray(relevance, dtype=np.float64), 0.0, 1.0 - _EDGE)
    inside = np.zeros(r.size, dtype=bool)
    inside[list(chosen)] = True
    best = float(np.clip(r[inside].max(), _EDGE, 1.0 - _EDGE))
    total = float(r.sum())
    share = float(r[inside].sum()) / total if total > 0 else 1.0
    return np.array(
        [
            float(np.log1p(-r[~inside]).sum()),
            math.log(best / (1.0 - best)),
            math.log(max(share, _EDGE)),
            math.log1p(total),
        ]
    )


@dataclass(frozen=True)
class Completeness:
    """The regression.

    Parameters
    ----------
    weights : tuple of float, length len(SIGNALS)
    intercept : float
    about : dict
        Where it comes from, and how far off it was. Plain data.
    """

    weights: tuple[float, ...]
    intercept: float
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = (*self.weights, self.intercept)
        if len(self.weights) != len(SIGNALS) or not all(map(math.isfinite, numbers)):
            raise InputError(f"completeness: {len(SIGNALS)} finite weights are wanted, not {self.weights}")

    def probability(self, relevance: ArrayLike, chosen: Sequence[int]) -> float:
        """The probability that the evidence is complete, in [0, 1]; 0 where nothing is read."""
        if not len(chosen):
            return 0.0
        z = float(signals(relevance, chosen) @ np.array(self.weights)) + self.intercept
        return 1.0 / (1.0 + math.exp(-max(-500.0, min(500.0, z))))

    def to_json(self) -> str:
        """As the file holds it."""
        said = {"signals": list(SIGNALS), "weights": list(self.weights), "intercept": self.intercept}
        return json.dumps({**said, "about": self.about}, indent=1) + "\n"


@functools.cache
def shipped() -> Completeness:
    """The regression that ships.

    Raises
    ------
    DataError
        If the file is damaged.
    """
    data = read_json(_FILE, DataError)
    try:
        if list(data["signals"]) != list(SIGNALS):
            raise DataError(f"'{_FILE}' goes by other signals: fit it anew")
        return Completeness(tuple(map(float, data["weights"])), float(data["intercept"]), data["about"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"'{_FILE}' is damaged: {error}") from error


def complete(relevance: ArrayLike, chosen: Sequence[int]) -> float:
    """`Completeness.probability` of the regression that ships."""
    return shipped().probability(relevance, chosen)
