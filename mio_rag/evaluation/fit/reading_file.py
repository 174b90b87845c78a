"""Readings on disk by what was read, so that a search that was interrupted solves nothing twice.

One SQLite file. Each part of the questions that a setting was tried on is there as soon as it is known.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from mio_rag.errors import DataError, InputError
from mio_rag.evaluation.fit.goal import Reading
from mio_rag.files import claimed, make_parent

__all__ = ["ReadingFile", "opened_readings"]


class ReadingFile:
    """Readings by key, in an open file; see `opened_readings`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    def get(self, key: Any, make: Callable[[], list[Reading]]) -> list[Reading]:
        """The readings under a key, which are made, and on disk when this returns, where there are none.

        Parameters
        ----------
        key
            Data for JSON: all that the readings depend on.

        Raises
        ------
        InputError
            If the file cannot be read or written (a full disk).
        """
        digest = hashlib.sha256(json.dumps(key).encode()).digest()
        with _named(self.path):
            row = self._connection.execute("SELECT made FROM readings WHERE key = ?", (digest,)).fetchone()
        if row is not None:
            try:
                return [Reading(float(recall), float(tokens)) for recall, tokens in json.loads(row[0])]
            except (ValueError, TypeError) as error:
                raise DataError(f"'{self.path}' is damaged ({error}): delete it and search again") from error
        found = make()
        text = json.dumps([(reading.recall, reading.tokens) for reading in found])
        with _named(self.path), self._connection:
            self._connection.execute("INSERT INTO readings VALUES (?, ?)", (digest, text))
        return found


@contextmanager
def opened_readings(path: Path) -> Iterator[ReadingFile]:
    """The readings in a file, which is made where it is missing; one run at a time.

    Raises
    ------
    InputError
        If it cannot be opened, is no SQLite file, or another run is at work on it.
    """
    make_parent(path)
    with claimed(path):
        with _named(path):
            connection = sqlite3.connect(path)
        with closing(connection):
            with _named(path), connection:
                connection.execute("CREATE TABLE IF NOT EXISTS readings (key BLOB PRIMARY KEY, made TEXT)")
            yield ReadingFile(path, connection)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(f"'{path}' cannot hold the searches: {error}") from error
