"""Evidence links: which passage mentions what another passage is about.

A question that needs two passages often names only the first; the first names the second. Passage i links to
passage j where the text of i mentions the title of j; where passages have no titles, the capitalised name
that the text of j opens with, or the first name that a spaCy pipeline finds in it. A link weighs

    (1 - log(df) / log(N)) / bearers

with df the number of passages that mention the name, N the size of the corpus and `bearers` the number of
passages of that name. Links are found when the index is built, and kept with it as one sparse matrix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, require
from mio_rag.retrieval.hashed import HashedTexts, apart, encoded, stirred
from mio_rag.retrieval.vectors import read_arrays, stored_array, unfit
from mio_rag.sentences import NameDictionary, leading_name
from mio_rag.types import Passage

#: Labels of the usual models that name no thing that a passage could be about.
_NO_NAMES = frozenset({"DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL", "LANGUAGE"})
_READ = 400  # characters: what a passage is about is named where it begins


def entity_names(model: Any) -> Callable[[Passage], str]:
    """For `CorpusIndex.build` and `LinkIndex.build`: the first named entity of a passage, else its title.

    model: "spacy:MODEL" with the name of an installed pipeline or its folder, or a pipeline itself; an entity
        ruler will do.

    Raises `InputError` for another form, a pipeline that cannot be loaded, or one that finds no entities.
    Raises `MissingExtraError` without spaCy.
    """
    pipeline = _loaded(model) if isinstance(model, str) else model
    if not {"ner", "entity_ruler"} & set(pipeline.pipe_names):
        raise InputError(
            f"the pipeline has {', '.join(pipeline.pipe_names) or 'no components'}: it needs one that finds "
            "named entities (ner or entity_ruler)"
        )

    def name(passage: Passage) -> str:
        for entity in pipeline(passage.text[:_READ]).ents:
            if entity.label_ not in _NO_NAMES and entity.text.strip():
                return str(entity.text).strip()
        return passage.title

    return name


def _loaded(spec: str) -> Any:
    kind, _, target = spec.strip().partition(":")
    if kind != "spacy" or not target:
        raise InputError(
            f"entities '{spec}' are not known: give spacy:MODEL, for instance spacy:en_core_web_sm"
        )
    spacy: Any = require("spacy", "entities", "finding named entities")
    try:
        return spacy.load(target)
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), "no reason given")
        raise InputError(
            f"spaCy's pipeline '{target}' cannot be loaded ({reason}): install it (python -m spacy download "
            f"{target}), or give the folder of one"
        ) from error


LINKS_FILE = "links.npz"
_SIGNS = (("'", "\x01"), ("\u2019", "\x02"))
_LIKELY_BITS = 22  # of a hash, by which most words are known to begin no name
_AT_ONCE = 4096  # texts
_SMALL_A, _UNCASED = ord("a"), 0xD5  # first bytes of words: no small letters, and of scripts without them
_MOST_BEARERS = 50  # passages of one name; beyond that the name tells nothing of a passage


Kind = Literal["titles", "entities"]


def passage_names(
    passages: Sequence[Passage], name_of: Callable[[Passage], str] | None = None
) -> tuple[list[str], Kind]:
    """What each passage is about, and how that is known.

    Titles where there are at least half as many different ones as passages; otherwise the name that the text
    opens with (and the title where there is no such name): twenty titles shared by thousands of passages name
    documents, not passages.

    name_of: another way to name a passage, a named-entity model for instance.
    """
    if name_of is not None:
        return [name_of(p) for p in passages], "entities"
    if 2 * len({p.title.strip() for p in passages} - {""}) >= len(passages):
        return [p.title for p in passages], "titles"
    return [leading_name(p.text) or p.title for p in passages], "entities"


class Rows(NamedTuple):
    """A sparse matrix: row i has the columns `indices[indptr[i] : indptr[i + 1]]`, rising, with `data`."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LinkIndex:
    """The links of a corpus, as one sparse matrix.

    matrix (n, n): entry (i, j) in (0, 1] where passage i mentions passage j; never on the diagonal.
    kind ("titles", "entities"): what the names are.
    names: different names in the dictionary.
    """

    matrix: Rows
    kind: Kind
    names: int

    @classmethod
    def build(cls, passages: Sequence[Passage], name_of: Callable[[Passage], str] | None = None) -> LinkIndex:
        """Find the links of a corpus; see `passage_names` for `name_of`."""
        n = len(passages)
        names, kind = passage_names(passages, name_of)
        dictionary = NameDictionary(names)
        texts, mentioned = _mentions([passage.text for passage in passages], dictionary)
        frequency = np.bincount(mentioned, minlength=len(dictionary))
        weight = 1 - np.log(np.maximum(frequency, 1)) / np.log(max(n, 2))
        own = np.full(n, -1, dtype=np.int64)  # the name of each passage
        sizes = np.zeros(len(dictionary), dtype=np.int64)
        for k, bearing in enumerate(dictionary.bearers.values()):
            own[bearing], sizes[k] = k, len(bearing)
        # A passage of the same name as i is a sibling, not a reference.
        tells = (weight > 0) & (sizes <= _MOST_BEARERS)
        some = tells[mentioned] & (own[texts] != mentioned)
        texts, mentioned = texts[some], mentioned[some]
        each = sizes[mentioned]
        by_name = np.argsort(own, kind="stable")
        begin = np.searchsorted(own[by_name], mentioned)
        columns = by_name[np.repeat(begin - np.cumsum(each) + each, each) + np.arange(int(each.sum()))]
        values = np.repeat((weight[mentioned] / each).astype(np.float32), each)
        at = np.repeat(texts, each) * n + columns
        order = np.argsort(at, kind="stable")
        cells, first = np.unique(at[order], return_index=True)
        weights = values[order]
        weights = np.add.reduceat(weights, first) if first.size else weights  # of two names of one passage
        indptr = np.searchsorted(cells, np.arange(n + 1, dtype=np.int64) * n)
        matrix = Rows(indptr.astype(np.int64), (cells % max(n, 1)).astype(np.int32), weights)
        return cls(matrix, kind, len(dictionary))

    def __len__(self) -> int:
        return int(self.matrix.indices.size)

    @property
    def passages(self) -> int:
        """Passages of the corpus."""
        return int(self.matrix.indptr.size) - 1

    def mentioned_by(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Rows that a passage links to, and the weights."""
        part = slice(int(self.matrix.indptr[row]), int(self.matrix.indptr[row + 1]))
        return self.matrix.indices[part], self.matrix.data[part]

    def among(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """The links within a pool, shape (len(rows), len(rows)): entry (i, j) where i mentions j, else 0."""
        place = {int(row): k for k, row in enumerate(rows)}
        found = np.zeros((len(rows), len(rows)), dtype=np.float32)
        for k, row in enumerate(rows):
            for column, weight in zip(*self.mentioned_by(int(row)), strict=True):
                if int(column) in place:
                    found[k, place[int(column)]] = weight
        return found

    def reached(self, rows: Sequence[int], hops: int = 1) -> dict[int, float]:
        """What passages lead to: row -> weight of the best path (the product along it), without themselves.

        hops: longest path, >= 1.
        """
        if hops < 1:
            raise InputError(f"hops={hops} must be >= 1: how many links in a row are followed")
        best = dict.fromkeys(map(int, rows), 1.0)
        front = dict(best)
        for _ in range(hops):
            following: dict[int, float] = {}
            for row, so_far in front.items():
                for target, weight in zip(*self.mentioned_by(row), strict=True):
                    value = so_far * float(weight)
                    if value > best.get(int(target), 0.0):
                        best[int(target)] = following[int(target)] = value
            front = following
        return {row: value for row, value in best.items() if row not in set(map(int, rows))}

    def save(self, folder: Path) -> None:
        """Write `LINKS_FILE`."""
        with (folder / LINKS_FILE).open("wb") as file:
            kind, names = np.array(self.kind), np.array(self.names)
            indptr, indices, weights = self.matrix
            # Not compressed: it can stay on disk.
            np.savez(file, indptr=indptr, indices=indices, weights=weights, kind=kind, names=names)

    @classmethod
    def load(cls, folder: Path, passages: int, *, mapped: bool = False) -> LinkIndex | None:
        """The links in a folder; None where it was written without them.

        mapped: leave them on disk, where the file is not compressed, as older ones are.

        Raises `IndexFormatError` if they belong to another number of passages, or cannot be read.
        """
        path = folder / LINKS_FILE
        data = read_arrays(path, "kind", "names", "indptr", *(() if mapped else _LARGE))
        if data is None:
            return None
        rows = data["indptr"]
        columns, weights = (stored_array(path, name) if mapped else data[name] for name in _LARGE)
        if columns is None or weights is None:  # empty ones are not left on disk
            return cls.load(folder, passages)
        fits = rows.shape == (passages + 1,) and rows[0] == 0 and columns.shape == weights.shape
        fits = fits and rows[-1] == columns.size and bool(np.all(np.diff(rows) >= 0))
        if fits and columns.size and not mapped:  # to look at each of them would read them all
            row = np.repeat(np.arange(passages), np.diff(rows))
            fits = int(columns.min()) >= 0 and int(columns.max()) < passages
            fits = fits and bool(np.all(np.diff(row * passages + columns) > 0))  # in order, none twice
        if not fits:
            raise unfit(path)
        kind: Kind = "titles" if str(data["kind"]) == "titles" else "entities"
        return cls(Rows(rows, columns, weights), kind, int(data["names"]))


_LARGE = ("indices", "weights")


def _mentions(
    texts: Sequence[str], dictionary: NameDictionary
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which texts mention which names, as `NameDictionary.mentions` finds them; every pair once."""
    keys = HashedTexts(encoded(_marked(key)) for key in dictionary.bearers)
    sizes = np.diff(keys.first)
    names = {}  # by their words: the hashes, ascending, and which names these are
    for size in np.unique(sizes[sizes > 0]).tolist():
        own = np.flatnonzero(sizes == size)
        hashes = keys.hashes[keys.first[own]]
        for k in range(1, size):
            hashes = stirred(hashes * np.uint64(3) + keys.hashes[keys.first[own] + k])
        order = np.argsort(hashes)
        likely = np.zeros(1 << _LIKELY_BITS, dtype=bool)
        likely[hashes >> np.uint64(64 - _LIKELY_BITS)] = True
        names[size] = hashes[order], own[order], likely
    pairs = []
    for begin in range(0, len(texts), _AT_ONCE):
        some = texts[begin : begin + _AT_ONCE]
        some = list(map(_marked, some))
        written, found = HashedTexts(map(encoded, some)), HashedTexts(encoded(_small(one)) for one in some)
        owners, words, first = found.owners, found.hashes, written.data[written.starts]
        changed = (found.hashes != written.hashes) | (first >= _UNCASED)
        is_capital = np.where(first < 128, first < _SMALL_A, changed)
        capitals = np.concatenate([[0], np.cumsum(is_capital)])
        matches, run = [], words
        for size in range(1, max(names, default=0) + 1):
            if size > 1:
                run = stirred(run[:-1] * np.uint64(3) + words[size - 1 :])
            if size in names and len(run):
                hashes, numbers, likely = names[size]
                at = np.flatnonzero(likely[run >> np.uint64(64 - _LIKELY_BITS)])
                place = np.minimum(np.searchsorted(hashes, run[at]), len(hashes) - 1)
                fits = (hashes[place] == run[at]) & (owners[at] == owners[at + size - 1])
                fits &= capitals[at + size] > capitals[at]
                matches.append((at[fits], np.full(int(fits.sum()), size), numbers[place[fits]]))
        if not matches:
            continue
        at, lengths, numbers = (np.concatenate(each) for each in zip(*matches, strict=True))
        order, free = np.lexsort((-lengths, at)), 0  # of names at one place the longest
        kept = np.zeros(len(at), dtype=bool)
        for k, place, size in zip(order.tolist(), at[order].tolist(), lengths[order].tolist(), strict=True):
            if place >= free:
                kept[k], free = True, place + size
        pairs.append((owners[at[kept]] + begin) * len(dictionary) + numbers[kept])
    both = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *pairs]))
    return both // max(1, len(dictionary)), both % max(1, len(dictionary))


def _small(text: str) -> str:
    """A text in lower case, character by character."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(one if len(one.lower()) > 1 else one.lower() for one in text)


def _marked(text: str) -> str:
    """A text as `encoded` takes it; an apostrophe within a word is part of it."""
    for sign, mark in _SIGNS:
        if sign in text:
            text = re.sub(rf"(?<=[^\W_]){sign}(?=[^\W_])", mark, text)
    return apart(text.replace("_", " "))
