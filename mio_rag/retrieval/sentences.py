"""The sentences of an index: where they lie in its passages, and their vectors.

A sentence is embedded without the title of its passage, which its neighbours share. Vectors are kept in half
precision; a cosine is off by less than .001.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import IndexFormatError, InputError
from mio_rag.retrieval.cached import Progress
from mio_rag.retrieval.embedders import Embedder
from mio_rag.sentences import Sentences, sentence_spans
from mio_rag.types import Passage

SENTENCES_FILE = "sentences.npz"
VECTORS_FILE = "sentences.npy"


@dataclass(frozen=True, eq=False)
class SentenceIndex:
    """The sentences of the passages of an index.

    Parameters
    ----------
    first : ndarray of int64, shape (n + 1,)
        Row of the first sentence of each passage, and the number of all.
    spans : ndarray of int64, shape (m, 2)
        Characters [start, end) in the passage's text.
    vectors : ndarray of float16, shape (m, d)
    """

    first: NDArray[np.int64]
    spans: NDArray[np.int64]
    vectors: NDArray[np.float16]

    @classmethod
    def build(
        cls, passages: Sequence[Passage], embedder: Embedder, progress: Progress | None = None
    ) -> SentenceIndex:
        """Cut and embed the sentences of passages.

        Parameters
        ----------
        embedder : Embedder
            That of the passages, fitted.
        progress : callable, optional
            Called with the number of sentences just embedded.

        Raises
        ------
        InputError
            If the embedder returns vectors of a wrong shape, or NaN.
        """
        spans = [sentence_spans(passage.text, wrapped=True) for passage in passages]
        texts = [p.text[a:b] for p, found in zip(passages, spans, strict=True) for a, b in found]
        place = {text: k for k, text in enumerate(dict.fromkeys(texts))}  # windows that overlap share many
        distinct = np.asarray(embedder.encode(list(place), progress), dtype=np.float16)
        if distinct.ndim != 2 or len(distinct) != len(place) or not np.isfinite(distinct).all():
            raise InputError(
                f"embedder '{embedder.name}' returned shape {distinct.shape} for {len(place)} sentences, or "
                "NaN: it must return a finite row for each"
            )
        if progress:
            progress(len(texts) - len(place))
        vectors = distinct[[place[text] for text in texts]]
        first = np.cumsum([0, *map(len, spans)], dtype=np.int64)
        flat = np.array([span for found in spans for span in found], dtype=np.int64).reshape(-1, 2)
        return cls(first, flat, vectors)

    def __len__(self) -> int:
        return len(self.spans)

    def of(self, rows: Sequence[int]) -> Sentences:
        """The sentences of the given passages, by their places in `rows`."""
        chosen = np.asarray(rows, dtype=np.int64)
        counts = self.first[chosen + 1] - self.first[chosen]
        owners = np.repeat(np.arange(chosen.size), counts)
        within = np.arange(owners.size) - np.repeat(np.cumsum(counts) - counts, counts)
        at = self.first[chosen][owners] + within
        return Sentences(owners, self.spans[at], self.vectors[at].astype(np.float32))

    def save(self, folder: Path) -> None:
        """Write `SENTENCES_FILE` and `VECTORS_FILE`."""
        with (folder / SENTENCES_FILE).open("wb") as file:
            np.savez_compressed(file, first=self.first, spans=self.spans)
        with (folder / VECTORS_FILE).open("wb") as file:
            np.save(file, self.vectors)

    @classmethod
    def load(
        cls, folder: Path, passages: int, dimensions: int, *, mapped: bool = False
    ) -> SentenceIndex | None:
        """What `save` wrote; None where the index was built without sentences.

        Parameters
        ----------
        mapped : bool
            Leave the vectors on disk.

        Raises
        ------
        IndexFormatError
            If it belongs to other passages, or cannot be read.
        """
        path = folder / SENTENCES_FILE
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as data:
                first, spans = data["first"].astype(np.int64), data["spans"].astype(np.int64)
            path = folder / VECTORS_FILE
            vectors = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IndexFormatError(f"'{path}' cannot be read ({error}): build the index again") from error
        m = len(spans)
        fit = first.shape == (passages + 1,) and spans.shape == (m, 2) and vectors.shape == (m, dimensions)
        if not fit or first[0] != 0 or first[-1] != m or np.any(np.diff(first) < 0):
            raise IndexFormatError(f"'{path}' does not fit the index's passages: build the index again")
        return cls(first, spans, vectors)
