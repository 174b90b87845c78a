"""Words as numbers of 64 bits, found in many texts at once.

The hash of a word is a polynomial in its bytes, modulo 2^64, stirred. So the hashes of all words of a text
come from sums over it, without an object for each word.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

HASHED = np.dtype([("hash", "<u8"), ("column", "<i4")])
_BASE, _STIR, _BITS = 0x9E3779B97F4A7C15, 0xFF51AFD7ED558CCD, (1 << 64) - 1
_END = 10  # the byte between words
_APART = re.compile(r"[^\w\x00-\x7f]+")
_WORD_BYTES = bytes(k if k > 127 or chr(k).isalnum() or k in b"_\x01\x02" else _END for k in range(256))
_AT_ONCE = 1 << 18  # bytes
#: Bytes of a character by its first one.
_CHARACTER = np.array([1] * 192 + [2] * 32 + [3] * 16 + [4] * 16, dtype=np.int64)
Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@lru_cache(maxsize=4096)
def word_hash(word: str) -> int:
    """64 bits of a word's hash; another word has the same in 2^-64 of cases."""
    found, power = 0, 1
    for byte in word.encode("utf-8", "surrogatepass"):
        found, power = found + byte * power & _BITS, power * _BASE & _BITS
    found = (found ^ found >> 32) * _STIR & _BITS
    return found ^ found >> 29


def stirred(sums: Hashes) -> Hashes:
    """Sums as hashes, whose leading bits depend on all."""
    mixed = (sums ^ (sums >> np.uint64(32))) * np.uint64(_STIR)
    return mixed ^ (mixed >> np.uint64(29))


def bytes_of(text: str) -> bytes:
    r"""The words of a text, those that `\w+` finds, with at least one byte of 10 between them."""
    return encoded(apart(text))


def apart(text: str) -> str:
    """A text with blanks for what stands between words and is not ASCII."""
    return text if text.isascii() else _APART.sub(" ", text)


def encoded(text: str) -> bytes:
    """`bytes_of` a text that is `apart`."""
    return text.encode("utf-8", "surrogatepass").translate(_WORD_BYTES)


class HashedTexts:
    """The words of some texts.

    pieces: of each text its words, with bytes of 10 between them; see `bytes_of`.

    hashes (words,): of all words, text after text.
    first (texts + 1,): where each text begins among them.
    data, starts: all bytes, and where words begin there.
    single (words,): whether a word has one character alone.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        held = list(pieces)
        text = b"\n" + b"\n".join(held) + b"\n"
        sizes = np.fromiter(map(len, held), dtype=np.int64, count=len(held))
        offsets = np.concatenate([[0], np.cumsum(sizes + 1)])
        self.data = np.frombuffer(text, dtype=np.uint8)
        inside = self.data != _END
        edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
        self.starts, ends = edges[::2], edges[1::2]
        self.hashes = np.empty(len(self.starts), dtype=np.uint64)
        at = 0  # block after block, so that sums stay close at hand
        while at < len(self.starts):
            begin = int(self.starts[at])
            last = max(at + 1, int(np.searchsorted(ends, begin + _AT_ONCE)))
            powers, inverse = _powers(max(_AT_ONCE, 1 << int(ends[last - 1] - begin).bit_length()))
            sums = np.zeros(int(ends[last - 1]) - begin + 1, dtype=np.uint64)
            np.cumsum(self.data[begin : begin + len(sums) - 1] * powers[: len(sums) - 1], out=sums[1:])
            a, b = self.starts[at:last] - begin, ends[at:last] - begin
            self.hashes[at:last] = stirred((sums[b] - sums[a]) * inverse[a])
            at = last
        self.first = np.searchsorted(self.starts, offsets + 1)
        self.single = ends - self.starts == _CHARACTER[self.data[self.starts]]

    @property
    def owners(self) -> Integers:
        """The text of each word."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


@cache
def _powers(size: int) -> tuple[Hashes, Hashes]:
    one, back = np.full(size, _BASE, dtype=np.uint64), np.full(size, pow(_BASE, -1, 1 << 64), dtype=np.uint64)
    one[0] = back[0] = 1
    return np.multiply.accumulate(one), np.multiply.accumulate(back)


class HashedWords:
    """Columns by the hashes of words; a word that is not there is mistaken for one in 2^64 / words cases."""

    def __init__(self, table: NDArray[Any]) -> None:
        if table.dtype != HASHED:
            raise ValueError("the words of the lexical index are not those of this format")
        self.table = np.asarray(table)  # parts of a mapped one take ten times as long
        self._hashes = self.table["hash"]

    @classmethod
    def of(cls, columns: Mapping[str, int]) -> HashedWords:
        """The table of words and their columns."""
        table = np.array([(word_hash(word), column) for word, column in columns.items()], dtype=HASHED)
        return cls(np.sort(table, order="hash"))

    def get(self, word: str) -> int | None:
        """The column of a word; None where there is none."""
        return self.column(np.uint64(word_hash(word)))

    def column(self, wanted: np.uint64) -> int | None:
        """The column of a word by its hash."""
        place = bisect_left(self._hashes, wanted)  # np.searchsorted copies what is not contiguous
        if place == len(self._hashes) or self._hashes[place] != wanted:
            return None
        return int(self.table["column"][place])
