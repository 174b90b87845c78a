"""What another policy would have earned, from a log that knows its propensities.

    ips    mean of w r,                 w = pi(S | x) / p(S | x)        unbiased; wide where w is large
    snips  sum of w r / sum of w                                        self-normalised: narrower, small bias
    dr     mean of v(x) + w (r - q(x, S)),  v(x) = sum_S pi(S | x) q(x, S)   doubly robust, with any model q

Sources: Horvitz and Thompson (1952); Swaminathan and Joachims, "The self-normalized estimator for
counterfactual learning" (NeurIPS 2015); Dudik, Langford and Li, "Doubly robust policy evaluation and
learning" (ICML 2011).
Intervals are those of the asymptotic normal distribution of the mean, for snips of the ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError

__all__ = ["Estimate", "off_policy"]

FloatArray = NDArray[np.float64]

_NORMAL = 1.959963984540054  # 97.5 % of a standard normal distribution lie below


@dataclass(frozen=True)
class Estimate:
    """An estimate with its 95 % interval.

    Parameters
    ----------
    effective : float
        (sum w)^2 / sum w^2: questions that the estimate rests on.
    """

    name: str
    value: float
    low: float
    high: float
    effective: float


def off_policy(
    rewards: ArrayLike,
    propensities: ArrayLike,
    target: ArrayLike,
    predicted: ArrayLike | None = None,
    expected: ArrayLike | None = None,
) -> list[Estimate]:
    """What a policy would have earned a question.

    Parameters
    ----------
    rewards : array, shape (n,)
        Of what was done.
    propensities : array, shape (n,)
        Probability, in (0, 1], with which it was done.
    target : array, shape (n,)
        Probability, in [0, 1], with which the other policy does it.
    predicted, expected : array, shape (n,), optional
        A model's reward of what was done, and of what the other policy does in expectation; with both there
        is a doubly robust estimate. The model must not have learned from these rewards.

    Returns
    -------
    list of Estimate
        ips, snips, and dr where it can be had.

    Raises
    ------
    InputError
        With everything that is out of range, or if there is nothing to estimate from.
    """
    r, p, pi = (np.asarray(a, dtype=np.float64) for a in (rewards, propensities, target))
    problems = []
    if not (r.ndim == 1 and r.shape == p.shape == pi.shape and r.size >= 2):
        raise InputError(
            f"rewards, propensities and target have shapes {r.shape}, {p.shape}, {pi.shape}: one "
            "value for each of at least two questions is wanted"
        )
    if not ((p > 0) & (p <= 1)).all():
        problems.append("propensities must lie in (0, 1]: what was done had a probability")
    if not ((pi >= 0) & (pi <= 1)).all():
        problems.append("target must lie in [0, 1]: it holds probabilities")
    if not np.isfinite(r).all():
        problems.append("rewards must be finite")
    if (predicted is None) != (expected is None):
        problems.append("a doubly robust estimate needs both predicted and expected")
    if problems:
        raise InputError(problems)
    w = pi / p
    effective = float(w.sum() ** 2 / max((w**2).sum(), 1e-300))
    found = [_mean("ips", w * r, effective)]
    if w.sum() > 0:
        ratio = float((w * r).sum() / w.sum())
        found.append(_mean("snips", ratio + w * (r - ratio) / w.mean(), effective))
    if predicted is not None and expected is not None:
        q, v = (np.asarray(a, dtype=np.float64) for a in (predicted, expected))
        if q.shape != r.shape or v.shape != r.shape:
            raise InputError(f"predicted and expected have shapes {q.shape}, {v.shape}: {r.shape} is wanted")
        found.append(_mean("dr", v + w * (r - q), effective))
    return found


def _mean(name: str, values: FloatArray, effective: float) -> Estimate:
    middle = float(values.mean())
    half = _NORMAL * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Estimate(name, middle, middle - half, middle + half, effective)
