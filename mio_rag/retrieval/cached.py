"""What embedders with a fixed model have in common: no text is embedded twice by the same one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.retrieval.cache import EmbeddingCache

__all__ = ["CachedEmbedder", "Progress", "Vectors", "unit"]

Vectors = NDArray[np.float32]
Progress = Callable[[int], None]  # called with the number of texts just finished


def unit(matrix: NDArray[Any]) -> Vectors:
    """The rows at length 1; zero rows stay."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.asarray(matrix / np.maximum(norms, 1e-12), dtype=np.float32)


class CachedEmbedder(ABC):
    """An embedder that learns nothing from a corpus, with its vectors kept on disk by content.

    Parameters
    ----------
    name : str
        How the index names it.
    cache : bool
        Keep embeddings on disk by content, so that no text is embedded twice by the same model.
    batch_size : int
    """

    def __init__(self, name: str, *, cache: bool, batch_size: int) -> None:
        self.name = name
        self._batch_size = batch_size
        self._cache = EmbeddingCache() if cache else None
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

    def fit(self, texts: Sequence[str]) -> None:  # noqa: B027
        """Nothing to learn: the model is trained."""

    def stop_caching(self) -> None:
        """Write nothing more to the disk: what a service is asked is nobody else's business."""
        self._cache = None

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """Unit rows, shape (len(texts), d)."""
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        known = self._cache.get(self.fingerprint, texts) if self._cache else {}
        if progress and known:
            progress(sum(t in known for t in texts))
        # Longest first keeps batches of like length together; slices bound what an interrupt can lose.
        todo = sorted(dict.fromkeys(t for t in texts if t not in known), key=len, reverse=True)
        step = 8 * self._batch_size
        for first in range(0, len(todo), step):
            part = todo[first : first + step]
            with self._lock:
                fresh = dict(zip(part, unit(self._embed(part)), strict=True))
            known.update(fresh)
            if self._cache:
                self._cache.put(self.fingerprint, fresh)
            if progress:
                progress(len(part))
        return np.stack([known[t] for t in texts]).astype(np.float32)

    def save(self, folder: Path) -> None:  # noqa: B027
        """The model is found again by name; nothing is copied."""
