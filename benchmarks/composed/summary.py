"""Contenders at equal total tokens: means, and paired differences with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.composed.study import Knob
from mio_rag.evaluation.statistics import mean_interval

FloatArray = NDArray[np.float64]
K = TypeVar("K")
Rows = Mapping[Knob, Sequence[Mapping[str, float]]]

#: Mean tokens a question, prompts included, that contenders are compared at.
TOTALS = (300, 500, 900)
_MEASURES = ("recall", "complete", "searches")


def at_total(
    rows: Mapping[K, Sequence[Mapping[str, Any]]],
    knobs: Sequence[K],
    total: float,
    cost: str = "tokens",
    measures: Sequence[str] = _MEASURES,
) -> dict[str, FloatArray] | None:
    """Outcomes of every question where the mean of a cost is the total; None where every knob spends more.

    A mixture of the two neighbouring knobs, each taken with the probability that makes the mean right.
    """
    means = [float(np.mean([row[cost] for row in rows[knob]])) for knob in knobs]
    order = np.argsort(means)
    below = [k for k in order if means[k] <= total]
    above = [k for k in order if means[k] > total]
    if not below:
        return None
    low = below[-1]
    if not above:  # it has no use for more
        return {m: _column(rows[knobs[low]], m) for m in (*measures, cost)}
    high = above[0]
    share = (total - means[low]) / (means[high] - means[low])
    return {
        m: (1 - share) * _column(rows[knobs[low]], m) + share * _column(rows[knobs[high]], m)
        for m in (*measures, cost)
    }


def _column(rows: Sequence[Mapping[str, Any]], measure: str) -> FloatArray:
    return np.array([row[measure] for row in rows])


def summarize(rows: Mapping[str, tuple[Rows, Sequence[Knob]]], baseline: str = "fused") -> dict[str, Any]:
    """Every contender at every total: means, and differences to the baseline, to `price` and to `all`."""
    told: dict[str, Any] = {}
    for total in TOTALS:
        found = {name: at_total(own, knobs, total) for name, (own, knobs) in rows.items()}
        here: dict[str, Any] = {}
        for name, columns in found.items():
            if columns is None:
                here[name] = None
                continue
            here[name] = {m: float(column.mean()) for m, column in columns.items()}
            for other in (baseline, "price", "all"):
                against = found.get(other)
                if other != name and against is not None:
                    here[name][f"complete beside {other}"] = mean_interval(
                        (columns["complete"] - against["complete"]).tolist()
                    )
        told[str(total)] = here
    return told


def table(told: Mapping[str, Any]) -> str:
    """The summary as text."""
    lines = []
    for total, here in told.items():
        lines.append(f"{total} tokens a question")
        lines.append(
            f"{'':16}{'recall':>8}{'complete':>10}{'tokens':>8}{'searches':>10}  beside fused (points)"
        )
        for name, one in here.items():
            if one is None:
                lines.append(f"{name:16}  reads more than that at every setting")
                continue
            beside = one.get("complete beside fused")
            said = "" if beside is None else _points(beside)
            lines.append(
                f"{name:16}{one['recall']:8.3f}{one['complete']:10.3f}{one['tokens']:8.0f}"
                f"{one['searches']:10.2f}  {said}"
            )
        lines.append("")
    return "\n".join(lines)


def _points(interval: Mapping[str, float]) -> str:
    mean, low, high = (100 * interval[key] for key in ("mean", "low", "high"))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
