"""Shares and means of recorded actions, with intervals that account for correlation within a question.

Mean and share are ratios of sums over questions. Their variance is that of the ratio estimator (the residuals
of whole questions), the quantile Student's t with one degree of freedom less than questions. A share takes
Wilson's interval, with as many observations as independent ones would be worth. Cochran, Sampling Techniques
(1977), chapter 6; Wilson (1927).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads scipy.stats, a second, where it is first used
from numpy.typing import NDArray

from mio_rag.control.mdp.assumptions import Transition

__all__ = ["Estimate", "above_floor", "mean_of", "share_of"]

FloatArray = NDArray[np.float64]

_FEWEST_QUESTIONS = 5  # below which questions do not show how much they differ
_LEVEL = 0.95
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval (None: too few questions for one), from `n` observations."""

    value: float
    low: float | None
    high: float | None
    n: int

    def scaled(self, factor: float) -> Estimate:
        """In another unit."""
        ends = [None if end is None else end * factor for end in (self.low, self.high)]
        return Estimate(self.value * factor, ends[0], ends[1], self.n)


def mean_of(group: Sequence[Transition], value: Callable[[Transition], float]) -> Estimate | None:
    """The mean over transitions; None without any."""
    if not group:
        return None
    mean, variance, questions = _ratio(group, value)
    if questions < _FEWEST_QUESTIONS:
        return Estimate(mean, None, None, len(group))
    half = _quantile(questions) * math.sqrt(variance)
    return Estimate(mean, mean - half, mean + half, len(group))


def share_of(group: Sequence[Transition], holds: Callable[[Transition], bool]) -> Estimate | None:
    """The share of transitions of which something holds; None without any."""
    if not group:
        return None
    share, variance, questions = _ratio(group, lambda t: float(holds(t)))
    if questions < _FEWEST_QUESTIONS:
        return Estimate(share, None, None, len(group))
    # Where all are alike nothing tells how much questions differ: each counts once.
    alone = share * (1 - share)
    n = float(questions) if alone == 0 else min(len(group), alone / max(variance, 1e-300))
    z = _quantile(questions)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(alone / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half), len(group))


def above_floor(group: Sequence[Transition], min_drop: float) -> tuple[list[Transition], float | None]:
    """Transitions that begin high enough to fall in full, and where that is (None: all, as none was cut).

    U never falls below 0. What ends there might have fallen further, and from near 0 a success looks like a
    failure. So where some end at 0, all that begin below the mean full fall are left out, whatever became of
    them: to leave out only those that ended at 0 would leave out successes.
    """
    full = [t.drop for t in group if t.after > 0 and t.drop > min_drop]
    if not full or all(t.after > 0 for t in group):
        return list(group), None
    least = float(np.mean(full))
    kept = [t for t in group if t.before >= least - _ROUNDING]
    return kept, least


def _ratio(group: Sequence[Transition], value: Callable[[Transition], float]) -> tuple[float, float, int]:
    """Mean, the variance of it, and the number of questions."""
    names = list(dict.fromkeys(t.question_id for t in group))
    place = {name: k for k, name in enumerate(names)}
    sums, counts = np.zeros(len(names)), np.zeros(len(names))
    for t in group:
        sums[place[t.question_id]] += value(t)
        counts[place[t.question_id]] += 1
    mean = float(sums.sum() / counts.sum())
    residuals: FloatArray = sums - mean * counts
    n = len(names)
    variance = n / max(n - 1, 1) * float(residuals @ residuals) / float(counts.sum()) ** 2
    return mean, variance, n


def _quantile(questions: int) -> float:
    return float(scipy.stats.t.ppf(0.5 + _LEVEL / 2, questions - 1))
