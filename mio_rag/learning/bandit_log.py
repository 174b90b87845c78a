"""The log of a bandit: one SQLite file of events that are only ever added, shared by threads and processes.

What was learned is a replay of the events in their order. A snapshot saves reading them all; it can be thrown
away at any time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mio_rag.errors import DataError, InputError
from mio_rag.learning.weights import json_text
from mio_rag.storage import SharedFile, parse_json

_ALONG = (
    "; `mio-rag policy state export` takes what it learned along as a prior, and `mio-rag policy state add` "
    "lets a state choose among one strategy more"
)


@dataclass(frozen=True)
class Event:
    """One entry of the log.

    kind: question, feedback, settings, prior, recalibrated, pruned or strategy: one more to choose among.
    id: unique among those of a kind; of feedback the id of its question, of a strategy its name.
    x: the context of a question as float32; empty for other kinds.
    """

    seq: int
    kind: str
    id: str
    at: float
    x: bytes
    data: dict[str, Any]


class EventLog(SharedFile):
    """A log in a file.

    about: what the events mean; a file of others is refused. None: as the file has it, which must exist.

    Raises `InputError` if the file cannot be used: no bandit's, of another version, of other strategies or
    another embedder.
    """

    application, version = 0x6D696F62, 2  # "miob"
    what = "a strategy state"
    tables = """CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL,
            at REAL NOT NULL, x BLOB, data TEXT NOT NULL, UNIQUE (kind, id));
        CREATE INDEX events_by_time ON events (at);
        CREATE TABLE snapshot (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER, state BLOB)"""

    def __init__(self, path: Path, about: Mapping[str, str] | None = None) -> None:
        super().__init__(path)
        self.path, self._wanted = path, about
        self.about: dict[str, str] = {}
        if about is None and not path.is_file():
            raise InputError(
                f"'{path}' does not exist: give a file of search.state; the first question that a bandit "
                "chooses for begins one"
            )
        with self._lock:
            self._connected()

    @contextmanager
    def transaction(self, *, only_reads: bool = False) -> Iterator[Events]:
        """Read and write whole or not at all; `StateError` if the file cannot be read or written."""
        try:
            with self.alone(f"'{self.path}'", only_reads=only_reads) as connection:
                yield Events(connection)
        except DataError as error:
            raise DataError([f"'{self.path}': {problem}" for problem in error.problems]) from error

    @contextmanager
    def reading(self) -> Iterator[Events]:
        """Read one state of the file, while others may write; raises as `transaction`."""
        with self.transaction(only_reads=True) as events:
            yield events

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables of a new file; refuse one that means something else."""
        super()._prepare(connection)
        wanted = self._wanted or {}
        if not _one(connection, "SELECT count(*) FROM about"):
            if not wanted:
                raise InputError(f"'{self.path}' is empty: give a file of search.state")
            connection.executemany("INSERT INTO about VALUES (?, ?)", list(wanted.items()))
        is_reopened = bool(self.about)
        self.about = dict(connection.execute("SELECT name, value FROM about").fetchall())
        other = {
            name: f"{name} {self.about.get(name, 'missing')} there, {value} here"
            for name, value in wanted.items()
            if self.about.get(name) != value
        }
        if "strategies" in other:
            # In the order in which they were added. A file that is opened again may have more by now.
            known, given = (set(each["strategies"].split("+")) for each in (self.about, wanted))
            if known == given or (is_reopened and given <= known):
                del other["strategies"]
        if other:
            # What was learned of another embedder's contexts is of no use here.
            along = "" if {"embedder", "dimensions"} & other.keys() else _ALONG
            raise InputError(
                f"'{self.path}' is the state of another bandit ({'; '.join(other.values())}): choose another "
                f"path{along}"
            )


class Events:
    """The events within a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def append(self, kind: str, identity: str, at: float, data: Mapping[str, Any], x: bytes = b"") -> bool:
        """Add an event; False where there is one of that kind and id already, which stays as it is."""
        done = self._connection.execute(
            "INSERT OR IGNORE INTO events (kind, id, at, x, data) VALUES (?, ?, ?, ?, ?)",
            (kind, identity, at, x, json_text(dict(data))),
        )
        return done.rowcount == 1

    def declare_strategy(self, strategy: str) -> bool:
        """Add a strategy to those that the file chooses among; False where it is one already."""
        known = str(_one(self._connection, "SELECT value FROM about WHERE name = 'strategies'")).split("+")
        self._connection.execute(
            "UPDATE about SET value = ? WHERE name = 'strategies'",
            ("+".join(dict.fromkeys([*known, strategy])),),
        )
        return strategy not in known

    def _where(self, clause: str, *values: Any) -> Iterator[Event]:
        statement = f"SELECT seq, kind, id, at, x, data FROM events WHERE {clause}"
        for seq, kind, identity, at, x, data in self._connection.execute(statement, values):
            found = parse_json(data, f"event {seq}", DataError)
            if not isinstance(found, dict):
                raise DataError(f"event {seq}, a {kind}, is damaged: it holds {found!r:.40}")
            yield Event(int(seq), kind, identity, float(at), x or b"", found)

    def after(self, seq: int, upto: int = 2**62) -> Iterator[Event]:
        """Yield the events behind a place, in order, read one by one."""
        return self._where("seq > ? AND seq <= ? ORDER BY seq", seq, upto)

    def find(self, kind: str, identity: str) -> Event | None:
        """Return the event of a kind and id."""
        return next(self._where("kind = ? AND id = ?", kind, identity), None)

    def latest(self, kind: str) -> Event | None:
        """Return the last event of a kind."""
        return next(self._where("kind = ? ORDER BY seq DESC LIMIT 1", kind), None)

    def last(self) -> int:
        """Return the place of the last event; 0: there is none."""
        return int(_one(self._connection, "SELECT max(seq) FROM events") or 0)

    def count(self) -> int:
        """Return how many events there are; places may be left out where an event was refused."""
        return int(_one(self._connection, "SELECT count(*) FROM events"))

    def first_since(self, at: float) -> int:
        """Return the place before the first question at or after a time."""
        statement = "SELECT min(seq) FROM events WHERE at >= ? AND kind = 'question'"
        first = _one(self._connection, statement, at)
        return self.last() if first is None else int(first) - 1

    def snapshot(self) -> tuple[int, bytes] | None:
        """Return the snapshot: up to which event, and the state."""
        row = self._connection.execute("SELECT seq, state FROM snapshot").fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    def keep_snapshot(self, seq: int, state: bytes) -> None:
        """Store a snapshot instead of an earlier one."""
        self._connection.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?)", (seq, state))


def _one(connection: sqlite3.Connection, statement: str, *values: Any) -> Any:
    return connection.execute(statement, values).fetchone()[0]
