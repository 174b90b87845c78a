"""What a pacer remembers: one SQLite file, shared by threads and processes, one transaction a decision.

The file is in write-ahead mode. What a killed process had decided is there; after a loss of power the last
decisions may be missing, since nothing waits for the disk.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mio_rag.errors import InputError, StateError
from mio_rag.shared_file import SharedFile, patiently

_SCHEMA = 6
_APPLICATION = 0x6D696F70  # "miop": how the file is known as a pacer's
_KEPT_WINDOWS = 1000  # in the order in which they were left, which is not theirs where the clock jumps


@dataclass
class State:
    """The window that is open.

    window: number of the window.
    began: when it began, in seconds since 1970.
    settled: tokens that were spent in it.
    reserved: tokens that questions under way may still spend.
    lost: tokens of reservations that expired; part of `settled`.
    asked, finished, refused: questions that got a price; whose spending is known; that were turned away.
    price: of the next token.
    logs: sum of the logarithms of the prices that were asked, those far from the reference counted as less
        far.
    opened: share of the window that was over when it was first watched.
    usually, came: questions that windows before had in each part, and those of this one; see
        `pacer_arrivals`.
    reference: price of the forecast, or the first price where there is none.
    usual: tokens that a question is expected to take in the mean at that price; 0: there is no forecast.
    effort: tokens of all questions so far, had they paid that price.
    course: of these, each times the number of questions before it: whether they rise or fall.
    squares: of these, each times itself: how far they differ.
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
    usually: str = ""
    came: str = ""
    reference: float = 0.0
    usual: float = 0.0
    effort: float = 0.0
    course: float = 0.0
    squares: float = 0.0


@dataclass(frozen=True)
class Held:
    """A reservation: its window, its tokens, what one question was expected to take, whether it expired."""

    window: int
    tokens: int
    share: float
    expired: bool


_COLUMNS = tuple(field.name for field in fields(State))
_CREATE = f"""
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), {", ".join(f"{c} NOT NULL" for c in _COLUMNS)});
CREATE TABLE windows (closed INTEGER PRIMARY KEY AUTOINCREMENT,
    {", ".join(f"{c} NOT NULL" for c in _COLUMNS)}, UNIQUE (window));
CREATE TABLE reservations (id INTEGER PRIMARY KEY AUTOINCREMENT, window INTEGER NOT NULL,
    tokens INTEGER NOT NULL, share REAL NOT NULL, expires REAL);
CREATE INDEX reservations_by_end ON reservations (expires) WHERE expires IS NOT NULL;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_SCHEMA};
"""
_READ = f"SELECT {', '.join(_COLUMNS)} FROM state"
_REOPEN = f"SELECT {', '.join(_COLUMNS)} FROM windows WHERE window = ?"
_CLOSE = f"INSERT OR REPLACE INTO windows ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_WRITE = f"UPDATE state SET {', '.join(f'{c} = ?' for c in _COLUMNS)}"
_REWRITE = f"UPDATE windows SET {', '.join(f'{c} = ?' for c in _COLUMNS)}"


class Store(SharedFile):
    """The state of a pacer, in a file or in memory.

    path: none: in memory, for one process.
    settings: what the totals mean; a file of others is refused.
    first: of a new file.

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
        """One decision: nobody else reads or writes until it is done, and it is done whole or not at all.

        Raises `StateError` if the file cannot be read or written.
        """
        with self._lock:
            connection = self._connected()
            try:
                patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
                try:
                    yield Transaction(connection, self._named)
                    connection.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StateError(f"the count of tokens cannot be read or written: {error}") from error

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
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables and not application:
            for statement in filter(None, map(str.strip, _CREATE.split(";"))):
                connection.execute(statement)
            connection.executemany("INSERT INTO settings VALUES (?, ?)", self._settings.items())
            values = [getattr(self._first, name) for name in _COLUMNS]
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO state VALUES (1, {marks})", values)
            return
        if application != _APPLICATION:
            raise InputError(f"'{self._path}' is a database of something else: choose another path")
        if version != _SCHEMA:
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
            price = connection.execute("SELECT price FROM state").fetchone()[0]
            raise InputError(
                f"'{self._path}' is the state of another pacer ({'; '.join(other)}): give the same settings, "
                f"or another path with price={price:.3g}, its last price"
            )


class Transaction:
    """What one decision reads and writes."""

    def __init__(self, connection: sqlite3.Connection, named: str) -> None:
        self._connection, self._named = connection, named

    def state(self) -> State:
        """The open window."""
        return self._checked(self._connection.execute(_READ).fetchone(), "state")

    def _checked(self, row: tuple[Any, ...] | None, table: str) -> State:
        """A row as a state.

        Raises `StateError` if it is damaged.
        """
        for column, value in zip(fields(State), row or (), strict=False):
            kinds = {"int": int, "str": str}.get(str(column.type), (int, float))
            finite = not isinstance(value, float) or math.isfinite(value)
            if not isinstance(value, kinds) or not finite:
                raise self._damaged(table, f"{column.name}={value!r}")
        if row is None:
            raise self._damaged(table, "nothing")
        return State(*row)

    def _damaged(self, table: str, what: str) -> StateError:
        return StateError(
            f"{self._named} is damaged: row 1 of {table} holds {what}. Restore the file, or remove it to "
            "begin anew"
        )

    def write(self, state: State) -> None:
        """Replace it."""
        self._connection.execute(_WRITE, [getattr(state, name) for name in _COLUMNS])

    def close_window(self, state: State) -> None:
        """Keep the account of a window that the clock has left; what it still holds counts as lost."""
        state.settled += state.reserved
        state.lost += state.reserved
        state.reserved = 0
        execute = self._connection.execute
        last = execute(_CLOSE, [getattr(state, name) for name in _COLUMNS]).lastrowid
        assert last is not None
        execute(
            "DELETE FROM reservations WHERE expires IS NULL AND window IN "
            "(SELECT window FROM windows WHERE closed <= ?)",
            (last - _KEPT_WINDOWS,),
        )
        execute("DELETE FROM windows WHERE closed <= ?", (last - _KEPT_WINDOWS,))

    def reopened(self, window: int) -> State | None:
        """The account of a window that the clock comes back to; None where there is none."""
        found = self._connection.execute(_REOPEN, (window,)).fetchone()
        if found is None:
            return None
        self._connection.execute("DELETE FROM windows WHERE window = ?", (window,))
        state = self._checked(found, "windows")
        (held,) = self._connection.execute(
            "SELECT coalesce(sum(tokens), 0) FROM reservations WHERE window = ? AND expires IS NOT NULL",
            (window,),
        ).fetchone()
        state.settled -= held
        state.lost -= held
        state.reserved = held
        return state

    def reserve(self, window: int, tokens: int, share: float, expires: float) -> int:
        """Note a reservation; its id."""
        made = self._connection.execute(
            "INSERT INTO reservations (window, tokens, share, expires) VALUES (?, ?, ?, ?)",
            (window, tokens, share, expires),
        )
        assert made.lastrowid is not None
        return made.lastrowid

    def taken(self, identity: int) -> Held | None:
        """Take a reservation out; None where there is none (any more)."""
        found = self._connection.execute(
            "SELECT window, tokens, share, expires IS NULL FROM reservations WHERE id = ?", (identity,)
        ).fetchone()
        if found is None:
            return None
        self._connection.execute("DELETE FROM reservations WHERE id = ?", (identity,))
        return Held(found[0], found[1], found[2], bool(found[3]))

    def expired(self, now: float) -> list[tuple[int, int]]:
        """Mark the reservations whose time is over; window and tokens of each."""
        found = self._connection.execute(
            "SELECT window, tokens FROM reservations WHERE expires IS NOT NULL AND expires <= ?", (now,)
        ).fetchall()
        if found:
            self._connection.execute(
                "UPDATE reservations SET expires = NULL WHERE expires IS NOT NULL AND expires <= ?", (now,)
            )
        return [(int(window), int(tokens)) for window, tokens in found]

    def under_way(self, window: int) -> int:
        """How many reservations of a window may still spend; those that expired are spent."""
        (count,) = self._connection.execute(
            "SELECT count(*) FROM reservations WHERE expires IS NOT NULL AND window = ?", (window,)
        ).fetchone()
        return int(count)

    def past_state(self, window: int) -> State | None:
        """The account of a window that is not open; None where it is not kept."""
        found = self._connection.execute(_REOPEN, (window,)).fetchone()
        return None if found is None else self._checked(found, "windows")

    def write_past(self, state: State) -> None:
        """Replace it, in its place among those that are kept."""
        values = [getattr(state, name) for name in _COLUMNS]
        self._connection.execute(f"{_REWRITE} WHERE window = ?", [*values, state.window])

    def past(self) -> list[tuple[int, float, float, int, int, int, int]]:
        """Windows that are not open: number, beginning, price, settled, lost, asked, refused."""
        return self._connection.execute(
            "SELECT window, began, price, settled, lost, asked, refused FROM windows ORDER BY window"
        ).fetchall()
