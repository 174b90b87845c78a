"""Corpora that repeat themselves: the documents of a question set in windows that overlap, in versions, and
under a notice that every window repeats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.sentences import sentence_spans
from mio_rag.types import Passage

_WORD = re.compile(r"(\s*)(\S+)")
_OLD, _NEW = "2019-01-01", "2024-01-01"
_NOTICE = (
    "This text is part of a collection that is provided as it is, without warranty of any kind. Copying and "
    "distribution are permitted for personal use only."
)


def words_of(dataset: Dataset, tokens: int) -> int:
    """How many words of a set are so many tokens, by the approximate counter."""
    texts = [passage.text for passage in dataset.passages]
    words = sum(len(text.split()) for text in texts)
    return max(1, round(tokens * words / sum(RegexCounter().count(texts))))


def in_versions(dataset: Dataset, seed: int) -> Dataset:
    """A set with an older version of every document.

    In the older one every fortieth word is another one, and every twentieth sentence is missing, on average.
    """
    rng = np.random.default_rng(seed)
    vocabulary = sorted({word for passage in dataset.passages for word in passage.text.split()})
    older = []
    for passage in dataset.passages:
        spans = sentence_spans(passage.text)
        kept = [passage.text[a:b] for a, b in spans if rng.random() >= 0.05] or [passage.text]
        words = " ".join(kept).split()
        for k in np.flatnonzero(rng.random(len(words)) < 0.025):
            words[k] = vocabulary[rng.integers(len(vocabulary))]
        name = passage.source or passage.title or passage.id
        older.append(Passage(f"{passage.id}@old", " ".join(words), passage.title, f"{name}@old", date=_OLD))
    newer = [replace(p, date=_NEW, start=None, end=None) for p in dataset.passages]
    return Dataset(f"{dataset.name}-versions", (*newer, *older), dataset.questions)


def under_a_notice(windows: Dataset) -> Dataset:
    """Windows that all begin with the same notice, so that nobody knows where they lie in their document."""
    noted = [replace(p, text=f"{_NOTICE} {p.text}", start=None, end=None) for p in windows.passages]
    return Dataset(f"{windows.name}-notice", tuple(noted), windows.questions)


def recut(dataset: Dataset, words: int, overlap: float, least_passages: int = 1) -> Dataset:
    """The documents of a set (its passages by source, in order) in windows; its questions without gold ids.

    Lines stay lines, so that the rows of a table do.

    Parameters
    ----------
    words : int
        Length of a window, >= 1.
    overlap : float
        Share of a window that the next one repeats, in [0, 1).
    least_passages : int
        Documents of fewer passages are left out.

    Raises
    ------
    InputError
        For settings out of range, or no document.
    """
    step = round(words * (1 - overlap))
    if words < 1 or not 0 <= overlap < 1 or step < 1:
        raise InputError(f"windows of {words} words that overlap by {overlap:g} cannot be cut")
    documents: dict[str, list[Passage]] = {}
    for passage in dataset.passages:
        documents.setdefault(passage.source or passage.title or passage.id, []).append(passage)
    windows: list[Passage] = []
    for source, passages in documents.items():
        if len(passages) < least_passages:
            continue
        said, gaps = _words(passages)
        starts = [0]
        for word in said:
            starts.append(starts[-1] + len(word) + 1)
        firsts = [0, *(k + step for k in range(0, max(0, len(said) - words), step))]
        for number, first in enumerate(firsts):
            pieces = zip(gaps[first : first + words], said[first : first + words], strict=True)
            text = "".join(gap + word for gap, word in pieces)[1:]
            name = f"{source}#{number}"
            date = passages[0].date
            windows.append(Passage(name, text, passages[0].title, source, starts[first], date=date))
        assert all(a < b for a, b in pairwise(firsts))
    if not windows:
        raise InputError(f"'{dataset.name}' has no document of {least_passages} passages")
    asked = tuple(
        type(q)(q.id, q.text, q.answers, (), q.gold_sources, q.choices, q.type) for q in dataset.questions
    )
    return Dataset(f"{dataset.name}-{words}-{round(100 * overlap)}", tuple(windows), asked)


def _words(passages: Sequence[Passage]) -> tuple[list[str], list[str]]:
    """The words of a document, and the space or the end of a line before each."""
    said: list[str] = []
    gaps: list[str] = []
    for passage in passages:
        lined = "\n" in passage.text
        for found in _WORD.finditer(passage.text):
            first = found.start() == 0
            gaps.append("\n" if "\n" in found[1] or (first and lined) else " ")
            said.append(found[2])
    return said, gaps
