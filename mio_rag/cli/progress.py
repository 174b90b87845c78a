"""How far a command has come, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mio_rag.cli.terminal import errors, printable

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar with rate and time left on stderr; silent where nobody watches a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(printable(label), total=total)
        yield lambda done, text="": bar.update(task, advance=done)
