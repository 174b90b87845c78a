"""The weights of sentences that ship: which sentences of a needed passage are needed, by HotpotQA.

HotpotQA names the supporting sentences of every question by their number in their paragraph. Its paragraphs
are cut here by `mio_rag.sentences`, which now and then cuts elsewhere than its authors did: labels beyond the
last sentence are dropped, and the share of them is reported.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from mio_rag.corpora.dataset import Dataset
from mio_rag.measures.answers import normalize_answer
from mio_rag.pool import Candidates
from mio_rag.relevance.model import relevance_of
from mio_rag.relevance.sentences import SENTENCE_FEATURES, SentenceModel, sentence_features
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.types import Question

FloatArray = NDArray[np.float64]

_AMOUNTS = ("amount", "no_amount")


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
    chances : ndarray of shape (m,)
        Probability of the passage of each.
    """

    features: FloatArray
    needed: NDArray[np.bool_]
    passages: NDArray[np.int64]
    beyond: int = 0
    chances: FloatArray = field(default_factory=lambda: np.zeros(0))


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


def supporting_labels(
    pools: Sequence[Candidates], raw: Sequence[dict[str, Any]], everywhere: bool = False
) -> Labels:
    """The sentences of gold passages (or of all), and which of them are supporting facts."""
    parts: list[_Part] = []
    beyond = 0
    for pool, question in zip(pools, raw, strict=True):
        features = sentence_features(pool)
        facts: dict[str, set[int]] = {}
        for title, number in question["supporting_facts"]:
            facts.setdefault(title, set()).add(int(number))
        for i, name in enumerate(pool.ids):
            told = facts.get(pool.passage(i).title) if name in question["gold_ids"] else set()
            if told is None or pool.sentences is None or not (told or everywhere):
                continue
            rows = np.flatnonzero(pool.sentences.owners == i)
            beyond += sum(number >= rows.size for number in told)
            parts.append(_Part(features[rows], [k in told for k in range(rows.size)], pool.relevance[i]))
    return _joined(parts, beyond)


def answer_labels(
    pools: Sequence[Candidates], questions: Sequence[Question], everywhere: bool = False
) -> Labels:
    """The sentences of gold passages (or of all), and which hold an answer word for word."""
    parts: list[_Part] = []
    for pool, question in zip(pools, questions, strict=True):
        features = sentence_features(pool)
        answers = [f" {a} " for a in map(normalize_answer, question.answers) if a]
        for i, name in enumerate(pool.ids):
            is_gold = name in question.gold_ids
            if not (is_gold or everywhere):
                continue
            assert pool.sentences is not None
            rows = np.flatnonzero(pool.sentences.owners == i)
            texts = [pool.texts[i][a:b] for a, b in pool.sentences.spans[rows]]
            held = [is_gold and any(a in f" {normalize_answer(text)} " for a in answers) for text in texts]
            if any(held) or not is_gold:
                parts.append(_Part(features[rows], held, pool.relevance[i]))
    return _joined(parts, 0)


class _Part(NamedTuple):
    features: FloatArray
    held: list[bool]
    chance: float


def _joined(parts: Sequence[_Part], beyond: int) -> Labels:
    sizes = [len(part.held) for part in parts]
    return Labels(
        np.concatenate([part.features for part in parts]),
        np.concatenate([np.array(part.held, dtype=bool) for part in parts]),
        np.repeat(np.arange(len(parts)), sizes),
        beyond,
        np.repeat([part.chance for part in parts], sizes),
    )


def fitted(sets: Sequence[Labels], name: str, embedder: str, provenance: str) -> SentenceModel:
    """The weights of largest likelihood; every set weighs the same.

    Of a sentence being needed, with probability chance of its passage times sigmoid(weights . features): over
    the sentences of whole pools, a sentence that is near the question also speaks for its passage.

    Few questions ask for amounts. What an amount is worth is fitted on these alone, with all else held, so
    that it changes nothing for other questions.
    """
    late = np.array([feature in _AMOUNTS for feature in SENTENCE_FEATURES])
    weights = np.zeros(late.size)
    weights[~late], intercept = _most_likely(
        [_but(one, np.logical_not(late)) for one in sets], [0.0] * len(sets)
    )
    asking = [np.asarray(one.features[:, late].any(axis=1)) for one in sets]
    if all(rows.any() for rows in asking):
        known = [(one.features @ weights + intercept)[rows] for one, rows in zip(sets, asking, strict=True)]
        parts = [_but(one, late, rows) for one, rows in zip(sets, asking, strict=True)]
        weights[late], _ = _most_likely(parts, known, free=False)
    return SentenceModel(
        {name: round(float(weight), 4) for name, weight in zip(SENTENCE_FEATURES, weights, strict=True)},
        round(intercept, 4),
        name,
        provenance,
        embedder,
    )


def _but(labels: Labels, columns: NDArray[np.bool_], rows: NDArray[np.bool_] | None = None) -> Labels:
    """Labels with some features, of some sentences."""
    kept = np.ones(len(labels.needed), dtype=bool) if rows is None else rows
    features = labels.features[np.ix_(kept, columns)]
    return Labels(features, labels.needed[kept], labels.passages[kept], labels.beyond, labels.chances[kept])


def _most_likely(
    sets: Sequence[Labels], known: Sequence[FloatArray | float], free: bool = True
) -> tuple[FloatArray, float]:
    """Weights and intercept, which is 0 unless it is free, on top of what is known of each sentence."""
    features = np.concatenate([one.features for one in sets])
    needed = np.concatenate([one.needed for one in sets])
    chance = np.clip(np.concatenate([one.chances for one in sets]), 1e-6, 1 - 1e-6)
    weight = np.concatenate([np.full(len(one.needed), 1000 / len(one.needed)) for one in sets])
    before = np.concatenate([np.zeros(len(one.needed)) + at for one, at in zip(sets, known, strict=True)])
    scale = features.std(axis=0)
    scale[scale == 0] = 1.0
    scaled = np.column_stack([features / scale, np.full(len(features), float(free))])

    def loss(w: FloatArray) -> tuple[float, FloatArray]:
        share = np.clip(expit(before + scaled @ w), 1e-9, 1 - 1e-9)
        p = chance * share
        value = -np.where(needed, np.log(p), np.log1p(-p)) @ weight + 0.05 * float(w[:-1] @ w[:-1])
        slope = np.where(needed, -(1 - share), p * (1 - share) / (1 - p)) * weight
        return float(value), scaled.T @ slope + np.append(0.1 * w[:-1], 0.0)

    found = minimize(loss, np.zeros(scaled.shape[1]), jac=True, method="L-BFGS-B").x
    return found[:-1] / scale, float(found[-1])


def by_words(labels: Labels) -> Labels:
    """The same sentences as one sees them that nobody has embedded."""
    features = labels.features.copy()
    features[:, [SENTENCE_FEATURES.index(name) for name in ("lead", "pool_gap")]] = 0.0
    return replace(labels, features=features)


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
