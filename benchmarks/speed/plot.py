"""The picture, drawn from the report's JSON alone: median time to proof, ours and the peers'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.files import replaced
from benchmarks.speed.entrants import OURS
from mio_rag.errors import require

_STYLES = {
    OURS: ("#1b6e3c", "o", "ours"),
    "highs": ("#c2571a", "s", "HiGHS (McCormick)"),
    "highs-glover": ("#e0a030", "D", "HiGHS (Glover)"),
    "cpsat-1": ("#2f5fa8", "^", "CP-SAT, 1 worker"),
    "cpsat-2": ("#7fa6dc", "v", "CP-SAT, 2 workers"),
    "scip": ("#8a4f9e", "P", "SCIP"),
}
_BUDGET = 1024


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the PNG: one panel a lambda_1 (budget 1024, radius 0), one for the programs with links.

    A hollow mark with an arrow: the median was not proven within the time limit, at which the mark stands.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    figure_module = require("matplotlib.figure", "evaluation", "drawing the benchmark")
    dense = [
        c
        for c in report["cells"]
        if c["kind"] == "dense" and c["radius"] == 0 and c["budget_tokens"] == _BUDGET
    ]
    links = [c for c in report["cells"] if c["kind"] == "links"]
    weights = sorted({c["redundancy_weight"] for c in dense})
    panels = len(weights) + bool(links)
    if panels == 0:
        return
    across = min(3, panels)
    down = -(-panels // across)
    figure = figure_module.Figure(figsize=(4.6 * across, 3.6 * down + 0.6), layout="constrained")
    axes = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for panel, weight in zip(axes, weights, strict=False):
        here = sorted((c for c in dense if c["redundancy_weight"] == weight), key=lambda c: c["n"])
        _curves(panel, here, [c["n"] for c in here])
        panel.set(title=f"$\\lambda_1$ = {weight:g}, budget {_BUDGET}", xlabel="passages n", xscale="log")
        panel.set_xticks([c["n"] for c in here], [str(c["n"]) for c in here])
        panel.minorticks_off()
    if links:
        panel = axes[len(weights)]
        links.sort(key=lambda c: (c["budget_tokens"], c["redundancy_weight"]))
        _curves(panel, links, list(range(len(links))), line=False)
        labels = [f"{c['redundancy_weight']:g}\n{c['budget_tokens']}" for c in links]
        panel.set_xticks(range(len(links)), labels, fontsize=7)
        panel.set(title=f"with links, n = {links[0]['n']}", xlabel="$\\lambda_1$ (above) and budget")
    limits = [s["limit_seconds"] for c in (*dense, *links) for s in c["solvers"].values()]
    for panel in axes[panels:]:
        panel.set_visible(False)
    for panel in axes[:panels]:
        panel.set_yscale("log")
        panel.set_ylim(top=4 * max(limits))
        panel.grid(True, which="major", alpha=0.25)
    for k in range(0, panels, across):
        axes[k].set_ylabel("median time to proof, s")
    handles: dict[str, Any] = {}
    for panel in axes[:panels]:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=6,
        frameon=False,
        title="hollow, with an arrow: the median was not proven within the time limit",
    )
    with replaced(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")


def _curves(panel: Any, cells: Sequence[dict[str, Any]], places: Sequence[float], line: bool = True) -> None:
    for name, (colour, marker, label) in _STYLES.items():
        points = [
            (x, c["solvers"][name]["median_seconds"], c["solvers"][name]["limit_seconds"])
            for x, c in zip(places, cells, strict=True)
            if name in c["solvers"]
        ]
        if not points:
            continue
        xs = [x for x, *_ in points]
        ys = [limit if proven is None else proven for _, proven, limit in points]
        panel.plot(xs, ys, color=colour, linewidth=1.2 if line else 0, alpha=0.6)
        panel.plot([], [], color=colour, marker=marker, linewidth=1.2 if line else 0, label=label)
        for x, proven, limit in points:
            hollow = {"markerfacecolor": "white"} if proven is None else {}
            panel.plot([x], [limit if proven is None else proven], color=colour, marker=marker, **hollow)
            if proven is None:
                panel.annotate(
                    "",
                    (x, limit * 2.2),
                    (x, limit * 1.15),
                    arrowprops={"arrowstyle": "->", "color": colour},
                )
