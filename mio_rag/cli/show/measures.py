"""What ``mio-rag measures`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from mio_rag.cli.terminal import Terminal

if TYPE_CHECKING:
    from mio_rag.measures import Measure

__all__ = ["print_measures"]

_OF = {
    "selection": "Of a selection",
    "answer": "Of an answer",
    "choice": "Of a chosen option",
    "cost": "Of what it cost, and how it was proven",
    "run": "Of a method, over all questions",
}


def print_measures(console: Terminal, found: Sequence[Measure]) -> None:
    """A table for each kind: name and meaning; below them direction, unit and source."""
    width = max((len(m.name) for m in found), default=0)
    for of, heading in _OF.items():
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True, min_width=width)
        table.add_column(overflow="fold")
        for m in found:
            if m.of == of:
                better = "no direction" if m.better == "none" else f"{m.better} is better"
                table.add_row(m.name, Text(m.meaning))
                table.add_row("", Text(f"{better}; {m.unit}; {m.source}", style="dim"))
        if table.row_count:
            console.print(heading, style="bold")
            console.print(table)
            console.print()
