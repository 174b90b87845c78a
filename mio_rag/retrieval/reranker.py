"""What a re-ranker is; `mio_rag.retrieval.rerank` says how they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["KINDS", "FloatArray", "Pair", "Progress", "Reranker"]

FloatArray = NDArray[np.float64]
Pair = tuple[str, str]  # question, passage
Progress = Callable[[int], None]  # called with the number of pairs just finished

#: What a specification may begin with, and the name of the scores.
KINDS = ("maxsim", "cross-encoder", "yes-no")


@runtime_checkable
class Reranker(Protocol):
    """Scores pairs of question and passage; larger is better, on any scale."""

    @property
    def name(self) -> str:
        """Key of `Candidates.scores`, one of `KINDS` or one's own."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever scores could: model, weights, prompt."""
        ...

    def score(self, pairs: Sequence[Pair], progress: Progress | None = None) -> FloatArray:
        """One finite score a pair, shape (len(pairs),)."""
        ...
