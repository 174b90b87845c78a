"""The weights of sentences that ship: which sentences of a needed passage are needed, by HotpotQA.

HotpotQA names the supporting sentences of every question by their number in their paragraph. Its paragraphs
are cut here by `mio_rag.sentences`, which now and then cuts elsewhere than its authors did: labels beyond the
last sentence are dropped, and the share of them is reported.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.corpora.dataset import Dataset
from mio_rag.measures.answers import normalize_answer
from mio_rag.relevance.sentences import SENTENCE_FEATURES, SentenceModel, sentence_features
from mio_rag.relevance.source import relevance_of
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.types import Question

__all__ = ["Labels", "answer_labels", "context_set", "fitted", "judged", "supporting_labels", "valued_pools"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Labels:
    """Sentences of needed passages.

    Parameters
    ----------
    features : ndarray of shape (m, k)
    needed : ndarray of bool, shape (m,)
    passages : ndarray of int64, shape (m,)
        Number of the passage that each is of, ascending.
    beyond : int
        Labels that point behind the last sentence of their passage.
    """

    features: FloatArray
    needed: NDArray[np.bool_]
    passages: NDArray[np.int64]
    beyond: int = 0


def raw_questions(folder: Path) -> list[dict[str, Any]]:
    """The questions of a set as they lie on disk, with supporting facts and context ids."""
    with gzip.open(folder / "questions.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def context_set(dataset: Dataset, raw: Sequence[dict[str, Any]], chosen: Sequence[int]) -> Dataset:
    """Some questions of a set, and the passages that came with them."""
    wanted = {i for k in chosen for i in raw[k]["context_ids"]}
    named = {raw[k]["id"] for k in chosen}
    return Dataset(
        dataset.name,
        tuple(passage for passage in dataset.passages if passage.id in wanted),
        tuple(question for question in dataset.questions if question.id in named),
    )


def valued_pools(index: CorpusIndex, questions: Sequence[Question]) -> list[Candidates]:
    """The pool of each question, with probabilities."""
    pools = Retriever(index).retrieve_many([question.text for question in questions])
    models = [relevance_of("auto", pool)[0] for pool in pools]
    return [pool if model is None else model.valued(pool) for pool, model in zip(pools, models, strict=True)]


def supporting_labels(pools: Sequence[Candidates], raw: Sequence[dict[str, Any]]) -> Labels:
    """The sentences of gold passages, and which of them are supporting facts."""
    parts: list[tuple[FloatArray, list[bool]]] = []
    beyond = 0
    for pool, question in zip(pools, raw, strict=True):
        features = sentence_features(pool)
        facts: dict[str, set[int]] = {}
        for title, number in question["supporting_facts"]:
            facts.setdefault(title, set()).add(int(number))
        for i, name in enumerate(pool.ids):
            told = facts.get(pool.passage(i).title)
            if name not in question["gold_ids"] or told is None or pool.sentences is None:
                continue
            rows = np.flatnonzero(pool.sentences.owners == i)
            beyond += sum(number >= rows.size for number in told)
            parts.append((features[rows], [k in told for k in range(rows.size)]))
    return _joined(parts, beyond)


def answer_labels(pools: Sequence[Candidates], questions: Sequence[Question]) -> Labels:
    """The sentences of gold passages, and which of them hold an answer word for word."""
    parts: list[tuple[FloatArray, list[bool]]] = []
    for pool, question in zip(pools, questions, strict=True):
        features = sentence_features(pool)
        answers = [f" {a} " for a in map(normalize_answer, question.answers) if a]
        for i in [k for k, name in enumerate(pool.ids) if name in question.gold_ids]:
            assert pool.sentences is not None
            rows = np.flatnonzero(pool.sentences.owners == i)
            texts = [pool.texts[i][a:b] for a, b in pool.sentences.spans[rows]]
            held = [any(a in f" {normalize_answer(text)} " for a in answers) for text in texts]
            if any(held):
                parts.append((features[rows], held))
    return _joined(parts, 0)


def _joined(parts: Sequence[tuple[FloatArray, list[bool]]], beyond: int) -> Labels:
    sizes = [len(held) for _, held in parts]
    return Labels(
        np.concatenate([features for features, _ in parts]),
        np.concatenate([np.array(held, dtype=bool) for _, held in parts]),
        np.repeat(np.arange(len(parts)), sizes),
        beyond,
    )


def fitted(sets: Sequence[Labels], name: str, embedder: str, provenance: str) -> SentenceModel:
    """A logistic model; every set weighs the same."""
    from sklearn.linear_model import LogisticRegression

    features = np.concatenate([one.features for one in sets])
    needed = np.concatenate([one.needed for one in sets])
    weight = np.concatenate([np.full(len(one.needed), 1000 / len(one.needed)) for one in sets])
    scale = features.std(axis=0)
    scale[scale == 0] = 1.0
    model = LogisticRegression(C=1.0, max_iter=1000).fit(features / scale, needed, weight)
    weights = model.coef_[0] / scale
    return SentenceModel(
        {name: round(float(weight), 4) for name, weight in zip(SENTENCE_FEATURES, weights, strict=True)},
        round(float(model.intercept_[0]), 4),
        name,
        provenance,
        embedder,
    )


def judged(shares: FloatArray, labels: Labels) -> dict[str, float]:
    """How good probabilities are: log loss, calibration error, and how often the best sentence is needed."""
    p = np.clip(shares, 1e-6, 1 - 1e-6)
    y = labels.needed.astype(np.float64)
    bins = np.minimum((p * 10).astype(int), 9)
    error = sum(abs(p[bins == b].mean() - y[bins == b].mean()) * (bins == b).mean() for b in set(bins))
    first = np.unique(labels.passages, return_index=True)[1]
    best = [y[a + int(np.argmax(p[a:b]))] for a, b in zip(first, [*first[1:], len(y)], strict=True)]
    return {
        "sentences": len(y),
        "needed": round(float(y.mean()), 4),
        "log_loss": round(float(-(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()), 4),
        "calibration_error": round(float(error), 4),
        "best_is_needed": round(float(np.mean(best)), 4),
    }
