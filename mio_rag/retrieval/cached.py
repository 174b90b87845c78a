"""Embeddings kept on disk by content, so that no text is embedded twice by the same model.

One SQLite file in ``$MIO_RAG_CACHE``, else ``$XDG_CACHE_HOME/mio-rag``, else ``~/.cache/mio-rag``. A cache
that cannot be opened or written is left alone with a warning: it saves time, it must never cost a result.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import Notice


def cache_folder() -> Path:
    """Where mio-rag keeps what it can make again."""
    if given := os.environ.get("MIO_RAG_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mio-rag"


def _key(fingerprint: str, text: str) -> bytes:
    return hashlib.sha256(f"{fingerprint}\0{text}".encode("utf-8", "surrogatepass")).digest()


class EmbeddingCache:
    """Vectors by (model fingerprint, text).

    path: the SQLite file; ``embeddings.sqlite`` in `cache_folder()` by default.
    holds: what the vectors are, for warnings.
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


Vectors = NDArray[np.float32]
_SINGLE, _RECENT = 2, 500  # texts that are kept in memory: at once, and in all
Progress = Callable[[int], None]  # called with the number of texts just finished


def unit(matrix: NDArray[Any]) -> Vectors:
    """The rows at length 1; zero rows stay."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.asarray(matrix / np.maximum(norms, 1e-12), dtype=np.float32)


class CachedEmbedder(ABC):
    """An embedder that learns nothing from a corpus, with its vectors kept on disk by content.

    name: how the index names it.
    cache: keep embeddings on disk by content, so that no text is embedded twice by the same model. A question
        alone is kept in memory only: writing it takes longer than to embed it again.
    """

    is_paid = False  #: whether every text costs money, so that questions are kept on disk, too

    def __init__(self, name: str, *, cache: bool, batch_size: int) -> None:
        self.name = name
        self._batch_size = batch_size
        self._cache = EmbeddingCache() if cache else None
        self._recent: dict[str, Vectors] = {}  # of single texts, such as questions, which come again
        self._lock = Lock()  # fast tokenizers fail when two threads use them at once

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever the vectors could."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """Length of a vector."""

    @abstractmethod
    def _embed(self, texts: Sequence[str]) -> NDArray[Any]:
        """Rows of the texts, of any length; never empty, longest text first."""

    def _embedded(self, texts: Sequence[str]) -> Iterator[tuple[Sequence[str], NDArray[Any]]]:
        """Yield texts with their rows as these are there: what is embedded is kept, whatever fails then."""
        with self._lock:
            rows = self._embed(texts)
        yield texts, rows

    def fit(self, texts: Sequence[str]) -> None:  # noqa: B027
        """Nothing to learn: the model is trained."""

    def stop_caching(self) -> None:
        """Write nothing more to the disk: what a service is asked is nobody else's business."""
        self._cache = None

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """Unit rows, shape (len(texts), d)."""
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        if len(texts) > _SINGLE or self.is_paid:
            return self._encoded(texts, progress)
        recent = self._recent
        if not recent.keys() >= set(texts):
            recent = dict(zip(texts, self._encoded(texts, progress, kept=False), strict=True))
            self._recent = {**dict(list(self._recent.items())[-_RECENT:]), **recent}
        return np.stack([recent[text] for text in texts])

    def _encoded(self, texts: Sequence[str], progress: Progress | None, kept: bool = True) -> Vectors:
        cache = self._cache if kept else None
        known = cache.get(self.fingerprint, texts) if cache else {}
        if progress and known:
            progress(sum(t in known for t in texts))
        # Longest first keeps batches of like length together; slices bound what an interrupt can lose.
        todo = sorted(dict.fromkeys(t for t in texts if t not in known), key=len, reverse=True)
        step = 8 * self._batch_size
        for first in range(0, len(todo), step):
            for part, rows in self._embedded(todo[first : first + step]):
                fresh = dict(zip(part, unit(rows), strict=True))
                known.update(fresh)
                if cache:
                    cache.put(self.fingerprint, fresh)
                if progress:
                    progress(len(part))
        return np.stack([known[t] for t in texts]).astype(np.float32)

    def save(self, folder: Path) -> None:  # noqa: B027
        """The model is found again by name; nothing is copied."""
