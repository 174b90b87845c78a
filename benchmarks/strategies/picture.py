"""The study as a picture, drawn from its JSON: regret, and how soon HyDE is given up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.files import replaced
from benchmarks.strategies.goals import when_told
from mio_rag.errors import require

_DRAWN = {
    "linucb, published constants": "#8fb1de",
    "linucb, textbook": "#17a2b8",
    "thompson, textbook": "#4c9f70",
    "epsilon-greedy, textbook": "#c9a227",
    "uniform": "#c05050",
    "fixed: raw": "#555555",
    "fixed: raw+hyde+query2doc+grounded+multi-query": "#bbbbbb",
    "linucb": "#1f3f8f",
}
_CALLED = {
    "fixed: raw": "the question alone",
    "fixed: raw+hyde+query2doc+grounded+multi-query": "all strategies",
    "linucb": "linucb (default)",
}


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Cumulative regret, to the oracle and, in both regimes, to the best fixed set; shares of HyDE."""
    require("matplotlib", "evaluation", "drawing the study")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 4), layout="constrained")
    left, middle, told, right = figure.subplots(1, 4)
    best = f"to the best set for all ({report['best_fixed']})"
    here, gold = report["policies"], when_told(report)["policies"]
    for axes, policies, name, title in (
        (left, here, "regret", "to the best set of each question"),
        (middle, here, "regret_to_best_fixed", best),
        (told, gold, "regret_to_best_fixed", f"{best}, told the gold"),
    ):
        for policy, colour in _DRAWN.items():
            curve = policies[policy]["curve"]
            width = 2.2 if policy == "linucb" else 1.3
            label = _CALLED.get(policy, policy)
            axes.plot(curve["questions"], curve[name], color=colour, label=label, linewidth=width)
        axes.set_title(f"cumulative regret {title}", fontsize=8)
        axes.set_xlabel("questions")
    left.set_ylabel("recall of the gold, less the price of tokens")
    # The two that learn nothing would leave no room for the others.
    for axes, policies in ((middle, here), (told, gold)):
        seen = policies["linucb, published constants"]["regret_to_best_fixed"].values()
        low = min(policies[each]["curve"]["regret_to_best_fixed"][-1] for each in _DRAWN)
        top = 1.3 * max(each["mean"] for each in seen)
        axes.set_ylim(min(-0.03 * top, 1.1 * low), top)
    left.legend(frameon=False, fontsize=7)
    for policy, colour in _DRAWN.items():
        if policy.startswith("fixed"):
            continue
        shares = report["policies"][policy]["hyde_share"]
        block = shares["questions_a_block"]
        right.plot(
            [(k + 0.5) * block for k in range(len(shares["share"]))], shares["share"], color=colour,
            label=policy, linewidth=2.2 if policy == "linucb" else 1.3,
        )  # fmt: skip
    right.set_title("share of questions that HyDE runs on", fontsize=9)
    right.set_xlabel("questions")
    right.set_ylim(0, 1)
    with replaced(path) as partial:
        figure.savefig(partial, format="png", dpi=120)
