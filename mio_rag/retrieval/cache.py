"""Embeddings on disk by content, so that no text is embedded twice by the same model.

One SQLite file in ``$MIO_RAG_CACHE`` (default ``~/.cache/mio-rag``). A cache that cannot be opened or
written is left alone with a warning: it saves time, it must never cost a result.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import Notice

__all__ = ["EmbeddingCache", "cache_folder"]


def cache_folder() -> Path:
    """Where mio-rag keeps what it can make again."""
    return Path(os.environ.get("MIO_RAG_CACHE") or Path.home() / ".cache" / "mio-rag")


def _key(fingerprint: str, text: str) -> bytes:
    return hashlib.sha256(f"{fingerprint}\0{text}".encode("utf-8", "surrogatepass")).digest()


class EmbeddingCache:
    """Vectors by (model fingerprint, text).

    Parameters
    ----------
    path : Path, optional
        The SQLite file; ``embeddings.sqlite`` in `cache_folder()` by default.
    holds : str
        What the vectors are, for warnings.
    """

    def __init__(self, path: Path | None = None, holds: str = "embedding") -> None:
        self.path = path or cache_folder() / "embeddings.sqlite"
        self._holds = holds

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=30)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID"
        )
        return connection

    def get(self, fingerprint: str, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Those of the texts that are known, with their vectors."""
        by_key = {_key(fingerprint, t): t for t in texts}
        keys = list(by_key)
        found: dict[str, NDArray[np.float32]] = {}
        try:
            with closing(self._connect()) as connection:
                for first in range(0, len(keys), 500):
                    part = keys[first : first + 500]
                    marks = ",".join("?" * len(part))
                    rows = connection.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", part)
                    found.update({by_key[k]: np.frombuffer(v, dtype=np.float32) for k, v in rows})
        except (OSError, sqlite3.Error, ValueError, TypeError) as error:  # the last two: damaged vectors
            self._warn("read", error)
        return found

    def put(self, fingerprint: str, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        """Remember vectors; one transaction."""
        rows = [(_key(fingerprint, t), np.asarray(v, dtype=np.float32).tobytes()) for t, v in vectors.items()]
        try:
            with closing(self._connect()) as connection, connection:
                connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
        except (OSError, sqlite3.Error) as error:
            self._warn("written", error)

    def _warn(self, what: str, error: Exception) -> None:
        warnings.warn(
            f"the {self._holds} cache {self.path} cannot be {what} ({error}): continuing without it",
            Notice,
            stacklevel=3,
        )
