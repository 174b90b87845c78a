"""Rows of a study: one number a question, intervals over questions, and comparison at equal cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import figure, interval_text, text_table
from mio_rag.evaluation.statistics import mean_interval

FloatArray = NDArray[np.float64]
#: Measure -> one number a question; nan where it is undefined.
Columns = Mapping[str, FloatArray]


@dataclass(eq=False)
class Row:
    """A contender at one setting, on the same questions as all other rows.

    kind: rows of a kind differ in their setting: one line in the picture.
    about: more for the report.
    """

    name: str
    kind: str
    columns: Columns
    about: dict[str, Any] = field(default_factory=dict)

    def mean(self, measure: str) -> float:
        """Return the mean over the questions where it is defined."""
        return float(np.nanmean(self.columns[measure]))


def interval(values: FloatArray) -> dict[str, float] | None:
    """Return the mean with its 95 % bootstrap interval over the defined values; None without any."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return mean_interval(known.tolist()) if known.size else None


def summarized(rows: Sequence[Row], sets: Sequence[str] = ()) -> dict[str, Any]:
    """Return means with intervals of every row, and means by set.

    sets: the set of each question.
    """
    names, of = list(dict.fromkeys(sets)), np.array(sets)

    def mean(values: FloatArray, name: str) -> float | None:
        part = values[of == name]
        return None if np.isnan(part).all() else float(np.nanmean(part))

    found = {}
    for row in rows:
        means = {measure: interval(values) for measure, values in row.columns.items()}
        found[row.name] = {"kind": row.kind, **means, **row.about}
        if len(names) > 1:
            of_sets = {name: {m: mean(v, name) for m, v in row.columns.items()} for name in names}
            found[row.name]["sets"] = of_sets
    return found


def differences(ours: Columns, theirs: Columns, measures: Sequence[str]) -> dict[str, Any]:
    """Return paired differences with intervals."""
    return {m: interval(ours[m] - theirs[m]) for m in measures if m in ours and m in theirs}


def at_cost(rows: Sequence[Row], cost: str, total: float) -> dict[str, FloatArray] | None:
    """Return the columns of a contender where its mean cost is the total; None if every setting costs more.

    A mixture of the two neighbouring settings; the dearest setting where all cost less.
    """
    order = sorted(rows, key=lambda row: row.mean(cost))
    below = [row for row in order if row.mean(cost) <= total]
    above = [row for row in order if row.mean(cost) > total]
    if not below:
        return None
    if not above:
        return dict(below[-1].columns)
    low, high = below[-1], above[0]
    share = (total - low.mean(cost)) / (high.mean(cost) - low.mean(cost))
    return {
        m: (1 - share) * low.columns[m] + share * high.columns[m] for m in low.columns if m in high.columns
    }


def at_equal_cost(
    rows: Sequence[Row], cost: str, totals: Sequence[float], quality: str, baselines: Sequence[str]
) -> dict[str, Any]:
    """Return, for every total and kind, means and the difference in quality to each baseline kind."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    result: dict[str, Any] = {}
    for total in totals:
        found = {kind: at_cost([row for row in rows if row.kind == kind], cost, total) for kind in kinds}
        result[f"{total:g}"] = {
            kind: None
            if columns is None
            else {
                **{m: float(v.mean()) for m, v in columns.items()},
                "against": {
                    other: interval(columns[quality] - theirs[quality])
                    for other in baselines
                    if other != kind and (theirs := found.get(other)) is not None
                },
            }
            for kind, columns in found.items()
        }
    return result


def equal_cost_table(result: Mapping[str, Any], cost: str, quality: str) -> str:
    """Lay out what `at_equal_cost` returned."""
    parts = []
    for total, here in result.items():
        against = list(dict.fromkeys(k for one in here.values() if one for k in one["against"]))
        heads = (f"{cost} {total}", cost, quality, *(f"against {name}" for name in against))
        rows = [
            (kind, "costs more at every setting", "", *("" for _ in against))
            if one is None
            else (
                kind,
                f"{one[cost]:.0f}",
                f"{one[quality]:.3f}",
                *(interval_text(one["against"][n], 3, "+") if n in one["against"] else "" for n in against),
            )
            for kind, one in here.items()
        ]
        parts.append(text_table(heads, rows))
    return "\n\n".join(parts)


def rows_table(
    summary: Mapping[str, Any], measures: Mapping[str, int], more: Mapping[str, str] | None = None
) -> str:
    """Lay out a summary: measures with their digits, then differences by their path, such as "against k5"."""
    more = more or {}
    heads = ("", *measures, *more)
    rows = [
        (
            name,
            *(interval_text(entry.get(m), digits) for m, digits in measures.items()),
            *(interval_text((entry.get(key) or {}).get(m), 3, "+") for key, m in more.items()),
        )
        for name, entry in summary.items()
    ]
    return text_table(heads, rows)


def draw(
    summary: Mapping[str, Any], path: Path, cost: str, qualities: Sequence[str], title: str = ""
) -> None:
    """Draw quality against cost with intervals, one panel a measure and one line a kind."""
    made, panels = figure(len(qualities), 6.0)
    kinds = list(dict.fromkeys(entry["kind"] for entry in summary.values()))
    for panel, quality in zip(panels, qualities, strict=True):
        for k, kind in enumerate(kinds):
            points = [e for e in summary.values() if e["kind"] == kind and e.get(quality) and e.get(cost)]
            points.sort(key=lambda entry: entry[cost]["mean"])
            x, y, low, high = (
                np.array([e[cost]["mean"] for e in points]),
                *(np.array([e[quality][end] for e in points]) for end in ("mean", "low", "high")),
            )
            panel.errorbar(
                x, y, yerr=[y - low, high - y], marker="o", markersize=4, color=f"C{k % 10}", elinewidth=0.8,
                capsize=2, linestyle="-" if k < 10 else "--", label=kind,
            )  # fmt: skip
        panel.set(xlabel=f"mean {cost} of a question", ylabel=quality, xlim=(0, None), title=title)
        panel.grid(alpha=0.2)
    panels[-1].legend(frameon=False, fontsize=8)
    made.savefig(path, format="png", dpi=110)
