"""How far probabilities can be believed: calibration error, reliability, and the plot of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mio_rag.errors import InputError, require
from mio_rag.files import make_parent, replaced

__all__ = ["calibration_measures", "reliability", "reliability_plot"]

_BINS = 10


def reliability(probabilities: ArrayLike, labels: ArrayLike, bins: int = _BINS) -> list[dict[str, float]]:
    """Mean prediction and share of positives by bins of equal width.

    Parameters
    ----------
    probabilities : array_like, shape (m,)
        In [0, 1].
    labels : array_like, shape (m,)
        0 or 1.

    Returns
    -------
    list of dict
        {low, high, count, predicted, observed} for every bin that holds anything.
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    place = np.minimum((p * bins).astype(int), bins - 1)
    rows = []
    for k in range(bins):
        inside = place == k
        if inside.any():
            rows.append(
                {
                    "low": k / bins,
                    "high": (k + 1) / bins,
                    "count": int(inside.sum()),
                    "predicted": float(p[inside].mean()),
                    "observed": float(y[inside].mean()),
                }
            )
    return rows


def calibration_measures(probabilities: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Expected calibration error, Brier score and log loss; smaller is better.

    The expected calibration error is the mean over all candidates of |predicted - observed| of their bin, of
    ten bins of equal width (Naeini, Cooper and Hauskrecht, AAAI 2015). Most candidates are plainly
    irrelevant, so `ece_likely` is the same over those with a prediction of at least 0.1.
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if p.size == 0 or p.shape != y.shape or not np.all((p >= 0) & (p <= 1)):
        raise InputError(
            f"{p.size} probabilities in [0, 1] and {y.size} labels: expected as many of both, not none"
        )
    safe = np.clip(p, 1e-12, 1 - 1e-12)
    likely = p >= 1 / _BINS
    return {
        "ece": _error(p, y),
        "ece_likely": _error(p[likely], y[likely]),
        "brier": float(np.mean((p - y) ** 2)),
        "log_loss": float(-np.mean(y * np.log(safe) + (1 - y) * np.log(1 - safe))),
    }


def _error(p: Any, y: Any) -> float:
    rows = reliability(p, y) if len(p) else []
    return float(sum(r["count"] * abs(r["predicted"] - r["observed"]) for r in rows) / max(len(p), 1))


def reliability_plot(path: Path, curves: Mapping[str, Sequence[Mapping[str, float]]], title: str) -> None:
    """Draw reliability curves and how many candidates lie in each bin, as a PNG.

    Parameters
    ----------
    curves : mapping of label to the rows of `reliability`

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    InputError
        If the file cannot be written.
    """
    figures: Any = require("matplotlib.figure", "evaluation", "the reliability plot")
    figure = figures.Figure(figsize=(5.2, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    upper.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="perfect")
    for label, rows in curves.items():
        predicted = [r["predicted"] for r in rows]
        upper.plot(predicted, [r["observed"] for r in rows], marker="o", markersize=4, label=label)
        lower.plot(predicted, [r["count"] for r in rows], marker="o", markersize=3)
    upper.set(ylabel="share that is needed", title=title, xlim=(0, 1), ylim=(0, 1))
    upper.legend(frameon=False)
    lower.set(xlabel="predicted probability", ylabel="candidates", yscale="log")
    make_parent(path)
    with replaced(path) as partial:
        figure.savefig(partial, format="png", dpi=120)
