"""A store in memory, for tests of what works with any store."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mio_rag import Passage
from mio_rag.retrieval import CorpusIndex


class Memory:
    """A store that ignores filters, and may change what it returns."""

    def __init__(self, index: CorpusIndex, change=lambda passages: passages) -> None:
        self.index, self.change, self.asked = index, change, []

    def search(self, question: str, vector, k: int, where: Mapping[str, Any] | None) -> Sequence[Passage]:
        self.asked.append((question, k, where))
        rows, scores = self.index.search_dense(vector, k)
        vectors = self.index.embeddings(rows.tolist())
        hits = zip(rows.tolist(), scores.tolist(), vectors, strict=True)
        return self.change([replace(self.index.passages[r], score=s, vector=v) for r, s, v in hits])
