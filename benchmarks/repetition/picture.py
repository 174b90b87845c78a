"""Answers against tokens on every corpus, as a picture drawn from the JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mio_rag.errors import require
from mio_rag.storage import replaced

#: What each row is called and drawn like, in the order of the legend.
_STYLES = {
    "fused, apart": ("fused top-k, windows apart", "#8a8a8a", "o"),
    "fused, merged": ("fused top-k, merged", "#c9a06b", "o"),
    "mmr, merged": ("MMR, merged", "#d9b3c9", "v"),
    "probabilities, merged": ("ranking by the same probabilities, merged", "#7fb0d6", "^"),
    "price 0.0005, merged": ("program over windows, price .0005", "#8fbf7f", "D"),
    "price 0.0002, sentences, merged": ("program over sentences, price .0002", "#1f6f3d", "s"),
}
_COLUMNS = 6


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Share of answers that are in what is read, one panel a corpus."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    lines = -(-len(results) // _COLUMNS)
    figure = figures.Figure(figsize=(16, 0.6 + 2.1 * lines), layout="constrained")
    panels = figure.subplots(lines, _COLUMNS, squeeze=False).ravel()
    for axis, (corpus, found) in zip(panels, results.items(), strict=False):
        for name, (label, colour, marker) in _STYLES.items():
            columns = found["rows"].get(name, {}).values()
            axis.plot(
                [column["tokens"]["mean"] for column in columns],
                [100 * column["answer"]["mean"] for column in columns],
                label=label if axis is panels[0] else None,
                color=colour,
                marker=marker,
                markersize=3.5,
                linewidth=1.2,
            )
        axis.set_title(corpus, fontsize=8)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=7)
    for axis in panels[len(results) :]:
        axis.set_axis_off()
    figure.supxlabel("tokens that are read", fontsize=9)
    figure.supylabel("answers or figures found, %", fontsize=9)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    with replaced(path) as part:
        figure.savefig(part, format="png", dpi=90)
