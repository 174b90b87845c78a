"""Paired statistics over questions: bootstrap intervals and permutation tests.

Intervals are 95 % percentile bootstrap over questions; a comparison resamples the *differences* of the same
questions. p-values come from sign-flip permutation tests and are corrected for the number of comparisons by
Benjamini and Hochberg's procedure (the q-values). All seeded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy  # loads scipy.stats, a second, where it is first used
from numpy.typing import NDArray

__all__ = ["RESAMPLES", "compare", "mean_interval", "ratio_interval"]

RESAMPLES = 2000
_FEW = 500  # questions whose resamples are kept: 8 MB

FloatArray = NDArray[np.float64]


def mean_interval(values: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Mean with its 95 % bootstrap interval: {mean, low, high}. One value: the interval is that value."""
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean())
    if data.size < 2 or np.all(data == data[0]):
        return {"mean": mean, "low": mean, "high": mean}
    # The draws of `scipy.stats.bootstrap`, without its checks, which cost more, for each of many measures.
    means = data[_drawn(data.size, seed)].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"mean": mean, "low": float(low), "high": float(high)}


def _drawn(questions: int, seed: int) -> NDArray[np.int64]:
    """Which questions each resample holds, shape (RESAMPLES, questions)."""
    return _kept(questions, seed) if questions <= _FEW else _draw(questions, seed)


def _draw(questions: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, questions, size=(RESAMPLES, questions))


@functools.lru_cache(
    maxsize=4
)  # one measure after the other asks for the same; of few questions they are small
def _kept(questions: int, seed: int) -> NDArray[np.int64]:
    found = _draw(questions, seed)
    found.flags.writeable = False
    return found


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], seed: int = 0
) -> dict[str, float | None] | None:
    """Ratio of the sums over the same questions, with its interval; None when the denominator sums to 0.

    Tokens per correct answer is such a ratio: tokens of all questions over the number answered correctly. A
    resample without a correct answer has no end. Where more than 2.5 % are so, the interval is unbounded
    above: ``high`` is None.
    """
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if bottom.sum() <= 0:
        return None
    rows = _drawn(top.size, seed)
    sums = bottom[rows].sum(axis=1)
    ratios = np.full(RESAMPLES, np.inf)
    np.divide(top[rows].sum(axis=1), sums, out=ratios, where=sums > 0)
    # Both ends are resamples: between a number and infinity there is nothing to interpolate.
    low, high = np.quantile(ratios, [0.025, 0.975], method="inverted_cdf")
    mean = float(top.sum() / bottom.sum())
    return {"mean": mean, "low": float(low), "high": float(high) if math.isfinite(high) else None}


def compare(
    values: Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]], baseline: str, seed: int = 0
) -> list[dict[str, Any]]:
    """Compare every method with the baseline at the same budget, question by question.

    Parameters
    ----------
    values : mapping of (method, budget_tokens) to {measure: {question_id: value}}
    baseline : str
        Method to compare with.

    Returns
    -------
    list of dict
        method, baseline, budget_tokens, measure, n (questions with both values), difference (mean), low,
        high, p_value (two-sided), q_value (corrected over all rows of this list).
    """
    rows: list[dict[str, Any]] = []
    for (method, budget), measures in values.items():
        reference = values.get((baseline, budget))
        if method == baseline or reference is None:
            continue
        for measure, by_question in measures.items():
            other = reference.get(measure, {})
            shared = [q for q in by_question if q in other]
            if not shared:
                continue
            difference = np.array([by_question[q] - other[q] for q in shared])
            interval = mean_interval(difference.tolist(), seed)
            rows.append(
                {
                    "method": method,
                    "baseline": baseline,
                    "budget_tokens": budget,
                    "measure": measure,
                    "n": len(shared),
                    "difference": interval["mean"],
                    "low": interval["low"],
                    "high": interval["high"],
                    "p_value": _sign_flip(difference, seed),
                }
            )
    if rows:
        corrected = scipy.stats.false_discovery_control([r["p_value"] for r in rows], method="bh")
        for row, q in zip(rows, corrected, strict=True):
            row["q_value"] = float(q)
    return rows


def _sign_flip(difference: FloatArray, seed: int) -> float:
    """Two-sided p-value of a mean difference of zero, by flipping signs; zeros carry no information."""
    moved = difference[difference != 0]
    if moved.size < 2:  # nothing moved, or one question did: both signs are equally extreme
        return 1.0
    outcome = scipy.stats.permutation_test(
        (moved,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=4999,
        batch=max(1, 10**7 // moved.size),  # bounds the memory
        alternative="two-sided",
        rng=np.random.default_rng(seed),
    )
    p = float(outcome.pvalue)
    assert not math.isnan(p)
    return p
