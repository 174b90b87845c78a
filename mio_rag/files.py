"""Atomic writes of files and folders, and locks that allow one run at a time.

While it is written, a file or folder has a temporary name with ``.partial`` beside its target, and its writer
holds a lock on it. The system releases the lock when the process ends, for whatever reason. So a partial file
without a lock was left by a writer that was killed; the next writer of the same target removes it. Windows
neither renames a locked file nor lets others write it: there only runs hold locks, and nothing is removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mio_rag.errors import InputError, Notice

__all__ = [
    "claimed",
    "is_leftover",
    "is_vacant",
    "known_sha256_of",
    "locked",
    "make_parent",
    "replaced",
    "replaced_folder",
    "sha256_of",
    "sweep",
    "write_atomically",
]

_LOCK, _PARTIAL, _OLD = ".lock", ".partial", ".old"
_LOCKS_BIND_OTHERS = os.name == "nt"  # elsewhere they bind only those who ask for them
_KNOWN: dict[tuple[int, ...], str] = {}  # of `known_sha256_of`
_UNFINISHED = re.compile(rf"\.(.+)\.[0-9a-f]{{32}}(\{_PARTIAL}|\{_OLD})((?:\.[^.]+)?)", re.DOTALL)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A partial file that replaces `path` if the block succeeds, and is removed if it fails.

    It exists, and is empty, when the block begins. Its name begins with a dot and ends as `path` does, for
    writers that go by the ending; they write it in place. It is on the disk before it takes that place, so
    that a crash leaves the old file or the new one. Where `path` is a symbolic link, what it points to is
    replaced.

    Raises
    ------
    InputError
        If it cannot be written (no permission, a full disk), or `path` is no file.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            raise InputError(f"'{path}' is not a file: choose another path")
        with _partial(target, Path.touch) as partial:
            yield partial
            with partial.open("r+b") as file:  # Windows flushes only what is open for writing
                os.fsync(file.fileno())
            os.replace(partial, target)
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


def sha256_of(path: Path) -> str:
    """SHA-256 of what a file holds, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256_of(path: Path) -> str:
    """`sha256_of` for large files that are read again and again, such as models: remembered by this process.

    A file that is another, of another length, or written since is read anew; so is one that was written less
    than two seconds before it was read, as a change right after could leave its time as it was.
    """
    found = path.stat()
    now = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    digest = _KNOWN.get(now)
    if digest is None:
        begun = time.time_ns()
        digest = sha256_of(path)
        if begun - max(found.st_mtime_ns, found.st_ctime_ns) > 2_000_000_000:
            _KNOWN[now] = digest
    return digest


def make_parent(path: Path) -> None:
    """Make the folder of a file, where it is missing.

    Raises
    ------
    InputError
        If it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"'{path.parent}' cannot be made: {error}") from error


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A partial folder that replaces `path` if the block succeeds, and is removed if it fails.

    Missing parents are created. An old folder is kept until the new one is complete.

    Raises
    ------
    InputError
        If it cannot be written (no permission, a full disk).
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _partial(target, Path.mkdir) as partial:
            yield partial
            _put(partial, target)
    except OSError as error:
        raise InputError(f"'{path}' could not be written: {error}") from error


def _put(partial: Path, target: Path) -> None:
    if target.exists():
        old = _beside(target, _OLD)
        with _held(target):
            os.rename(target, old)
            try:
                os.rename(partial, target)
            except OSError:
                os.rename(old, target)
                raise
            _remove(old)
    else:
        os.rename(partial, target)
    # Only now: where a run was killed between the two renamings, its old folder was the only whole one.
    _sweep(target, _OLD)


def is_leftover(name: str) -> bool:
    """Whether a file is called like something that a kill may leave: a lock, or what was being written."""
    unfinished = _UNFINISHED.fullmatch(name)
    return (name.startswith(".") and name.endswith(_LOCK)) or (
        unfinished is not None and unfinished[2] == _PARTIAL
    )


def is_vacant(folder: Path) -> bool:
    """Whether a folder is missing, or holds nothing but what a kill may leave."""
    return not folder.exists() or all(is_leftover(path.name) for path in folder.iterdir())


def sweep(folder: Path) -> None:
    """Remove what killed writers left unfinished in a folder, and nothing that is being written."""
    for path, ending, _ in _unfinished(folder):
        if ending == _PARTIAL:
            _remove_unless_held(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One run at a time in a folder, which is made where it is missing, and swept.

    The lock goes with its process; the file that stands for it, at the end of the block.

    Raises
    ------
    InputError
        If the folder cannot be made, or another run is at work there.
    """
    with _only_run(folder / _LOCK, f"in '{folder}'", "a folder"):
        sweep(folder)
        yield


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """One run at a time for a file, which need not exist; otherwise as `locked`.

    Raises
    ------
    InputError
        If its folder cannot be made or written, or another run is at work on it.
    """
    target = Path(os.path.realpath(path))
    with _only_run(target.with_name(f".{target.name}{_LOCK}"), f"on '{path}'", "another file"):
        yield


@contextmanager
def _only_run(path: Path, where: str, else_: str) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
            if not _is_free(handle):
                os.close(handle)
                raise InputError(f"another run is at work {where}: wait for it, or choose {else_}")
            if _LOCKS_BIND_OTHERS or _stands_at(path, handle):  # Windows takes away nothing that is open
                break
            os.close(handle)  # of a run that has just ended, and took the file away
    except OSError as error:
        raise InputError(f"'{path.parent}' cannot be written: {error}") from error
    try:
        yield
    finally:
        if _LOCKS_BIND_OTHERS:
            os.close(handle)
            with suppress(OSError):  # another run has it open already
                path.unlink()
        else:
            with suppress(OSError):
                path.unlink()
            os.close(handle)


def _is_free(handle: int) -> bool:
    """Lock an open file; False if another process holds the lock. Without file locks it counts as free."""
    try:
        return _lock(handle)
    except OSError as error:
        found = f"this system or disk has no file locks ({error})"
        warnings.warn(f"mio-rag: {found}: do not start a second run in the same folder", Notice, stacklevel=7)
    return True


def _lock(handle: int) -> bool:
    """Take the lock of what is open, unless somebody has it; an OSError where there are no locks."""
    from filelock import lock_descriptor  # here: most commands lock nothing, and need not wait for it

    return lock_descriptor(handle, blocking=False)


def _stands_at(path: Path, handle: int) -> bool:
    """Whether what is open is what lies at a path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.stem}.{uuid.uuid4().hex}{ending}{target.suffix}")


@contextmanager
def _partial(target: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Something new beside a target, held while the block runs; what killed writers left there goes first."""
    _sweep(target, _PARTIAL)
    while True:
        path = _beside(target, _PARTIAL)
        make(path)
        with _held(path) as ours:
            if not ours:  # somebody swept it before it was held
                continue
            try:
                yield path
            finally:
                _remove(path)
            return


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold the lock of what lies at a path, so that nobody sweeps it; False where somebody was faster.

    Where there are no locks nobody sweeps, and nothing is kept open: Windows renames nothing that is.
    """
    handle = _opened(path)
    try:
        try:
            ours = path.exists() if handle is None else _lock(handle) and _stands_at(path, handle)
        except OSError:
            ours = True
            if handle is not None:
                os.close(handle)
                handle = None
        yield ours
    finally:
        if handle is not None:
            os.close(handle)


def _opened(path: Path) -> int | None:
    """A handle on a file or folder to lock; None where it is gone, or its lock would stop its own writer."""
    if _LOCKS_BIND_OTHERS:
        return None
    try:
        return os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except OSError:
        return None


def _unfinished(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """What lies unfinished in a folder: path, ending, and name of what it was to become."""
    names: list[str] = []
    with suppress(PermissionError):  # a folder that may be written, and not listed
        names = os.listdir(folder)
    for name in names:
        found = _UNFINISHED.fullmatch(name) if name.startswith(".") else None
        if found:
            yield folder / name, found[2], found[1] + found[3]


def _sweep(target: Path, ending: str) -> None:
    """Remove what killed writers of a target left beside it."""
    for path, its_ending, name in _unfinished(target.parent):
        if (its_ending, name) == (ending, target.name):
            _remove_unless_held(path)


def _remove_unless_held(path: Path) -> None:
    handle = _opened(path)
    if handle is None:
        return
    try:
        with suppress(OSError):  # without locks there is no way to know; a leftover does no harm
            if _lock(handle):
                _remove(path)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
