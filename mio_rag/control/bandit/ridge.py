"""Linear rewards: ridge regression that takes one observation at a time, with its uncertainty.

    A = R + sum x x',   b = R prior + sum r x,   theta = A^-1 b,   width(x) = sqrt(x' A^-1 x)

with R = diag(ridge): the larger its entry, the more must be seen before a dimension of the context counts.

The inverse is updated by the formula of Sherman and Morrison and computed anew every so many updates, since
rounding adds up. Upper confidence: Li, Chu, Langford and Schapire, "A contextual-bandit approach to
personalized news article recommendation" (WWW 2010), disjoint models; sampling: Agrawal and Goyal, "Thompson
sampling for contextual bandits with linear payoffs" (ICML 2013).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Ridge"]

FloatArray = NDArray[np.float64]

_NOISE_COUNT = 2.0  # observations that the first guess of the noise weighs
_NOISE_GUESS = 0.1  # standard deviation of a contribution, before any was seen


class Ridge:
    """One arm's model.

    Parameters
    ----------
    dimensions : int
    ridge : float or array of shape (dimensions,)
        > 0.
    refresh : int
        Updates after which the inverse is computed anew.
    """

    def __init__(self, dimensions: int, ridge: ArrayLike = 1.0, refresh: int = 1000) -> None:
        self.refresh = refresh
        self.penalty: FloatArray = np.broadcast_to(np.asarray(ridge, dtype=np.float64), (dimensions,)).copy()
        self.matrix: FloatArray = np.diag(self.penalty)
        self.inverse: FloatArray = np.diag(1.0 / self.penalty)
        self.vector: FloatArray = np.zeros(dimensions)
        self.theta: FloatArray = np.zeros(dimensions)
        self.count, self.squares = 0, 0.0

    def update(self, x: FloatArray, reward: float) -> None:
        """Take in a reward."""
        error = reward - self.mean(x)
        self.squares += error * error / (1.0 + float(x @ self.inverse @ x))  # predicted before it was seen
        self.matrix += np.outer(x, x)
        self.vector += reward * x
        self.count += 1
        if self.count % self.refresh == 0:
            self.invert()
        else:
            half = self.inverse @ x
            self.inverse -= np.outer(half, half) / (1.0 + float(x @ half))
        self.theta = self.inverse @ self.vector

    def correct(self, x: FloatArray, difference: float) -> None:
        """Change the reward of an observation that was taken in before."""
        self.vector += difference * x
        self.theta = self.inverse @ self.vector

    def invert(self) -> None:
        """The inverse from the matrix, with what rounding added up gone."""
        found = np.asarray(np.linalg.inv(self.matrix), dtype=np.float64)
        self.inverse = (found + found.T) / 2

    def forget(self, kept: float) -> None:
        """Keep a share of what was learned, as if so many of the observations had been made."""
        self.matrix = kept * self.matrix + (1 - kept) * np.diag(self.penalty)
        self.vector *= kept
        self.squares *= kept
        self.count = int(self.count * kept)
        self.invert()
        self.theta = self.inverse @ self.vector

    def start_from(self, theta: FloatArray, weight: float) -> None:
        """Begin with a prior mean, worth `weight` times the ridge; what was seen stays.

        Parameters
        ----------
        weight : float
            > 0: how hard the prior is to move.
        """
        self.matrix += weight * np.diag(self.penalty)
        self.vector += weight * self.penalty * theta
        self.invert()
        self.theta = self.inverse @ self.vector

    @property
    def noise(self) -> float:
        """Standard deviation of a reward around its mean, as far as seen."""
        total = self.squares + _NOISE_COUNT * _NOISE_GUESS**2
        return float(np.sqrt(total / (self.count + _NOISE_COUNT)))

    def mean(self, x: FloatArray) -> float:
        """The expected reward."""
        return float(self.theta @ x)

    def width(self, x: FloatArray) -> float:
        """sqrt(x' A^-1 x): the uncertainty of the mean, in standard deviations of the noise."""
        return float(np.sqrt(max(0.0, float(x @ self.inverse @ x))))

    def widest(self, x: FloatArray) -> float:
        """The width before anything was seen."""
        return float(np.sqrt(float((x * x / self.penalty).sum())))

    def samples(self, x: FloatArray, draws: FloatArray, scale: float) -> FloatArray:
        """Expected rewards under draws of the posterior, given standard normal numbers."""
        return self.mean(x) + scale * self.width(x) * draws

    def arrays(self) -> dict[str, Any]:
        """All of it, as arrays and numbers."""
        return {
            "matrix": self.matrix,
            "inverse": self.inverse,
            "vector": self.vector,
            "penalty": self.penalty,
            "numbers": np.array([self.count, self.squares, self.refresh], dtype=np.float64),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Self:
        """What `arrays` wrote, to the last bit."""
        count, squares, refresh = arrays["numbers"].tolist()
        made = cls(arrays["vector"].size, arrays["penalty"], int(refresh))
        made.matrix, made.inverse = arrays["matrix"].copy(), arrays["inverse"].copy()
        made.vector = arrays["vector"].copy()
        made.count, made.squares = int(count), squares
        made.theta = made.inverse @ made.vector
        return made
