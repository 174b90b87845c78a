"""Judges of support on answers whose support is known.

Of each set, questions with gold passages and an accepted answer are drawn, no yes or no. A judge scores three
sentences for each: the gold answer with the gold passages (supported), the gold answer of the next question
with the same passages (a wrong answer), and the gold answer with the passages of the next question (wrong
passages). Reported is the area under the ROC curve against either error, with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.questions import load_sets
from benchmarks.runner import Measured, at_least, interval_text, text_table
from mio_rag.corpora.dataset import Dataset
from mio_rag.measures import normalize_answer
from mio_rag.measures.judges import EmbeddingJudge, WordJudge
from mio_rag.retrieval.embedders import Embedder

_DRAWS = 1000
_ERRORS = ("wrong answer", "wrong passages")


def measure(given: argparse.Namespace) -> Measured:
    """Measure every set."""
    at_least(given, limit=2)
    sets = {
        one.name: measured(one.dataset, one.index.embedder, given.limit, given.seed)
        for one in load_sets(given)
    }
    rows = [
        (f"{name}, {judge}", *(interval_text({**errors[e], "mean": errors[e]["area"]}) for e in _ERRORS))
        for name, found in sets.items()
        for judge, errors in found["judges"].items()
    ]
    return Measured({"sets": sets}, text_table(("area under the ROC curve", *_ERRORS), rows))


def measured(data: Dataset, embedder: Embedder, count: int, seed: int) -> dict[str, Any]:
    """Return the areas of the judges on one set; the rival of the embedding judge embeds the question too."""
    by_id, unclear = {p.id: p for p in data.passages}, ("yes", "no", "maybe", "")
    asked = [
        q
        for q in data.questions
        if q.gold_ids and q.answers and normalize_answer(q.answers[0]) not in unclear
    ]
    drawn = asked[:count]
    words, embedding = WordJudge(), EmbeddingJudge(embedder)
    scores: dict[str, list[list[float]]] = {
        "words": [],
        "embedding": [],
        "embedding of question and answer": [],
    }
    for k, question in enumerate(drawn if len(drawn) > 1 else ()):
        other = drawn[(k + 1) % len(drawn)]
        read, elsewhere = (tuple(by_id[i] for i in q.gold_ids) for q in (question, other))
        right, wrong = question.answers[0], other.answers[0]
        cases = ((right, read), (wrong, read), (right, elsewhere))
        scores["words"].append([words.score(*case) for case in cases])
        scores["embedding"].append([embedding.score(*case) for case in cases])
        scores["embedding of question and answer"].append(
            [embedding.score(f"{question.text} {answer}", passages) for answer, passages in cases]
        )
    judges = {}
    for judge, rows in scores.items():
        values = np.array(rows).reshape(-1, 3)
        if len(values):
            judges[judge] = {
                e: _with_interval(values[:, 0], values[:, k + 1], seed) for k, e in enumerate(_ERRORS)
            }
    return {"data_sha256": data.content_hash(), "questions": len(drawn), "judges": judges}


def area(right: NDArray[np.float64], wrong: NDArray[np.float64]) -> float:
    """Return the probability that a supported sentence scores above another; ties count half."""
    above = (right[:, None] > wrong[None, :]).mean()
    return float(above + 0.5 * (right[:, None] == wrong[None, :]).mean())


def _with_interval(right: NDArray[np.float64], wrong: NDArray[np.float64], seed: int) -> dict[str, float]:
    rows = np.random.default_rng(seed).integers(0, len(right), (_DRAWS, len(right)))
    low, high = np.percentile([area(right[r], wrong[r]) for r in rows], [2.5, 97.5])
    return {"area": area(right, wrong), "low": float(low), "high": float(high)}
