"""Tables that stay readable: a column is shown whole, and what has no room moves to a further table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from mio_rag.cli.terminal import Terminal, printable

__all__ = ["Field", "heading", "print_fields"]

_BETWEEN = 2  # columns of air between two fields
_LEAST = 12  # columns that a name keeps, however narrow the terminal


@dataclass(frozen=True)
class Field:
    """A column of a table.

    Parameters
    ----------
    title : str
        Its lines are kept.
    cells : sequence of str or Text
        One for each row.
    """

    title: str
    cells: Sequence[str | Text]
    justify: Literal["left", "right"] = "right"

    @property
    def width(self) -> int:
        """Columns of the terminal that it needs."""
        texts = [self.title, *(cell.plain if isinstance(cell, Text) else cell for cell in self.cells)]
        return max(cell_len(line) for text in texts for line in printable(text).split("\n"))


def heading(label: str) -> str:
    """A label as the head of a field: in lines of about 14 columns, whole words each."""
    return "\n".join(textwrap.wrap(label, 14, break_long_words=False, break_on_hyphens=False))


def print_fields(console: Terminal, keys: Sequence[Field], fields: Sequence[Field]) -> None:
    """Print the fields in their order, in as many tables as the terminal needs.

    Parameters
    ----------
    keys : sequence of Field
        Say what a row is about: every table begins with them. Only the first of them, a name, is folded where
        the terminal is too narrow for it.
    """
    widest = max((field.width for field in fields), default=0)
    rest = sum(key.width + _BETWEEN for key in keys[1:]) + (widest + _BETWEEN if fields else 0)
    name = min(keys[0].width, max(_LEAST, console.width - rest))
    room = console.width - name - sum(key.width + _BETWEEN for key in keys[1:])
    parts: list[list[Field]] = [[]]
    left = room
    for field in fields:
        left -= field.width + _BETWEEN
        if left < 0 and parts[-1]:
            parts.append([])
            left = room - field.width - _BETWEEN
        parts[-1].append(field)
    for place, part in enumerate(parts):
        if place:
            console.print()
        widths = [name, *(key.width for key in keys[1:])]
        widths += [min(field.width, max(_LEAST, room - _BETWEEN)) for field in part]
        _print(console, [*keys, *part], widths)


def _print(console: Terminal, fields: Sequence[Field], widths: Sequence[int]) -> None:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for field, width in zip(fields, widths, strict=True):
        table.add_column(
            Text(printable(field.title)),
            justify=field.justify,
            vertical="bottom",
            overflow="fold",
            no_wrap=field.width <= width,
            min_width=width,
            max_width=width,
        )
    for cells in zip(*(field.cells for field in fields), strict=True):
        table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells))
    console.print(table)
