"""The result as a table for a terminal and as a picture, drawn from the JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.control.summary import OURS
from benchmarks.files import replaced
from mio_rag.errors import require

_FEW = 30


def _interval(entry: Mapping[str, float], digits: int) -> str:
    return f"{entry['mean']:.{digits}f} ({entry['low']:.{digits}f} to {entry['high']:.{digits}f})"


def table(results: Mapping[str, Any]) -> str:
    """What each controller reaches and costs; what beats the processes; the estimates."""
    lines = []
    for name, found in results.items():
        lines.append(
            f"{name}: the first {found['questions']} of {found['planned']} questions, {found['measure']}"
        )
        if found["questions"] < _FEW:
            lines.append(
                f"  fewer than {_FEW} questions: intervals of so few say little, and none is a verdict"
            )
        lines.append(
            f"  {'controller':<28} {'quality':<23} {'tokens':<18} {'calls':>5} {'retr.':>5} {'seconds':>7}"
            "  by part"
        )
        for controller, entry in sorted(
            found["controllers"].items(), key=lambda item: -item[1]["quality"]["mean"]
        ):
            parts = sorted(entry["seconds_by_part"].items(), key=lambda part: -part[1])
            total = sum(seconds for _, seconds in parts) or 1.0
            shown = ", ".join(
                f"{part} {seconds / total:.0%}" for part, seconds in parts if seconds / total >= 0.005
            )
            quality, tokens = _interval(entry["quality"], 3), _interval(entry["tokens"], 0)
            lines.append(
                f"  {controller:<28} {quality:<23} {tokens:<18} "
                f"{entry['lm_calls']['mean']:5.1f} {entry['retrieval_calls']['mean']:5.1f} "
                f"{entry['total_seconds']['mean']:7.1f}  {shown}"
            )
        for ours, better in found["dominated"].items():
            by = f"dominated by {'; '.join(better)}" if better else "not dominated"
            lines.append(f"  {ours}: {by}")
        lines += _differences(found)
        for k, fold in enumerate(found["calibration"]):
            lines.append(f"  calibrated on fold {k} ({fold['learned_from']} questions): {_estimates(fold)}")
        lines.append("")
    return "\n".join(lines).rstrip()


def _differences(found: Mapping[str, Any]) -> list[str]:
    """Each process less each controller that is none, question by question."""
    by_pair: dict[tuple[str, str], dict[str, Any]] = {}
    for row in found["differences"]:
        if row["method"] in OURS[:4] and row["baseline"] not in OURS:
            by_pair.setdefault((row["method"], row["baseline"]), {})[row["measure"]] = row
    lines = []
    for (ours, other), rows in by_pair.items():
        told = {
            key: f"{rows[key]['difference']:+.{digits}f} ({rows[key]['low']:+.{digits}f} to "
            f"{rows[key]['high']:+.{digits}f})"
            for key, digits in (("quality", 3), ("tokens", 0))
        }
        lines.append(
            f"  {ours} - {other}: quality {told['quality']}, q {rows['quality']['q_value']:.2f}; "
            f"tokens {told['tokens']}"
        )
    return lines


def _estimates(fold: Mapping[str, Any]) -> str:
    names = {"reason_drop": "delta_p", "retrieve_drop": "delta_r", "success": "p_s"}
    told = [
        f"{symbol} {e['value']:.3f} ({_ends(e)}n {e['n']})"
        for key, symbol in names.items()
        if (e := fold["estimates"][key])
    ]
    violated = [check["name"] for check in fold["estimates"]["checks"] if check["violated"]]
    return "; ".join(told) + (f"; violated: {', '.join(violated)}" if violated else "")


def _ends(estimate: Mapping[str, Any]) -> str:
    return "" if estimate["low"] is None else f"{estimate['low']:.3f} to {estimate['high']:.3f}, "


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Quality against tokens with 95 % intervals, one panel a set, as a PNG."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    figure = figures.Figure(figsize=(6.2 * len(results), 6.0), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False).ravel()
    for panel, (name, found) in zip(panels, results.items(), strict=True):
        places: dict[tuple[float, float], list[str]] = {}
        for controller, entry in found["controllers"].items():
            x, y = entry["tokens"], entry["quality"]
            ours = controller in OURS
            panel.errorbar(
                x["mean"],
                y["mean"],
                xerr=[[x["mean"] - x["low"]], [x["high"] - x["mean"]]],
                yerr=[[y["mean"] - y["low"]], [y["high"] - y["mean"]]],
                marker="s" if ours else "o",
                markersize=6 if ours else 4,
                color="tab:blue" if ours else "0.45",
                elinewidth=0.8,
                capsize=2,
                alpha=0.9,
            )
            places.setdefault((round(x["mean"]), round(y["mean"], 3)), []).append(controller)
        listed = []
        for number, ((x_, y_), names) in enumerate(sorted(places.items()), start=1):
            panel.annotate(str(number), (x_, y_), xytext=(4, 5), textcoords="offset points", fontsize=9)
            listed.append(f"{number}  {'; '.join(names)}")
        panel.set(title=f"{name}: {found['questions']} questions", ylabel=found["measure"], xlim=(0, None))
        panel.set_xlabel(
            "tokens in and out of the model a question\n\n" + "\n".join(listed), loc="left", fontsize=8
        )
        panel.grid(alpha=0.2)
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
