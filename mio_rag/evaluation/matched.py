"""Comparison at matched quality: how many tokens each method needs to reach the same recall.

A method measured at several budgets is a curve of mean tokens against mean quality. Between two budgets the
curve is taken as a straight line; beyond the largest it is unknown. Below the smallest, the tokens used there
are an upper bound. Curves are made non-decreasing first (a budget that buys more tokens and less quality is
never needed). Intervals are 95 % percentile bootstrap over questions, the same resample for all methods, the
target recomputed in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.evaluation.expenses import reading_column

__all__ = ["matched_rows", "matched_tokens", "tokens_to_reach"]

FloatArray = NDArray[np.float64]

_RESAMPLES = 1000


def tokens_to_reach(tokens: FloatArray, quality: FloatArray, target: FloatArray) -> FloatArray:
    """Tokens at which curves reach their targets, by linear interpolation.

    Parameters
    ----------
    tokens, quality : ndarray, shape (r, b)
        r curves of b points each, in order of the budget.
    target : ndarray, shape (r,)

    Returns
    -------
    ndarray, shape (r,)
        NaN where a curve stays below its target.
    """
    reached = np.maximum.accumulate(quality, axis=1)
    spent = np.maximum.accumulate(tokens, axis=1)
    enough = reached >= target[:, None] - 1e-12
    at = enough.argmax(axis=1)
    rows = np.arange(len(target))
    before = np.maximum(at - 1, 0)
    high, low = reached[rows, at], reached[rows, before]
    rise = np.where(high > low, high - low, 1.0)
    share = np.where(at > 0, np.clip((target - low) / rise, 0.0, 1.0), 1.0)
    found = spent[rows, before] + share * (spent[rows, at] - spent[rows, before])
    return np.where(enough.any(axis=1), found, np.nan)


def matched_tokens(
    curves: Mapping[str, tuple[FloatArray, FloatArray]],
    baseline: str,
    at: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Tokens that each method needs for the quality that the baseline has at one of its budgets.

    Parameters
    ----------
    curves : mapping of method to (tokens, quality)
        Each of shape (questions, budgets), the same questions for every method; budgets ascending.
    baseline : str
        A key of `curves`.
    at : int
        Which budget of the baseline, counted from 0.

    Returns
    -------
    list of dict
        method, target (quality), tokens {mean, low, high} and share {mean, low, high} of the baseline's
        tokens, or None where the target is not reached (`reached` is the share of resamples that do);
        `at_most` where it is reached at the smallest budget already. Where the baseline reads nothing, as
        many tokens are a share of 1, and more are no share: None, or None as an end of its interval.

    Raises
    ------
    InputError
        For an unknown baseline or curves over different questions.
    """
    if baseline not in curves:
        raise InputError(f"baseline '{baseline}' is not among {', '.join(curves)}")
    sizes = {quality.shape[0] for pair in curves.values() for quality in pair}
    if len(sizes) != 1 or 0 in sizes:
        raise InputError("every method needs the same questions, at least one")
    count = sizes.pop()
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    weights = np.vstack([np.full(count, 1.0), draws]) / count  # the first row is the data itself
    base_tokens, base_quality = (weights @ values[:, [at]] for values in curves[baseline])
    target, reference = base_quality[:, 0], base_tokens[:, 0]
    entries = []
    for method, (tokens, quality) in curves.items():
        mean_quality = weights @ quality
        needed = tokens_to_reach(weights @ tokens, mean_quality, target)
        if method == baseline:  # its own budget, whatever a smaller one may have reached
            needed = reference
        entries.append(
            {
                "method": method,
                "baseline": baseline,
                "target": float(target[0]),
                "tokens": _interval(needed),
                "share": _interval(_shares(needed, reference)),
                "reached": float(np.mean(~np.isnan(needed[1:]))),
                "at_most": bool(method != baseline and mean_quality[0, 0] >= target[0] - 1e-12),
            }
        )
    return entries


def _shares(needed: FloatArray, reference: FloatArray) -> FloatArray:
    """Tokens as a share of the reference, NaN where not known; of none, none are 1 and some infinite."""
    shares = np.where(needed > 0, np.inf, 1.0)
    shares[np.isnan(needed)] = np.nan
    return np.divide(needed, reference, out=shares, where=reference > 0)


def _interval(values: FloatArray) -> dict[str, float | None] | None:
    """Of the data (the first value) and its resamples; an end is None where it is beyond the curve."""
    if not np.isfinite(values[0]):
        return None
    low, high = np.quantile(
        np.where(np.isnan(values[1:]), np.inf, values[1:]), [0.025, 0.975], method="inverted_cdf"
    )
    return {
        "mean": float(values[0]),
        "low": float(low) if np.isfinite(low) else None,
        "high": float(high) if np.isfinite(high) else None,
    }


def matched_rows(
    rows: Sequence[Mapping[str, Any]], baseline: str, measure: str = "gold_recall", seed: int = 0
) -> list[dict[str, Any]]:
    """`matched_tokens` for ledger rows, at every budget of the baseline; empty where nothing can be matched.

    Tokens are those of `reading_column`; each entry names them as `tokens_measure`. Questions without the
    measure or without tokens in some row are left out of all.
    """
    reading = reading_column(rows)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    budgets = sorted({int(row["budget_tokens"]) for row in rows})
    table = {(row["method"], int(row["budget_tokens"]), row["question_id"]): row for row in rows}
    known = [
        q
        for q in dict.fromkeys(row["question_id"] for row in rows)
        if all(
            (row := table.get((m, b, q))) is not None
            and row.get(measure) is not None
            and row.get(reading) is not None
            for m in methods
            for b in budgets
        )
    ]
    if not known or len(budgets) < 2 or len(methods) < 2:
        return []

    def column(method: str, name: str) -> FloatArray:
        return np.array([[float(table[method, b, q][name]) for b in budgets] for q in known])

    curves = {m: (column(m, reading), column(m, measure)) for m in methods}
    return [
        {**entry, "measure": measure, "tokens_measure": reading, "budget_tokens": budget, "n": len(known)}
        for k, budget in enumerate(budgets)
        for entry in matched_tokens(curves, baseline, k, seed)
    ]
