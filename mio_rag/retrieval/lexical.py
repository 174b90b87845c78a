"""The lexical index: what BM25 gives every passage for every word, summed over the words of a question.

The scores are those of Lucene, as the library bm25s gives them. They are worked out when an index is built.

    data, indices, indptr.csc.index.npy    scores and passages, one column for each word
    words.index.npy                        a hash of each word and its column, by hash: a word is found on
                                           disk without reading all
    params.index.json                      number of passages, k1 and b
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mio_rag.retrieval.vectors import forget
from mio_rag.retrieval.words import Words

#: Words that say nothing, as Lucene has them.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there "
        "these they this to was will with",
    )
)
_WORD = re.compile(r"(?u)\b\w\w+\b")
_ARRAYS = {name: f"{name}.csc.index.npy" for name in ("data", "indices", "indptr")}
_HASHES, _PARAMETERS = "words.index.npy", "params.index.json"
HASHED = np.dtype([("hash", "<u8"), ("column", "<i4")])
_K1, _B = 1.5, 0.75
_NO_WORD = "\u2205"  # of a text in which every word is a stop word; no question has it
_FEW = 4096  # texts whose words are hashed only where they are saved


def words_of(text: str) -> list[str]:
    """The words of a text, of two characters or more, in lower case, without stop words."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


class LexicalIndex:
    """BM25 over the passages of a corpus.

    data (k,): score of a word in a passage, column after column.
    indices (k,): the passages of these scores; no passage twice in a column.
    indptr (words + 1,): where the columns begin.
    columns: of the words.
    parameters: ``num_docs`` is the number of passages. ``languages``: those of `Words`; absent where
        `words_of` finds the words.
    """

    def __init__(
        self,
        data: NDArray[np.float32],
        indices: NDArray[Any],
        indptr: NDArray[Any],
        columns: HashedWords | Mapping[str, int],
        parameters: Mapping[str, Any],
    ) -> None:
        languages = parameters.get("languages")
        self.words: Callable[[str], list[str]] = words_of if languages is None else Words(languages)
        self._data, self._indices, self._indptr = data, indices, indptr
        self._columns, self._parameters = columns, dict(parameters)

    @classmethod
    def build(cls, texts: Sequence[str]) -> LexicalIndex:
        """Index texts; at least one. Those in other languages than English are cut and stemmed by `Words`."""
        foreign = Words.foreign(texts)
        words = words_of if foreign is None else foreign
        known: dict[str, int] = {}
        flat, sizes = array("i"), array("i")
        for text in texts:
            found = words(text) or [_NO_WORD]
            flat.extend([known.setdefault(word, len(known)) for word in found])
            sizes.append(len(found))
        n, lengths = len(texts), np.frombuffer(sizes, dtype=np.int32)
        places = np.frombuffer(flat, dtype=np.int32).astype(np.int64) * n + np.repeat(np.arange(n), lengths)
        places, counts = np.unique(places, return_counts=True)
        column, row = np.divmod(places, n)
        df = np.bincount(column)
        idf = np.log(1 + (n - df + 0.5) / (df + 0.5)).astype(np.float32)
        damping = _K1 * ((1 - _B) + _B * lengths / lengths.mean())
        tf = counts.astype(np.float32)
        return cls(
            (idf[column] * (tf / (damping[row] + tf))).astype(np.float32),
            row.astype(np.int32),
            np.concatenate([[0], np.cumsum(df)]),
            known if n <= _FEW else HashedWords.of(known),
            {"k1": _K1, "b": _B, "num_docs": n}
            | ({} if foreign is None else {"languages": list(foreign.languages)}),
        )

    def __len__(self) -> int:
        return int(self._parameters["num_docs"])

    def scores(self, question: str) -> NDArray[np.float64]:
        """The score of every passage, shape (n,), >= 0; all 0 where no passage shares a word."""
        found = np.zeros(len(self), dtype=np.float32)
        for word in self.words(question):
            column = self._columns.get(word)
            if column is not None:
                part = slice(int(self._indptr[column]), int(self._indptr[column + 1]))
                found[self._indices[part]] += self._data[part]
                forget(self._indices, self._data)
        return found.astype(np.float64)

    def holding(self, word: str) -> int:
        """How many passages have a word."""
        column = self._columns.get(word)
        return 0 if column is None else int(self._indptr[column + 1] - self._indptr[column])

    def save(self, folder: Path) -> None:
        """Write the files."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in _ARRAYS.items():
            np.save(folder / file, getattr(self, f"_{name}"), allow_pickle=False)
        words = self._columns if isinstance(self._columns, HashedWords) else HashedWords.of(self._columns)
        np.save(folder / _HASHES, words.table, allow_pickle=False)
        (folder / _PARAMETERS).write_text(json.dumps(self._parameters, indent=4), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, *, mapped: bool = False) -> LexicalIndex:
        """Read what `save` wrote.

        mapped: leave scores and words on disk.

        Raises `OSError, ValueError, KeyError, TypeError` if it cannot be read, or does not fit together.
        """
        mode: Literal["r"] | None = "r" if mapped else None
        data, indices, indptr = (np.load(folder / file, mmap_mode=mode) for file in _ARRAYS.values())
        parameters = json.loads((folder / _PARAMETERS).read_text(encoding="utf-8"))
        if len(data) != len(indices) or indptr[-1] != len(data) or int(parameters["num_docs"]) < 1:
            raise ValueError("the parts of the lexical index do not fit together")
        columns = HashedWords(np.load(folder / _HASHES, mmap_mode=mode))
        return cls(data, indices, indptr, columns, parameters)


class HashedWords:
    """Columns by the hashes of words; a word that is not there is mistaken for one in 2^64 / words cases."""

    def __init__(self, table: NDArray[Any]) -> None:
        if table.dtype != HASHED:
            raise ValueError("the words of the lexical index are not those of this format")
        self.table = table

    @classmethod
    def of(cls, columns: Mapping[str, int]) -> HashedWords:
        """The table of words and their columns."""
        table = np.array([(word_hash(word), column) for word, column in columns.items()], dtype=HASHED)
        return cls(np.sort(table, order="hash"))

    def get(self, word: str) -> int | None:
        """The column of a word; None where there is none."""
        hashes, wanted = self.table["hash"], np.uint64(word_hash(word))
        place = bisect_left(hashes, wanted)  # np.searchsorted copies what is not contiguous
        if place == len(hashes) or hashes[place] != wanted:
            return None
        return int(self.table["column"][place])


@lru_cache(maxsize=4096)
def word_hash(word: str) -> int:
    """64 bits of a word's hash; another word has the same in 2^-64 of cases."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
