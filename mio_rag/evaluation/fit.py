"""Models from labelled questions: relevance of passages, weights of sentences, completeness of evidence."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError, require
from mio_rag.measures import evidence_found
from mio_rag.measures.answers import normalize_answer
from mio_rag.pool import Candidates
from mio_rag.relevance import DocumentModel, Labelled, RelevanceModel, fit, fit_documents, reliability_plot
from mio_rag.relevance.complete import SIGNALS, Completeness, adapt, shipped, signals
from mio_rag.relevance.features import is_common
from mio_rag.relevance.model import Kind, relevance_of
from mio_rag.relevance.sentences import (
    SENTENCE_FEATURES,
    SentenceModel,
    answer_figures,
    figures,
    log_odds,
    sentence_features,
    shipped_sentences,
)
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector
from mio_rag.sentences import cut
from mio_rag.storage import make_parent, write_atomically
from mio_rag.types import Question

FloatArray = NDArray[np.float64]

# Relevance of passages --------------------------------------------------------------------------------------


def labelled_pools(
    questions: Sequence[Question], retriever: Retriever, progress: Callable[[int], None] | None = None
) -> list[Labelled]:
    """Retrieve the pool of each question that names its gold passages."""
    asked = [question for question in questions if question.gold_ids]
    if progress:
        progress(len(questions) - len(asked))
    pools = retriever.retrieve_many([question.text for question in asked], progress)
    return [Labelled(pool, frozenset(question.gold_ids)) for pool, question in zip(pools, asked, strict=True)]


def calibrate(
    dataset: Dataset,
    retriever: Retriever,
    *,
    kind: Kind = "logistic",
    link_stages: int = 1,
    limit: int | None = None,
    seed: int = 0,
    name: str = "model",
    progress: Callable[[int], None] | None = None,
    sentences: bool = False,
) -> RelevanceModel:
    """Fit relevance on the questions that name their gold passages; see `mio_rag.relevance.fit`.

    retriever: over the index of this corpus, with the settings of later use.
    sentences: fit weights of sentences on answers, too. Without any gold passage, the weights of passages are
        those that ship for most of the pools.

    Raises `DataError` without labels, `InputError` for another corpus, or too little data.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} must be >= 1")
    questions = dataset.questions[:limit]
    labelled = any(question.gold_ids for question in questions)
    if sentences and not any(question.answers for question in questions):
        raise DataError(
            f"no question of '{dataset.name}' has an answer: weights of sentences are fitted on them; give "
            "answers, or leave --sentences out"
        )
    if not labelled and not sentences:
        raise DataError(
            f"no question of '{dataset.name}' names its gold passages (gold_ids): a relevance model is "
            "fitted on them, and gold documents (gold_sources) do not tell which passages of theirs are "
            "needed; label some questions, leave relevance at auto, or fit weights of sentences on answers "
            "alone (--sentences)"
        )
    index: CorpusIndex = retriever.index
    if set(dataset.passages) ^ set(index.passages):
        raise InputError(
            f"the index does not hold the corpus of '{dataset.name}': build it from the same data"
        )
    today = datetime.now(UTC).date().isoformat()
    hops = f", links followed {retriever.link_hops} deep" if retriever.link_hops else ""
    looked = "".join(f", re-ranked by {reranker.fingerprint}" for reranker in retriever.rerankers)
    about = (
        f"questions of '{dataset.name}' ({dataset.content_hash()[:12]}), pools of {retriever.pool} by "
        f"{retriever.mode} retrieval with {index.embedder.name}{hops}{looked}; {today}"
    )
    model: RelevanceModel | None = None
    if labelled:
        pools = labelled_pools(questions, retriever, progress)
        model = fit(
            pools,
            kind=kind,
            link_stages=link_stages,
            seed=seed,
            name=name,
            embedder=index.embedder.fingerprint,
            provenance=f"{len(pools)} {about}",
        )
    if sentences:
        asked = [question for question in questions if question.answers]
        found = retriever.retrieve_many([question.text for question in asked])
        if model is None:
            each = [relevance_of("auto", pool)[0] for pool in found]
            most = max(each, key=each.count)
            assert most is not None
            model = replace(most, name=name, embedder=index.embedder.fingerprint)
        valued = [model.valued(pool) for pool in found]
        weights = fit_sentences(asked, valued, seed=seed, name=name, provenance=f"{len(asked)} {about}")
        model = replace(model, sentences=weights)
    assert model is not None
    return model


def calibrate_documents(
    questions: Sequence[Question],
    retriever: Retriever,
    *,
    seed: int = 0,
    name: str = "documents",
    progress: Callable[[int], None] | None = None,
) -> DocumentModel:
    """Fit weights of units of documents on questions with answers, or with gold passages.

    Needed is a unit that is an answer word for word, else those of `needed_sentences`, else all of the gold
    passages. Raises `InputError` for too few questions.
    """
    asked = [question for question in questions if question.answers or question.gold_ids]
    pools, needed = retriever.retrieve_many([question.text for question in asked], progress), []
    for question, pool in zip(asked, pools, strict=True):
        units = pool.sentences
        assert units is not None
        owners, spans = units.owners.tolist(), units.spans.tolist()
        texts = [pool.texts[i][a:b].strip() for i, (a, b) in zip(owners, spans, strict=True)]
        gold = np.isin(np.array(pool.ids)[units.owners], question.gold_ids)
        exact = np.isin(texts, question.answers) & (gold if question.gold_ids else True)
        long = needed_sentences(question, pool) if question.answers else gold
        needed.append(exact if exact.any() else long)
    kinds = {question.type == "synthetic" for question in asked}
    kind = "questions made from the documents" if kinds == {True} else "labelled questions"
    about = f"{len(asked)} {kind}"
    return fit_documents(pools, needed, scaled=kinds != {True}, seed=seed, name=name, provenance=about)


def write_model(model: RelevanceModel | DocumentModel, path: Path) -> Path | None:
    """Write a model as JSON and its reliability plot next to it; return the path of the plot.

    None for weights that ship: their reliability on these questions is unknown.
    """
    make_parent(path)
    write_atomically(path, json.dumps(model.to_dict(), indent=1, allow_nan=False) + "\n")
    if "reliability_before" not in model.measures:
        return None
    assert isinstance(model, RelevanceModel)
    picture = path.with_suffix(".png")
    curves = {
        "cosine": model.measures["reliability_before"],
        f"{model.kind} (out of fold)": model.measures["reliability_after"],
    }
    reliability_plot(picture, curves, f"Relevance '{model.name}'")
    return picture


# Weights of sentences ---------------------------------------------------------------------------------------

_SHORT = 10  # words of an answer that is looked for word for word
_LEAST_WORDS, _LEAST_SHARE = 4, 0.3  # of a sentence, that a long answer holds and the question does not
_WORD = re.compile(r"[^\W\d_]{3,}")
_SENTENCE_FOLDS = 5
_STRENGTHS = (0.003, 0.01, 0.03, 0.1, 1.0)  # inverse regularisation, on standardised features


def needed_sentences(question: Question, candidates: Candidates) -> NDArray[np.bool_]:
    """Return which of ``candidates.sentences`` a question needs, shape (m,).

    A sentence is needed that holds a short answer word for word. Of a longer answer it is one with a figure
    that the question does not name, or one of whose words at least 30 %, and at least four, are the answer's.
    (Figures alone would teach that only rows of numbers are needed.) Where gold passages or documents are
    known, only their sentences count.
    """
    sentences = candidates.sentences
    assert sentences is not None
    short = [f" {a} " for a in map(normalize_answer, question.answers) if a and len(a.split()) <= _SHORT]
    told = answer_figures(question)
    words = frozenset[str]().union(*map(_words, question.answers)) - _words(question.text)

    def may_hold(owner: int) -> bool:
        if question.gold_ids:
            return candidates.ids[owner] in question.gold_ids
        known = question.gold_sources and candidates.sources
        return not known or known[owner] in question.gold_sources

    def is_needed(owner: int, start: int, end: int) -> bool:
        text = candidates.texts[owner][start:end]
        if short:
            said = f" {normalize_answer(text)} "
            return any(answer in said for answer in short)
        own = _words(text)
        held = len(own & words)
        return (held >= _LEAST_WORDS and held >= _LEAST_SHARE * len(own)) or bool(told & figures(text))

    pairs = zip(sentences.owners.tolist(), sentences.spans.tolist(), strict=True)
    return np.array([may_hold(owner) and is_needed(owner, *span) for owner, span in pairs], dtype=bool)


def _words(text: str) -> frozenset[str]:
    """The words of a text, except common ones."""
    return frozenset(word for word in _WORD.findall(text.lower()) if not is_common(word))


def fit_sentences(
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    *,
    seed: int = 0,
    name: str = "own",
    provenance: str = "",
) -> SentenceModel:
    """Fit the probability that a sentence is needed: logistic regression, by folds of questions.

    pools: of each question, with probabilities as relevance, by the model that is used later.

    Its `measures` hold log losses outside the folds, and of the weights that ship ("before").

    Raises `InputError` if fewer than ten questions have a needed sentence in their pool, or only some pools
    are embedded.
    """
    linear: Any = require("sklearn.linear_model", "retrieval", "fitting weights of sentences")
    selection: Any = require("sklearn.model_selection", "retrieval", "fitting weights of sentences")
    known = [pool if pool.sentences else replace(pool, sentences=cut(pool.texts)) for pool in pools]
    labels = [needed_sentences(q, pool) for q, pool in zip(questions, known, strict=True)]
    kept = [k for k, needed in enumerate(labels) if needed.any()]
    if len(kept) < 2 * _SENTENCE_FOLDS:
        raise InputError(
            f"{len(kept)} of {len(pools)} questions have a sentence in their pool that holds their answer, "
            f"or some of a long one: at least {2 * _SENTENCE_FOLDS} are needed to fit weights of sentences"
        )
    vectors = {pool.sentences is not None and pool.sentences.embeddings is not None for pool in known}
    if len(vectors) > 1:
        raise InputError("sentences of some pools are embedded, and of others not: use one index for all")
    embedder = known[0].embedder if vectors.pop() else ""
    before = np.concatenate([shipped_sentences(embedder or None).worth(known[k]) for k in kept])
    x = np.concatenate([_columns(known[k]) for k in kept])
    y = np.concatenate([labels[k] for k in kept])
    groups = np.repeat(kept, [labels[k].size for k in kept])
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale < 1e-12] = 1.0
    scaled = (x - mean) / scale
    splitter = selection.GroupKFold(_SENTENCE_FOLDS, shuffle=True, random_state=seed)
    folds = list(splitter.split(scaled, y, groups))

    def fitted(strength: float, rows: Any = slice(None)) -> Any:
        return linear.LogisticRegression(C=strength, max_iter=1000).fit(scaled[rows], y[rows])

    losses = {}
    for strength in _STRENGTHS:
        p = np.empty(y.size)
        for train, test in folds:
            p[test] = fitted(strength, train).predict_proba(scaled[test])[:, 1]
        losses[strength] = _log_loss(p, y)
    strength = min(losses, key=lambda one: losses[one])
    final = fitted(strength)
    weights = final.coef_[0] / scale
    weights[-1] = max(0.0, weights[-1])
    measured = {
        "questions": len(kept), "sentences": int(y.size), "needed": int(y.sum()),
        "inverse_regularisation": strength, "log_loss_before": _log_loss(before, y),
        "log_loss_after": losses[strength],
    }  # fmt: skip
    features = dict(zip(SENTENCE_FEATURES, map(float, weights[:-1]), strict=True))
    constant = float(final.intercept_[0] - weights @ mean)
    return SentenceModel(features, constant, name, provenance, embedder, measured, float(weights[-1]))


def _columns(candidates: Candidates) -> FloatArray:
    """The features of the sentences of a pool, and the log-odds of their passages."""
    assert candidates.sentences is not None
    passage = log_odds(candidates.relevance[candidates.sentences.owners])
    return np.column_stack([sentence_features(candidates), passage])


def _log_loss(p: FloatArray, y: NDArray[np.bool_]) -> float:
    safe = np.clip(p, 1e-12, 1 - 1e-12)
    return float(-np.where(y, np.log(safe), np.log1p(-safe)).mean())


# Completeness of evidence -----------------------------------------------------------------------------------

#: Token prices, high to zero, so that selections of all sizes are seen.
PRICES = (0.004, 0.002, 0.001, 0.0005, 0.0002, 0.0)
_BUDGET = 2048
_FOLDS, _BINS = 5, 10


@dataclass(frozen=True)
class Calibrated:
    """The shipped regression adapted to labelled questions, and its calibration on held-out ones.

    error, shipped_error: expected calibration error of this regression and of the shipped one.
    chance: error that true probabilities would have, on average, on so many questions.
    brier, shipped_brier: mean squared error.
    rate: share of the selections that are complete.
    """

    model: Completeness
    questions: int
    error: float
    shipped_error: float
    chance: float
    brier: float
    shipped_brier: float
    rate: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without the regression."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "model"}


def calibrate_completeness(
    dataset: Dataset,
    index: CorpusIndex,
    selector: Selector | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Calibrated:
    """Adapt the shipped regression to questions with gold passages or documents, and measure it by folds.

    selector: the program; its price of a token is varied.
    limit: most questions, drawn by seed.
    """
    labelled = [q for q in dataset.questions if q.gold_ids or q.gold_sources]
    order = np.random.default_rng(seed).permutation(len(labelled))[:limit]
    if not len(order):
        raise InputError(f"no question of '{dataset.name}' has gold passages: there is nothing to fit on")
    base, retriever = selector or Selector(), Retriever(index)
    programs = [base.replace(token_price=price) for price in PRICES]
    seen = np.full((len(order), len(PRICES), len(SIGNALS)), np.nan)
    done = np.zeros((len(order), len(PRICES)))
    for row, k in enumerate(order):
        question = labelled[k]
        pool = retriever.retrieve(question.text)
        relevance = base.valued(pool).relevance
        for column, program in enumerate(programs):
            chosen = program.choose(pool, _BUDGET).chosen
            if chosen:
                seen[row, column] = signals(relevance, chosen, question.text)
                done[row, column] = evidence_found(question, pool, chosen) >= 1.0
        if progress is not None:
            progress(1)
    return _measured(seen, done, dataset.name)


def _measured(seen: FloatArray, done: FloatArray, name: str) -> Calibrated:
    """Fit on all questions and measure by folds; shapes (questions, prices, signals), (questions, prices)."""
    known = np.isfinite(seen).all(axis=2)
    asked = np.broadcast_to(np.arange(len(seen))[:, None], known.shape)
    about = {"adapted": f"to {len(seen)} questions of {name}, at {len(PRICES)} prices"}
    parts = []
    for k in range(_FOLDS):
        train, test = known & (asked % _FOLDS != k), known & (asked % _FOLDS == k)
        own = adapt(shipped(), seen[train], done[train], about).of(seen[test])
        parts.append((own, shipped().of(seen[test]), done[test], asked[test]))
    p, before, y, whose = (np.concatenate(column) for column in zip(*parts, strict=True))
    errors = (calibration_error(p, y), calibration_error(before, y), by_chance(p, whose))
    squares = (float(np.mean((p - y) ** 2)), float(np.mean((before - y) ** 2)))
    model = adapt(shipped(), seen[known], done[known], about)
    return Calibrated(model, len(seen), *errors, *squares, float(y.mean()))


def calibration_error(said: FloatArray, was: FloatArray) -> float:
    """Return the expected calibration error over ten bins of equal count."""
    bins = [part for part in np.array_split(np.argsort(said, kind="stable"), _BINS) if len(part)]
    off = sum(abs(float(said[part].mean() - was[part].mean())) * len(part) for part in bins)
    return off / len(said)


def by_chance(said: FloatArray, asked: NDArray[np.intp], draws: int = 100, seed: int = 0) -> float:
    """Return the mean calibration error of probabilities that are true.

    asked: shape (n,); the question of each: outcomes of one question are drawn together.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        draw = rng.random(int(asked.max()) + 1)[asked]
        found.append(calibration_error(said, (draw < said).astype(np.float64)))
    return float(np.mean(found))
