"""BM25 over documents: of passages and of their units, with the headings above them or without.

One inverted file counts the words of every unit, of what stands between the units of a passage, and of every
context (headings and the lines that a unit needs) once. All scores are worked out from it when a question
comes; none is stored.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.retrieval.hashed import HASHED, HashedWords
from mio_rag.retrieval.lexical import best_rows, distinct
from mio_rag.retrieval.sentences import gathered
from mio_rag.retrieval.texts import between_units, context_of, units_of
from mio_rag.retrieval.vectors import load_arrays
from mio_rag.retrieval.words import Words
from mio_rag.types import Passage

TERMS_FILE, PARAMETERS_FILE = "terms.npz", "terms.json"
_K1, _B = 1.2, 0.75
_MOST = 255  # a count is a byte
_AT_ONCE = 1 << 18  # units whose words are counted together
_ARRAYS = (
    *("words", "indptr", "rows", "counts", "owners", "lengths", "unit_contexts", "passage_contexts"),
    *(_FREQUENCIES := ("df_units", "df_units_bare", "df_passages", "df_passages_bare")),
)


class _Listed(NamedTuple):
    """A word: its rows, counts and "df_..."; units before place a of the rows, contexts from b on."""

    rows: NDArray[np.int32]
    counts: NDArray[np.float64]
    df: dict[str, int]
    a: int
    b: int


class UnitTerms:
    """The words of documents, and what BM25 gives their passages and units for a question.

    words: of the corpus; questions are cut by the same.
    arrays: "words": hash and column of each word, by hash. "indptr", "rows", "counts": for each column the
        rows that have the word, ascending, and how often. Rows are the m units, then the n passages (what
        stands between their units), then the contexts. "owners" (m,): passages of the units. "lengths": words
        of each row. "unit_contexts" (m,), "passage_contexts" (n,): their contexts, from 0. "df_...": in how
        many units and passages each word stands, with their contexts and ("bare") without.

    Raises `ValueError` if the arrays do not fit together.
    """

    def __init__(self, words: Words, arrays: dict[str, NDArray[Any]]) -> None:
        self.words, self._arrays = words, arrays
        self._columns = HashedWords(arrays["words"])
        self._indptr, self._rows, self._counts = map(np.asarray, (arrays[name] for name in _ARRAYS[1:4]))
        self._owners = arrays["owners"]
        self._of_unit, self._of_passage = arrays["unit_contexts"], arrays["passage_contexts"]
        self._m, self._n = len(self._owners), len(self._of_passage)
        lengths = arrays["lengths"]
        if len(self._rows) != len(self._counts) or self._indptr[-1] != len(self._rows):
            raise ValueError("the parts of the index of words do not fit together")
        contexts = lengths[self._m + self._n :]
        units = lengths[: self._m].astype(np.float32)
        passages = np.bincount(self._owners, units, self._n).astype(np.float32)
        passages += lengths[self._m : self._m + self._n]
        self._units = _damping(units), _damping(units + contexts[self._of_unit])
        self._passages = _damping(passages), _damping(passages + contexts[self._of_passage])
        self._df = {name: np.asarray(arrays[name]) for name in _FREQUENCIES if name in arrays}
        self._known: dict[str, list[_Listed]] = {}  # of the last questions, for passages and units
        self._scored: dict[tuple[str, bool], NDArray[np.float64]] = {}  # of the last two

    @classmethod
    def build(
        cls,
        passages: Sequence[Passage],
        words: Words | None = None,
        old: UnitTerms | None = None,
        kept: NDArray[np.int64] | None = None,
    ) -> UnitTerms:
        """Count the words of passages; at least one.

        words: those for the languages of the passages by default.
        old, kept (n,): of an earlier state of the corpus: the row that each passage had there, -1 for new
            ones. Counted anew where the corpus is in other languages now.
        """
        words = words or Words.of([passage.text for passage in passages])
        if old is not None and kept is not None and old.words.languages == words.languages:
            new = [passages[k] for k in np.flatnonzero(kept < 0).tolist()]
            return old._with(cls.build(new, words) if new else None, kept)
        columns: dict[str, int] = {}
        contexts: dict[str, int] = {}
        flat, lengths = array("i"), array("i")

        def add(text: str) -> None:
            found = words(text)
            flat.extend([columns.setdefault(word, len(columns)) for word in found])
            lengths.append(len(found))

        owners, of_unit, of_passage = array("i"), array("i"), array("i")
        for k, passage in enumerate(passages):
            needed: set[int] = set()
            for unit in units_of(passage):
                add(passage.text[unit.start : unit.end])
                owners.append(k)
                of_unit.append(contexts.setdefault(context_of(passage, unit.needs), len(contexts)))
                needed.update(unit.needs)
            around = context_of(passage, sorted(needed), outside=True)
            of_passage.append(contexts.setdefault(around, len(contexts)))
        for passage in passages:
            add(between_units(passage) if passage.units else "")
        for context in contexts:
            add(context)
        size, count = len(columns), np.frombuffer(lengths, dtype=np.int32)
        row = np.repeat(np.arange(count.size, dtype=np.int64), count)
        keys, counts = distinct(np.frombuffer(flat, dtype=np.int32).astype(np.int64) * count.size + row)
        arrays: dict[str, NDArray[Any]] = {
            "indptr": np.searchsorted(keys, np.arange(size + 1) * count.size),
            "rows": (keys % count.size).astype(np.int32),
            "counts": np.minimum(counts, _MOST).astype(np.uint8),
            "lengths": count.copy(),
            "owners": np.frombuffer(owners, dtype=np.int32).copy(),
            "unit_contexts": np.frombuffer(of_unit, dtype=np.int32).copy(),
            "passage_contexts": np.frombuffer(of_passage, dtype=np.int32).copy(),
        }
        arrays["words"] = HashedWords.of(columns).table
        return cls(words, arrays | _document_frequencies(arrays, size))

    def _with(self, fresh: UnitTerms | None, kept: NDArray[np.int64]) -> UnitTerms:
        """The words of passages that are kept, and of new ones."""
        arrays, places = self._placed(fresh, kept)
        total, table, keys, counts = len(arrays["lengths"]), self._arrays["words"], [], []
        for k, (part, place) in enumerate(zip((self, fresh), places, strict=False)):
            assert part is not None
            columns = np.repeat(np.arange(len(part._indptr) - 1), np.diff(part._indptr))
            if k:
                table, joined = _joined_words(table, part._arrays["words"], len(self._indptr) - 1)
                columns = joined[columns]
            rows = place[np.asarray(part._rows)].astype(np.int64)
            keys.append((columns * total + rows)[rows >= 0])
            counts.append(np.asarray(part._counts)[rows >= 0])
        key = np.concatenate(keys)
        order = np.argsort(key, kind="stable")
        key = key[order]
        used, column = np.unique(key // total, return_inverse=True)  # no text has the others any more
        table = table[np.isin(table["column"], used)]
        table["column"] = np.searchsorted(used, table["column"])
        arrays |= {
            "words": table,
            "indptr": np.searchsorted(column, np.arange(len(used) + 1)),
            "rows": (key % total).astype(np.int32),
            "counts": np.concatenate(counts)[order],
        }
        return UnitTerms(self.words, arrays | _document_frequencies(arrays, len(used)))

    def _placed(
        self, fresh: UnitTerms | None, kept: NDArray[np.int64]
    ) -> tuple[dict[str, NDArray[Any]], list[NDArray[np.int32]]]:
        """The rows of passages that are kept, and of new ones: their owners, lengths and contexts, and where
        each row of either part stands among them, -1 for those that are gone."""
        parts = [self] if fresh is None else [self, fresh]
        firsts = [np.searchsorted(part._owners, np.arange(part._n + 1)) for part in (self, fresh or self)]
        units, first = gathered(firsts[0], firsts[1] if fresh else np.zeros(1, dtype=np.int64), kept)
        passages = np.where(kept < 0, self._n + np.cumsum(kept < 0) - 1, kept)
        above = [len(part._arrays["lengths"]) - part._m - part._n for part in parts]  # contexts
        of_unit, of_passage = (
            np.concatenate([part._arrays[name] + k * above[0] for k, part in enumerate(parts)])[rows]
            for name, rows in (("unit_contexts", units), ("passage_contexts", passages))
        )
        used = np.zeros(sum(above), dtype=bool)
        used[of_unit] = used[of_passage] = True
        contexts = np.flatnonzero(used)
        places: list[list[NDArray[np.int32]]] = [[] for _ in parts]
        lengths, begin = [], 0
        for kind, rows in enumerate((units, passages, contexts)):
            sizes = [(part._m, part._n, one)[kind] for part, one in zip(parts, above, strict=True)]
            place = np.full(sum(sizes), -1, dtype=np.int32)
            place[rows] = begin + np.arange(len(rows))
            begin += len(rows)
            starts = [(0, part._m, part._m + part._n)[kind] for part in parts]
            found = [p._arrays["lengths"][a : a + n] for p, a, n in zip(parts, starts, sizes, strict=True)]
            lengths.append(np.concatenate(found)[rows])
            for k, one in enumerate(np.split(place, np.cumsum(sizes)[:-1])):
                places[k].append(one)
        number = np.cumsum(used) - 1
        arrays: dict[str, NDArray[Any]] = {
            "lengths": np.concatenate(lengths).astype(np.int32),
            "owners": np.repeat(np.arange(len(kept)), np.diff(first)).astype(np.int32),
            "unit_contexts": number[of_unit].astype(np.int32),
            "passage_contexts": number[of_passage].astype(np.int32),
        }
        return arrays, list(map(np.concatenate, places))

    def __len__(self) -> int:
        return self._n

    @property
    def units(self) -> int:
        """How many units there are."""
        return self._m

    def owners(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """The passages of some units."""
        return np.asarray(self._owners[units], dtype=np.int64)

    def column(self, word: str) -> int | None:
        """The column of a word; None where no text has it."""
        return self._columns.get(word)

    def holding(self, word: str) -> int:
        """How many passages have a word, above them or in them."""
        column = self._columns.get(word)
        return 0 if column is None else int(self._arrays["df_passages"][column])

    def spread(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """In how many groups of passages each word stands, headings above them aside.

        groups (n,): number of each passage's group, from 0.
        """
        inside = np.flatnonzero(self._rows < self._m + self._n)
        rows = self._rows[inside]
        passage = np.where(rows < self._m, self._owners[np.minimum(rows, self._m - 1)], rows - self._m)
        columns = np.searchsorted(self._indptr, inside, side="right") - 1
        pairs, _ = distinct(columns * (int(groups.max()) + 1) + groups[passage])
        return np.bincount(pairs // (int(groups.max()) + 1), minlength=len(self._indptr) - 1)

    def passages_with(self, hashed: np.uint64) -> NDArray[np.int64]:
        """Passages that have a word by its hash, headings above them aside."""
        column = self._columns.column(hashed)
        if column is None:
            return np.zeros(0, dtype=np.int64)
        rows = np.asarray(self._rows[int(self._indptr[column]) : int(self._indptr[column + 1])])
        a, b = self._bounds(rows)
        return np.concatenate([self._owners[rows[:a]], rows[a:b] - self._m]).astype(np.int64)

    def spread_of(self, hashes: NDArray[np.uint64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """`spread` of words by their hashes."""
        table, counts = self._arrays["words"], self.spread(groups)
        at = np.minimum(np.searchsorted(np.ascontiguousarray(table["hash"]), hashes), len(table) - 1)
        return np.where(table["hash"][at] == hashes, counts[table["column"][at]], 0)

    def scores(self, question: str, *, bare: bool = False) -> NDArray[np.float64]:
        """The score of every passage, shape (n,), >= 0; all 0 where no passage shares a word.

        bare: without the headings and lines above passages.
        """
        if (known := self._scored.get((question, bare))) is not None:
            return known
        found = np.zeros(self._n)
        damping = self._passages[0 if bare else 1]
        kind = "df_passages_bare" if bare else "df_passages"
        for rows, counts, df, a, b in self._asked(question):
            tf = np.bincount(self._owners[rows[:a]], counts[:a], self._n).astype(np.float64)
            tf[rows[a:b] - self._m] += counts[a:b]
            if not bare and b < rows.size:
                tf += self._in_contexts(rows[b:], counts[b:])[self._of_passage]
            at = np.flatnonzero(tf)
            found[at] += _bm25(tf[at], damping[at], df[kind], self._n)
        found.flags.writeable = False
        self._scored = {**dict(list(self._scored.items())[-1:]), (question, bare): found}
        return found

    def of_units(self, question: str, units: NDArray[np.int64], *, bare: bool = False) -> NDArray[np.float64]:
        """The score of some units, by their places among all.

        bare: without the headings and lines above units.
        """
        found = np.zeros(len(units))
        damping = self._units[0 if bare else 1]
        own, sought = damping[units], units.astype(np.int32)
        kind = "df_units_bare" if bare else "df_units"
        for rows, counts, df, a, b in self._asked(question):
            tf = np.zeros(len(units))
            if a:
                place = np.minimum(rows[:a].searchsorted(sought), a - 1)
                tf = np.where(rows[place] == sought, counts[place], 0.0)
            if not bare and b < rows.size:
                tf += self._in_contexts(rows[b:], counts[b:])[self._of_unit[units]]
            found += _bm25(tf, own, df[kind], self._m)
        return found

    def best_units(self, question: str, k: int) -> NDArray[np.int64]:
        """The k units of best score, without what stands above them; best first."""
        found, damping = np.zeros(self._m), self._units[0]
        for rows, counts, df, a, _ in self._asked(question):
            at = rows[:a]
            found[at] += _bm25(counts[:a], damping[at], df["df_units_bare"], self._m)
        return best_rows(found, k)

    def _asked(self, question: str) -> list[_Listed]:
        """The words of a question that stand anywhere."""
        if (known := self._known.get(question)) is not None:
            return known
        found = [one for word in self.words.asked(question) if (one := self._listed(word)) is not None]
        self._known = {**dict(list(self._known.items())[-3:]), question: found}
        return found

    def _listed(self, word: str) -> _Listed | None:
        """A word with the rows that have it; None where none has."""
        if (column := self._columns.get(word)) is None:
            return None
        part = slice(int(self._indptr[column]), int(self._indptr[column + 1]))
        rows, counts = np.asarray(self._rows[part]), np.asarray(self._counts[part], dtype=np.float64)
        df = {name: int(self._df[name][column]) for name in _FREQUENCIES}
        return _Listed(rows, counts, df, *self._bounds(rows))

    def _bounds(self, rows: NDArray[np.int32]) -> tuple[int, int]:
        """Where the units end among some rows, and where contexts begin."""
        a, b = rows.searchsorted(np.array([self._m, self._m + self._n], dtype=np.int32)).tolist()
        return a, b

    def _in_contexts(self, rows: NDArray[np.int32], counts: NDArray[np.float64]) -> NDArray[np.float64]:
        found = np.zeros(len(self._arrays["lengths"]) - self._m - self._n)
        found[rows - self._m - self._n] = counts
        return found

    def save(self, folder: Path) -> None:
        """Write `TERMS_FILE` and `PARAMETERS_FILE`."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / TERMS_FILE).open("wb") as file:
            np.savez(file, **self._arrays)  # type: ignore[arg-type]
        told = {"languages": list(self.words.languages)}
        (folder / PARAMETERS_FILE).write_text(json.dumps(told), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, *, mapped: bool = False) -> UnitTerms:
        """Read what `save` wrote.

        mapped: leave words and counts on disk.

        Raises `OSError, ValueError, KeyError, TypeError` if it cannot be read, or does not fit together.
        """
        told = json.loads((folder / PARAMETERS_FILE).read_text(encoding="utf-8"))
        on_disk = [name for name in _ARRAYS if mapped and name not in _SMALL]
        arrays = load_arrays(folder / TERMS_FILE, _ARRAYS, on_disk)
        return cls(Words(told["languages"]), arrays)


class LayeredTerms(UnitTerms):
    """The words of a large index, and of what changed since, joined when a question asks for them.

    first, second: of the large index, and of new passages, in its languages.
    gone: of passages of the first that are no longer there.
    kept (n,): row of each passage in the first, -1 for new ones.
    """

    def __init__(
        self, first: UnitTerms, second: UnitTerms, gone: UnitTerms | None, kept: NDArray[np.int64]
    ) -> None:
        arrays, self._places = first._placed(second, kept)
        none = np.zeros(0, dtype=np.int32)
        empty = {"words": np.zeros(0, dtype=HASHED), "indptr": np.zeros(1, np.int64), "rows": none}
        super().__init__(first.words, arrays | empty | {"counts": none})
        self._first, self._second, self._gone, self._kept = first, second, gone, kept

    def _listed(self, word: str) -> _Listed | None:
        parts = [part._listed(word) for part in (self._first, self._second)]
        found = [(place[one.rows], one) for place, one in zip(self._places, parts, strict=True) if one]
        if not found:
            return None
        rows, counts = (
            np.concatenate([at for at, _ in found]),
            np.concatenate([one.counts for _, one in found]),
        )
        order = np.argsort(rows, kind="stable")[int((rows < 0).sum()) :]
        rows, gone = rows[order], None if self._gone is None else self._gone._listed(word)
        df = {
            name: sum(one.df[name] for _, one in found) - (0 if gone is None else gone.df[name])
            for name in _FREQUENCIES
        }
        return _Listed(rows, counts[order], df, *self._bounds(rows)) if rows.size else None

    def holding(self, word: str) -> int:
        """How many passages have a word, above them or in them."""
        return 0 if (found := self._listed(word)) is None else found.df["df_passages"]

    def _with(self, fresh: UnitTerms | None, kept: NDArray[np.int64]) -> UnitTerms:
        return self._first._with(self._second, self._kept)._with(fresh, kept)

    def save(self, folder: Path) -> None:
        """Write both as one."""
        self._first._with(self._second, self._kept).save(folder)


_SMALL = ("indptr", "owners", "lengths", "unit_contexts", "passage_contexts")


def _bm25(tf: NDArray[np.float64], damping: NDArray[np.float64], df: int, count: int) -> NDArray[np.float64]:
    """Robertson's BM25 of one word with Lucene's weight for rare words."""
    weight = np.log1p((count - df + 0.5) / (df + 0.5)) * (_K1 + 1.0)
    found: NDArray[np.float64] = weight * tf / (tf + damping)
    return found


def _damping(lengths: NDArray[Any]) -> NDArray[np.float64]:
    """What BM25 adds to the count of a word in texts of so many words."""
    mean = max(1.0, float(lengths.mean())) if len(lengths) else 1.0
    return np.asarray(_K1 * (1.0 - _B + _B * lengths / mean), dtype=np.float64)


def _joined_words(
    table: NDArray[Any], more: NDArray[Any], size: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Two tables of words as one, by hash, and the column there of each column of the second."""
    at = np.minimum(np.searchsorted(table["hash"], more["hash"]), max(0, len(table) - 1))
    known = table["hash"][at] == more["hash"] if len(table) else np.zeros(len(more), dtype=bool)
    place = np.empty(len(more), dtype=np.int64)
    place[more["column"][known]] = table["column"][at[known]]
    fresh = more[~known].copy()
    place[fresh["column"]] = size + np.arange(len(fresh))
    fresh["column"] = size + np.arange(len(fresh))
    return np.sort(np.concatenate([table, fresh]), order="hash"), place


def _document_frequencies(arrays: dict[str, NDArray[Any]], size: int) -> dict[str, NDArray[np.int32]]:
    """In how many units and passages each word stands, with what stands above them and without."""
    owners, of_unit, of_passage = (arrays[k] for k in ("owners", "unit_contexts", "passage_contexts"))
    m, n = len(owners), len(of_passage)
    rows = arrays["rows"].astype(np.int64)
    columns = np.repeat(np.arange(size), np.diff(arrays["indptr"]))
    inside, above = rows < m + n, rows >= m + n
    # Contexts as a table: columns of one after those of the other.
    order = np.argsort(rows[above], kind="stable")
    context_columns = columns[above][order]
    ends = np.searchsorted(rows[above][order] - m - n, np.arange(len(arrays["lengths"]) - m - n + 1))

    def spread(own: NDArray[Any], own_columns: NDArray[Any], contexts: NDArray[Any]) -> NDArray[np.int32]:
        """Of rows with their columns, each under one of the contexts."""
        total = np.zeros(size, dtype=np.int64)
        order = np.argsort(own, kind="stable")
        own, own_columns = own[order], own_columns[order]
        for first in range(0, len(contexts), _AT_ONCE):
            part = contexts[first : first + _AT_ONCE]
            a, b = np.searchsorted(own, (first, first + len(part)))
            keys = own_columns[a:b] * _AT_ONCE + own[a:b] - first
            each = ends[part + 1] - ends[part]
            at = np.repeat(ends[part] - np.cumsum(each) + each, each) + np.arange(each.sum())
            led = context_columns[at] * _AT_ONCE + np.repeat(np.arange(len(part)), each)
            total += np.bincount(distinct(np.concatenate([keys, led]))[0] // _AT_ONCE, minlength=size)
        return total.astype(np.int32)

    units = rows < m
    passage = np.where(units, owners[np.minimum(rows, max(m - 1, 0))] if m else 0, rows - m)[inside]
    none = np.full(max(m, n), len(ends) - 1)  # a context without words, behind the others
    ends = np.append(ends, ends[-1])
    return {
        "df_units": spread(rows[units], columns[units], of_unit),
        "df_units_bare": spread(rows[units], columns[units], none[:m]),
        "df_passages": spread(passage, columns[inside], of_passage),
        "df_passages_bare": spread(passage, columns[inside], none[:n]),
    }
