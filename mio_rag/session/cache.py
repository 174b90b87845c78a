"""Stored answers on disk: the same question of the same index is answered once.

An answer is found by the question (in lower case, with single blanks, with or without a question mark), the
content of the index, every setting, the model and the version of mio-rag.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import time
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from mio_rag.errors import InputError, MioRagError, Notice
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.settings import Settings
from mio_rag.storage import SharedFile

T = TypeVar("T")
_DAY = 86_400.0


def normal_question(question: str) -> str:
    """A question as the cache compares it: lower case, single blanks, no question mark at its end."""
    text = " ".join(unicodedata.normalize("NFC", question).casefold().split())
    return re.sub(r" ?\?[?!. ]*$", "", text)


def digest_of(settings: Mapping[str, Any]) -> str:
    """A digest of settings as plain data, and of the version of mio-rag."""
    from mio_rag.defaults import __version__

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
    """An answer that was given before, as it was stored; the question that it answered; its age."""

    answer: dict[str, Any]
    question: str
    age_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the answer."""
        return {"question": self.question, "age_seconds": self.age_seconds}


class AnswerCache(SharedFile):
    """Answers to questions asked of one index, in a SQLite file that several processes may share.

    path: made when the first answer is stored; answers of another index are deleted when it is opened.
    corpus: digest of the index; see `CorpusIndex.digest`.
    clock: seconds since 1970.

    Raises `InputError` if the file is something else than such a cache.

    A file that can no longer be read or written causes a warning and finds nothing: a cache must never cost
    an answer.
    """

    application, version, what = 0x6D696F72, 3, "an answer cache"
    advice = "it is no answer cache of this version of mio-rag; give another file, such as answers.sqlite"
    tables = """
        CREATE TABLE answers (key BLOB PRIMARY KEY, corpus BLOB NOT NULL, question TEXT NOT NULL,
            answer TEXT NOT NULL, made REAL NOT NULL, used REAL NOT NULL) WITHOUT ROWID"""

    def __init__(
        self,
        path: str | Path,
        corpus: str,
        settings: CacheSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self.settings = Path(path).expanduser(), settings or CacheSettings()
        super().__init__(self.path)
        self._corpus, self._clock = bytes.fromhex(corpus), clock
        self._inode = 0
        if self.path.exists():
            others = ("DELETE FROM answers WHERE corpus != ?", (self._corpus,))
            self._tried("opened", lambda connection: connection.execute(*others))

    @classmethod
    def of(cls, path: str | Path, index: CorpusIndex, settings: CacheSettings | None = None) -> AnswerCache:
        """Open the cache for an index."""
        return cls(path, index.digest(), settings)

    def get(self, question: str, scope: str) -> Hit | None:
        """The answer that the question was given before; None: it is new.

        scope: digest of the settings and the model; see `digest_of`.
        """
        key, now = self._key(question, scope), self._clock()

        def look(connection: sqlite3.Connection) -> Hit | None:
            row = connection.execute(
                "SELECT question, answer, made FROM answers WHERE key = ? AND made >= ?",
                (key, now - self.settings.days * _DAY),
            ).fetchone()
            if row is None:
                return None
            try:
                answer, made = json.loads(row[1]), float(row[2])
            except (ValueError, TypeError, RecursionError):
                answer = None
            if isinstance(answer, dict) and isinstance(answer.get("answer"), str):
                connection.execute("UPDATE answers SET used = ? WHERE key = ?", (now, key))
                return Hit(answer, str(row[0]), max(0.0, now - made))
            connection.execute("DELETE FROM answers WHERE key = ?", (key,))  # damaged: asked anew
            return None

        return self._tried("read", look) if self.path.exists() else None

    def put(self, question: str, scope: str, answer: Mapping[str, Any]) -> None:
        """Store an answer, and delete what is too old or too much."""
        now = self._clock()

        def store(connection: sqlite3.Connection) -> None:
            text = json.dumps(dict(answer), allow_nan=False)
            row = (self._key(question, scope), self._corpus, question, text, now, now)
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", row)
            connection.execute("DELETE FROM answers WHERE made < ?", (now - self.settings.days * _DAY,))
            connection.execute(
                "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY used DESC, key "
                "LIMIT -1 OFFSET ?)",
                (self.settings.entries,),
            )

        self._tried("written", store)

    def __len__(self) -> int:
        def count(connection: sqlite3.Connection) -> int:
            return int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])

        return (self._tried("read", count) or 0) if self.path.exists() else 0

    def _key(self, question: str, scope: str) -> bytes:
        text = json.dumps([normal_question(question), scope, self._corpus.hex()])
        return hashlib.sha256(text.encode()).digest()

    def _connected(self) -> sqlite3.Connection:
        if self._inode != _inode_of(self.path):  # new, or removed or replaced while it was open
            self.close()
        connection = super()._connected()
        self._inode = _inode_of(self.path)
        return connection

    def _tried(self, what: str, act: Callable[[sqlite3.Connection], T]) -> T | None:
        """Make one transaction; None, with a warning, where the file cannot be used."""
        try:
            with self.alone(f"'{self.path}'") as connection:
                return act(connection)
        except (MioRagError, ValueError, TypeError) as error:  # the last two: damaged rows
            cause = error.__cause__
            is_busy = isinstance(cause, sqlite3.OperationalError) and self.path.is_file()  # or read-only
            if what == "opened" and isinstance(error, InputError) and not is_busy:
                raise
            warnings.warn(
                f"the answer cache '{self.path}' cannot be {what} ({cause or error}): continuing without it",
                Notice,
                stacklevel=3,
            )
            return None


def _inode_of(path: Path) -> int:
    """Return what tells a file from another of the same name; 0: there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
