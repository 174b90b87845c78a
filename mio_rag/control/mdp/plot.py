"""A picture of a solved process: quality and value, the worth of each action, the policy over U and steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mio_rag.errors import require
from mio_rag.learning.mdp import Plan
from mio_rag.pictures import save_figure, set_title

__all__ = ["plot_plan"]

_COLOURS = {"stop": "#4c9f70", "reason": "#e0a030", "retrieve": "#3b6fb6"}


def plot_plan(plan: Plan, path: Path) -> None:
    """Draw a plan into a .png, .svg or .pdf file.

    Raises
    ------
    InputError
        For another format, or if the file cannot be written.
    MissingExtraError
        Without matplotlib.
    """
    require("matplotlib", "evaluation", "plotting a policy")
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    model, actions = plan.model, plan.model.actions
    u = model.levels
    figure = Figure(figsize=(8, 8), layout="constrained")
    above, middle, below = figure.subplots(3, 1, sharex=True, height_ratios=[2, 2, 1.6])
    # Without a horizon the value is a sum of many qualities, and has a scale of its own.
    lines = above.plot(u, model.quality_at(u), color="#888888", label="quality Q(U)")
    beside = above.twinx() if model.horizon is None else above
    lines += beside.plot(u, plan.values(), color="black", label="value V(U)")
    above.set_ylabel("quality" if model.horizon is None else "quality, value")
    if model.horizon is None:
        beside.set_ylabel("value")
    above.legend(handles=lines, frameon=False)
    first = "" if plan.steps == 1 else ", first decision"
    for a, action in enumerate(actions):
        style = {"color": _COLOURS[action], "label": action, "linestyle": ("-", "--", ":")[a]}  # ties overlap
        middle.plot(u, plan.q()[:, a] - plan.values(), **style)
    middle.set_ylabel(f"value relative to the best{first}")
    middle.legend(frameon=False)
    policy = np.array([plan.policy(t) for t in range(plan.steps)])
    edges = np.concatenate([[u[0]], (u[1:] + u[:-1]) / 2, [u[-1]]])
    below.pcolormesh(
        edges,
        np.arange(plan.steps + 1),
        policy,
        cmap=ListedColormap([_COLOURS[action] for action in actions]),
        norm=BoundaryNorm(np.arange(len(actions) + 1) - 0.5, len(actions)),
    )
    below.set_ylim(plan.steps, 0)
    below.set_ylabel("every decision" if model.horizon is None else "decision")
    shown = range(0, plan.steps, max(1, plan.steps // 10)) if model.horizon is not None else ()
    below.set_yticks([t + 0.5 for t in shown], [str(t) for t in shown])
    below.set_xlabel("uncertainty U (0: certain, 1: nothing known)")
    patches = [Patch(color=_COLOURS[action], label=action) for action in actions]
    below.legend(handles=patches, frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, 1.25))
    reading = "as published, no stop" if model.horizon is None else f"with stop, {model.horizon} decisions"
    k = f", k = {model.k:g}" if model.quality == "exp" else ""
    set_title(figure, f"Retrieve, reason or stop ({reading}; {model.quality} quality{k})")
    save_figure(figure, path)
