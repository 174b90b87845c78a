"""A policy as a picture: the way of a question, who decides at each step, and who looks at the price."""

from __future__ import annotations

import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

from mio_rag.control.composed.describe import described, price_in_words
from mio_rag.control.composed.policy import Policy
from mio_rag.control.composed.states import States
from mio_rag.errors import require
from mio_rag.pictures import draw_arrow, draw_box, save_figure, set_title

__all__ = ["draw_policy"]

_COLOURS = {"fixed": "#f2f2f2", "priced": "#cfe8d6", "learned": "#fdf0d5"}
_SAID = {"fixed": "fixed", "priced": "weighs the price", "learned": "learned"}
_WIDTH, _HEIGHT, _DOWN = 4.6, 0.86, 1.25
_PRICE = 4.1  # where the price stands, to the right


def draw_policy(policy: Policy, states: States, path: Path) -> None:
    """Draw a policy into a .png, .svg or .pdf file.

    Raises
    ------
    InputError
        For another format, or if the file cannot be written.
    MissingExtraError
        Without matplotlib.
    """
    require("matplotlib", "evaluation", "drawing a policy")
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lines = described(policy, states)
    rows = ["question", *(line.decision for line in lines), "answer"]
    y = {name: -place * _DOWN for place, name in enumerate(rows)}
    figure = Figure(figsize=(8.2, len(rows) * _DOWN * 0.72 + 0.9), layout="constrained")
    axes: Any = figure.subplots()
    axes.set_axis_off()
    axes.set_xlim(-_WIDTH / 2 - 0.9, _PRICE + 1.5)
    axes.set_ylim(y["answer"] - _DOWN * 0.6, _DOWN * 0.6)

    def box(x: float, at: float, width: float, title: str, details: str, colour: str) -> None:
        wide = width > 3
        told = textwrap.shorten(details, 60, placeholder=" \u2026") if wide else textwrap.fill(details, 24)
        draw_box(axes, (x, at), (width, _HEIGHT), title, told, colour=colour)

    box(0, y["question"], 1.6, "question", "", "white")
    box(0, y["answer"], 1.6, "answer", "", "white")
    for line in lines:
        box(0, y[line.decision], _WIDTH, f"{line.decision}: {line.who}", line.how, _COLOURS[line.kind])
    for above, below in pairwise(rows):
        draw_arrow(axes, (0, y[above] - _HEIGHT / 2), (0, y[below] + _HEIGHT / 2))
    middle = (y["order"] + y["repetition"]) / 2
    box(_PRICE, middle, 2.4, "price (mu)", price_in_words(policy).split(":")[0], "white")
    for line in lines:
        if line.kind != "fixed":
            draw_arrow(axes, (_PRICE - 1.2, middle), (_WIDTH / 2, y[line.decision]), colour="#5b9a70")
    if policy.repetition.by != "never":
        edge = -_WIDTH / 2
        draw_arrow(axes, (edge, y["repetition"]), (edge, y["search"]), bend=-0.35)
    handles = [Patch(fc=_COLOURS[kind], ec="#999999", label=said) for kind, said in _SAID.items()]
    axes.legend(handles=handles, loc="lower right", fontsize=7, frameon=False)
    set_title(figure, policy.name)
    save_figure(figure, path)
