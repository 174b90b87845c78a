"""Every row against the best ranking of each set, as a picture drawn from the JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mio_rag.errors import require

#: What each row is called and drawn like, in the order of the legend.
_STYLES = {
    "topk": ("top-k", "#c9c9c9", "x"),
    "fused": ("fused top-k", "#8a8a8a", "o"),
    "same probabilities": ("ranking by the same probabilities", "#7fb0d6", "^"),
    "frugal": ("frugal", "#8fbf7f", "D"),
    "default": ("default", "#1f6f3d", "s"),
}


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Difference in evidence found, with its paired 95 % interval, one panel a budget."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    budgets = list(next(iter(results.values())))
    figure = figures.Figure(figsize=(11, 1.6 + 0.42 * len(results)), layout="constrained")
    panels = figure.subplots(1, len(budgets), sharey=True, sharex=True)
    for axis, budget in zip(panels, budgets, strict=True):
        axis.axvline(0, color="black", linewidth=0.8)
        for k, (name, (label, colour, marker)) in enumerate(_STYLES.items()):
            cells = [found[budget]["rows"][name] for found in results.values()]
            middle = [100 * cell["difference"]["mean"] for cell in cells]
            ends = [(cell["difference"]["low"], cell["difference"]["high"]) for cell in cells]
            shift = 0.7 * ((k + 0.5) / len(_STYLES) - 0.5)
            axis.errorbar(
                middle,
                [place + shift for place in range(len(cells))],
                xerr=[
                    [m - 100 * low for m, (low, _) in zip(middle, ends, strict=True)],
                    [100 * high - m for m, (_, high) in zip(middle, ends, strict=True)],
                ],
                label=label if axis is panels[0] else None,
                color=colour,
                marker=marker,
                linestyle="none",
                markersize=4,
                capsize=2,
                elinewidth=1,
            )
        axis.set_title(f"{budget} tokens", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(results)), list(results))
    panels[0].invert_yaxis()
    panels[len(panels) // 2].set_xlabel(
        "evidence found: points more than the best of four rankings of this set"
    )
    figure.legend(loc="outside lower center", ncols=len(_STYLES), frameon=False, fontsize=9)
    figure.savefig(path, format="png", dpi=120)
