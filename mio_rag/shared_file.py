"""A SQLite file that threads and processes share: one connection a process, patience while others write."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mio_rag.errors import InputError

_PATIENCE_SECONDS = 30.0


class SharedFile:
    """The file in write-ahead mode; classes that extend this make its tables.

    Parameters
    ----------
    file : Path or None
        None: in memory, for one process.
    """

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

    def _looked_at(self, connection: sqlite3.Connection) -> None:
        """Refuse a file of others before anything is changed: even its mode is theirs."""

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables of a new file; refuse one that means something else."""
        raise NotImplementedError

    def _unusable(self, error: Exception) -> str:
        """What to say where the file cannot be opened."""
        raise NotImplementedError

    def _connected(self) -> sqlite3.Connection:
        """This process's connection: one that was opened before a fork must not be used after it."""
        if self._connection is None or self._process != os.getpid():
            if self._connection is not None:
                self._inherited.append(self._connection)  # SQLite forbids even to close it here
            self._connection, self._process = self._opened(), os.getpid()
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        connection = None
        try:
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
            connection = opened = sqlite3.connect(
                self._file or ":memory:", timeout=0, isolation_level=None, check_same_thread=False
            )
            patiently(lambda: self._looked_at(opened))
            patiently(lambda: opened.execute("PRAGMA journal_mode = WAL"))
            opened.execute("PRAGMA synchronous = NORMAL")
            patiently(lambda: opened.execute("BEGIN IMMEDIATE"))
            try:
                self._prepare(opened)
                opened.execute("COMMIT")
            except BaseException:
                opened.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as error:
            if connection is not None:
                connection.close()
            raise InputError(self._unusable(error)) from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        return connection


def patiently(attempt: Callable[[], object]) -> None:
    """Try until the file is free. SQLite would wait up to 100 ms for what is held for a tenth of one."""
    until, pause = time.monotonic() + _PATIENCE_SECONDS, 1e-4
    while True:
        try:
            attempt()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > until:
                raise
        else:
            return
        time.sleep(pause * (0.5 + random.random()))
        pause = min(2 * pause, 2e-3)
