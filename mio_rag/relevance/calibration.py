"""How far probabilities can be believed: calibration error, reliability, and the plot of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mio_rag.errors import InputError, require
from mio_rag.files import make_parent, replaced
from mio_rag.pictures import set_title

__all__ = ["calibration_measures", "reliability", "reliability_plot", "share_interval"]

_BINS = 10
_FEW = 10  # candidates in a bin whose share is drawn as a hint
_Z = 1.959964  # of a two-sided 95 % interval


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


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    Parameters
    ----------
    share : float
        In [0, 1].
    count : int
        Observations, >= 1, counted as independent.
    """
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + (_Z / (2 * count)) ** 2) / (1 + _Z**2 / count)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def reliability_plot(path: Path, curves: Mapping[str, Sequence[Mapping[str, float]]], title: str) -> None:
    """Draw reliability curves with 95 % intervals, and how many candidates lie in each bin, as a PNG.

    Bins of fewer than ten candidates are hollow and stand outside the line: their shares say little.

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
    figure = figures.Figure(figsize=(7.2, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    upper.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="perfect")
    width = 0.09 / max(len(curves), 1)
    for k, (label, rows) in enumerate(curves.items()):
        colour = f"C{k}"
        firm = [r for r in rows if r["count"] >= _FEW]
        upper.plot(
            [r["predicted"] for r in firm],
            [r["observed"] for r in firm],
            "o-",
            ms=4,
            color=colour,
            label=label,
        )
        for r in rows:
            low, high = share_interval(r["observed"], int(r["count"]))
            upper.errorbar(
                r["predicted"],
                r["observed"],
                yerr=[[r["observed"] - low], [high - r["observed"]]],
                fmt="o",
                ms=4,
                color=colour,
                mfc=colour if r["count"] >= _FEW else "white",
                elinewidth=0.8,
                alpha=0.9 if r["count"] >= _FEW else 0.5,
            )
        places = [r["low"] + 0.005 + (k + 0.5) * width for r in rows]
        bars = lower.bar(places, [r["count"] for r in rows], width=width, color=colour)
        counts = [f"{int(r['count'])}" for r in rows]
        lower.bar_label(bars, counts, fontsize=6, padding=1, rotation=0 if len(curves) < 3 else 90)
    upper.set(ylabel="share that is needed, 95 % interval", xlim=(0, 1), ylim=(-0.03, 1.03))
    upper.plot([], [], "o", color="0.4", mfc="white", ms=4, label=f"fewer than {_FEW} candidates")
    set_title(figure, title)
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    lower.set(xlabel="predicted probability", ylabel="candidates", yscale="log")
    lower.margins(y=0.25)  # room for the counts
    make_parent(path)
    with replaced(path) as partial:
        figure.savefig(partial, format="png", dpi=120)
