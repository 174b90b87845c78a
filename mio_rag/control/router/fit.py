"""Train a router on a table of outcomes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # loads scipy.special, an eighth of a second, where it is first used
from numpy.typing import NDArray

from mio_rag import __version__
from mio_rag.control.router.controller import Correction
from mio_rag.control.router.features import FEATURES, SEARCH
from mio_rag.control.router.mlp import History, train_mlp
from mio_rag.control.router.model import KINDS, Router, row_of, terms
from mio_rag.control.router.table import Table
from mio_rag.errors import InputError, choose, require
from mio_rag.solvers.capabilities import versions_of

__all__ = ["FitSettings", "Fitted", "correction_at", "fit_once", "folds_of", "plausible_at"]

FloatArray = NDArray[np.float64]

FOLDS = 5
_STRENGTHS = (0.03, 0.2, 1.0, 5.0, 20.0)  # inverse regularisation
_NEIGHBOURS = 15
_RARE = 2  # questions that a term must be in
_MOST_TERMS = 20_000


@dataclass(frozen=True)
class FitSettings:
    """How a router is trained.

    Parameters
    ----------
    kind, features : str
        See `Router`.
    seed : int
        Of folds and of the network.
    confidence : float
        In (0, 1): how often the plausible tiers are to hold the right one.
    correct_rate : float or None
        Share of the training questions whose search is to be called weak, in (0, 1); their threshold is
        learned. None: nothing is corrected, but for `correct_below`.
    correct_below : float or None
        That threshold, if it is given; .52 is published, for one embedder.
    """

    kind: str = "mlp"
    features: str = "question"
    seed: int = 0
    confidence: float = 0.9
    correct_rate: float | None = None
    correct_below: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.kind not in KINDS:
            problems.append(f"kind={self.kind!r} is unknown: {choose(self.kind, KINDS)}")
        if self.features not in FEATURES:
            problems.append(f"features={self.features!r} are unknown: {choose(self.features, FEATURES)}")
        if not 0 <= self.seed < 2**31:
            problems.append(f"seed={self.seed} must be between 0 and 2^31 - 1")
        if not 0 < self.confidence < 1:
            problems.append(f"confidence={self.confidence!r} must be above 0 and below 1")
        if self.correct_rate is not None and not 0 < self.correct_rate < 1:
            problems.append(f"correct_rate={self.correct_rate!r} must be above 0 and below 1")
        if self.correct_below is not None and not -1 <= self.correct_below <= 1:
            problems.append(f"correct_below={self.correct_below!r} is a cosine: it must be in [-1, 1]")
        if self.correct_rate is not None and self.correct_below is not None:
            problems.append("correct_rate and correct_below exclude each other: give one of them")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A router, and the curve of its training where it has one."""

    router: Router
    history: History | None = None


def fit_once(table: Table, settings: FitSettings) -> Fitted:
    """Train on all questions of a table. What only unseen questions tell is not known yet.

    Shares are those of the labels, and every tier with an equal chance is plausible.

    Raises
    ------
    InputError
        For fewer than 10 questions, or where all need the same tier and the kind can learn nothing from that.
    MissingExtraError
        Without scikit-learn, or torch for the network.
    """
    m, labels = len(table.tiers), table.labels
    if len(table) < 2 * FOLDS:
        raise InputError(f"{len(table)} questions are too few to train a router: give at least {2 * FOLDS}")
    scale = _scale(table) if settings.features == "question+search" else {}
    vocabulary: tuple[str, ...] = ()
    if settings.kind == "tfidf-svm":
        vocabulary, idf = _vocabulary([one.text for one in table.seen])
        scale = {**scale, "idf": idf}
    places = {term: k for k, term in enumerate(vocabulary)} if settings.kind == "tfidf-svm" else None
    rows = np.array([row_of(one, places, settings.features, scale) for one in table.seen])
    history = None
    if settings.kind == "mlp":
        arrays, history = train_mlp(rows, labels, m, settings.seed)
    elif settings.kind == "neighbours":
        unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        arrays = {
            "rows": unit.astype(np.float32),
            "labels": labels.astype(np.int64),
            "k": np.array([_NEIGHBOURS]),
            "tiers": np.array([m]),
        }
    elif settings.kind == "utility":
        arrays = _success(rows, table.worked, settings.seed)
    elif settings.kind == "logistic":
        arrays = _logistic(rows, labels, m, settings.seed)
    else:
        arrays = _machine(rows, labels, m, settings.seed)
    shares = np.bincount(labels, minlength=m) / len(table)
    router = Router(
        settings.kind,
        table.tiers,
        settings.features,
        table.embedder,
        {**arrays, **scale},
        table.costs(),
        tuple(shares.tolist()),
        plausible=1 / m,
        confidence=settings.confidence,
        vocabulary=vocabulary,
        correction=correction_at(table, settings),
        provenance=_provenance(table, settings),
    )
    return Fitted(router, history)


def correction_at(table: Table, settings: FitSettings) -> Correction | None:
    """The threshold of the correction: as given, or the quantile of the best cosines at the wanted rate."""
    if settings.correct_below is not None:
        return Correction(float(settings.correct_below))
    if settings.correct_rate is None:
        return None
    best = [float(one.search[SEARCH.index("best_cosine")]) for one in table.seen]
    return Correction(float(np.quantile(best, settings.correct_rate)))


def plausible_at(probabilities: FloatArray, labels: NDArray[np.intp], confidence: float) -> float:
    """The conformal threshold: plausible tiers, of at least this probability, hold the right one so often.

    Parameters
    ----------
    probabilities : array, shape (n, m)
        Out of fold.

    Notes
    -----
    Split conformal prediction with the probability of the right class as score (Sadinle, Lei and Wasserman,
    JASA 2019): the ceil((n + 1)(1 - confidence))-th smallest, less one. With out-of-fold probabilities the
    promise holds approximately.
    """
    right = np.sort(probabilities[np.arange(len(labels)), labels])
    place = int(np.floor((len(right) + 1) * (1 - confidence) + 1e-9))  # 10 * (1 - .8) is 2
    return float(right[place - 1]) if place >= 1 else 0.0


def folds_of(labels: NDArray[np.intp], seed: int, folds: int = FOLDS) -> NDArray[np.intp]:
    """A fold for each question, shape (n,): every label is dealt out evenly, in an order drawn by seed."""
    rng = np.random.default_rng(seed)
    fold = np.zeros(len(labels), dtype=np.intp)
    dealt = 0
    for label in np.unique(labels):
        here = rng.permutation(np.flatnonzero(labels == label))
        fold[here] = (dealt + np.arange(len(here))) % folds
        dealt += len(here)
    return fold


def _scale(table: Table) -> dict[str, NDArray[Any]]:
    search = np.array([one.search for one in table.seen])
    width = search.std(axis=0)
    return {"search_mean": search.mean(axis=0), "search_scale": np.where(width > 1e-12, width, 1.0)}


def _vocabulary(texts: list[str]) -> tuple[tuple[str, ...], FloatArray]:
    """Terms and their inverse document frequencies, smoothed as scikit-learn does."""
    counts = Counter(term for text in texts for term in set(terms(text)))
    kept = sorted((term for term, count in counts.items() if count >= _RARE), key=lambda t: (-counts[t], t))
    kept = sorted(kept[:_MOST_TERMS])
    if not kept:
        raise InputError("no word is in two questions: there is nothing that words could tell")
    idf = np.log((1 + len(texts)) / (1 + np.array([counts[term] for term in kept]))) + 1
    return tuple(kept), idf


def _logistic(rows: FloatArray, labels: NDArray[np.intp], m: int, seed: int) -> dict[str, NDArray[Any]]:
    """Multinomial logistic regression, its strength by log loss over folds."""
    found = np.unique(labels)
    weights, bias = np.zeros((rows.shape[1], m)), np.full(m, -30.0)  # what nobody needs is never chosen
    if len(found) == 1:
        bias[found] = 0.0
        return {"weights": weights, "bias": bias}
    fold = folds_of(labels, seed)
    losses = []
    for strength in _STRENGTHS:
        made = [_regression(rows[fold != k], labels[fold != k], strength) for k in range(FOLDS)]
        losses.append(
            sum(
                _log_loss(one.predict_proba(rows[fold == k]), one.classes_, labels[fold == k])
                for k, one in enumerate(made)
            )
        )
    best = _regression(rows, labels, _STRENGTHS[int(np.argmin(losses))])
    # Of two classes scikit-learn keeps one row: the log odds of the second.
    coefficients = np.vstack([0 * best.coef_, best.coef_]) if len(found) == 2 else best.coef_
    intercepts = np.append(0.0, best.intercept_) if len(found) == 2 else best.intercept_
    weights[:, best.classes_], bias[best.classes_] = coefficients.T, intercepts
    return {"weights": weights, "bias": bias}


def _regression(rows: FloatArray, labels: NDArray[Any], strength: float, weight: str | None = None) -> Any:
    linear: Any = require("sklearn.linear_model", "retrieval", "training a router")
    return linear.LogisticRegression(C=strength, max_iter=2000, class_weight=weight).fit(rows, labels)


def _log_loss(said: FloatArray, classes: NDArray[Any], labels: NDArray[Any]) -> float:
    places = {int(c): k for k, c in enumerate(classes)}
    chances = [said[i, places[int(c)]] if int(c) in places else 1e-6 for i, c in enumerate(labels)]
    return float(-np.log(np.maximum(chances, 1e-6)).sum())


def _machine(rows: FloatArray, labels: NDArray[np.intp], m: int, seed: int) -> dict[str, NDArray[Any]]:
    """A linear support vector machine, classes weighed alike; one against the others."""
    svm: Any = require("sklearn.svm", "retrieval", "training a router")
    found = np.unique(labels)
    weights, bias = np.zeros((rows.shape[1], m)), np.full(m, -30.0)
    if len(found) == 1:
        bias[found] = 0.0
        return {"weights": weights, "bias": bias}
    made = svm.LinearSVC(class_weight="balanced", random_state=seed).fit(rows, labels)
    coefficients = np.vstack([-made.coef_, made.coef_]) if len(found) == 2 else made.coef_
    intercepts = np.append(-made.intercept_, made.intercept_) if len(found) == 2 else made.intercept_
    weights[:, made.classes_], bias[made.classes_] = coefficients.T, intercepts
    return {"weights": weights, "bias": bias}


def _success(rows: FloatArray, worked: FloatArray, seed: int) -> dict[str, NDArray[Any]]:
    """For each tier a logistic regression, its strength by log loss over folds, and Platt's line through what
    the folds said (Platt, 1999)."""
    m = worked.shape[1]
    weights, bias = np.zeros((rows.shape[1], m)), np.zeros(m)
    slope, shift = np.ones(m), np.zeros(m)
    known: dict[bytes, int] = {}  # tiers often do for the same questions
    for tier in range(m):
        did = (worked[:, tier] > 0).astype(np.intp)
        same = known.setdefault(did.tobytes(), tier)
        if same < tier:
            weights[:, tier], bias[tier] = weights[:, same], bias[same]
            slope[tier], shift[tier] = slope[same], shift[same]
            continue
        if min(did.sum(), len(did) - did.sum()) < FOLDS:  # too few of one kind to tell them apart
            bias[tier] = scipy.special.logit((did.sum() + 1) / (len(did) + 2))
            continue
        fold = folds_of(did, seed)
        best: tuple[float, float, FloatArray] | None = None
        for strength in _STRENGTHS:
            said = np.zeros(len(did))
            for k in range(FOLDS):
                said[fold == k] = _regression(rows[fold != k], did[fold != k], strength).decision_function(
                    rows[fold == k]
                )
            loss = float(np.logaddexp(0, np.where(did > 0, -said, said)).mean())
            if best is None or loss < best[0]:
                best = loss, strength, said
        assert best is not None
        made = _regression(rows, did, best[1])
        weights[:, tier], bias[tier] = made.coef_[0], made.intercept_[0]
        line = _regression(best[2][:, None], did, 1.0)
        if line.coef_[0, 0] > 0:
            slope[tier], shift[tier] = line.coef_[0, 0], line.intercept_[0]
        else:  # what the folds said is worth nothing: the mean is what is known
            slope[tier], shift[tier] = 0.0, scipy.special.logit(did.mean())
    return {"weights": weights, "bias": bias, "slope": slope, "shift": shift}


def _provenance(table: Table, settings: FitSettings) -> dict[str, Any]:
    # Not every kind needs all of them.
    versions = {"mio-rag": __version__, **versions_of(("numpy", "torch", "scikit-learn"))}
    about = table.outcomes.provenance
    sources = about.get("tables", [about])
    return {
        "table_sha256": table.sha256,
        "questions": len(table),
        "sets": dict(Counter(table.outcomes.sets)),
        "by": list(table.by),
        "generators": sorted({str(one.get("generator")) for one in sources}),
        "settings": dataclasses.asdict(settings),
        "versions": versions,
    }
