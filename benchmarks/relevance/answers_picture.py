"""What a reader made of each selection, as a picture drawn from the JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mio_rag.errors import require

#: What each condition is called and drawn like, in the order of the legend.
_STYLES = {
    "baseline": ("best ranking", "#8a8a8a", "o"),
    "mmr": ("MMR", "#d1862f", "v"),
    "ours": ("ours", "#1f6f3d", "s"),
    "sparing": ("ours, sparing", "#8fbf7f", "D"),
    "default": ("shipped weights", "#b04a5a", "P"),
    "ends": ("ours, best at both ends", "#7fb0d6", "^"),
    "document": ("ours, document order", "#4f7fb8", "<"),
    "closed": ("nothing to read", "#c9c9c9", "x"),
    "gold": ("the gold passages themselves", "#222222", "|"),
}


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Token F1 with its interval for each condition, and the paired difference to the best ranking.

    Conditions under which only some of a set's questions were read are left out: their means do not compare.
    """
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    shown = [name for name in _STYLES if any(_entry(found, name) for found in results.values())]
    figure = figures.Figure(figsize=(10, 1.2 + 0.62 * len(results)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.4, 1))
    for k, name in enumerate(shown):
        label, colour, marker = _STYLES[name]
        shift = 0.7 * ((k + 0.5) / len(shown) - 0.5)
        style = {"color": colour, "marker": marker, "linestyle": "none", "capsize": 2, "elinewidth": 1}
        for axis, numbers in (
            (left, [_mean(_entry(found, name)) for found in results.values()]),
            (right, [_gain(found, name) for found in results.values()]),
        ):
            points = [(y + shift, *value) for y, value in enumerate(numbers) if value is not None]
            if points:
                places, middle, low, high = zip(*points, strict=True)
                widths = [
                    [m - a for m, a in zip(middle, low, strict=True)],
                    [b - m for m, b in zip(middle, high, strict=True)],
                ]
                axis.errorbar(
                    middle, places, xerr=widths, label=label if axis is left else None, markersize=5, **style
                )
    left.set_yticks(
        range(len(results)), [f"{name} ({found['questions']})" for name, found in results.items()]
    )
    left.invert_yaxis()
    left.set_xlabel("token F1")
    left.set_xlim(left=0)
    right.set_xlabel("difference to the best ranking, same questions")
    right.axvline(0, color="#999999", linewidth=0.8)
    for axis in (left, right):
        axis.grid(axis="x", alpha=0.25)
        axis.tick_params(axis="y", length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        for y in range(len(results) - 1):
            axis.axhline(y + 0.5, color="#e5e5e5", linewidth=0.8)
    figure.legend(loc="outside upper center", ncols=len(shown), frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def _entry(found: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    for entry in found["summary"]:
        if entry["method"] == name and entry["n"] == found["questions"]:
            whole: Mapping[str, Any] = entry
            return whole
    return None


def _mean(entry: Mapping[str, Any] | None) -> tuple[float, float, float] | None:
    if entry is None:
        return None
    value = entry["token_f1"]
    return value["mean"], value["low"], value["high"]


def _gain(found: Mapping[str, Any], name: str) -> tuple[float, float, float] | None:
    for entry in found["against_baseline"]:
        if _entry(found, name) is not None and (entry["method"], entry["measure"]) == (name, "token_f1"):
            return entry["difference"], entry["low"], entry["high"]
    return None
