"""The state of a pacer: one SQLite file, shared by threads and processes, one transaction a decision.

The file is in write-ahead mode. What a killed process had decided is there; after a loss of power the last
decisions may be missing, since nothing waits for the disk.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError, StateError
from mio_rag.storage import SharedFile

_SCHEMA = 8
_APPLICATION = 0x6D696F70  # "miop": how the file is recognised
_KEPT_WINDOWS = 1000  # in the order in which they were left, which is not theirs where the clock jumps


@dataclass
class State:
    """A window; the last one that was opened is the one that the clock is in.

    window, began: its number; when it began, in seconds since 1970.
    settled, reserved: tokens that were spent in it; that questions under way may still spend.
    lost: tokens of reservations that expired; part of `settled`.
    asked, finished, refused: questions that got a price; whose spending is known; that were turned away.
    price: of the next token.
    logs: sum of the logarithms of the prices that were asked.
    opened, full: shares of the window that were over when it was first watched, and when a question was
        first turned away: after that their number says nothing.
    usual, came: questions that windows before had in each part, below 0 where none was watched, and those of
        this one; empty: none was seen.
    """

    window: int
    began: float
    price: float
    settled: int = 0
    reserved: int = 0
    lost: int = 0
    asked: int = 0
    finished: int = 0
    refused: int = 0
    logs: float = 0.0
    opened: float = 0.0
    full: float = 1.0
    usual: str = ""
    came: str = ""


@dataclass(frozen=True)
class Held:
    """A reservation: its window, its tokens, what one question was expected to take, whether it expired."""

    window: int
    tokens: int
    share: float
    expired: bool


_NAMES = tuple(field.name for field in fields(State))
_COLUMNS = ", ".join(_NAMES)
_MARKS = ", ".join("?" for _ in _NAMES)
_SET = ", ".join(f"{name} = ?" for name in _NAMES)
_TYPED = ", ".join(f"{name} NOT NULL" for name in _NAMES)
_CREATE = f"""
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE windows (opened_as INTEGER PRIMARY KEY AUTOINCREMENT, {_TYPED}, UNIQUE (window));
CREATE TABLE reservations (id INTEGER PRIMARY KEY AUTOINCREMENT, window INTEGER NOT NULL,
    tokens INTEGER NOT NULL, share REAL NOT NULL, expires REAL);
CREATE INDEX reservations_by_end ON reservations (expires) WHERE expires IS NOT NULL;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_SCHEMA};
"""


class Store(SharedFile):
    """The state of a pacer, in a file or in memory.

    path: None: in memory, for one process.
    settings: what the totals mean; a file of others is refused.
    first: the state of a new file.

    Raises `InputError` if the file cannot be used: no pacer's, of another version, of other settings, not
    writable.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, str], first: State) -> None:
        super().__init__(path)
        self._path, self._settings, self._first = path, dict(settings), first
        with self._lock:
            self._connected()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Make one decision, alone; `StateError` if the file cannot be read or written."""
        with self.alone("the count of tokens") as connection:
            yield Transaction(connection, self._named)

    @property
    def _named(self) -> str:
        return "the pacer in memory" if self._path is None else f"the pacer's file '{self._path}'"

    def _unusable(self, error: Exception) -> str:
        return f"{self._named} cannot be used ({error}): choose another path, or remove the file"

    def _connected(self) -> sqlite3.Connection:
        if self._path is None and self._connection is not None and self._process != os.getpid():
            raise InputError("a pacer in memory belongs to one process: give it a path to share it")
        return super()._connected()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables of a new file; refuse one that means something else."""

        def number(expression: str) -> Any:
            return connection.execute(expression).fetchone()[0]

        application = number("PRAGMA application_id")
        if not application and not number("SELECT count(*) FROM sqlite_master"):
            for statement in filter(None, map(str.strip, _CREATE.split(";"))):
                connection.execute(statement)
            connection.executemany("INSERT INTO settings VALUES (?, ?)", self._settings.items())
            Transaction(connection, self._named).open(self._first)
            return
        if application != _APPLICATION:
            raise InputError(f"'{self._path}' is a database of something else: choose another path")
        if (version := number("PRAGMA user_version")) != _SCHEMA:
            raise InputError(
                f"'{self._path}' is a pacer's file of version {version}, and this is version {_SCHEMA}: "
                "choose another path, or remove the file"
            )
        known = dict(connection.execute("SELECT name, value FROM settings").fetchall())
        other = [
            f"{name} {known.get(name, 'missing')} there, {value} here"
            for name, value in self._settings.items()
            if known.get(name) != value
        ]
        if other:
            price = Transaction(connection, self._named).last().price
            raise InputError(
                f"'{self._path}' is the state of another pacer ({'; '.join(other)}): give the same settings, "
                f"or another path with price={price:.3g}, its last price"
            )


class Transaction:
    """What one decision reads and writes."""

    def __init__(self, connection: sqlite3.Connection, named: str) -> None:
        self._execute, self._named = connection.execute, named

    def _state(self, which: str, *given: Any) -> State | None:
        """A window; `StateError` if its row is damaged."""
        row = self._execute(f"SELECT {_COLUMNS} FROM windows {which}", given).fetchone()
        for column, value in zip(fields(State), row or (), strict=False):
            kinds = {"int": int, "str": str}.get(str(column.type), (int, float))
            if not isinstance(value, kinds) or (isinstance(value, float) and not math.isfinite(value)):
                raise StateError(
                    f"{self._named} is damaged: it holds {column.name}={value!r}. Restore the file, or "
                    "remove it to begin anew"
                )
        return None if row is None else State(*row)

    def last(self) -> State:
        """Return the window that was opened last."""
        state = self._state("ORDER BY opened_as DESC LIMIT 1")
        if state is None:
            raise StateError(f"{self._named} is damaged: it holds no window. Remove it to begin anew")
        return state

    def of(self, window: int) -> State | None:
        """Return a window; None where it was never opened, or is not kept."""
        return self._state("WHERE window = ?", window)

    def open(self, state: State) -> None:
        """Make a window the last one, new or not; of those before, only a thousand are kept."""
        made = f"INSERT OR REPLACE INTO windows ({_COLUMNS}) VALUES ({_MARKS})"
        last = self._execute(made, dataclasses.astuple(state)).lastrowid
        assert last is not None
        self._execute("DELETE FROM windows WHERE opened_as < ?", (last - _KEPT_WINDOWS,))
        self._execute("DELETE FROM reservations WHERE window NOT IN (SELECT window FROM windows)")

    def write(self, state: State) -> None:
        """Replace a window, in its place."""
        self._execute(
            f"UPDATE windows SET {_SET} WHERE window = ?", (*dataclasses.astuple(state), state.window)
        )

    def reserve(self, window: int, tokens: int, share: float, expires: float) -> int:
        """Add a reservation, and return its id."""
        made = self._execute(
            "INSERT INTO reservations (window, tokens, share, expires) VALUES (?, ?, ?, ?)",
            (window, tokens, share, expires),
        )
        assert made.lastrowid is not None
        return made.lastrowid

    def taken(self, identity: int) -> Held | None:
        """Take a reservation out; None where there is none (any more)."""
        found = self._execute(
            "SELECT window, tokens, share, expires IS NULL FROM reservations WHERE id = ?", (identity,)
        ).fetchone()
        if found is None:
            return None
        self._execute("DELETE FROM reservations WHERE id = ?", (identity,))
        return Held(found[0], found[1], found[2], bool(found[3]))

    def expired(self, now: float) -> list[tuple[int, int]]:
        """Mark the reservations whose time is over, and return window and tokens of each."""
        over = "expires IS NOT NULL AND expires <= ?"
        found = self._execute(f"SELECT window, tokens FROM reservations WHERE {over}", (now,)).fetchall()
        if found:
            self._execute(f"UPDATE reservations SET expires = NULL WHERE {over}", (now,))
        return [(int(window), int(tokens)) for window, tokens in found]
