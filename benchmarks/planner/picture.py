"""The study as a table for a terminal and as a picture, drawn from the JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.files import replaced
from mio_rag.errors import require
from mio_rag.pictures import label_points

_FEW = 100


def table(report: Mapping[str, Any]) -> str:
    """Workflows, policies, goals and categories, in lines."""
    unit = f"{report.get('unit', report['unit_tokens']):.3g} {report.get('cost', 'tokens')}"
    lines = [f"{report['questions']} questions; a cost of 1 is {unit} (plain)"]
    if report["questions"] < _FEW:
        lines.append(f"fewer than {_FEW} questions: intervals of so few say little, and none is a verdict")
    titles = "    EM  evid.  tokens   cost  calls"
    lines.append(f"{'workflow':<22} {'F1 (95 %)':<26} {titles}")
    for name, entry in sorted(report["workflows"].items(), key=lambda item: -item[1]["token_f1"]):
        f1 = f"{entry['token_f1']:.3f} ({entry['low']:.3f} to {entry['high']:.3f})"
        lines.append(
            f"{name:<22} {f1:<26} {_number(entry['exact_match'])} {_number(entry.get('evidence'))} "
            f"{entry['tokens']:7.0f} {entry['cost']:6.2f} {entry['lm_calls']:6.1f}"
        )
    lines.append(f"\n{'policy':<28} {'alpha':>6} {'F1':>6} {'cost':>6} {'fixed there':>11}  gain (95 %)")
    for name, points in (report["policies"] | report["sets_never_met"]).items():
        for p in points:
            if p["alpha"] in (0.0, 0.02, 0.04, 0.06, 0.1, 0.2, 0.5, 1.0):
                lines.append(
                    f"{name:<28} {p['alpha']:6.2f} {p['quality']:6.3f} {p['cost']:6.2f} {p['fixed']:11.3f}  "
                    f"{p['gain']:+.3f} ({p['low']:+.3f} to {p['high']:+.3f})"
                )
    for alpha, points in report["rivals"].items():
        named = [point for point in points if point["name"] in ("random", "best of its set", "oracle")]
        said = ", ".join(f"{p['name']} F1 {p['quality']:.3f} cost {p['cost']:.2f}" for p in named)
        lines.append(f"alpha {alpha}: {said}")
    for name, found in report["ppo"].items():
        rewards = ", ".join(f"{reward:.3f}" for reward in found["rewards"])
        lines.append(
            f"ppo ({name}): rewards of {len(found['rewards'])} seeds {rewards}; deviation "
            f"{found['deviation']:.3f}; regression {found['regression']:.3f}; within 2 % of it: "
            f"{found['within_2_percent']} of {len(found['rewards'])}; another decision than the regression's "
            f"in {found['networks_that_departed']} of {found['networks']} networks"
        )
    for mode, goals in report["goals"].items():
        lines.append(f"goals ({mode}): {goals}")
    for mode, found in report["categories"].items():
        lines.append(f"what the policy did at .1 ({mode}): {found['counts']}")
    lines.append(f"deciding, ms of CPU: {report['deciding_ms']}")
    for name, found in report.get("language", {}).items():
        lines.append(f"{name}: {found}")
    if "mixed" in report:
        lines += ["", "two models, costs in dollars:", table(report["mixed"])]
    for name, found in report.get("live", {}).items():
        lines.append(f"live, {name}: {found}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return f"{value:6.3f}" if value is not None else f"{'-':>6}"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """F1 against cost: fixed workflows, both frontiers, the networks, the oracle."""
    require("matplotlib", "evaluation", "drawing the study")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    fixed = {name: (entry["cost"], entry["token_f1"]) for name, entry in report["workflows"].items()}
    axes.scatter(*zip(*fixed.values(), strict=True), color="#888888", zorder=3, label="fixed workflows")
    for (name, points), colour in zip(report["policies"].items(), ("#3b6fb6", "#4c9f70"), strict=True):
        axes.plot(
            [p["cost"] for p in points], [p["quality"] for p in points], "o-", ms=3, color=colour,
            label=name,
        )  # fmt: skip
    for mode, mark in zip(report["policies"], "xv", strict=True):
        mode = mode.removeprefix("regression, ")
        found = [p for name, entry in report["ppo"].items() if name.startswith(mode) for p in entry["points"]]
        axes.scatter(
            [p["cost"] for p in found], [p["quality"] for p in found], marker=mark, color="#c05050",
            label=f"networks, {mode}",
        )  # fmt: skip
    told = [p for points in report["rivals"].values() for p in points if p["name"] == "best of its set"]
    axes.plot(
        [p["cost"] for p in told], [p["quality"] for p in told], "+", color="#a87a2a", ms=9,
        label="best of its set, which is told",
    )  # fmt: skip
    oracle = [next(p for p in points if p["name"] == "oracle") for points in report["rivals"].values()]
    axes.plot([p["cost"] for p in oracle], [p["quality"] for p in oracle], ":", color="black", label="oracle")
    axes.set_xlabel("cost (1: a plain answer)")
    axes.set_ylabel("token F1")
    axes.set_title(f"{report['questions']} questions, decided by planners that had not learned from them")
    axes.legend(frameon=False, fontsize=8)
    label_points(axes, [(spot, name) for name, spot in fixed.items()])
    with replaced(path) as partial:
        figure.savefig(partial, format="png", dpi=130)
