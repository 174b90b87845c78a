"""Pictures of a frontier."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mio_rag.errors import require
from mio_rag.measures import Use, find_measure, frontier_measures
from mio_rag.pictures import label_points, save_figure, set_title

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
        bounds = [float("nan") if s["bound"] is None else s["bound"] for s in steps]
        above.stairs(bounds, edges, baseline=None, color=_REST, ls=":", label="bound")
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
    below.set(
        xlabel="redundancy: sum of cosines (less is better); beside points: (lambda_1, rho)",
        ylabel="guaranteed value",
    )
    below.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
    set_title(figure, data["question"] or "frontier")
    best_first = sorted(spots.items(), key=lambda item: -item[0][1])
    left_away = label_points(
        below,
        [(spot, f"{first} and {len(rest)} more" if rest else first) for spot, (first, *rest) in best_first],
    )
    if left_away:
        below.set_xlabel(f"{below.get_xlabel()}, no room for {left_away}")
    save_figure(figure, path)


def plot_data(data: Mapping[str, Any], path: Path) -> None:
    """Draw a data set's frontier: each measure against mean tokens, with 95 % intervals.

    Filled points are best for their tokens: no other certified one is as good for as few. Crosses are not
    certified.

    Raises
    ------
    InputError
        If the file cannot be written.
    MissingExtraError
        Without matplotlib.
    """
    require("matplotlib", "evaluation", "plotting a frontier")
    from matplotlib.figure import Figure

    points = data["points"]
    wanted = [measure.name for measure in frontier_measures(Use.PLOT)]
    names = [name for name in wanted if any(name in p["measures"] for p in points)]
    figure = Figure(figsize=(9, 3 * max(1, len(names))), layout="constrained")
    axes = figure.subplots(max(1, len(names)), 1, squeeze=False, sharex=True)[:, 0]
    for axis, name in zip(axes, names, strict=False):
        for point in (p for p in points if name in p["measures"]):
            value, tokens = point["measures"][name], point["measures"]["tokens_used"]
            front = name in point["front"]
            axis.errorbar(
                tokens["mean"],
                value["mean"],
                xerr=[[tokens["mean"] - tokens["low"]], [tokens["high"] - tokens["mean"]]],
                yerr=[[value["mean"] - value["low"]], [value["high"] - value["mean"]]],
                fmt="o" if point["certified"] else "x",
                color=_FRONT if front else _REST,
                mfc=_FRONT if front else "none",
                elinewidth=0.5,
                zorder=3 if front else 2,
            )
        ends = [p["measures"][name][end] for p in points if name in p["measures"] for end in ("low", "high")]
        if min(ends) >= 0 and max(ends) <= 1 and max(ends) - min(ends) < 0.02:
            axis.set_ylim(-0.05, 1.05)  # shares that are all the same, not a picture of their rounding
        axis.set_ylabel(_label(name), parse_math=False)
        line = sorted(
            (p["measures"]["tokens_used"]["mean"], p["measures"][name]["mean"])
            for p in points
            if name in p["front"]
        )
        axis.plot([x for x, _ in line], [y for _, y in line], color=_FRONT, lw=1)
    axes[-1].set_xlabel(
        "context tokens, mean per question; filled: best for its tokens, cross: not certified"
    )
    run = data["run"]
    set_title(figure, f"{run['dataset']}: {run['questions']} questions, {len(points)} settings")
    save_figure(figure, path)


def _label(name: str) -> str:
    """A measure beside its panel, in two lines at most; its label may come from outside."""
    measure = find_measure(name)
    assert measure is not None
    return "\n".join(textwrap.wrap(measure.label, 30, max_lines=2, placeholder=" \u2026"))
