"""Stored answers on disk: the same question of the same index is answered once.

An answer is found by the question (in lower case, with single blanks, with or without a question mark), the
content of the index, every setting, the model and the version of mio-rag.

One SQLite file, which several processes may share. The number and the age of answers are limited; answers of
another index are deleted when the file is opened.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mio_rag.errors import InputError, Notice
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.settings import Settings
from mio_rag.storage import make_parent

_OURS = 0x6D696F72  # "mior": SQLite's application id
_VERSION = 2
_TABLE = """CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, scope BLOB NOT NULL, corpus BLOB NOT NULL, question TEXT NOT NULL,
    answer TEXT NOT NULL, made REAL NOT NULL, used REAL NOT NULL) WITHOUT ROWID"""
_DAY = 86_400.0


def normal_question(question: str) -> str:
    """A question as the cache compares it: lower case, single blanks, no question mark at its end."""
    text = " ".join(unicodedata.normalize("NFC", question).casefold().split())
    return re.sub(r" ?\?[?!. ]*$", "", text)


def digest_of(settings: Mapping[str, Any]) -> str:
    """A digest of settings as plain data, and of the version of mio-rag."""
    from mio_rag import __version__

    text = json.dumps({"mio-rag": __version__, **settings}, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class CacheSettings(Settings):
    """How much a cache holds."""

    entries: Annotated[int, Field(ge=1)] = 10_000
    """Most answers; those that were not asked for the longest time go first."""
    days: Annotated[float, Field(gt=0)] = 30.0
    """Oldest answer."""


@dataclass(frozen=True)
class Hit:
    """An answer that was given before.

    answer: as it was stored.
    question: the question that it answered.
    age_seconds: since it was given.
    """

    answer: dict[str, Any]
    question: str
    age_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the answer."""
        return {"question": self.question, "age_seconds": self.age_seconds}


class AnswerCache:
    """Answers to questions asked of one index.

    path: the SQLite file; made when the first answer is stored.
    corpus: digest of the index; see `CorpusIndex.digest`.
    clock: seconds since 1970.

    Raises `InputError` if the file is something else than such a cache.

    A file that can no longer be read or written causes a warning and finds nothing: a cache must never cost
    an answer.
    """

    def __init__(
        self,
        path: str | Path,
        corpus: str,
        settings: CacheSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self.settings = Path(path).expanduser(), settings or CacheSettings()
        self._corpus, self._clock = bytes.fromhex(corpus), clock
        self._check_file()
        if self.path.exists():
            with self._warned("opened"), self._connected() as connection:
                connection.execute("DELETE FROM answers WHERE corpus != ?", (self._corpus,))

    @classmethod
    def of(cls, path: str | Path, index: CorpusIndex, settings: CacheSettings | None = None) -> AnswerCache:
        """Open the cache for an index."""
        return cls(path, index.digest(), settings)

    def get(self, question: str, scope: str) -> Hit | None:
        """The answer that the question was given before; None: it is new.

        scope: digest of the settings and the model; see `digest_of`.
        """
        key, now, hit = self._key(question, scope), self._clock(), None
        if not self.path.exists():
            return None
        with self._warned("read"), self._connected() as connection:
            row = connection.execute(
                "SELECT question, answer, made FROM answers WHERE key = ? AND made >= ?",
                (key, self._oldest()),
            ).fetchone()
            if row is not None:
                try:
                    answer, made = json.loads(row[1]), float(row[2])
                except (ValueError, TypeError, RecursionError):
                    answer = None
                if isinstance(answer, dict) and isinstance(answer.get("answer"), str):
                    connection.execute("UPDATE answers SET used = ? WHERE key = ?", (now, key))
                    hit = Hit(answer, str(row[0]), max(0.0, now - made))
                else:  # damaged: asked anew
                    connection.execute("DELETE FROM answers WHERE key = ?", (key,))
        return hit

    def put(self, question: str, scope: str, answer: Mapping[str, Any]) -> None:
        """Store an answer, and delete what is too old or too much."""
        now = self._clock()
        with self._warned("written"), self._connected() as connection:
            text = json.dumps(dict(answer), allow_nan=False)
            row = (self._key(question, scope), bytes.fromhex(scope), self._corpus, question, text, now, now)
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute("DELETE FROM answers WHERE made < ?", (self._oldest(),))
            connection.execute(
                "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY used DESC, key "
                "LIMIT -1 OFFSET ?)",
                (self.settings.entries,),
            )

    def __len__(self) -> int:
        count = 0
        if self.path.exists():
            with self._warned("read"), self._connected() as connection:
                count = int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])
        return count

    def _key(self, question: str, scope: str) -> bytes:
        text = json.dumps([normal_question(question), scope, self._corpus.hex()])
        return hashlib.sha256(text.encode()).digest()

    def _oldest(self) -> float:
        return self._clock() - self.settings.days * _DAY

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction, with the table in place."""
        make_parent(self.path)
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):  # another process has written it since
                raise sqlite3.DatabaseError(f"version {version}, not {_VERSION}")
            if version == 0:  # the version comes last: whoever sees it finds the table
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA application_id = {_OURS}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            yield connection

    @contextmanager
    def _warned(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, ValueError, TypeError) as error:  # the last two: damaged rows
            warnings.warn(
                f"the answer cache '{self.path}' cannot be {what} ({error}): continuing without it",
                Notice,
                stacklevel=4,
            )

    def _check_file(self) -> None:
        """Raise `InputError` for a file that is no cache, or one of another version."""
        if not self.path.exists() or (self.path.is_file() and self.path.stat().st_size == 0):
            return
        reason = ""
        if self.path.is_file():
            try:
                with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as found:
                    ours = found.execute("PRAGMA application_id").fetchone()[0]
                    version = found.execute("PRAGMA user_version").fetchone()[0]
                    tables = {sql for (sql,) in found.execute("SELECT sql FROM sqlite_master")}
                being_made = ours == version == 0 and tables <= {_TABLE.replace("IF NOT EXISTS ", "")}
                if being_made or (ours, version) == (_OURS, _VERSION):
                    return
            except sqlite3.Error as error:
                reason = f" ({error})"
        raise InputError(
            f"'{self.path}' is no answer cache of this version of mio-rag: give another file, for instance "
            f"answers.sqlite{reason}"
        )
