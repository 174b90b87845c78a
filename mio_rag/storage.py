"""Files: atomic writes, locks, lines, strict reading of JSON and TOML, and shared SQLite files.

While it is written, a file or folder has a temporary name with ``.partial`` next to its target, and its
writer holds a lock on it, which the system releases when the process ends. A partial file without a lock was
left by a killed writer; the next writer of the same target removes it. Windows neither renames a locked file
nor lets others write it: there only runs hold locks, and nothing is removed.

Besides invalid JSON and TOML, these are refused: duplicate keys of an object, NaN and Infinity, numbers
beyond float64, halves of surrogate pairs, and very deep nesting. A byte order mark is accepted.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import shutil
import sys
import threading
import time
import tomllib
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mio_rag.errors import InputError, Notice, StateError

if TYPE_CHECKING:
    import sqlite3

_LOCK, _PARTIAL, _OLD = ".lock", ".partial", ".old"
_LOCKS_BIND_OTHERS = os.name == "nt"  # elsewhere they bind only those who ask for them
_KNOWN: dict[tuple[int, ...], str] = {}  # of `known_sha256_of`
_UNFINISHED = re.compile(rf"\.(.+)\.[0-9a-f]{{32}}(\{_PARTIAL}|\{_OLD})((?:\.[^.]+)?)", re.DOTALL)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a partial file that replaces `path` if the block succeeds, and is removed if it fails.

    It exists, and is empty, when the block begins; its name ends as `path` does. It is flushed to the disk
    before the rename, so that a crash leaves the old file or the new one. Of a symbolic link the target is
    replaced. `InputError` if it cannot be written, or `path` is no file.
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
    """Write a text file, whole or not at all; raises as `replaced`."""
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


def sha256_of(path: Path) -> str:
    """SHA-256 of what a file holds, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256_of(path: Path) -> str:
    """`sha256_of` for large files such as models, remembered by this process until they change.

    A file written less than two seconds before it was read is read anew: a change right after could leave its
    time as it was.
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
    """Make the folder of a file, where it is missing; `InputError` if it cannot be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"'{path.parent}' cannot be made: {error}") from error


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Yield a partial folder that replaces `path` if the block succeeds, and is removed if it fails.

    Missing parents are created. An old folder is kept until the new one is complete.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _partial(target, Path.mkdir) as partial:
            yield partial
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
            # Only now: where a run was killed between two renamings, its old folder was the only whole one.
            _sweep(target.parent, _OLD, target.name)
    except OSError as error:
        raise InputError(f"'{path}' could not be written: {error}") from error


def is_vacant(folder: Path) -> bool:
    """Whether a folder is missing, or holds nothing but what a kill may leave: locks, unfinished files."""
    if not folder.exists():
        return True
    left = {path for path, ending, _ in _unfinished(folder) if ending == _PARTIAL}
    return all(
        path in left or (path.name.startswith(".") and path.name.endswith(_LOCK)) for path in folder.iterdir()
    )


def sweep(folder: Path) -> None:
    """Remove what killed writers left unfinished in a folder, and nothing that is being written."""
    _sweep(folder, _PARTIAL)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Allow one run at a time in a folder, which is made where it is missing, and swept.

    `InputError` if it cannot be made, or another run is at work there. The lock ends with the process, its
    file at the end of the block.
    """
    with _only_run(folder / _LOCK, f"in '{folder}'", "a folder"):
        sweep(folder)
        yield


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Allow one run at a time for a file, which need not exist; otherwise as `locked`."""
    target = Path(os.path.realpath(path))
    with _only_run(target.with_name(f".{target.name}{_LOCK}"), f"on '{path}'", "another file"):
        yield


@contextmanager
def _only_run(path: Path, where: str, else_: str) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
            try:
                is_free = _lock(handle)
            except OSError as error:
                found = f"this system or disk has no file locks ({error})"
                advice = "do not start a second run in the same folder"
                warnings.warn(f"mio-rag: {found}: {advice}", Notice, stacklevel=6)
                is_free = True
            if not is_free:
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
        with suppress(OSError):  # on Windows another run has it open already
            path.unlink()
        if not _LOCKS_BIND_OTHERS:
            os.close(handle)


def _lock(handle: int, **how: Any) -> bool:
    """Take the lock of what is open, unless somebody has it; an OSError where there are no locks."""
    from filelock import lock_descriptor  # here: most commands lock nothing, and need not wait for it

    return lock_descriptor(handle, **(how or {"blocking": False}))


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
    """Make something new next to a target, held while the block runs; first remove what kills left there."""
    _sweep(target.parent, _PARTIAL, target.name)
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
    """Hold the lock of what lies at a path, so that it is not swept; False where another process was faster.

    Where there are no locks nothing is swept, and nothing is kept open: Windows renames nothing that is.
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
    with suppress(OSError):
        return None if _LOCKS_BIND_OTHERS else os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    return None


def _unfinished(folder: Path) -> list[tuple[Path, str, str]]:
    """What lies unfinished in a folder: path, ending, and name of what it was to become."""
    names: list[str] = []
    with suppress(PermissionError):  # a folder that may be written, and not listed
        names = os.listdir(folder)
    found = ((folder / name, _UNFINISHED.fullmatch(name)) for name in names if name.startswith("."))
    return [(path, match[2], match[1] + match[3]) for path, match in found if match]


def _sweep(folder: Path, ending: str, target: str | None = None) -> None:
    """Remove what killed writers, of one target or all, left unfinished in a folder."""
    for path, its_ending, name in _unfinished(folder):
        if its_ending != ending or target not in (None, name) or (handle := _opened(path)) is None:
            continue
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


_SECONDS_BETWEEN_TRIES = 0.01


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Add lines (without line breaks) to a file, which is made where it is missing, and flush them to the
    disk.

    Only the last byte of the file is read: where an interruption cut the last line short, the new ones begin
    below it. Writers take turns; without file locks, all lines still go out in one call.
    """
    data = "".join(f"{line}\n" for line in lines).encode()
    if not data:
        return
    try:
        with path.open("a+b", buffering=0) as file:
            with suppress(OSError):  # without locks: go on
                _lock(file.fileno(), poll_interval=_SECONDS_BETWEEN_TRIES)  # until the file is closed
            if (size := file.seek(0, os.SEEK_END)) > 0:
                file.seek(size - 1)
                data = data if file.read(1) == b"\n" else b"\n" + data
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"'{path}' could not be written: {error}") from error


_DEEPEST = 64  # levels; what reads the values calls itself for each
_LONG_NUMBER = re.compile(r"\d{300}|[eE]\+?\d{3}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # as it may be written; or half of a whole one
_SHOWN = 40  # characters of what is wrong
_TOO_LARGE = "is larger than any that can be computed with (about 1.8e308)"


def read_text(source: str | Path, kind: type[InputError] = InputError) -> str:
    """Return the UTF-8 text of a file, or of stdin for "-", without a byte order mark; raises `kind`."""
    if source == "-" and sys.stdin is None:
        raise kind("stdin cannot be read: it is closed; give a file, or pipe something in")
    try:
        # The bytes of stdin: JSON and TOML are UTF-8 whatever the terminal speaks.
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise kind(f"'{source}' cannot be read: {reason}") from error


def read_json(path: str | Path, kind: type[InputError] = InputError) -> Any:
    """What the JSON file (or stdin, for "-") holds; see `read_text` and `parse_json`."""
    return parse_json(read_text(path, kind), f"'{path}'", kind)


def read_toml(path: str | Path, kind: type[InputError] = InputError) -> dict[str, Any]:
    """What the TOML file holds; see `read_text` and `parse_toml`."""
    return parse_toml(read_text(path, kind), f"'{path}'", kind)


def parse_json(
    text: str | bytes, name: str, kind: type[InputError] = InputError, *, own: bool = False
) -> Any:
    """Return what a JSON text holds.

    name: what is read, to begin the message.
    own: mio-rag wrote it: NaN, Infinity and halves of surrogate pairs are accepted.

    Raises `kind`, with a `json.JSONDecodeError` as cause where it is no JSON.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        text = text.removeprefix("\ufeff")
        # A call for every number would take as long as reading them: only where one could be too large.
        checks: dict[str, Any] = {}
        if _LONG_NUMBER.search(text):
            checks = {"parse_int": lambda number: (_real(number), int(number))[1], "parse_float": _real}
        constant = None if own else _constant
        data = json.loads(text, object_pairs_hook=_object, parse_constant=constant, **checks)
        _check(data)
        if not own and _HALF.search(text):
            _check_halves(data)
    except RecursionError as error:
        raise kind(f"{name} is nested more than {_DEEPEST} levels deep") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if isinstance(text, str) and "\n" in text else ""
        raise kind(f"{name} is not valid JSON: {line}column {error.colno}: {error.msg}") from error
    except ValueError as error:
        raise kind(f"{name} is not valid JSON: {error}") from error
    return data


def parse_toml(text: str, name: str, kind: type[InputError] = InputError) -> dict[str, Any]:
    """Return what a TOML text holds; Infinity is among its values, NaN is refused. As `parse_json`."""
    try:
        data = tomllib.loads(text.removeprefix("\ufeff"), parse_float=_toml_real)
        _check(data, numbers=True)
    except RecursionError as error:
        raise kind(f"{name} is nested more than {_DEEPEST} levels deep") from error
    except ValueError as error:
        long = not isinstance(error, tomllib.TOMLDecodeError) and "conversion" in str(error)
        reason = "a whole number in it has thousands of digits" if long else error
        raise kind(f"{name} is not a readable TOML file ({reason})") from error
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {_short(twice)} is given twice in one object: keep one")
    return data


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number: write a finite one, or null where that is allowed")


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        shown = text if len(text) <= _SHOWN else f"{text[:12]}... ({len(text)} characters)"
        raise ValueError(f"the number {shown} {_TOO_LARGE}")
    return value


def _toml_real(text: str) -> float:
    if "nan" in text:
        raise ValueError("nan is not allowed: write a finite number")
    return float(text) if "inf" in text else _real(text)


def _short(text: str) -> str:
    """For a message: with escapes for what a terminal would act on."""
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _check(value: Any, left: int = _DEEPEST, numbers: bool = False) -> None:
    """Raise RecursionError for too many levels; if `numbers`, ValueError for whole ones beyond float64."""
    if type(value) in (dict, list):
        if not left:
            raise RecursionError
        for part in value.values() if type(value) is dict else value:
            if numbers or type(part) in (dict, list):
                _check(part, left - 1, numbers)
    elif numbers and type(value) is int and abs(value) > sys.float_info.max:
        raise ValueError(f"the number of {value.bit_length()} bits {_TOO_LARGE}")


def _check_halves(value: Any) -> None:
    """Raise ValueError for half of a surrogate pair."""
    if isinstance(value, str) and _SURROGATE.search(value):
        raise ValueError(f"{_short(value)} contains half of a surrogate pair, which is not a character")
    if isinstance(value, dict | list):
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_halves(part)


_PATIENCE_SECONDS = 30.0


class SharedFile:
    """A SQLite file that threads and processes share, in write-ahead mode: one connection a process.

    Without a `file` it is in memory, for one process. Classes that extend this say what the file holds;
    a file of something else, or of another version, is refused before anything is changed.
    """

    application, version = 0, 1  # how the file is recognised
    tables = ""  # statements that make a new file
    what, advice = "a file", "choose another path"  # for messages
    #: FULL: what was written survives a loss of power. NORMAL: the last transactions may be missing.
    synchronous = "NORMAL"

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inherited: list[sqlite3.Connection] = []
        self._process = 0

    def close(self) -> None:
        """Close the file; it is opened again when it is needed. What is in memory is gone."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
                self._connection = None

    def __del__(self) -> None:
        with suppress(Exception):  # as the interpreter ends, or where it was never made
            self.close()

    @contextmanager
    def alone(self, what: str, *, only_reads: bool = False) -> Iterator[sqlite3.Connection]:
        """Make one transaction, whole or not at all: nothing else writes until it is done.

        only_reads: others may write meanwhile, which this transaction does not see.

        Raises `StateError` if the file, named `what` in messages, cannot be read or written.
        """
        import sqlite3  # here and below: most commands need no such file

        with self._lock:
            connection = self._connected()

            def begin() -> None:
                connection.execute("BEGIN" if only_reads else "BEGIN IMMEDIATE")
                try:
                    connection.execute("SELECT count(*) FROM sqlite_master")  # "BEGIN" alone takes no lock
                except sqlite3.Error:
                    connection.execute("ROLLBACK")
                    raise

            try:
                patiently(begin)
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StateError(f"{what} cannot be read or written: {error}") from error

    def _looked_at(self, connection: sqlite3.Connection) -> None:
        """Refuse a file of others before anything is changed: even its mode is theirs."""
        connection.execute("BEGIN")  # at one moment: another process may be making it
        try:
            application, version, tables = _marks(connection)
        finally:
            connection.execute("ROLLBACK")
        if application != self.application and (application or tables):
            raise InputError(f"'{self._file}' is a database of something else: {self.advice}")
        if application and version != self.version:
            raise InputError(
                f"'{self._file}' is {self.what} of version {version}, and this is version {self.version}: "
                f"{self.advice}"
            )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables of a new file."""
        if not _marks(connection)[2]:
            marks = f"PRAGMA application_id = {self.application}; PRAGMA user_version = {self.version}"
            for statement in f"{self.tables};{marks}".split(";"):
                connection.execute(statement)

    def _unusable(self, error: Exception) -> str:
        """What to say where the file cannot be opened."""
        return f"'{self._file}' cannot be used as {self.what} ({error}): {self.advice}"

    def _connected(self) -> sqlite3.Connection:
        """This process's connection: one that was opened before a fork must not be used after it."""
        if self._connection is None or self._process != os.getpid():
            if self._connection is not None:
                self._inherited.append(self._connection)  # SQLite forbids even to close it here
            self._connection, self._process = self._opened(), os.getpid()
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        import sqlite3

        with ExitStack() as undo:
            try:
                if self._file is not None:
                    self._file.parent.mkdir(parents=True, exist_ok=True)
                opened = sqlite3.connect(
                    self._file or ":memory:", timeout=0, isolation_level=None, check_same_thread=False
                )
                undo.callback(opened.close)
                patiently(lambda: self._looked_at(opened))
                patiently(lambda: opened.execute("PRAGMA journal_mode = WAL"))
                opened.execute(f"PRAGMA synchronous = {self.synchronous}")
                patiently(lambda: opened.execute("BEGIN IMMEDIATE"))
                self._prepare(opened)
                opened.execute("COMMIT")
            except (sqlite3.Error, OSError) as error:
                raise InputError(self._unusable(error)) from error
            undo.pop_all()  # a connection that is closed takes back what was not committed
        return opened


def _marks(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Application, version, and number of tables of a file."""
    read = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    application, version, tables = (int(connection.execute(each).fetchone()[0]) for each in read)
    return application, version, tables


def patiently(attempt: Callable[[], object]) -> None:
    """Try until the file is free. SQLite would wait up to 100 ms for what is held for a tenth of one."""
    import sqlite3

    until, pause = time.monotonic() + _PATIENCE_SECONDS, 1e-4
    while True:
        try:
            attempt()
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not is_busy or time.monotonic() > until:
                raise
        time.sleep(pause * (0.5 + random.random()))
        pause = min(2 * pause, 2e-3)
