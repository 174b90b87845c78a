"""The logistic function and its inverse.

`scipy.special` has both, but takes as long to load as choosing passages takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["logistic", "logit"]


def logistic(score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of scores, any shape: 1 / (1 + exp(-score)), 0 where that overflows."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-score)))


def logit(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores of probabilities, any shape, within (0, 1)."""
    return np.asarray(np.log(probability) - np.log1p(-probability))
