"""Text and tables for people, and progress: nothing in them is markup or acts on a terminal."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from mio_rag.errors import OutputError

# -- terminal --------------------------------------------------------------------------------------------

#: Escape sequences: with parameters, strings up to their end, and single ones.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\n]*?(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
#: Control characters but tab and newline, and what turns the direction of text around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text without escape sequences, control characters and overrides of its direction."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text)) if _CONTROL.search(text) else text


def styled(*parts: str | tuple[str, str]) -> Text:
    """One text of parts, each a string or (string, style), all of them printed as they are."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((printable(text), style) for text, style in pairs))


def dim(text: str) -> Text:
    """What matters less."""
    return styled((text, "dim"))


def notes(texts: Iterable[str]) -> Iterator[Text]:
    """Texts as notes."""
    return (styled(("note:", "yellow"), f" {text}") for text in texts)


#: Columns of a pipe or a file: nothing is wrapped, and tables take the width that they need.
_UNBOUNDED = 100_000


class Terminal(Console):
    """A console that prints strings as they are: no markup, no emoji codes, nothing a terminal acts on.

    What is no terminal has no width: lines stay whole there, unless `width` or ``COLUMNS`` says otherwise.

    **options: as `rich.console.Console` takes them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        stated = self._width is not None or self._environ.get("COLUMNS", "").isdigit()
        if not stated and not self.is_terminal:
            return ConsoleDimensions(_UNBOUNDED, self._height or 25)
        return super().size

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        """Set columns and lines."""
        self._width, self._height = new_size

    def render_str(self, text: str, **options: Any) -> Text:
        """As a console does; what is left out takes no room in a table either."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As a console does, whatever the text came from."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def print(self, *objects: Any, **options: Any) -> None:
        """As a console does.

        Raises `OutputError` if the stream takes nothing more; a pipe that was closed ends the program
        quietly.
        """
        try:
            super().print(*objects, **options)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error) from error

    def show(self, *items: Any) -> None:
        """Print texts, in lines of whole words where a terminal is narrow, and tables."""
        for item in items:
            if isinstance(item, Table):
                item.print(self)
            elif isinstance(item, str) and self.width < _UNBOUNDED:
                self.print("\n".join(_folded(line, self.width) for line in item.split("\n")))
            else:
                self.print(item, soft_wrap=self.width >= _UNBOUNDED)


def _folded(line: str, width: int) -> str:
    """A line in several, which begin as far from the edge as it does."""
    edge = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line, max(20, width), subsequent_indent=edge, break_long_words=False, break_on_hyphens=False
    )


#: Where problems, notes and progress go.
errors = Terminal(stderr=True)


# -- tables ----------------------------------------------------------------------------------------------

_BETWEEN = 2  # columns of air between two fields
_LEAST = 12  # columns that a name keeps, however narrow the terminal


@dataclass(frozen=True)
class Table:
    """Columns of a title, whose lines are kept, and a cell for each row.

    left: columns at the beginning that hold text; the others hold numbers.
    keys: columns that every part of the table begins with, where the terminal is too narrow for all of it; 0:
        cells are folded instead.
    widest: columns of a part, however wide the terminal.
    """

    columns: Sequence[tuple[str, Sequence[Any]]]
    left: int = 1
    keys: int = 0
    widest: int = _UNBOUNDED

    @classmethod
    def rows(cls, titles: str, rows: Iterable[Sequence[object]], left: int = 1) -> Table:
        """Return a table of titles with bars between them, row by row."""
        heads, cells = titles.split("|"), list(zip(*rows, strict=True))
        return cls(list(zip(heads, cells or [()] * len(heads), strict=True)), left)

    def print(self, console: Terminal) -> None:
        """Print it, in as many parts as the terminal needs."""
        widths, parts = [None] * len(self.columns), [[*range(self.keys, len(self.columns))]]
        if self.keys:
            widths, parts = self._fitted(min(console.width, self.widest))
        for number, part in enumerate(parts):
            if number:
                console.print()
            console.print(self._grid([*range(self.keys), *part], widths))

    def _fitted(self, room: int) -> tuple[list[Any], list[list[int]]]:
        """Return the width of each column, and the columns of each part besides the keys."""
        widths = [self._width(title, cells) for title, cells in self.columns]
        keys = sum(width + _BETWEEN for width in widths[1 : self.keys])
        widest = max(widths[self.keys :], default=-_BETWEEN)
        widths[0] = min(widths[0], max(_LEAST, room - keys - widest - _BETWEEN))
        room = left = room - widths[0] - keys
        parts: list[list[int]] = [[]]
        for place in range(self.keys, len(widths)):
            widths[place] = min(widths[place], max(_LEAST, room - _BETWEEN))
            left -= widths[place] + _BETWEEN
            if left < 0 and parts[-1]:
                parts.append([])
                left = room - widths[place] - _BETWEEN
            parts[-1].append(place)
        return list(widths), parts

    @staticmethod
    def _width(title: str, cells: Sequence[Any]) -> int:
        return max(cell_len(line) for text in (title, *cells) for line in printable(str(text)).split("\n"))

    def _grid(self, places: Sequence[int], widths: Sequence[Any]) -> Any:
        from rich.table import Table as Grid

        grid = Grid(header_style="bold", box=None, pad_edge=False)
        for place in places:
            title, cells = self.columns[place]
            width = widths[place]
            whole = width is not None and self._width(title, cells) <= width
            grid.add_column(
                Text(printable(title)), justify="left" if place < self.left else "right", vertical="bottom",
                overflow="fold", no_wrap=whole, min_width=width, max_width=width,
            )  # fmt: skip
        for row in zip(*(self.columns[place][1] for place in places), strict=True):
            clean = (isinstance(one, Text) and printable(one.plain) == one.plain for one in row)
            grid.add_row(
                *(one if ok else Text(printable(str(one))) for one, ok in zip(row, clean, strict=True))
            )
        return grid


def heading(label: str) -> str:
    """A label as the head of a column: in lines of about 14 columns, whole words each."""
    return "\n".join(textwrap.wrap(label, 14, break_long_words=False, break_on_hyphens=False))


# -- progress --------------------------------------------------------------------------------------------


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar with rate and time left on stderr; without a terminal, a line every half minute."""
    with _bars(transient=True) as bar:
        task = bar.add_task(printable(label), total=total)
        yield lambda done, text="": bar.update(task, advance=done)


@contextmanager
def batch_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each kind of work that is reported as (kind, total, done)."""
    with _bars(transient=False) as bars:
        tasks: dict[str, Any] = {}

        def tell(kind: str, total: int, done: int) -> None:
            if kind not in tasks:
                tasks[kind] = bars.add_task({"reading": "reading (bytes)"}.get(kind, kind), total=total)
            bars.update(tasks[kind], advance=done)

        yield tell


class _Lines:
    """Stands for bars where there is no terminal: lines, half a minute apart."""

    def __init__(self) -> None:
        self._tasks: list[list[Any]] = []  # label, total, done
        self._next = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        """End without a word: the result says it."""

    def add_task(self, label: str, total: int) -> int:
        self._tasks.append([label, total, 0])
        return len(self._tasks) - 1

    def update(self, task: int, advance: int) -> None:
        label, total, done = one = self._tasks[task]
        one[2] = done + advance
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            errors.print(f"{label}: {one[2]:,} of {total:,}")


_LINE_SECONDS = 30.0


def _bars(transient: bool) -> Any:
    from rich import progress

    if not errors.is_terminal:
        return _Lines()

    class Rate(progress.ProgressColumn):
        """Steps a second over the last half minute."""

        def render(self, task: progress.Task) -> Text:
            return Text("" if not task.speed else f"{task.speed:,.0f}/s")

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        Rate(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=errors,
        transient=transient,
        speed_estimate_period=30,
    )
