"""Answered questions -> weights of sentences: which sentences of a pool questions of one's own need.

A sentence is needed that holds a short answer word for word. Of a longer answer it is one that holds a
figure which the question does not name, or that consists of the answer's words to three tenths or more, four
at least: figures alone would teach that rows of numbers are all that is ever needed. Where gold passages or
documents are known, only their sentences are. Questions without such a sentence in their pool tell nothing,
and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.errors import InputError, require
from mio_rag.measures.answers import normalize_answer
from mio_rag.relevance.amounts import answer_figures, figures
from mio_rag.relevance.pool import is_common
from mio_rag.relevance.sentences import (
    SENTENCE_FEATURES,
    SentenceModel,
    log_odds,
    sentence_features,
    shipped_sentences,
)
from mio_rag.sentences import cut
from mio_rag.types import Question

__all__ = ["fit_sentences", "needed_sentences"]

FloatArray = NDArray[np.float64]

_SHORT = 10  # words of an answer that is looked for word for word
_LEAST_WORDS, _LEAST_SHARE = 4, 0.3  # of a sentence, that a long answer holds and the question does not
_WORD = re.compile(r"[^\W\d_]{3,}")
_FOLDS = 5
_STRENGTHS = (0.003, 0.01, 0.03, 0.1, 1.0)  # inverse regularisation, on standardised features


def needed_sentences(question: Question, candidates: Candidates) -> NDArray[np.bool_]:
    """Which of ``candidates.sentences`` a question needs, shape (m,).

    Parameters
    ----------
    candidates : Candidates
        With sentences.
    """
    sentences = candidates.sentences
    assert sentences is not None
    pairs = zip(sentences.owners.tolist(), sentences.spans.tolist(), strict=True)
    short = [f" {a} " for a in map(normalize_answer, question.answers) if a and len(a.split()) <= _SHORT]
    told = answer_figures(question)
    words = frozenset[str]().union(*map(_words, question.answers)) - _words(question.text)
    found = []
    for owner, (start, end) in pairs:
        text = candidates.texts[owner][start:end]
        if not _may_hold(question, candidates, owner):
            found.append(False)
        elif short:
            said = f" {normalize_answer(text)} "
            found.append(any(answer in said for answer in short))
        else:
            own = _words(text)
            held = len(own & words)
            much = held >= _LEAST_WORDS and held >= _LEAST_SHARE * len(own)
            found.append(much or bool(told & figures(text)))
    return np.array(found, dtype=bool)


def _may_hold(question: Question, candidates: Candidates, passage: int) -> bool:
    """Whether a passage is one that is known to be needed, or of such a document, or nothing is known."""
    if question.gold_ids:
        return candidates.ids[passage] in question.gold_ids
    if question.gold_sources and candidates.sources is not None:
        return candidates.sources[passage] in question.gold_sources
    return True


def _words(text: str) -> frozenset[str]:
    """The words of a text that say something."""
    return frozenset(word for word in _WORD.findall(text.lower()) if not is_common(word))


def fit_sentences(
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    *,
    seed: int = 0,
    name: str = "own",
    provenance: str = "",
) -> SentenceModel:
    """Weights that give the probability of a sentence itself: logistic regression, questions never split.

    Parameters
    ----------
    pools : sequence of Candidates
        Of each question, with probabilities as relevance, by the model that is used later.
    seed : int
        Of the folds.
    name, provenance : str
        Kept with the weights.

    Returns
    -------
    SentenceModel
        With log losses of questions outside the fold, and of the weights that ship ("before"), as `measures`.

    Raises
    ------
    InputError
        If fewer than ten questions have a needed sentence in their pool, or only some pools are embedded.
    """
    linear: Any = require("sklearn.linear_model", "retrieval", "fitting weights of sentences")
    selection: Any = require("sklearn.model_selection", "retrieval", "fitting weights of sentences")
    known = [pool if pool.sentences else replace(pool, sentences=cut(pool.texts)) for pool in pools]
    labels = [needed_sentences(q, pool) for q, pool in zip(questions, known, strict=True)]
    kept = [k for k, needed in enumerate(labels) if needed.any()]
    if len(kept) < 2 * _FOLDS:
        raise InputError(
            f"{len(kept)} of {len(pools)} questions have a sentence in their pool that holds their answer, "
            f"or some of a long one: at least {2 * _FOLDS} are needed to fit weights of sentences"
        )
    vectors = {pool.sentences is not None and pool.sentences.embeddings is not None for pool in known}
    if len(vectors) > 1:
        raise InputError("sentences of some pools are embedded, and of others not: use one index for all")
    embedded = vectors.pop()
    shipped = shipped_sentences(known[0].embedder if embedded else None)
    x = np.concatenate([_columns(known[k]) for k in kept])
    before = np.concatenate([shipped.worth(known[k]) for k in kept])
    y = np.concatenate([labels[k] for k in kept])
    groups = np.repeat(kept, [labels[k].size for k in kept])
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale < 1e-12] = 1.0
    scaled = (x - mean) / scale
    folds = list(selection.GroupKFold(_FOLDS, shuffle=True, random_state=seed).split(scaled, y, groups))

    def outside(strength: float) -> float:
        p = np.empty(y.size)
        for train, test in folds:
            p[test] = _regression(linear, scaled[train], y[train], strength).predict_proba(scaled[test])[:, 1]
        return _log_loss(p, y)

    losses = {strength: outside(strength) for strength in _STRENGTHS}
    strength = min(losses, key=lambda one: losses[one])
    fitted = _regression(linear, scaled, y, strength)
    weights = fitted.coef_[0] / scale
    weights[-1] = max(0.0, weights[-1])
    return SentenceModel(
        dict(zip(SENTENCE_FEATURES, (float(w) for w in weights[:-1]), strict=True)),
        float(fitted.intercept_[0] - weights @ mean),
        name,
        provenance,
        known[0].embedder if embedded else "",
        {
            "questions": len(kept),
            "sentences": int(y.size),
            "needed": int(y.sum()),
            "inverse_regularisation": strength,
            "log_loss_before": _log_loss(before, y),
            "log_loss_after": losses[strength],
        },
        float(weights[-1]),
    )


def _columns(candidates: Candidates) -> FloatArray:
    """The features of the sentences of a pool, and the log-odds of their passages."""
    assert candidates.sentences is not None
    passage = log_odds(candidates.relevance[candidates.sentences.owners])
    return np.column_stack([sentence_features(candidates), passage])


def _regression(linear: Any, x: FloatArray, y: NDArray[np.bool_], strength: float) -> Any:
    return linear.LogisticRegression(C=strength, max_iter=1000).fit(x, y)


def _log_loss(p: FloatArray, y: NDArray[np.bool_]) -> float:
    safe = np.clip(p, 1e-12, 1 - 1e-12)
    return float(-np.where(y, np.log(safe), np.log1p(-safe)).mean())
