"""The study as a table for a terminal and as a picture, drawn from the JSON alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.files import replaced
from benchmarks.stability.rules import RELEVANCE
from benchmarks.stability.summary import AGAINST_MATCHED, verdict
from benchmarks.stability.versions import VERSIONS
from mio_rag.errors import require


def table(report: Mapping[str, Any]) -> str:
    """Every cell, then what is clearly gained or lost at matched tokens."""
    lines = []
    for name, found in report["results"].items():
        lines += [
            f"{name}: {found['questions']} questions, gold by {found['gold']}, "
            f"{found['pool']['passages']:.0f} candidates; product codes are off by "
            f"{found['pool']['pq error']:.2f}; second encoder {report['encoder']}",
            "  J: Jaccard with the selection under a random error / product codes / the second encoder, with "
            "the tokens of the robust selection as the budget; nominal ones in brackets",
        ]
        first: dict[tuple[str, str], Mapping[str, Any]] = {}
        for key, cell in found["cells"].items():
            relevance, _, budget = key.split("|")
            first.setdefault((relevance, budget), cell)
        for (relevance, budget), one in first.items():
            lines.append(_line(relevance, "nominal", budget, one["nominal"]))
            for key, cell in found["cells"].items():
                kind, rule, tokens = key.split("|")
                if (kind, tokens) == (relevance, budget):
                    lines.append(f"{_line(relevance, rule, budget, cell['robust'])}  {_compared(cell)}")
    return "\n".join([*lines, *_verdicts(report)])


def _line(relevance: str, rule: str, budget: str, one: Mapping[str, float]) -> str:
    return (
        f"  {relevance:<10} {budget:>4} {rule:<18} {one['tokens']:4.0f} tokens, "
        f"{one['passages']:4.1f} passages, recall {one['recall']:.3f}"
    )


def _compared(cell: Mapping[str, Any]) -> str:
    ours, other = cell["robust matched"], cell["nominal matched"]
    jaccard = " / ".join(f"{ours[f'jaccard {v}']:.2f} [{other[f'jaccard {v}']:.2f}]" for v in VERSIONS)
    return (
        f"[{other['recall']:.3f}], J {jaccard}, price {_share(cell['price'])}, certified "
        f"{_share(cell['gain'], True)}, matched {_share(cell['matched_gain'], True)}"
    )


def _share(interval: Mapping[str, float | None] | None, signed: bool = False) -> str:
    if interval is None:
        return "-"
    high = "unbounded" if interval["high"] is None else f"{interval['high']:.1%}"
    return f"{interval['mean']:{'+' if signed else ''}.1%} ({interval['low']:.1%} to {high})"


def _verdicts(report: Mapping[str, Any]) -> list[str]:
    lines = ["clearly (interval of the paired difference beyond zero) against nominal of as many tokens:"]
    nothing = []
    for name, found in report["results"].items():
        for key, cell in found["cells"].items():
            better, worse = verdict(cell)
            label = f"{name}, {key.replace('|', ', ')}"
            if not [b for b in better if b != "certified"]:
                nothing.append(label)
            if better or worse:
                lines.append(f"  {label}: better {', '.join(better) or '-'}; worse {', '.join(worse) or '-'}")
    lines += ["where robustness buys neither recall nor stability at matched tokens:"]
    return [*lines, *(f"  {label}" for label in nothing or ["nowhere"])]


_ROWS = (
    ("share of the nominal value", (("price", "price", "-"), ("gain", "certified gain", "--"))),
    (
        "Jaccard, against matched",
        (("jaccard pq", "product codes", "-"), ("jaccard encoder", "encoder", "--")),
    ),
    ("recall, against matched", (("recall", "recall", "-"), ("recall pq", "with product codes", "--"))),
)
_COLORS = {"termwise": "tab:orange", "joint": "tab:blue"}


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Price and gain, stability and recall over the radius, a column for each set and relevance, as a PNG."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    columns = list(itertools.product(report["results"], RELEVANCE))
    figure = figures.Figure(figsize=(3.4 * len(columns), 7.6), layout="constrained")
    panels = figure.subplots(len(_ROWS), len(columns), sharex=True, sharey="row", squeeze=False)
    for column, (name, relevance) in enumerate(columns):
        cells = report["results"][name]["cells"]
        budget = max(int(key.split("|")[2]) for key in cells)
        for row, (label, lines) in enumerate(_ROWS):
            panel = panels[row][column]
            for rule, (key, what, style) in itertools.product(_COLORS, lines):
                points = _points(cells, relevance, rule, budget, key)
                if points:
                    at, mean, low, high = np.array(points).T
                    shift = 0.0008 * (1 if rule == "joint" else -1)
                    panel.errorbar(
                        at + shift,
                        mean,
                        yerr=[mean - low, high - mean],
                        color=_COLORS[rule],
                        linestyle=style,
                        marker="o",
                        markersize=3,
                        capsize=2,
                        linewidth=1.2,
                        label=f"{rule}: {what}",
                    )
            panel.axhline(0, color="0.7", linewidth=0.8)
            if column == 0:
                panel.set_ylabel(label)
                panel.legend(frameon=False, fontsize=6)
        panels[0][column].set_title(f"{name}, {relevance}, {budget} tokens", fontsize=9)
        panels[-1][column].set_xlabel("radius of the l2 ball")
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _points(
    cells: Mapping[str, Any], relevance: str, rule: str, budget: int, key: str
) -> list[tuple[float, float, float, float]]:
    """(radius, mean, low, high) of a figure along the radius."""
    found = []
    for name, cell in cells.items():
        kind, which, tokens = name.split("|")
        parts = which.split()
        if kind == relevance and int(tokens) == budget and parts[0] == rule and len(parts) == 2:
            interval = cell["against_matched"][key] if key in AGAINST_MATCHED else cell[key]
            if interval is not None:
                found.append((float(parts[1]), interval["mean"], interval["low"], interval["high"]))
    return found
