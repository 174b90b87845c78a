"""Pictures of a trained router: the curve of its training, and quality against tokens beside its rivals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.control.router.settings import Utility
from mio_rag.errors import require
from mio_rag.learning.router import PRICES, WORKED, History, Validated, frontier
from mio_rag.pictures import label_points, save_figure, set_title

__all__ = ["plot_frontier", "plot_history"]

#: What the share is of, by what labels go by.
_MEASURED = {
    ("answers",): "share of questions that are answered",
    ("evidence",): "share of questions whose evidence is read",
    ("answers", "evidence"): "share of questions that are answered, or whose evidence is read",
}


def _figure() -> Any:
    require("matplotlib", "evaluation", "pictures of a router")
    from matplotlib.figure import Figure

    return Figure(figsize=(7.5, 5), layout="constrained")


def plot_history(history: History, path: Path) -> None:
    """Draw loss and accuracy by epoch into a .png, .svg or .pdf file; what is raised, as `save_figure`."""
    figure = _figure()
    axes = figure.subplots()
    epochs = np.arange(1, len(history.loss) + 1)
    lines = axes.plot(epochs, history.loss, color="#3b6fb6", label="loss, learning")
    lines += axes.plot(epochs, history.held_out_loss, color="#e0a030", label="loss, held out")
    axes.set(xlabel="epoch", ylabel="weighted cross-entropy")
    beside = axes.twinx()
    lines += beside.plot(epochs, history.accuracy, color="#4c9f70", label="accuracy, held out")
    lines.append(axes.axvline(history.best + 1, color="#888888", linestyle=":", label="kept"))
    beside.set(ylabel="share of right tiers", ylim=(0, 1))
    axes.legend(handles=lines, frameon=False)
    set_title(figure, "Training of the router")
    save_figure(figure, path)


def plot_frontier(found: Validated, path: Path) -> None:
    """Draw how often tiers, the router and the oracle do, against tokens, into a .png, .svg or .pdf file.

    Everything is out of fold; what is raised, as `save_figure`.
    """
    figure = _figure()
    axes = figure.subplots()
    table = found.table
    fixed = frontier([np.full(len(table), k) for k in range(len(table.tiers))], table)
    tokens = np.linspace(fixed[0][0], fixed[-1][0], 60)
    mixed = [table.outcomes.fixed_at(WORKED, "prompt_tokens", t) for t in tokens]
    axes.plot(tokens, mixed, color="#888888", label="best mixture of fixed tiers")
    axes.plot(*zip(*fixed, strict=True), "o", color="#888888")
    if found.success is not None:
        points = frontier([found.at(Utility(beta=price)) for price in PRICES], table)
        axes.plot(*zip(*points, strict=True), "s-", color="#3b6fb6", label="router, by price of a token")
    routed = frontier([found.choice], table)
    axes.plot(*zip(*routed, strict=True), "D", color="#3b6fb6", label="router")
    up = frontier([found.up()], table)
    axes.plot(*zip(*up, strict=True), "^", color="#e0a030", label="router, up where unsure")
    best = frontier([table.outcomes.oracle(WORKED, {"prompt_tokens": price}) for price in PRICES], table)
    axes.plot(*zip(*best, strict=True), ":", color="#4c9f70", label="oracle")
    axes.set(
        xlabel="prompt tokens of a question", ylabel=_MEASURED.get(table.by, "share of questions done for")
    )
    axes.grid(alpha=0.2)
    axes.legend(frameon=False)
    names = [tier.name for tier in table.tiers]
    label_points(
        axes,
        [
            (point, name)
            for name, point in zip(
                names,
                [frontier([np.full(len(table), k)], table)[0] for k in range(len(names))],
                strict=True,
            )
        ],
    )
    set_title(figure, f"{len(table)} questions, out of fold")
    save_figure(figure, path)
