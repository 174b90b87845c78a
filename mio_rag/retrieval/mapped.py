"""Vectors that stay on disk: the file of an index is read piece by piece for every question.

No more than a piece of it is in memory at a time, and FAISS is not loaded. What the system keeps of the file
while memory is free makes repeated questions quick; it gives that memory up whenever something else needs it.

Layout of the files: FAISS 1.7 to 1.13, `faiss/impl/index_write.cpp`, of a flat inner-product index ("IxFI")
and of a scalar quantizer with a byte for each dimension ("IxSQ"). Whatever else a file holds is left to
FAISS.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MappedVectors", "forget", "open_vectors", "stored_array"]

_HEADER = struct.Struct("<4siqqqBi")  # kind, dimensions, rows, two unused, trained, metric
_QUANTIZER = struct.Struct("<iifQQ")  # type, range, its argument, dimensions, bytes of a code
_SIZE = struct.Struct("<Q")
_NAMES_AT = 26  # in the head of a member of a zip file: the lengths of its name and of more
_INNER_PRODUCT, _BYTE = 0, 0  # FAISS's numbers of the metric, and of QT_8bit
_PIECE = 1 << 20  # numbers that are looked at together
_AT_ONCE = 32  # rows that are read one by one before memory is given back
_LEVELS = 255.0


def open_vectors(path: Path) -> MappedVectors | None:
    """The vectors of an index file; None where it holds them in a form that only FAISS reads.

    Raises
    ------
    OSError
        If the file cannot be read.
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
        return MappedVectors(path, start, (count, width), low, span)


def _size(told: bytes) -> int:
    return int(_SIZE.unpack(told[-_SIZE.size :])[0])


def stored_array(path: Path, name: str) -> NDArray[Any] | None:
    """An array of an .npz file, left on disk; None where it is compressed there.

    Raises
    ------
    OSError, ValueError, KeyError
        If the file cannot be read, or has no such array.
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


def forget(*arrays: NDArray[Any]) -> None:
    """Give back the memory of arrays that lie on disk; they stay in their files. Others are left alone."""
    for array in arrays:
        held = getattr(array, "_mmap", None) if isinstance(array, np.memmap) else None
        if held is not None and hasattr(mmap, "MADV_DONTNEED"):
            held.madvise(mmap.MADV_DONTNEED)


class MappedVectors:
    """Rows of a file, in the place of the FAISS index that wrote them.

    Parameters
    ----------
    path : Path
        It must not change while it is open.
    start : int
        Where the rows begin.
    shape : (int, int)
        Rows and dimensions.
    low, span : arrays, shape (d,), or None
        Of codes of a byte: a code c stands for low + span * (c + 1/2) / 255. None: rows are float32.
    """

    def __init__(
        self,
        path: Path,
        start: int,
        shape: tuple[int, int],
        low: NDArray[np.float32] | None,
        span: NDArray[np.float32] | None,
    ) -> None:
        self.path, self._start = path, start
        self.ntotal, self.d = shape
        self._low, self._span = low, span
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        kind = np.float32 if low is None else np.uint8
        self._rows = np.frombuffer(self._map, dtype=kind, count=shape[0] * shape[1], offset=start)
        self._rows = self._rows.reshape(shape)

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
        step = max(1, _PIECE // self.d)
        piece = np.empty((min(step, self.ntotal), self.d), dtype=np.float32)
        for first in range(0, self.ntotal, step):
            last = min(first + step, self.ntotal)
            np.copyto(piece[: last - first], self._rows[first:last])
            products[first:last] = piece[: last - first] @ weights.T
            self._forget(first, last)
        products += constant
        k = min(k, self.ntotal)
        rows = np.argpartition(-products, k - 1, axis=0)[:k].T
        scores = np.take_along_axis(products.T, rows, axis=1)
        order = np.lexsort((rows, -scores), axis=1)
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def reconstruct_batch(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of some rows, shape (len(rows), d)."""
        found = np.empty((len(rows), self.d), dtype=np.float32)
        for first in range(0, len(rows), _AT_ONCE):  # the system reads more than each row
            found[first : first + _AT_ONCE] = self._rows[rows[first : first + _AT_ONCE]]
            self._forget(0, self.ntotal)
        if self._low is None or self._span is None:
            return found
        return np.asarray(self._low + self._span * ((found + np.float32(0.5)) / np.float32(_LEVELS)))

    def _forget(self, first: int, last: int) -> None:
        """Give back the memory of rows that were read; they stay in the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            bytes_each = self._rows.itemsize * self.d
            page = mmap.PAGESIZE
            begin = (self._start + first * bytes_each) // page * page
            self._map.madvise(mmap.MADV_DONTNEED, begin, self._start + last * bytes_each - begin)
