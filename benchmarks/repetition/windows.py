"""Corpora that repeat themselves: the documents of a question set, cut into windows that overlap."""

from __future__ import annotations

from itertools import pairwise

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.types import Passage

__all__ = ["recut"]


def recut(dataset: Dataset, words: int, overlap: float, least_passages: int = 1) -> Dataset:
    """The documents of a set (its passages by source, in order) in windows; its questions without gold ids.

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
        said = [word for passage in passages for word in passage.text.split()]
        starts = [0]
        for word in said:
            starts.append(starts[-1] + len(word) + 1)
        firsts = [0, *(k + step for k in range(0, max(0, len(said) - words), step))]
        for number, first in enumerate(firsts):
            text = " ".join(said[first : first + words])
            name = f"{source}#{number}"
            windows.append(Passage(name, text, passages[0].title, source, starts[first]))
        assert all(a < b for a, b in pairwise(firsts))
    if not windows:
        raise InputError(f"'{dataset.name}' has no document of {least_passages} passages")
    asked = tuple(
        type(q)(q.id, q.text, q.answers, (), q.gold_sources, q.choices, q.type) for q in dataset.questions
    )
    return Dataset(f"{dataset.name}-{words}-{round(100 * overlap)}", tuple(windows), asked)
