"""Files that grow by whole lines, and that several writers may share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mio_rag.errors import InputError

__all__ = ["append_lines"]

_SECONDS_BETWEEN_TRIES = 0.01


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Add lines to a file, which is made where it is missing; they are on the disk when this returns.

    What is there already is not read, but for its last byte: where an interruption cut the last line short,
    the new ones begin below it. Writers take turns; where the system or the disk has no file locks, all lines
    still go out in one call.

    Parameters
    ----------
    lines : iterable of str
        Without line breaks.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    data = "".join(f"{line}\n" for line in lines).encode()
    if not data:
        return
    try:
        with path.open("a+b", buffering=0) as file:
            _wait_for(file.fileno())  # until the file is closed
            if (size := file.seek(0, os.SEEK_END)) > 0:
                file.seek(size - 1)
                data = data if file.read(1) == b"\n" else b"\n" + data
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"'{path}' could not be written: {error}") from error


def _wait_for(handle: int) -> None:
    """Take the lock of an open file as soon as nobody has it; where there are no such locks, go on."""
    from filelock import lock_descriptor  # here, as in `mio_rag.files`

    with suppress(OSError):
        lock_descriptor(handle, poll_interval=_SECONDS_BETWEEN_TRIES)
