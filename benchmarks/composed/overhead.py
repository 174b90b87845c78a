"""CPU seconds that all decisions of a policy take for a question, without searching and without a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mio_rag.batch.ask import read_questions
from mio_rag.generation import ScriptedGenerator
from mio_rag.policies.compose import compose
from mio_rag.policies.setup import Setup
from mio_rag.policy import policy_of
from mio_rag.pool import Candidates
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever

_POLICIES: dict[str, dict[str, Any]] = {
    "price": {"price": {"token": 0.002}},
    "price, repetition": {"price": {"token": 0.0005}, "repetition": {"by": "price", "most": 1}},
    "total, repetition by the process": {
        "price": {"total": 10**7, "questions": 10_000},
        "repetition": {"by": "process", "most": 2},
    },
}
_WARM = 5

T = TypeVar("T")


class _Timed(Retriever):
    """Counts the CPU seconds of its searches."""

    searching = 0.0
    _inside = False

    def _timed(self, search: Callable[[], T]) -> T:
        if self._inside:  # one search calls another
            return search()
        self._inside, began = True, time.process_time()
        try:
            return search()
        finally:
            self._inside = False
            self.searching += time.process_time() - began

    def retrieve(self, question: str) -> Candidates:
        """As a retriever does."""
        return self._timed(lambda: super(_Timed, self).retrieve(question))

    def ranked(self, text: str, words: str | None = None) -> list[int]:
        """Likewise."""
        return self._timed(lambda: super(_Timed, self).ranked(text, words))

    def pool_of(self, question: str, ranking: Sequence[int], fused: Mapping[int, float]) -> Candidates:
        """Likewise."""
        return self._timed(lambda: super(_Timed, self).pool_of(question, ranking, fused))


def overhead(work: Path, questions: int = 200) -> dict[str, dict[str, float]]:
    """Mean and 95th percentile by policy, over questions of a load test."""
    index = CorpusIndex.load(work / "INDEX")
    asked = read_questions(work / "questions.jsonl")[: questions + _WARM]
    told = {}
    for name, policy in _POLICIES.items():
        reader, retriever = ScriptedGenerator(lambda prompt: "yes"), _Timed(index)
        made = compose(policy_of(policy, name), Setup(retriever=retriever))
        made = replace(made, kit=replace(made.kit, retriever=retriever))
        took = []
        for question in asked:
            before, began = retriever.searching, time.process_time()
            made.attempt(question, reader, 1024)
            took.append(time.process_time() - began - (retriever.searching - before))
        made.close()
        kept = np.array(took[_WARM:])
        told[name] = {
            "mean_seconds": round(float(kept.mean()), 5),
            "p95_seconds": round(float(np.quantile(kept, 0.95)), 5),
        }
    return told
