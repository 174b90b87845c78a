"""What repeats itself in a corpus: where its passages lie in their documents, and near-duplicates.

Passages that come with offsets keep them, unless they contradict each other: then none of that source and
title has a place. In a source without any, a passage is laid behind the one before it where the end of the
one is the beginning of the other, character by character. Near-duplicates are found by MinHash (Broder,
SEQUENCES 1997) over shingles of three words, and confirmed by their exact Jaccard similarity.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import numbered, overlap_at
from mio_rag.errors import IndexFormatError, InputError, require
from mio_rag.types import Passage, moment

REPETITION_FILE = "repetition.npz"
#: Jaccard similarity from which two passages are near-duplicates, unless said otherwise.
LEAST_SIMILARITY = 0.8

_BETWEEN_RUNS = 1000  # characters between stretches of a source whose distance nobody knows
_SHINGLE = 3  # words
_PERMUTATIONS = 128
_MARGIN = 0.15  # MinHash estimates: pairs that look a little less alike are compared, too


@dataclass(frozen=True, eq=False)
class Repetition:
    """Places and near-duplicates of the passages of an index.

    Parameters
    ----------
    spans : ndarray of shape (n, 2)
        Characters [start, end) of each passage in its source; (-1, -1) where unknown.
    groups : ndarray of shape (n,)
        Row of the passage that each one is nearly a copy of; its own where it is the first of its kind.
    jaccard : ndarray of shape (n,)
        How alike the two are; 1 with itself.
    threshold : float
        Jaccard similarity of near-duplicates, in (0, 1].
    """

    spans: NDArray[np.int64]
    groups: NDArray[np.int64]
    jaccard: NDArray[np.float32]
    threshold: float

    @classmethod
    def build(
        cls,
        passages: Sequence[Passage],
        threshold: float = LEAST_SIMILARITY,
        progress: Callable[[int], None] | None = None,
    ) -> Repetition:
        """Find what a corpus repeats; see `find_spans` and `find_groups`."""
        groups, jaccard = find_groups(passages, threshold, progress)
        spans = find_spans(passages)
        spans[_numbered(passages, spans) < 0] = -1  # a pool may hold only one of two texts at a place
        return cls(spans, groups, jaccard, threshold)

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
        """Exact similarity of the near-duplicates of a pool, shape (len(rows), len(rows)); None without any.

        Passages of one source that overlap are not duplicates: what they share is read once anyway. Nor are
        those whose numbers or names differ, unless dates tell which of them holds; nor those of which the
        question names one, as by a month or a version.

        Parameters
        ----------
        passages : sequence of Passage
            Those of the rows.
        """
        chosen = np.asarray(rows, dtype=np.int64)
        members: dict[int, list[int]] = {}
        for k, group in enumerate(self.groups[chosen].tolist()):
            members.setdefault(group, []).append(k)
        alike = np.zeros((chosen.size, chosen.size), dtype=np.float32)
        for group in members.values():
            shingles = {k: _shingles(passages[k].text) for k in group if len(group) > 1}
            for a in shingles:
                for b in shingles:
                    one, other = passages[a], passages[b]
                    if (
                        a < b
                        and _same_facts(one, other)
                        and not _told_apart(one, other, question)
                        and not self._overlap(chosen[a], chosen[b], one, other)
                    ):
                        found = _jaccard(shingles[a], shingles[b])
                        alike[a, b] = alike[b, a] = found if found >= self.threshold else 0.0
        return alike if alike.any() else None

    def _overlap(self, a: int, b: int, one: Passage, other: Passage) -> bool:
        if one.source != other.source or self.spans[a, 0] < 0 or self.spans[b, 0] < 0:
            return False
        return bool(min(self.spans[a, 1], self.spans[b, 1]) > max(self.spans[a, 0], self.spans[b, 0]))

    def save(self, folder: Path) -> None:
        """Write `REPETITION_FILE`."""
        with (folder / REPETITION_FILE).open("wb") as file:
            np.savez_compressed(
                file,
                spans=self.spans,
                groups=self.groups,
                jaccard=self.jaccard,
                threshold=np.array(self.threshold),
            )

    @classmethod
    def load(cls, folder: Path, passages: int) -> Repetition | None:
        """What `save` wrote; None where the index was built before there was any.

        Raises
        ------
        IndexFormatError
            If it belongs to another number of passages, or cannot be read.
        """
        path = folder / REPETITION_FILE
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as data:
                found = cls(
                    data["spans"].astype(np.int64),
                    data["groups"].astype(np.int64),
                    data["jaccard"].astype(np.float32),
                    float(data["threshold"]),
                )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IndexFormatError(f"'{path}' cannot be read ({error}): build the index again") from error
        shapes = (found.spans.shape, found.groups.shape, found.jaccard.shape)
        rows_hold = found.groups.size == 0 or (found.groups.min() >= 0 and found.groups.max() < passages)
        if shapes != ((passages, 2), (passages,), (passages,)) or not rows_hold:
            raise IndexFormatError(f"'{path}' does not fit the index's passages: build the index again")
        return found


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


def contradicting(passages: Sequence[Passage]) -> int:
    """How many passages are read by themselves since two of their document contradict each other."""
    spans = find_spans(passages)
    return int(((spans[:, 0] >= 0) & (_numbered(passages, spans) < 0)).sum())


def _numbered(passages: Sequence[Passage], spans: NDArray[np.int64]) -> NDArray[np.int64]:
    return numbered(
        spans, [p.source for p in passages], [p.title for p in passages], [p.text for p in passages]
    )


def find_groups(
    passages: Sequence[Passage],
    threshold: float = LEAST_SIMILARITY,
    progress: Callable[[int], None] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Near-duplicates: for each passage the first one that it is nearly a copy of, and how alike they are.

    Parameters
    ----------
    threshold : float
        Jaccard similarity of the sets of three words in a row from which two passages are near-duplicates,
        in (0, 1].
    progress : callable, optional
        Called with 1 for each passage.

    Raises
    ------
    InputError
        If the threshold is out of range.
    MissingExtraError
        Without datasketch.
    """
    if not 0 < threshold <= 1:
        raise InputError(f"threshold={threshold!r} must be above 0 and at most 1")
    library = require("datasketch", "retrieval", "finding near-duplicates")
    groups = np.arange(len(passages), dtype=np.int64)
    jaccard = np.ones(len(passages), dtype=np.float32)
    known = library.MinHashLSH(num_perm=_PERMUTATIONS, params=_bands(threshold))
    shingled = (_shingles(passage.text) for passage in passages)
    empty = library.MinHash(num_perm=_PERMUTATIONS, seed=1)
    for row, shingles in enumerate(shingled):
        sketch = empty.copy()
        sketch.update_batch([shingle.encode("utf-8", "replace") for shingle in sorted(shingles)])
        best, nearest = threshold, row
        for candidate in sorted(known.query(sketch)):
            found = _jaccard(shingles, _shingles(passages[candidate].text))
            if found >= best and (found > best or nearest == row):
                best, nearest = found, candidate
        if nearest == row:
            known.insert(row, sketch)
        else:
            groups[row], jaccard[row] = nearest, best
        if progress:
            progress(1)
    return groups, jaccard


@functools.cache
def _bands(threshold: float) -> tuple[int, int]:
    """How many bands of how many rows datasketch compares; it integrates for some tenths of a second."""
    library = require("datasketch", "retrieval", "finding near-duplicates")
    # What is found too much is compared and dropped; what is missed is read twice.
    found = library.MinHashLSH(
        threshold=max(threshold - _MARGIN, 0.1), num_perm=_PERMUTATIONS, weights=(0.05, 0.95)
    )
    return int(found.b), int(found.r)


def _same_facts(one: Passage, other: Passage) -> bool:
    """Whether two near-duplicates say the same, or it is known which of them is newer."""
    if one.date and other.date and moment(one.date) != moment(other.date):
        return True
    return _facts(one.text) == _facts(other.text)


def _told_apart(one: Passage, other: Passage, question: str) -> bool:
    """Whether a question holds a word that only one of two near-duplicates, or of their names, has."""
    asked = set(re.findall(r"\w+", question.casefold()))
    mine, others = (
        set(re.findall(r"[^\W_]+", " ".join((p.text, p.title, p.source, p.date, *p.section)).casefold()))
        for p in (one, other)
    )
    return bool(asked & (mine ^ others))


def _facts(text: str) -> list[str]:
    """Words with a digit or a capital letter, in their order; at the head of a sentence, too."""
    return [word for word in re.findall(r"\w+", text) if word != word.lower() or not word.isalpha()]


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of two texts: of their sets of three words in a row, in lower case."""
    return _jaccard(_shingles(one), _shingles(other))


def _shingles(text: str) -> frozenset[str]:
    words = re.findall(r"\w+", text.casefold()) or [text]
    return frozenset(" ".join(words[k : k + _SHINGLE]) for k in range(max(1, len(words) - _SHINGLE + 1)))


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)
