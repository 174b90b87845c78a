"""The logistic function of a pool's scores, without SciPy's special functions: they take as long to load as
choosing passages takes."""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

__all__ = ["logistic"]

_FEW = 2_000  # numbers, for which a loop takes no longer than a millisecond


def logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)) of a vector, by the same steps as `scipy.special.expit`: to the last bit where both
    call the same exponential."""
    if len(x) > _FEW or "scipy.special" in sys.modules:
        from scipy.special import expit

        return np.asarray(expit(x))
    return np.array([_one(value) for value in x.tolist()], dtype=np.float64)


def _one(x: float) -> float:
    try:
        return 1.0 / (1.0 + math.exp(-x))
    except OverflowError:
        return 0.0
