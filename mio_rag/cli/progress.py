"""How far a command has come, on stderr."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mio_rag.cli.terminal import errors, printable

__all__ = ["progress_bar", "said_if_slow"]

_MOMENT_SECONDS = 1.0  # shorter waits need no word


@contextmanager
def said_if_slow(what: str) -> Iterator[None]:
    """Say on stderr what takes longer than a moment; silent where nobody watches a terminal."""
    timer = threading.Timer(_MOMENT_SECONDS, lambda: errors.print(f"{what} ..."))
    timer.daemon = True
    if errors.is_terminal:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
