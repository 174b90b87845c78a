"""Pictures of a frontier."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mio_rag.control.plot import save_figure
from mio_rag.errors import require

__all__ = ["plot_query"]

_FRONT, _REST = "#0072b2", "#9aa1a8"


def plot_query(data: Mapping[str, Any], path: Path) -> None:
    """Draw what `QueryFrontier.to_dict` returns into a .png, .svg or .pdf file.

    Raises
    ------
    InputError
        For another format, or if the file cannot be written.
    MissingExtraError
        Without matplotlib.
    """
    require("matplotlib", "evaluation", "plotting a frontier")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    above, middle, below = figure.subplots(3, 1)
    steps = data["budget"]["steps"]
    if steps:
        edges = [step["tokens"] for step in steps] + [steps[-1]["until"]]
        above.stairs([s["value"] for s in steps], edges, baseline=None, color=_FRONT, label="value")
        above.stairs([s["bound"] for s in steps], edges, baseline=None, color=_REST, ls=":", label="bound")
        hull = [s for s in steps if s["supported"]]
        above.plot(
            [s["tokens"] for s in hull],
            [s["value"] for s in hull],
            "o",
            ms=4,
            color=_FRONT,
            label="worth a price per token",
        )
    above.axvline(data["budget_tokens"], color="black", lw=0.8)
    above.set(xlabel="token budget", ylabel="best value")
    above.legend(frameon=False)
    pieces = data["penalty"]["pieces"]
    if pieces:
        end = 1.15 * max(pieces[-1]["low"], data["settings"]["passage_penalty"], 1e-9)
        edges = [p["low"] for p in pieces] + [end]
        middle.stairs([p["passages"] for p in pieces], edges, baseline=None, color=_FRONT)
    middle.axvline(data["settings"]["passage_penalty"], color="black", lw=0.8)
    middle.set(xlabel="passage penalty (lambda_2)", ylabel="passages")
    for kept, colour, label in ((False, _REST, "dominated or not proven"), (True, _FRONT, "frontier")):
        points = [p for p in data["grid"] if p["frontier"] is kept]
        below.plot(
            [p["redundancy"] for p in points],
            [p["guaranteed"] for p in points],
            "o",
            color=colour,
            label=label,
        )
    spots: dict[tuple[float, float], list[str]] = {}
    for p in data["grid"]:
        spots.setdefault((round(p["redundancy"], 9), round(p["guaranteed"], 9)), []).append(
            f"({p['redundancy_weight']:g}, {p['radius']:g})"
        )
    for spot, labels in spots.items():
        text = labels[0] + (f" and {len(labels) - 1} more" if len(labels) > 1 else "")
        below.annotate(text, spot, xytext=(4, 4), textcoords="offset points", fontsize=7)
    below.set(xlabel="redundancy: sum of cosines (less is better)", ylabel="guaranteed value")
    below.legend(frameon=False, title="(lambda_1, rho)")
    figure.suptitle(data["question"] or "frontier", wrap=True)
    save_figure(figure, path)
