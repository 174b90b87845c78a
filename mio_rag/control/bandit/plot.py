"""A picture of a bandit's log: what ran, what it brought, the regret that it expects, over the questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mio_rag.control.bandit.store import EventLog
from mio_rag.control.bandit.strategist import known_settings
from mio_rag.errors import InputError, require
from mio_rag.pictures import save_figure, set_title

__all__ = ["plot_log"]

_COLOURS = ("#3b6fb6", "#e0a030", "#4c9f70", "#c05050", "#9467bd", "#8c6d46", "#17a2b8", "#888888")
_POINTS = 50  # of a curve, at most


def plot_log(path: Path, out: Path) -> None:
    """Draw a log into a .png, .svg or .pdf file.

    Raises
    ------
    InputError
        If the file is no log, or holds no questions; for another format, or if it cannot be written.
    MissingExtraError
        Without matplotlib.
    """
    require("matplotlib", "evaluation", "drawing a log")
    from matplotlib.figure import Figure

    log = EventLog(path)
    _, strategies = known_settings(log)
    ran, added, regret = [], [], []
    with log.reading() as events:
        for event in events.after(0):
            if event.kind == "question":
                own = event.data["own"]
                ran.append([name in event.data["strategies"] for name in strategies])
                added.append([own.get(name, np.nan) for name in strategies])
                regret.append(event.data.get("regret", 0.0))
    log.close()
    if not ran:
        raise InputError(f"'{path}' holds no questions: there is nothing to draw")
    size = -(-len(ran) // _POINTS)
    starts = np.arange(0, len(ran), size)
    middles = starts + np.minimum(size, len(ran) - starts) / 2
    shares = np.add.reduceat(np.array(ran, dtype=np.float64), starts) / np.diff([*starts, len(ran)])[:, None]
    figure = Figure(figsize=(8, 8), layout="constrained")
    above, middle, below = figure.subplots(3, 1, sharex=True)
    for place, name in enumerate(strategies):
        colour = _COLOURS[place % len(_COLOURS)]
        above.plot(middles, shares[:, place], color=colour, label=name, marker=".", markersize=3)
        values = np.array(added, dtype=np.float64)[:, place]
        seen = np.isfinite(values)
        if seen.any():
            mean = np.cumsum(values[seen]) / np.arange(1, seen.sum() + 1)
            middle.plot(np.flatnonzero(seen) + 1, mean, color=colour)
    above.set_ylim(-0.02, 1.02)
    above.set_ylabel("share of questions it ran on")
    above.legend(frameon=False, fontsize=8)
    middle.axhline(0.0, color="#bbbbbb", linewidth=0.8)
    middle.set_ylabel("what a run added, mean so far")
    below.plot(np.arange(1, len(regret) + 1), np.cumsum(regret), color="black")
    below.set_ylabel("expected regret, cumulative")
    below.set_xlabel("questions")
    set_title(figure, f"{path.name}: {len(ran)} questions")
    save_figure(figure, out)
