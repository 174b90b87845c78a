"""Pictures drawn from the JSON alone: reliability of the completeness, and contenders at equal tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mio_rag.errors import require

__all__ = ["draw_contenders", "draw_reliability"]

_KINDS = {"known sets": "#1f6f3d", "own set alone": "#1f4e79", "unknown set": "#c07f2c"}
_WAYS = {"shipped": "#c07f2c", "fitted anew": "#1f4e79", "adapted": "#1f6f3d"}


def draw_reliability(studied: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> None:
    """Said against what came true; and how the error falls with questions of one's own."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    figure = figures.Figure(figsize=(10.4, 4.8), layout="constrained")
    axes, right = figure.subplots(1, 2)
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
    for kind, colour in _KINDS.items():
        found = studied[kind]["all"]
        said, was = [point[0] for point in found["curve"]], [point[1] for point in found["curve"]]
        label = f"{kind}: off by {found['calibration_error']:.3f}"
        axes.plot(said, was, marker="o", markersize=4, color=colour, label=label)
    axes.set_xlabel("probability that the evidence is complete")
    axes.set_ylabel("share of selections that were")
    axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.3)
    curves = own["left out"]
    sizes = list(curves["adapted"])
    for way, colour in _WAYS.items():
        right.plot(
            sizes, [curves[way][size]["each set"] for size in sizes], marker="o", markersize=4, color=colour,
            label=way,
        )  # fmt: skip
    chance = [curves["adapted"][size]["each set, by chance"] for size in sizes]
    right.plot(sizes, chance, linestyle="--", color="#999999", label="by chance alone")
    right.set_xlabel("labelled questions of one's own")
    right.set_ylabel("calibration error on a set that is not known, mean of sets")
    right.set_ylim(0, None)
    right.legend(frameon=False, fontsize=9)
    right.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=120)


def draw_contenders(summary: Mapping[str, Any], path: Path) -> None:
    """Complete evidence beside fused top-k at equal tokens, with paired 95 % intervals."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    names = [name for name in next(iter(summary.values())) if name != "fused"]
    figure = figures.Figure(figsize=(10, 1.4 + 0.4 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(summary), sharey=True, sharex=True)
    for axis, (total, here) in zip(panels, summary.items(), strict=True):
        axis.axvline(0, color="black", linewidth=0.8)
        for place, name in enumerate(names):
            beside = None if here[name] is None else here[name].get("complete beside fused")
            if beside is None:
                continue
            low, mean, high = (100 * beside[key] for key in ("low", "mean", "high"))
            axis.errorbar(
                mean, place, xerr=[[mean - low], [high - mean]], color="#1f6f3d", marker="o", markersize=4,
                capsize=2, elinewidth=1,
            )  # fmt: skip
        axis.set_title(f"{total} tokens a question", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[len(panels) // 2].set_xlabel("all evidence read: points more than fused top-k at the same tokens")
    figure.savefig(path, format="png", dpi=120)
