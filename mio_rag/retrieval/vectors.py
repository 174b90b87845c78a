"""Vectors in fewer bytes, and vectors and passages that stay on disk.

    exact    float32, 4 bytes a dimension
    8bit     a scalar quantizer, 1 byte a dimension
    pq       a product quantizer, 1 byte for every 4 dimensions

Compressed vectors stand in for the exact ones everywhere: in the search, in redundancy and in features. What
they cost in recall `python -m benchmarks edge` measures.

A mapped file is read piece by piece for every question, without FAISS. Layout: FAISS 1.7 to 1.13,
`faiss/impl/index_write.cpp`, of a flat inner-product index ("IxFI") and of a scalar quantizer with a byte for
each dimension ("IxSQ"). Whatever else a file holds is left to FAISS.
"""

from __future__ import annotations

import json
import mmap
import struct
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import IndexFormatError, InputError, choose, require
from mio_rag.types import Passage

_HEADER = struct.Struct("<4siqqqBi")  # kind, dimensions, rows, two unused, trained, metric
_QUANTIZER = struct.Struct("<iifQQ")  # type, range, its argument, dimensions, bytes of a code
_SIZE = struct.Struct("<Q")
_NAMES_AT = 26  # in the head of a member of a zip file: the lengths of its name and of more
_INNER_PRODUCT, _BYTE = 0, 0  # FAISS's numbers of the metric, and of QT_8bit
_BYTES_AT_ONCE = 1 << 20  # numbers that are looked at together
_AT_ONCE = 32  # rows that are read one by one before memory is given back
_LEVELS = 255.0


def open_vectors(path: Path, mapped: bool = True, gives_back: bool = True) -> MappedVectors | None:
    """The vectors of an index file, in memory or on disk; None where only FAISS reads their form.

    gives_back: whether the memory of what was read on disk is given back.

    Raises `OSError` if the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return None
        kind, width, count, _, _, trained, metric = _HEADER.unpack(head)
        if not trained or metric != _INNER_PRODUCT or width < 1 or count < 1:
            return None
        low = span = None
        if kind == b"IxSQ":
            told = file.read(_QUANTIZER.size + _SIZE.size)
            if len(told) < _QUANTIZER.size + _SIZE.size:
                return None
            quantizer, _, _, dimensions, code = _QUANTIZER.unpack(told[: _QUANTIZER.size])
            if (quantizer, dimensions, code) != (_BYTE, width, width) or _size(told) != 2 * width:
                return None
            learned = file.read(8 * width)
            if len(learned) < 8 * width:
                return None
            low, span = np.frombuffer(learned, dtype="<f4").astype(np.float32).reshape(2, -1)
        elif kind != b"IxFI":
            return None
        told, start = file.read(_SIZE.size), file.tell()
        bytes_each = 4 if low is None else 1
        if (
            len(told) < _SIZE.size
            or _size(told) != count * width
            or size - start != count * width * bytes_each
        ):
            return None
    kind, shape = np.float32 if low is None else np.uint8, (count, width)
    with path.open("rb") as file:
        head = file.read(start)
        rows: NDArray[Any]
        if mapped:
            rows = np.memmap(path, kind, "r", start, shape)
        else:
            rows = np.fromfile(file, kind, count * width).reshape(shape)
    return MappedVectors(rows, head, low, span, mapped and gives_back)


def _size(told: bytes) -> int:
    return int(_SIZE.unpack(told[-_SIZE.size :])[0])


def stored_array(path: Path, name: str) -> NDArray[Any] | None:
    """An array of an .npz file, left on disk; None where it is compressed there.

    Raises `OSError, ValueError, KeyError` if the file cannot be read, or has no such array.
    """
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
    if member.compress_type != zipfile.ZIP_STORED:
        return None
    with path.open("rb") as file:
        file.seek(member.header_offset + _NAMES_AT)
        names, more = struct.unpack("<HH", file.read(4))
        file.seek(names + more, 1)
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        shape, fortran, kind = np.lib.format.read_array_header_1_0(file)
        place = file.tell()
    if 0 in shape or fortran:
        return None
    return np.memmap(path, kind, "r", place, shape)


def load_arrays(path: Path, names: Sequence[str], on_disk: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz file, some of them left on disk where they can be.

    Raises `OSError, ValueError, KeyError` if the file cannot be read, or lacks one.
    """
    held = {name: stored_array(path, name) for name in on_disk}
    with np.load(path, allow_pickle=False) as data:
        return {name: data[name] if (one := held.get(name)) is None else one for name in names}


def read_arrays(path: Path, *names: str, optional: tuple[str, ...] = ()) -> dict[str, NDArray[Any]] | None:
    """Arrays of an .npz file of an index; None where there is no such file.

    Raises `IndexFormatError` if it cannot be read, or lacks one.
    """
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as data:
            return {name: data[name] for name in (*names, *(one for one in optional if one in data))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IndexFormatError(f"'{path}' cannot be read ({error}): build the index again") from error


def unfit(path: Path) -> IndexFormatError:
    """The error about a file that is of other passages."""
    return IndexFormatError(f"'{path}' does not fit the index's passages: build the index again")


def forget(*arrays: Any) -> None:
    """Give back the memory of arrays that lie on disk; they stay in their files. Others are left alone."""
    for array in arrays:
        held = getattr(array, "_mmap", None) if isinstance(array, np.memmap) else None
        if held is not None and hasattr(mmap, "MADV_DONTNEED"):
            held.madvise(mmap.MADV_DONTNEED)


_KEPT = 1 << 22  # bytes of vectors that stay in memory once they were read


class MappedVectors:
    """Rows of a file, in memory or on disk, as the FAISS index that it is of would give them.

    rows (n, d)
    head: what stands before them in the file.
    low, span (d,): of codes of a byte: a code c stands for low + span * (c + 1/2) / 255. None: rows are
        float32.
    gives_back: whether the memory of what was read is given back.
    """

    def __init__(
        self,
        rows: NDArray[Any] | LayeredRows,
        head: bytes,
        low: NDArray[np.float32] | None = None,
        span: NDArray[np.float32] | None = None,
        gives_back: bool = False,
    ) -> None:
        self.ntotal, self.d = rows.shape
        self._rows, self._head, self._gives_back = rows, head, gives_back
        self._low, self._span = low, span

    @classmethod
    def exact(cls, vectors: NDArray[np.float32] | LayeredRows) -> MappedVectors:
        """Vectors in memory, which are not copied."""
        count, width = vectors.shape
        head = _HEADER.pack(b"IxFI", width, count, 1 << 20, 1 << 20, 1, _INNER_PRODUCT)
        return cls(vectors, head + _SIZE.pack(count * width))

    def save(self, path: Path) -> None:
        """Write the file."""
        with path.open("wb") as file:
            file.write(self._head)
            step = max(1, _BYTES_AT_ONCE // self.d)
            for first in range(0, self.ntotal, step):  # a full disk is noticed
                file.write(self._rows[first : first + step].tobytes())

    @property
    def rows(self) -> NDArray[Any] | LayeredRows:
        """The vectors, or their codes."""
        return self._rows

    @property
    def is_coded(self) -> bool:
        """Whether rows are codes of a byte a dimension."""
        return self._low is not None

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inner products of the k best rows for each query, best first, and these rows; as FAISS."""
        if self._low is None or self._span is None:
            weights, constant = queries, np.zeros(len(queries), dtype=np.float32)
        else:
            weights = queries * (self._span / _LEVELS)
            constant = queries @ (self._low + self._span * (0.5 / _LEVELS))
        products = np.empty((self.ntotal, len(queries)), dtype=np.float32)
        step = max(1, _BYTES_AT_ONCE // self.d)
        piece = np.empty((min(step, self.ntotal), self.d), dtype=np.float32)
        for first in range(0, self.ntotal, step):
            last = min(first + step, self.ntotal)
            rows: NDArray[Any] = self._rows[first:last]
            if self._gives_back or self._low is not None:
                np.copyto(piece[: last - first], rows)
                rows = piece[: last - first]
            products[first:last] = rows @ weights.T
            self._forget()
        products += constant
        k = min(k, self.ntotal)
        found = []
        for column in products.T:
            best = np.argpartition(-column, k - 1)[:k]
            best = best[np.lexsort((best, -column[best]))]
            found.append((column[best], best))
        return np.array([scores for scores, _ in found]), np.array([rows for _, rows in found])

    def reconstruct_batch(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of some rows, shape (len(rows), d)."""
        found = np.empty((len(rows), self.d), dtype=np.float32)
        step = _AT_ONCE if self._gives_back else max(1, len(rows))  # the system reads more than each row
        for first in range(0, len(rows), step):
            found[first : first + step] = self._rows[rows[first : first + step]]
            self._forget()
        if self._low is None or self._span is None:
            return found
        return np.asarray(self._low + self._span * ((found + np.float32(0.5)) / np.float32(_LEVELS)))

    def _forget(self) -> None:
        """Give back the memory of rows that were read, if all take much; they stay in the file."""
        if self._gives_back and self._rows.nbytes > _KEPT:
            forget(self._rows)


class LayeredRows:
    """Rows of two arrays in an order of their own; only those that are asked for are read.

    rows (n,): of the first, and behind them of the second.
    """

    def __init__(self, first: Any, second: Any, rows: NDArray[np.int64]) -> None:
        self._first, self._second, self._rows = first, second, rows
        self.shape, self.dtype = (len(rows), *first.shape[1:]), first.dtype
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> NDArray[Any]:
        rows, size = self._rows[at], len(self._first)
        found = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        inside = rows < size
        found[inside], found[~inside] = self._first[rows[inside]], self._second[rows[~inside] - size]
        return found

    def take(self, at: Any, axis: int = 0) -> NDArray[Any]:
        """Some of the rows."""
        return self[at]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)


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

    vectors (n, d)
    kind ("exact", "8bit", "pq")

    Raises `InputError` for another kind; for "pq" also with fewer than 256 vectors, or dimensions that are no
    multiple of 4.
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

    path: one JSON object a line. It must not change while it is open.

    starts (n + 1,): where lines begin, and the end; looked for by default.
    """

    def __init__(self, path: Path, starts: NDArray[np.int64] | None = None) -> None:
        self._file, self._reading = path.open("rb"), threading.Lock()
        if starts is not None:
            self._starts = starts
            return
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
        return Passage.from_dict(self._row(k % len(self)))

    def __iter__(self) -> Iterator[Passage]:
        return (self[k] for k in range(len(self)))

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


class PassageIds(Sequence[str]):
    """Ids of passages, each read when it is asked for."""

    def __init__(self, passages: Sequence[Passage]) -> None:
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
