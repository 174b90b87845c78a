"""Files that are written whole or not at all, and folders that one run at a time works in."""

from __future__ import annotations

import os
import re
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mio_rag.errors import InputError

__all__ = ["is_vacant", "locked", "replaced", "write_atomically"]

_LOCK, _PARTIAL = ".lock", ".partial"


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A partial file that takes the place of `path` when the block ends well, and goes when it does not.

    Its name begins with a dot and ends as `path` does, for writers that go by the ending.
    It is on the disk before it takes that place, so that a crash leaves the old file or the new one. Where
    `path` is a symbolic link, what it points to is replaced.

    Raises
    ------
    InputError
        If it cannot be written (no permission, a full disk), or `path` is no file.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            raise InputError(f"'{path}' is no file: choose another path")
        partial = target.with_name(f".{target.stem}.{uuid.uuid4().hex}{_PARTIAL}{target.suffix}")
        try:
            yield partial
            with partial.open("r+b") as file:  # Windows flushes only what is open for writing
                os.fsync(file.fileno())
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"'{path}' could not be written: {error}") from error


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is either the old one or the whole new one.

    Raises
    ------
    InputError
        As `replaced`.
    """
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


def is_vacant(folder: Path) -> bool:
    """Whether a folder is missing, or holds nothing but what a kill may leave: a lock, partial files."""
    return not folder.exists() or all(
        path.name == _LOCK or re.fullmatch(rf"\..*\.[0-9a-f]{{32}}\{_PARTIAL}(\.\w+)?", path.name)
        for path in folder.iterdir()
    )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One run at a time in a folder, which is made where it is missing.

    The lock goes with its process; the file that stands for it, at the end of the block.

    Raises
    ------
    InputError
        If the folder cannot be made, or another run is at work there.
    """
    path = folder / _LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
            if not _is_free(handle):
                os.close(handle)
                raise InputError(f"another run is at work in '{folder}': wait for it, or choose a folder")
            if _stands_at(path, handle):
                break
            os.close(handle)  # of a run that has just ended, and took the file away
    except OSError as error:
        raise InputError(f"'{folder}' cannot be written: {error}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # some systems keep what is open
            path.unlink()
        os.close(handle)


def _is_free(handle: int) -> bool:
    """Take the lock of an open file, unless somebody has it; where there are no such locks, it is free."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError) as error:
        found = f"this system or disk has no file locks ({error})"
        warnings.warn(
            f"mio-rag: {found}: start no second run in the same folder", RuntimeWarning, stacklevel=5
        )
    return True


def _stands_at(path: Path, handle: int) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
