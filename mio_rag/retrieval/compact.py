"""Indexes for little memory: vectors in fewer bytes, and texts that stay on disk.

    exact    float32, 4 bytes a dimension
    8bit     a scalar quantizer, 1 byte a dimension
    pq       a product quantizer, 1 byte for every 4 dimensions

Compressed vectors stand in for the exact ones everywhere: in the search, in redundancy and in features. What
they cost in recall `python -m benchmarks edge` measures.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, choose, require
from mio_rag.retrieval.mapped import MappedVectors
from mio_rag.types import Passage

__all__ = ["VECTOR_KINDS", "MappedPassages", "check_vectors", "make_dense", "vectors_kind", "why_not"]

VECTOR_KINDS = ("exact", "8bit", "pq")
_PIECE = 4  # dimensions that share a byte of a product code
_LEAST = 256  # passages that a product quantizer learns from
_CHUNK = 1 << 20


def check_vectors(kind: str) -> None:
    """Raise `InputError` for a kind of vectors that is not known."""
    if kind not in VECTOR_KINDS:
        raise InputError(f"vectors '{kind}' are not known: {choose(kind, VECTOR_KINDS)}")


def why_not(kind: str, count: int, width: int) -> str:
    """Why so many vectors with so many dimensions cannot be held that way; empty where they can."""
    if kind != "pq" or (count >= _LEAST and width % _PIECE == 0):
        return ""
    return (
        f"product codes of {count} vectors with {width} dimensions: they need at least {_LEAST} vectors, and "
        f"a multiple of {_PIECE} dimensions"
    )


def make_dense(vectors: NDArray[np.float32], kind: str = "exact") -> Any:
    """A FAISS inner-product index that holds the vectors.

    Parameters
    ----------
    vectors : ndarray, shape (n, d)
    kind : {"exact", "8bit", "pq"}

    Raises
    ------
    InputError
        For another kind; for "pq" also with fewer than 256 vectors, or dimensions that are no multiple of 4.

    Notes
    -----
    Jégou, Douze and Schmid, Product Quantization for Nearest Neighbor Search, IEEE TPAMI 33(1), 2011.
    """
    check_vectors(kind)
    faiss = require("faiss", "retrieval", "dense retrieval")
    count, width = vectors.shape
    if kind == "exact":
        dense = faiss.IndexFlatIP(width)
    elif kind == "8bit":
        bits = faiss.ScalarQuantizer.QT_8bit
        dense = faiss.IndexScalarQuantizer(width, bits, faiss.METRIC_INNER_PRODUCT)
    else:
        if why := why_not(kind, count, width):
            raise InputError(f"{why}; choose 8bit")
        dense = faiss.IndexPQ(width, width // _PIECE, 8, faiss.METRIC_INNER_PRODUCT)
        dense.pq.cp.min_points_per_centroid = 1  # the warning is ours to give, above
    if not dense.is_trained:
        dense.train(vectors)
    dense.add(vectors)
    return dense


def vectors_kind(dense: Any) -> str:
    """Which of `VECTOR_KINDS` an index of vectors holds, in memory or mapped; of others the name."""
    if isinstance(dense, MappedVectors):
        return "8bit" if dense.is_coded else "exact"
    known = {"IndexFlatIP": "exact", "IndexScalarQuantizer": "8bit", "IndexPQ": "pq"}
    return known.get(type(dense).__name__, type(dense).__name__)


class MappedPassages(Sequence[Passage]):
    """Passages of a file in the layout of an index, read when they are asked for.

    Parameters
    ----------
    path : Path
        One JSON object a line. It must not change while it is open.

    Notes
    -----
    In memory are places alone: 8 bytes a passage.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._reading = path.open("rb"), threading.Lock()
        ends, place = [np.zeros(1, dtype=np.int64)], 0
        while block := self._file.read(_CHUNK):
            data = np.frombuffer(block, dtype=np.uint8)
            ends.append(np.flatnonzero(data == ord("\n")) + (place + 1))
            place += len(block)
        self._starts = np.concatenate(ends)
        if self._starts[-1] != place:  # a last line without its end
            self._starts = np.append(self._starts, place)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _row(self, k: int) -> dict[str, Any]:
        start, end = int(self._starts[k]), int(self._starts[k + 1])
        with self._reading:  # the place in the file is one for all threads
            self._file.seek(start)
            line = self._file.read(end - start)
        row: dict[str, Any] = json.loads(line)
        return row

    @overload
    def __getitem__(self, k: int) -> Passage: ...

    @overload
    def __getitem__(self, k: slice) -> tuple[Passage, ...]: ...

    def __getitem__(self, k: int | slice) -> Passage | tuple[Passage, ...]:
        if isinstance(k, slice):
            return tuple(self[i] for i in range(*k.indices(len(self))))
        if not -len(self) <= k < len(self):
            raise IndexError(k)
        return Passage(**self._row(k % len(self)))

    def __iter__(self) -> Iterator[Passage]:
        return (self[k] for k in range(len(self)))

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the passages, each read when it is asked for."""
        return _Ids(self)

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


class _Ids(Sequence[str]):
    """Ids of passages on disk."""

    def __init__(self, passages: MappedPassages) -> None:
        self._passages = passages

    def __len__(self) -> int:
        return len(self._passages)

    @overload
    def __getitem__(self, k: int) -> str: ...

    @overload
    def __getitem__(self, k: slice) -> tuple[str, ...]: ...

    def __getitem__(self, k: int | slice) -> str | tuple[str, ...]:
        found = self._passages[k]
        return found.id if isinstance(found, Passage) else tuple(p.id for p in found)
