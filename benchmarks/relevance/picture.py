"""The result as a table for a terminal and as a picture, drawn from the JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.files import replaced
from benchmarks.relevance.methods import BASELINES, OURS
from mio_rag.errors import require

_SHOWN = (128, 256, 512, 1024)
_LINES = (OURS, "ours, sparing", "default weights", "ranked by probability")


def table(results: Mapping[str, Any]) -> str:
    """Recall / all-gold rate at mean tokens: best baseline, and ours, by set and budget."""
    lines = []
    for name, found in results.items():
        ceiling = found["ceilings"]["1"].get("all_gold_within", {})
        lines.append(f"{name}: {found['questions']} questions, gold by {found['gold']}")
        for budget in _SHOWN:
            key = str(budget)
            best = found["best_baseline"][key]
            shown = [best] + [
                m for m in found["methods"] if m not in BASELINES and key in found["methods"][m]
            ]
            for method in shown:
                entry = found["methods"][method][key]
                difference = entry.get("recall_against_best_baseline")
                gain = ""
                if difference:
                    gain = (
                        f"  {difference['mean']:+.3f} ({difference['low']:+.3f} to {difference['high']:+.3f})"
                    )
                lines.append(
                    f"  {budget:>5} {method:<26} {entry['recall']['mean']:.3f} / "
                    f"{entry['all_gold']['mean']:.3f} at {entry['tokens']:4.0f}, proven "
                    f"{entry['proven']:.0%}{gain}"
                )
            if key in ceiling:
                lines.append(f"  {budget:>5} {'(all gold that fits)':<26}       / {ceiling[key]:.3f}")
        for entry in found["matched"]:
            if entry["tokens"] is not None and entry["method"] not in BASELINES:
                share = entry["share"]
                high = "?" if share["high"] is None else f"{share['high']:.0%}"
                lines.append(
                    f"  {entry['method']}: {entry['tokens']['mean']:.0f} tokens for the recall "
                    f"{entry['target']:.3f} of {entry['baseline']} at {found['matched_at']}: "
                    f"{share['mean']:.0%} of its tokens ({share['low']:.0%} to {high})"
                )
    lines += ["not clearly better than the best baseline of the same budget:"]
    return "\n".join([*lines, *(_short_of(results) or ["  nowhere"])])


def _short_of(results: Mapping[str, Any]) -> list[str]:
    """Sets and budgets at which the interval of the paired difference in recall reaches zero or below."""
    lines = []
    for name, found in results.items():
        for budget in _SHOWN:
            entry = found["methods"][OURS][str(budget)]
            gain = entry["recall_against_best_baseline"]
            if gain["low"] <= 0:
                lines.append(
                    f"  {name} at {budget}: {gain['mean']:+.3f} ({gain['low']:+.3f} to {gain['high']:+.3f}) "
                    f"against {found['best_baseline'][str(budget)]}, with {entry['tokens']:.0f} tokens"
                )
    return lines


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Recall against tokens, one panel a set, as a PNG."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    columns = 4
    rows = -(-len(results) // columns)
    figure = figures.Figure(figsize=(3.4 * columns, 3.1 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, (name, found) in zip(panels, results.items(), strict=False):
        for method, budgets in found["methods"].items():
            baseline = method in BASELINES
            if not baseline and method not in _LINES:
                continue
            points = [(e["tokens"], e["recall"]["mean"]) for e in budgets.values()]
            style = {"color": "0.65", "linewidth": 1} if baseline else {"linewidth": 1.8, "marker": "o"}
            label = "rank baselines" if method == BASELINES[0] else None if baseline else method
            panel.plot(*zip(*points, strict=True), markersize=3, label=label, **style)
        panel.set(title=name, xlabel="tokens", xlim=(0, None), ylim=(0, 1.02))
    panels[0].set_ylabel("gold recall")
    panels[0].legend(frameon=False, fontsize=7)
    for panel in panels[len(results) :]:
        panel.set_axis_off()
    with replaced(path) as partial:
        figure.savefig(partial, format="png", dpi=110)
