"""Pictures drawn from the JSON alone: reliability of the completeness, and contenders at equal tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mio_rag.errors import require

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


def draw_contenders(summary: Mapping[str, Any], path: Path, beside: str = "fused") -> None:
    """Complete evidence beside fused top-k at equal tokens, with paired 95 % intervals."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    names = [name for name in next(iter(summary.values())) if name != beside]
    figure = figures.Figure(figsize=(10, 1.4 + 0.4 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(summary), sharey=True, sharex=True)
    for axis, (total, here) in zip(panels, summary.items(), strict=True):
        axis.axvline(0, color="black", linewidth=0.8)
        for place, name in enumerate(names):
            off = None if here[name] is None else here[name].get(f"complete beside {beside}")
            if off is None:
                continue
            low, mean, high = (100 * off[key] for key in ("low", "mean", "high"))
            axis.errorbar(
                mean, place, xerr=[[mean - low], [high - mean]], color="#1f6f3d", marker="o", markersize=4,
                capsize=2, elinewidth=1,
            )  # fmt: skip
        axis.set_title(f"{float(total):.0f} tokens a question", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[len(panels) // 2].set_xlabel("all evidence read: points more than fused top-k at the same tokens")
    figure.savefig(path, format="png", dpi=120)


def draw_costs(found: Mapping[str, Any], path: Path) -> None:
    """Evidence against tokens, before and after; and dollars for a thousand answers at the same evidence."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    figure = figures.Figure(figsize=(10.4, 4.4), layout="constrained")
    axes, right = figure.subplots(1, 2)
    drawn = {"fused": ("before: fused top-k", "#c07f2c"), "price": ("after: one price", "#1f6f3d")}
    for name, (label, colour) in drawn.items():
        tokens, shares = zip(*found["curves"][name], strict=True)
        axes.plot(tokens, [100 * share for share in shares], marker="o", color=colour, label=label)
    best = [level for level in found["levels"] if level["tokens"]["after"] is not None][-1]
    before, after, share = best["tokens"]["before"], best["tokens"]["after"], 100 * best["complete"]
    axes.annotate("", (after, share), (before, share), arrowprops={"arrowstyle": "->", "color": "#444444"})
    axes.text((before + after) / 2, share - 4, f"{before:.0f} to {after:.0f} tokens", ha="center", fontsize=9)
    axes.set_xlabel("tokens that the model reads for a question")
    axes.set_ylabel("questions with all of their evidence, %")
    axes.set_ylim(0, 100)
    axes.legend(frameon=False, loc="lower right")
    axes.grid(alpha=0.3)
    models = list(found["prices"])
    for shift, (when, (label, colour)) in zip(
        (-0.2, 0.2), zip(("before", "after"), drawn.values(), strict=True), strict=True
    ):
        dollars = [best["dollars"][model][when] for model in models]
        bars = right.bar([k + shift for k in range(len(models))], dollars, 0.4, color=colour, label=label)
        right.bar_label(bars, [f"\\${one:.2f}" for one in dollars], fontsize=9)
    dollar = r"\$"  # a bare one begins a formula
    named = [
        f"{model}\n{dollar}{into:.2f} in, {dollar}{out:.2f} out"
        for model, (into, out) in found["prices"].items()
    ]
    right.set_xticks(range(len(models)), named, fontsize=9)
    right.set_ylabel("dollars for 1,000 answers")
    right.set_title(f"all evidence for {share:.0f} % of the questions", fontsize=10)
    right.grid(axis="y", alpha=0.3)
    figure.savefig(path, format="png", dpi=120)
