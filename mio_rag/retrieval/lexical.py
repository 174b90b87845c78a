"""The lexical index: what BM25 gives passages for the words of a question.

The scores are those of Lucene, as the library bm25s gives them. They are worked out when a question comes,
from counts that may stay on disk; the best passages are found without a look at most of those that have
frequent words alone.

    terms.npz     the words by their hashes; for each the passages that have it and how often; lengths
    params.json   k1 and b, and the languages where they are others than English
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.retrieval.hashed import HASHED, HashedTexts, HashedWords, bytes_of, word_hash
from mio_rag.retrieval.vectors import load_arrays
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
_ARRAYS = ("words", "indptr", "rows", "counts", "lengths")
_TERMS, _PARAMETERS = "terms.npz", "params.json"
_K1, _B = 1.5, 0.75
_AT_ONCE = 1 << 14  # texts whose words are counted together
_ROUNDED = 1e-4  # of a score, which sums in single precision may be off by


def words_of(text: str) -> list[str]:
    """The words of a text, of two characters or more, in lower case, without stop words."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


class LexicalIndex:
    """BM25 over the passages of a corpus.

    arrays: "words": hash and column of each word, by hash. "indptr", "rows", "counts": for each column the
        passages that have the word, ascending, and how often. "lengths": words of each passage.
    parameters: k1 and b; ``languages``: those of `Words`; absent where `words_of` finds the words.

    Raises `ValueError` if the arrays do not fit together.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]], parameters: Mapping[str, Any]) -> None:
        languages = parameters.get("languages")
        self.words: Callable[[str], list[str]] = words_of if languages is None else Words(languages)
        self._arrays, self._parameters = arrays, dict(parameters)
        # Plain arrays, of which parts are taken in a tenth of the time of mapped ones.
        self._indptr, self._rows, self._counts = map(np.asarray, (arrays[name] for name in _ARRAYS[1:4]))
        self._columns, lengths = HashedWords(arrays["words"]), arrays["lengths"]
        if not len(self._rows) == len(self._counts) == self._indptr[-1] or not len(lengths):
            raise ValueError("the parts of the lexical index do not fit together")
        self._damping = _K1 * ((1 - _B) + _B * lengths / lengths.mean())

    @classmethod
    def build(cls, texts: Sequence[str]) -> LexicalIndex:
        """Index texts; at least one. Those in other languages than English are cut and stemmed by `Words`."""
        foreign = Words.foreign(texts)
        stop = np.array([word_hash(word) for word in STOP_WORDS], dtype=np.uint64)
        lengths, parts = np.empty(len(texts), dtype=np.int32), []
        for begin in range(0, len(texts), _AT_ONCE):
            some = texts[begin : begin + _AT_ONCE]
            if foreign is None:
                found = HashedTexts(bytes_of(text.lower()) for text in some)
            else:
                found = HashedTexts("\n".join(foreign(text)).encode("utf-8", "replace") for text in some)
            order = np.argsort(found.hashes, kind="stable")  # the faster one
            hashes = found.hashes[order]
            new = np.diff(hashes, prepend=hashes[:1] ^ np.uint64(1)) != 0
            words, group = hashes[new], np.cumsum(new) - 1
            kept = np.ones(len(words), dtype=bool)
            if foreign is None:
                kept = ~np.isin(words, stop)
                kept[group[found.single[order]]] = False
            inside = kept[group]
            keys = (np.cumsum(kept) - 1)[group[inside]] * len(some) + found.owners[order[inside]]
            keys, counts = distinct(keys)
            group, row = np.divmod(keys, len(some))
            lengths[begin : begin + len(some)] = np.bincount(row, counts, len(some))
            df = np.bincount(group, minlength=int(kept.sum()))
            kind = np.min_scalar_type(int(counts.max(initial=1)))
            parts.append((words[kept], df, (row + begin).astype(np.int32), counts.astype(kind)))
        arrays = _merged(parts) | {"lengths": np.maximum(lengths, 1)}  # a text may have stop words alone
        languages = {} if foreign is None else {"languages": list(foreign.languages)}
        return cls(arrays, {"k1": _K1, "b": _B} | languages)

    def __len__(self) -> int:
        return len(self._damping)

    def scores(self, question: str) -> NDArray[np.float64]:
        """The score of every passage, shape (n,), >= 0; all 0 where no passage shares a word."""
        found = np.zeros(len(self), dtype=np.float32)
        for column in self._asked(question):
            rows, scores = self._scored(column)
            found[rows] += scores
        return found.astype(np.float64)

    def holding(self, word: str) -> int:
        """How many passages have a word."""
        column = self._columns.get(word)
        return 0 if column is None else self._df(column)

    def of(self, question: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The scores of some passages, as `scores` gives them."""
        found, sought = np.zeros(len(rows), dtype=np.float32), rows.astype(np.int32)
        for column in self._asked(question):
            listed = self._rows[self._part(column)]
            place = np.minimum(listed.searchsorted(sought), len(listed) - 1)
            hit = np.flatnonzero(listed[place] == sought)
            found[hit] += self._scored(column, place[hit])[1]
        return found.astype(np.float64)

    def best(self, question: str, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The k passages of best score above 0, best first, of equal ones the first; and the scores.

        Turtle and Flood, Query evaluation: strategies and optimizations, IPM 31(6), 1995 (MaxScore): the
        rarest words are looked at first; words whose scores together lift no passage among the best bring no
        passages.
        """
        times = Counter(self._asked(question))
        rarest = sorted(times, key=lambda column: self._df(column))
        left, least = sum(times[column] * float(self._weight(column)) for column in rarest), 0.0
        found = np.zeros(len(self), dtype=np.float32)
        for column in rarest:
            if left < least:
                break
            listed, scores = self._scored(column)
            found[listed] += scores * times[column]
            left -= times[column] * float(self._weight(column))
            if (more := len(listed) - k) >= 0:
                least = max(least, float(np.partition(found[listed], more)[more]) * (1 - _ROUNDED))
        rows = np.flatnonzero(found)
        rows = rows[found[rows] * (1 + _ROUNDED) + max(0.0, left) >= least]
        exact = self.of(question, rows)
        best = best_rows(exact, k)
        return rows[best], exact[best]

    def _asked(self, question: str) -> list[int]:
        """The columns of the words of a question, as often as they stand there."""
        found = (self._columns.get(word) for word in self.words(question))
        return [column for column in found if column is not None]

    def _part(self, column: int) -> slice:
        return slice(int(self._indptr[column]), int(self._indptr[column + 1]))

    def _df(self, column: int) -> int:
        return int(self._indptr[column + 1] - self._indptr[column])

    def _weight(self, column: int) -> np.float32:
        """The weight of a rare word, which its scores stay below."""
        df = self._df(column)
        return np.float32(np.log(1 + (len(self) - df + 0.5) / (df + 0.5)))

    def _scored(
        self, column: int, places: NDArray[Any] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The passages that have a word, or some of them by their places, and their scores."""
        rows, counts = self._rows[self._part(column)], self._counts[self._part(column)]
        if places is not None:
            rows, counts = rows[places], counts[places]
        tf = counts.astype(np.float32)
        return rows, (self._weight(column) * (tf / (self._damping[rows] + tf))).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write the files."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _TERMS).open("wb") as file:
            np.savez(file, **self._arrays)  # type: ignore[arg-type]
        (folder / _PARAMETERS).write_text(json.dumps(self._parameters, indent=4), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, *, mapped: bool = False) -> LexicalIndex:
        """Read what `save` wrote.

        mapped: leave words and counts on disk.

        Raises `OSError, ValueError, KeyError, TypeError` if it cannot be read, or does not fit together.
        """
        parameters = json.loads((folder / _PARAMETERS).read_text(encoding="utf-8"))
        return cls(load_arrays(folder / _TERMS, _ARRAYS, () if not mapped else _ARRAYS[:4]), parameters)


def _merged(parts: Sequence[tuple[NDArray[Any], ...]]) -> dict[str, NDArray[Any]]:
    """One table of the words of several parts of a corpus: of their words, df, rows and counts."""
    words = np.unique(np.concatenate([part[0] for part in parts]))
    columns = [np.searchsorted(words, part[0]) for part in parts]
    sizes = np.zeros(len(words), dtype=np.int64)
    for column, (_, df, _, _) in zip(columns, parts, strict=True):
        sizes[column] += df
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.empty(int(indptr[-1]), dtype=np.int32)
    counts = np.empty(len(rows), dtype=np.result_type(*(part[3] for part in parts)))
    free = indptr[:-1].copy()  # where the next passage of each word goes
    for column, (_, df, own, often) in zip(columns, parts, strict=True):
        place = np.repeat(free[column] - np.cumsum(df) + df, df) + np.arange(len(own))
        rows[place], counts[place] = own, often
        free[column] += df
    table = np.empty(len(words), dtype=HASHED)
    table["hash"], table["column"] = words, np.arange(len(words))
    return {"words": table, "indptr": indptr, "rows": rows, "counts": counts}


def best_rows(scores: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """The k rows of best score above 0, best first; of equal ones the first."""
    rows = np.flatnonzero(scores > 0)
    if rows.size > 4 * k:
        least = np.partition(scores[rows], rows.size - k)[rows.size - k]
        rows = rows[scores[rows] >= least]
    return rows[np.argsort(-scores[rows], kind="stable")][:k]


def distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct numbers, ascending, and how often each occurs; `keys` is sorted."""
    keys.sort()
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: keys.size])
    return keys[first], np.diff(np.append(first, keys.size))
