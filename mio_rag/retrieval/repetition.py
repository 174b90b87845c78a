"""What repeats itself in a corpus: where its passages lie in their documents, and near-duplicates.

Passages that come with offsets keep them, unless they contradict each other: then none of that source and
title has a place. In a source without any, a passage is laid behind the one before it where the end of the
one is the beginning of the other, character by character. Near-duplicates are found by MinHash (Broder,
SEQUENCES 1997) over shingles of three words, and confirmed by their exact Jaccard similarity. The sketches
stay with the index, so that only new passages are sketched when files change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import numbered, overlap_at
from mio_rag.documents.dates import in_force, is_ordered
from mio_rag.retrieval.hashed import HashedTexts, bytes_of, stirred, word_hash
from mio_rag.retrieval.vectors import read_arrays, stored_array, unfit
from mio_rag.retrieval.versions import is_replaced, older_versions, told_apart
from mio_rag.retrieval.words import Words
from mio_rag.sentences import compares
from mio_rag.types import Passage

REPETITION_FILE = "repetition.npz"
#: Jaccard similarity from which two passages are near-duplicates.
LEAST_SIMILARITY = 0.8

_BETWEEN_RUNS = 1000  # characters between stretches of a source whose distance nobody knows
_SHINGLE = 3  # words
#: Two passages are compared if all the minima of one band agree, and so many of all: .9999 of those at .8.
_BANDS, _MINIMA, _ALIKE = 25, 5, 80
_AT_ONCE, _PAIRS = 512, 1 << 16  # passages that are sketched together, and pairs that are compared


@dataclass(frozen=True, eq=False)
class Repetition:
    """Places and near-duplicates of the passages of an index.

    spans (n, 2): characters [start, end) of each passage in its source; (-1, -1) where unknown.
    groups (n,): row of the passage that each one is nearly a copy of; its own where it is the first of its
        kind.
    sketches (n, 125): see `sketched`.
    lines_agree: whether the lines that passages need were compared with their texts, too.
    contradicting: passages that are read by themselves since two of their document contradict each other.
    """

    spans: NDArray[np.int64]
    groups: NDArray[np.int64]
    sketches: NDArray[np.uint8]
    lines_agree: bool = False
    contradicting: int = 0

    @classmethod
    def build(
        cls, passages: Sequence[Passage], old: Repetition | None = None, kept: NDArray[np.int64] | None = None
    ) -> Repetition:
        """Find what a corpus repeats; see `find_spans` and `find_groups`.

        old, kept (n,): of an earlier state of the corpus: the row that each passage had there, -1 for new
            ones.
        """
        sketches = np.zeros((len(passages), _BANDS * _MINIMA), dtype=np.uint8)
        fresh = np.arange(len(passages))
        if old is not None and kept is not None and len(old.sketches):
            sketches = np.where(kept[:, None] >= 0, old.sketches[kept], sketches)
            fresh = np.flatnonzero(kept < 0)
        sketches[fresh] = sketched([passages[k].text for k in fresh.tolist()])
        groups = find_groups(passages, sketches)
        spans = find_spans(passages)
        alone = _numbered(passages, spans) < 0
        contradicting = int((alone & (spans[:, 0] >= 0)).sum())
        spans[alone] = -1  # a pool may hold only one of two texts at a place
        return cls(spans, groups, sketches, True, contradicting)

    def changed(
        self,
        kept: NDArray[np.int64],
        fresh: Repetition,
        passages: Sequence[Passage],
        near: Callable[[int], list[int]],
    ) -> Repetition:
        """What is repeated after some documents changed; their sketches are not kept.

        kept (n,): row of each passage before, -1 for new ones.
        fresh: of the new ones.
        near: passages that may be like one of them, by their rows.
        """
        new, n = np.flatnonzero(kept < 0), len(self.groups)
        spans, groups = self.spans[kept], self.groups[kept]
        spans[new], groups[new] = fresh.spans, n + fresh.groups
        for k in np.flatnonzero(fresh.groups == np.arange(len(new))).tolist():
            text, row = passages[new[k]].text, int(new[k])
            others = [other for other in near(row) if kept[other] >= 0]
            alike = [similarity(text, passages[other].text) for other in others]
            if alike and (best := max(alike)) >= LEAST_SIMILARITY:
                groups[groups == n + k] = groups[others[alike.index(best)]]
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        none = np.zeros((0, _BANDS * _MINIMA), dtype=np.uint8)
        agree = self.lines_agree and fresh.lines_agree
        return Repetition(spans, first[inverse], none, agree, self.contradicting + fresh.contradicting)

    @property
    def overlapping(self) -> int:
        """Passages whose place in their document is known, so that overlaps are."""
        return int((self.spans[:, 0] >= 0).sum())

    @property
    def copies(self) -> int:
        """Passages that are nearly copies of an earlier one."""
        return int((self.groups != np.arange(self.groups.size)).sum())

    def spans_of(self, rows: Sequence[int]) -> NDArray[np.int64] | None:
        """Places of the given rows; None where none is known."""
        found = self.spans[np.asarray(rows, dtype=np.int64)]
        return found if (found[:, 0] >= 0).any() else None

    def among(
        self, rows: Sequence[int], passages: Sequence[Passage], question: str = ""
    ) -> NDArray[np.float32] | None:
        """Return how alike the passages of a pool are, shape (len(rows),) * 2; None where none are.

        Near-duplicates by their exact Jaccard similarity, versions by `older_versions`. None are passages of
        one source that overlap; those whose numbers or names differ, unless dates tell which holds; and those
        of which the question names one (of dated ones the older).

        passages: those of the rows.
        """
        chosen = np.asarray(rows, dtype=np.int64)
        groups = self.groups[chosen].tolist()
        older, members = list(older_versions(passages, question)), dict[int, list[int]]()
        if not older and len(set(groups)) == len(groups):
            return None
        for k, group in enumerate(groups):
            members.setdefault(group, []).append(k)
        alike = np.zeros((chosen.size, chosen.size), dtype=np.float32)
        several = [group for group in members.values() if len(group) > 1]
        words: Words | None = None  # known once two of them say the same
        for group in several:
            shingles = {k: _shingles(passages[k].text) for k in group}
            for a, b in combinations(group, 2):
                one, other = passages[a], passages[b]
                names = ((p.title, p.source, p.date) for p in (one, other))
                if self._overlap(chosen[a], chosen[b], one, other) or not _same_facts(one, other, question):
                    continue
                if compares(question, *names):
                    continue
                words = words or Words.of([p.text for p in passages])
                if not _told_apart(one, other, question, words):
                    found = _jaccard(shingles[a], shingles[b])
                    alike[a, b] = alike[b, a] = found if found >= LEAST_SIMILARITY else 0.0
        for a, b, share in older:
            alike[a, b] = alike[b, a] = max(share, alike[a, b])
        return alike if alike.any() else None

    def _overlap(self, a: int, b: int, one: Passage, other: Passage) -> bool:
        if one.source != other.source or self.spans[a, 0] < 0 or self.spans[b, 0] < 0:
            return False
        return bool(min(self.spans[a, 1], self.spans[b, 1]) > max(self.spans[a, 0], self.spans[b, 0]))

    def save(self, folder: Path) -> None:
        """Write `REPETITION_FILE`."""
        with (folder / REPETITION_FILE).open("wb") as file:
            np.savez(file, **vars(self))

    @classmethod
    def load(cls, folder: Path, passages: int) -> Repetition | None:
        """What `save` wrote; None where the index was built before there was any.

        Raises `IndexFormatError` if it belongs to another number of passages, or cannot be read.
        """
        path = folder / REPETITION_FILE
        data = read_arrays(path, "spans", "groups", optional=("lines_agree", "contradicting"))
        if data is None:
            return None
        sketches = stored_array(path, "sketches")  # of use when files change
        groups, none = data["groups"], np.zeros((0, _BANDS * _MINIMA), dtype=np.uint8)
        fits = (data["spans"].shape, groups.shape) == ((passages, 2), (passages,))
        if not fits or groups.min(initial=0) < 0 or groups.max(initial=0) >= passages:
            raise unfit(path)
        agree = bool(data.get("lines_agree", False))
        if sketches is None or sketches.dtype != none.dtype or sketches.shape[1:] != none.shape[1:]:
            sketches = none  # of an earlier release
        apart = int(data.get("contradicting", 0))
        return cls(data["spans"], groups, sketches, agree, apart)


def find_spans(passages: Sequence[Passage]) -> NDArray[np.int64]:
    """Where passages lie in their sources, shape (n, 2); (-1, -1) where nothing is known.

    Offsets that passages bring are taken as they are. In sources that bring none, each passage is compared
    with the one before that reaches furthest: its longest end that the other begins with, of 20 characters
    or more, places them. What overlaps nothing has no place.
    """
    spans = np.full((len(passages), 2), -1, dtype=np.int64)
    sources: dict[str, list[int]] = {}
    for k, passage in enumerate(passages):
        if passage.start is not None:
            spans[k] = passage.start, passage.start + len(passage.text)
        if passage.source:
            sources.setdefault(passage.source, []).append(k)
    for rows in sources.values():
        if (spans[rows, 0] < 0).all():
            _chain(passages, rows, spans)
    return spans


def _chain(passages: Sequence[Passage], rows: list[int], spans: NDArray[np.int64]) -> None:
    """Place the passages of a source that overlap; `spans` is written to."""
    before, start = rows[0], 0  # the passage that reaches furthest, and where it begins
    for row in rows[1:]:
        shift = overlap_at(passages[before].text, passages[row].text)
        if shift is None:
            before, start = row, start + len(passages[before].text) + _BETWEEN_RUNS
            continue
        spans[before] = start, start + len(passages[before].text)
        spans[row] = start + shift, start + shift + len(passages[row].text)
        if spans[row, 1] >= spans[before, 1]:
            before, start = row, start + shift


def _numbered(passages: Sequence[Passage], spans: NDArray[np.int64]) -> NDArray[np.int64]:
    sources, titles, texts = ([getattr(p, name) for p in passages] for name in ("source", "title", "text"))
    return numbered(spans, sources, titles, texts, [p.lines for p in passages])


def sketched(texts: Sequence[str]) -> NDArray[np.uint8]:
    """MinHash sketches of texts, shape (n, 125): a byte for each minimum over their shingles."""
    keys = [
        int.from_bytes(blake2b(bytes([k]), digest_size=8).digest(), "big") for k in range(_BANDS * _MINIMA)
    ]
    factors = np.array([key >> 32 | 1 for key in keys], dtype=np.uint32)
    shifts = np.array([key & (2**32 - 1) for key in keys], dtype=np.uint32)
    found = np.zeros((len(texts), _BANDS * _MINIMA), dtype=np.uint8)
    for begin in range(0, len(texts), _AT_ONCE):
        some = texts[begin : begin + _AT_ONCE]
        words = HashedTexts(bytes_of(text.casefold()) for text in some)
        counts = np.diff(words.first)
        # Each text's words, then two blanks; so every shingle lies in one text.
        slots = np.maximum(counts, 1) + 2
        starts = np.cumsum(slots) - slots
        padded = np.zeros(int(slots.sum()), dtype=np.uint64)
        padded[np.arange(len(words.hashes)) + (starts - words.first[:-1])[words.owners]] = words.hashes
        for k in np.flatnonzero(counts == 0).tolist():  # without words
            padded[starts[k]] = word_hash(some[k])
        three = stirred(padded[:-2] * np.uint64(3) + padded[1:-1] * np.uint64(5) + padded[2:] * np.uint64(7))
        own = np.maximum(1, counts - _SHINGLE + 1)
        first = np.cumsum(own) - own
        at = np.repeat(starts - first, own) + np.arange(int(own.sum()))
        flat = (three[at] >> np.uint64(32)).astype(np.uint32)
        for k, (factor, shift) in enumerate(zip(factors, shifts, strict=True)):
            least = np.minimum.reduceat(flat * factor + shift, first).astype(np.uint64)
            found[begin : begin + len(some), k] = stirred(least) >> np.uint64(56)
    return found


def find_groups(passages: Sequence[Passage], sketches: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Near-duplicates: for each passage the row of the first one that it is nearly a copy of.

    sketches (n, 125): those of the passages.
    """
    groups = np.arange(len(passages), dtype=np.int64)
    buckets = np.full((len(passages), _BANDS), -1, dtype=np.int32)  # of passages that share a band
    for k in range(_BANDS):
        band = np.zeros((len(passages), 8), dtype=np.uint8)
        band[:, :_MINIMA] = sketches[:, k * _MINIMA : (k + 1) * _MINIMA]
        _, inverse, counts = np.unique(band.view(np.uint64), return_inverse=True, return_counts=True)
        several = counts > 1
        number = np.where(several, np.cumsum(several) - 1 + buckets.max(initial=-1) + 1, -1)
        buckets[:, k] = number[inverse.ravel()]
    firsts: list[list[int]] = [[] for _ in range(int(buckets.max(initial=-1)) + 1)]  # of their kind
    sharing = np.flatnonzero(buckets.max(axis=1, initial=-1) >= 0)
    for part in np.array_split(sharing, 1 + len(sharing) // _AT_ONCE):
        rows, others = list[int](), list[int]()
        for row, own in zip(part.tolist(), buckets[part].tolist(), strict=True):
            lists = [firsts[k] for k in own if k >= 0]
            before = set().union(*lists)
            rows += [row] * len(before)
            others += before
            for one in lists:
                one.append(row)  # it may be the first of its kind
        candidates: dict[int, list[int]] = {}
        for begin in range(0, len(rows), _PAIRS):
            some, of = rows[begin : begin + _PAIRS], others[begin : begin + _PAIRS]
            for at in np.flatnonzero((sketches[some] == sketches[of]).sum(axis=1) >= _ALIKE).tolist():
                candidates.setdefault(some[at], []).append(of[at])
        for row, found in candidates.items():
            shingles, best = _shingles(passages[row].text), 0.0
            for other in sorted(one for one in found if groups[one] == one):
                alike = _jaccard(shingles, _shingles(passages[other].text))
                if alike >= LEAST_SIMILARITY and alike > best:
                    groups[row], best = other, alike
            if best:
                for k in buckets[row].tolist():
                    if k >= 0:
                        firsts[k].remove(row)
    return groups


def _same_facts(one: Passage, other: Passage, question: str) -> bool:
    """Whether two near-duplicates say the same, or one is of a newer version of the same document."""
    if is_replaced(one, other, question):
        return True
    return _facts(one.text) == _facts(other.text)


def _told_apart(one: Passage, other: Passage, question: str, words: Words) -> bool:
    """Whether a question holds a word that only one of two near-duplicates has, of dated ones the older."""
    names = [(p.title, p.source, p.date) for p in (one, other)]
    older, newer = [one], [other]
    if in_force(names[0], question) > in_force(names[1], question):
        older, newer = newer, older
    if told_apart(older, newer, question, words):
        return True
    return not is_ordered(*names) and told_apart(newer, older, question, words)


@lru_cache(maxsize=1024)
def _facts(text: str) -> list[str]:
    """Words with a digit or a capital letter, in their order; at the head of a sentence, too."""
    return [word for word in re.findall(r"\w+", text) if word != word.lower() or not word.isalpha()]


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of two texts: of their sets of three words in a row, in lower case."""
    return _jaccard(_shingles(one), _shingles(other))


@lru_cache(maxsize=1024)
def _shingles(text: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold()) or [text]
    return frozenset(zip(*(words[k:] for k in range(_SHINGLE)), strict=False)) or frozenset([tuple(words)])


def _jaccard(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> float:
    both = len(one & other)
    return both / (len(one) + len(other) - both)
