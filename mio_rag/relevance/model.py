"""Relevance as a probability: that a passage holds evidence which the answer needs; and where it comes from.

A model is one or more logistic stages; each later stage also sees the probabilities of the stage before
through the evidence links of the pool (`mio_rag.relevance.features`). An isotonic model bends the last
stage's probability by a monotone curve. All of it is a handful of numbers in JSON.

That is the probability that a passage is needed *if* the collection holds an answer. Whether it does is a
logistic regression on how much of the question the pool holds, fitted on questions asked of their own
collection and of others; `OUTSIDE` is the share of the second kind:

    cover          largest share of the question's words that one passage holds; rare words weigh more
    first_cover    the same of the best passage by fused score
    top_cover      the mean of the three best by fused score
    cosine         the best cosine, where the embedder is known

"auto" chooses by what the candidates bring:

    fitted weights   scores of a `Retriever` by an embedder that shipped weights were fitted on, within the
                     range that was seen in fitting
    ranks            such scores by any other embedder: ranks, gaps and shares, which have no scale
    scores           one score for each passage, or a relevance put in place of the Retriever's: order and
                     gaps
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import DataError, InputError
from mio_rag.pool import Candidates
from mio_rag.relevance.documents import DOCUMENT_SCORES, DocumentModel, is_document_pool
from mio_rag.relevance.features import (
    GIVEN,
    LINK_FEATURES,
    MADE,
    best_fused,
    cosine_slopes,
    feature_matrix,
    given,
    is_monotone,
    lacking,
    logistic,
    product_problem,
    question_cover,
)
from mio_rag.relevance.sentences import SentenceModel
from mio_rag.storage import read_json

# -- model -----------------------------------------------------------------------------------------------

FORMAT = "mio-rag-relevance"
VERSION = 1
#: Weights in this folder: the older set, and those that `mio_rag.relevance.model` chooses from.
SHIPPED = ("default", "minilm", "tfidf", "ranks", "scores")
FloatArray = NDArray[np.float64]
Kind = Literal["logistic", "isotonic"]


@dataclass(frozen=True)
class Stage:
    """One logistic regression: sigmoid(intercept + weights . features).

    features: length k; see `mio_rag.relevance.features`.
    weights: length k; on the features as they are, not standardised. Not negative where a feature is
        monotone.
    """

    features: tuple[str, ...]
    weights: tuple[float, ...]
    intercept: float

    def __post_init__(self) -> None:
        problems = []
        if len(self.weights) != len(self.features) or len(set(self.features)) < len(self.features):
            problems.append(f"{len(self.features)} features and {len(self.weights)} weights: one for each")
        elif not all(math.isfinite(value) for value in (*self.weights, self.intercept)):
            problems.append("weights and intercept must be finite")
        else:
            problems += [
                f"the weight of '{name}' is {weight:g}: it must not be negative, because worst cases "
                "under embedding uncertainty are exact only for increasing models"
                for name, weight in zip(self.features, self.weights, strict=True)
                if is_monotone(name) and weight < 0
            ]
        problems += [problem for name in self.features if (problem := product_problem(name))]
        if problems:
            raise InputError(problems)


@dataclass(frozen=True)
class RelevanceModel:
    """Candidates -> probabilities that they are needed.

    stages: at least one; the first without link features.
    kind: one of logistic, isotonic
    knots: of an isotonic model: (probability of the last stage, calibrated probability), both ascending;
        between knots the curve is linear, outside it is flat.
    provenance: what the numbers were fitted on, for people.
    embedder: fingerprint of the embedder whose cosines it was fitted on; blank where unknown.
    ranges: name of a score -> the smallest and largest that was the best of its pool in fitting.
    answerable: how likely the collection holds an answer at all: the probabilities of the stages are for the
        case that it does.
    sentences: weights of sentences, where these are chosen; None: those that ship.
    measures: what was measured while fitting (calibration error, log loss, counts); plain data.

    Raises `InputError` for stages or knots that do not make a model.
    """

    stages: tuple[Stage, ...]
    kind: Kind = "logistic"
    knots: tuple[tuple[float, float], ...] = ()
    name: str = "model"
    provenance: str = ""
    embedder: str = ""
    measures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    answerable: Answerable | None = None
    sentences: SentenceModel | None = None

    def __post_init__(self) -> None:
        problems = []
        if not self.stages:
            problems.append("a relevance model needs at least one stage")
        elif set(self.stages[0].features) & set(LINK_FEATURES):
            problems.append("the first stage must not use link features: they need a stage before")
        if self.kind not in get_args(Kind):
            problems.append(f"kind '{self.kind}' is unknown: choose logistic or isotonic")
        curve = np.array(self.knots, dtype=np.float64).reshape(-1, 2)
        if (self.kind == "isotonic") != bool(self.knots):
            problems.append("knots belong to an isotonic model, and such a model needs them")
        elif self.knots and not (
            np.all(np.diff(curve[:, 0]) > 0) and np.all(np.diff(curve[:, 1]) >= 0) and curve.min() >= 0
        ):
            problems.append("the knots of an isotonic model must ascend, from 0 or above")
        if problems:
            raise InputError(problems)

    def without_links(self) -> RelevanceModel:
        """Return the model up to the stage before links come in, which is calibrated by itself."""
        kept = tuple(stage for stage in self.stages if not set(stage.features) & set(LINK_FEATURES))
        if len(kept) == len(self.stages):
            return self
        return replace(self, stages=kept, kind="logistic", knots=())

    @functools.cached_property
    def features(self) -> tuple[str, ...]:
        """Every feature that it uses."""
        return tuple(dict.fromkeys(name for stage in self.stages for name in stage.features))

    def misfit(self, fingerprint: str) -> str | None:
        """Why these weights must not be used with an embedder; None where they may be.

        fingerprint: of the embedder whose cosines candidates hold; blank where it is not known.
        """
        if not self.embedder or not fingerprint or fingerprint.startswith(self.embedder):
            return None
        return (
            f"relevance '{self.name}' was fitted on the embedder {self.embedder}, and these cosines are of "
            f"{fingerprint}: leave relevance at auto, or fit a model on labelled questions (mio-rag "
            "calibrate)"
        )

    def probabilities(self, candidates: Candidates, cosine_loss: ArrayLike = 0.0) -> FloatArray:
        """Return the probability that each candidate is needed, shape (n,).

        cosine_loss: shape (n,); h_i(q) of an uncertainty set, by which every cosine is lowered. The result is
            then the exact worst case over the set, since the model rises with every cosine.

        Raises `InputError` if candidates lack what a feature needs.
        """
        loss = np.asarray(cosine_loss, dtype=np.float64)
        current: FloatArray | None = None
        if len(candidates) == 0:
            return np.zeros(0)
        base = [name for name in self.features if name not in LINK_FEATURES]
        columns = dict(zip(base, feature_matrix(candidates, base, cosine_loss=loss).T, strict=True))
        for stage in self.stages:
            links = [name for name in stage.features if name in LINK_FEATURES]
            matrix = feature_matrix(candidates, links, before=current)
            columns |= dict(zip(links, matrix.T, strict=True))
            score = np.full(len(candidates), stage.intercept)
            for name, weight in zip(stage.features, stage.weights, strict=True):
                score += weight * columns[name]
            current = logistic(score)
        assert current is not None
        if self.knots:
            at, value = np.array(self.knots).T
            current = np.interp(current, at, value)
        return current

    def alone(self, candidates: Candidates, others_loss: ArrayLike) -> Callable[[FloatArray], FloatArray]:
        """How low each probability is where everybody else's cosine is at its worst.

        others_loss: shape (n,); by how much the cosines are lower, as other candidates' links see them.

        Returns (K, n) losses of the candidates' own cosines -> (K, n) probabilities, which fall as they rise.
        """
        loss = np.asarray(others_loss, dtype=np.float64)
        stages = replace(self, kind="logistic", knots=())
        before = (
            replace(stages, stages=self.stages[:-1]).probabilities(candidates, loss)
            if len(self.stages) > 1
            else None
        )
        last = self.stages[-1]
        score = np.full(len(candidates), last.intercept)
        matrix = feature_matrix(candidates, last.features, before=before)
        score += matrix @ np.array(last.weights)
        slope = float(cosine_slopes(candidates, last.features) @ np.array(last.weights))

        def probability(own: FloatArray) -> FloatArray:
            value = logistic(score - slope * own)
            return np.interp(value, *np.array(self.knots).T) if self.knots else value

        return probability

    def valued(self, candidates: Candidates) -> Candidates:
        """The candidates with these probabilities as relevance; what it was stays among the scores."""
        made = self.probabilities(candidates)
        scores = {**candidates.scores, GIVEN: given(candidates), MADE: made}
        return candidates.with_relevance(made, scores)

    def outside(self, candidates: Candidates) -> str | None:
        """Which score of a pool lies where none did in fitting; None where all are within what was seen."""
        for name, (low, high) in self.ranges.items():
            best = float(candidates.scores[name].max(initial=-math.inf)) if name in candidates.scores else low
            if not low <= best <= high:
                return (
                    f"the best {name} score is {best:.3g}, and the weights were fitted on {low:.3g} to "
                    f"{high:.3g}"
                )
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "kind": self.kind,
            "provenance": self.provenance,
            "embedder": self.embedder,
            "stages": [
                {
                    "intercept": stage.intercept,
                    "weights": dict(zip(stage.features, stage.weights, strict=True)),
                }
                for stage in self.stages
            ],
            "knots": [list(knot) for knot in self.knots],
            "measures": dict(self.measures),
            **({"ranges": {name: list(ends) for name, ends in self.ranges.items()}} if self.ranges else {}),
            **({"answerable": self.answerable.to_dict()} if self.answerable else {}),
            **({"sentences": self.sentences.to_dict()} if self.sentences else {}),
        }

    @classmethod
    def from_dict(cls, data: Any) -> RelevanceModel:
        """The model of a JSON object that `to_dict` wrote.

        Raises `InputError` if it is not one.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError("this is not a relevance model: make one with `mio-rag policy fit relevance`")
        if data.get("version") != VERSION:
            raise InputError(
                f"the relevance model has format version {data.get('version')}, this release reads "
                f"{VERSION}: fit it again with `mio-rag policy fit relevance`"
            )
        try:
            stages = tuple(
                Stage(
                    tuple(stage["weights"]),
                    tuple(float(w) for w in stage["weights"].values()),
                    float(stage["intercept"]),
                )
                for stage in data["stages"]
            )
            return cls(
                stages,
                data["kind"],
                tuple((float(a), float(b)) for a, b in data.get("knots", ())),
                str(data.get("name", "model")),
                str(data.get("provenance", "")),
                str(data.get("embedder", "")),
                dict(data.get("measures", {})),
                {str(k): (float(low), float(high)) for k, (low, high) in data.get("ranges", {}).items()},
                Answerable.from_dict(data["answerable"]) if "answerable" in data else None,
                SentenceModel.from_dict(data["sentences"]) if "sentences" in data else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the relevance model is malformed ({type(error).__name__}: {error})") from error


def model_from(data: Any) -> RelevanceModel | DocumentModel:
    """Return the model of a JSON object that a model's `to_dict` wrote; `InputError` if it is none."""
    if isinstance(data, dict) and data.get("format") == DocumentModel.FORMAT:
        return DocumentModel.from_dict(data)
    return RelevanceModel.from_dict(data)


def load_model(name: str | Path) -> RelevanceModel | DocumentModel | None:
    """The relevance model of a name or file.

    name: "given" or "cosine" (no model: relevance stays what it is), one of `SHIPPED` (weights that ship with
        mio-rag; their `provenance` tells what they were fitted on), or a file of `mio-rag policy fit
        relevance`.

    Raises `DataError` if the file cannot be read, or is not a relevance model.
    """
    if str(name) in ("given", "cosine"):
        return None
    path = Path(__file__).with_name(f"{name}.json") if str(name) in SHIPPED else Path(name)
    try:
        data = read_json(path)
    except InputError as error:
        raise DataError(
            f"relevance '{name}' cannot be used ({error}): give auto, given, or the file that "
            "`mio-rag policy fit relevance` wrote"
        ) from error
    try:
        return model_from(data)
    except InputError as error:
        raise DataError([f"'{path}': {problem}" for problem in error.problems]) from error


# -- answerable ------------------------------------------------------------------------------------------

#: Share of questions that the collection is not about, as far as nothing is known of them.
OUTSIDE = 0.1
#: Names of the numbers that a pool gives.
SIGNALS = ("cover", "first_cover", "top_cover", "cosine")
_TOP = 3  # passages of `top_cover`
#: Weight of the cosine with the question without names that many documents have. With .5 to .7 questions
#: without an answer are told best on four sets; of 459 answered ones of seven sets two more fall below 1/2.
_BARE = 0.6
_FARTHEST = 30.0  # log-odds are held so far from 0


@lru_cache(maxsize=4)
def pool_signals(candidates: Candidates) -> Mapping[str, float] | None:
    """What a pool tells, by the names of `SIGNALS`; None without a question or the scores of a search."""
    scores = candidates.scores
    if len(candidates) == 0 or not candidates.question.strip() or not {"dense", "fused"} <= set(scores):
        return None
    best = best_fused(candidates)
    cover = question_cover(candidates)[best]
    cosines = np.asarray(scores["dense"], dtype=np.float64)
    if candidates.embeddings is not None and candidates.query_embedding is not None:
        # Of this question: in a pool that another query has added to, scores are those of either.
        cosines = np.asarray(candidates.embeddings @ candidates.query_embedding, dtype=np.float64)
    cosine = float(cosines[best].max())
    if (bare := scores.get("dense_bare")) is not None:
        cosine = min(cosine, (1 - _BARE) * cosine + _BARE * float(np.asarray(bare)[best].max()))
    found = float(cover.max()), float(cover[0]), float(cover[:_TOP].mean()), cosine
    return dict(zip(SIGNALS, found, strict=True))


@dataclass(frozen=True)
class Answerable:
    """The regression.

    weights: names of `SIGNALS` -> weights; on questions of both kinds alike.

    Raises `InputError` for a name that is not one of `SIGNALS`, or a number that is not finite.
    """

    weights: Mapping[str, float]
    intercept: float

    def __post_init__(self) -> None:
        problems = []
        if strange := sorted(set(self.weights) - set(SIGNALS)):
            problems.append(f"unknown signals {', '.join(strange)}: choose from {', '.join(SIGNALS)}")
        if not all(math.isfinite(value) for value in (*self.weights.values(), self.intercept)):
            problems.append("weights and intercept must be finite")
        if problems:
            raise InputError(problems)

    @property
    def by_cosine(self) -> bool:
        """Whether the best cosine counts, for an embedder that is known: only then prices go by this.

        By words alone too many questions of filings and reports look as if they were about something else.
        """
        return "cosine" in self.weights

    def probability(self, candidates: Candidates) -> float | None:
        """That the collection which this pool comes from holds an answer, in (0, 1); None if nothing tells.

        candidates: a pool of a `Retriever`, with its question.
        """
        signals = pool_signals(candidates)
        if signals is None:
            return None
        odds = self.intercept + sum(weight * signals[name] for name, weight in self.weights.items())
        odds += math.log((1 - OUTSIDE) / OUTSIDE)
        return 1 / (1 + math.exp(-min(_FARTHEST, max(-_FARTHEST, odds))))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"intercept": self.intercept, "weights": dict(self.weights)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Answerable:
        """What `to_dict` wrote."""
        weights = {str(name): float(weight) for name, weight in data["weights"].items()}
        return cls(weights, float(data["intercept"]))


# -- source ----------------------------------------------------------------------------------------------

#: A model, or who chooses one: "auto" by what candidates bring, "given" and None nobody.
Relevance = RelevanceModel | DocumentModel | Literal["auto", "given"] | None
SourceKind = Literal["given", "model", "documents", "fitted weights", "ranks", "scores"]
#: Weights for one embedder each, which they name by the beginning of its fingerprint.
_FITTED = ("minilm", "tfidf")
_SAME = 1e-5  # of two cosines, one of which may have been kept in single precision


@dataclass(frozen=True)
class RelevanceSource:
    """Where relevance comes from.

    kind: one of given, model, documents, fitted weights, ranks, scores; given: as the candidates have it.
        model: a model that was given. documents: the formula for units of documents. Otherwise what "auto"
        found.
    why: one sentence for a person.
    unused: scores of the candidates that change nothing: those of re-rankers that the model was not fitted
        with.
    formula: of documents.
    """

    kind: SourceKind
    why: str
    unused: tuple[str, ...] = ()
    formula: DocumentModel | None = None

    def to_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return {"kind": self.kind, "why": self.why}


_REPLACED = RelevanceSource(
    "scores",
    "probabilities by the order and the gaps of the relevance given, which is not what the Retriever gave",
)
_GIVEN = RelevanceSource("given", "as the candidates have it")
_RANKS = "probabilities by ranks and gaps: no weights that ship were fitted on this embedder"
_DOCUMENTS = RelevanceSource("documents", "by the formula for units of documents", formula=DocumentModel())
_SCORES = RelevanceSource("scores", "probabilities by the order and the gaps of the scores given")
_ONE = RelevanceSource(
    "scores", "that of the best passage of a pool in the mean: one score alone has no order and no gaps"
)
_EQUAL = RelevanceSource(
    "scores", "one probability for all: the scores given are equal, and tell no passage from another"
)


@functools.cache
def _shipped(name: str, links: bool) -> RelevanceModel:
    """Weights that ship; without links, the stages that need none."""
    model = load_model(name)
    assert isinstance(model, RelevanceModel)
    return model if links else model.without_links()


def answerable_for(fingerprint: str) -> Answerable | None:
    """What ships to tell whether a collection holds an answer, for cosines of an embedder; blank: of any."""
    for name in _FITTED:
        fitted = _shipped(name, True)
        if fingerprint and fingerprint.startswith(fitted.embedder):
            return fitted.answerable
    return _shipped("ranks", True).answerable


@functools.cache
def _beyond(name: str, links: bool) -> RelevanceModel:
    """For scores beyond what weights were fitted on: ranks, which have no scale. A cosine that is lower than
    any in fitting says all the more that there is no answer."""
    return replace(_shipped("ranks", links), answerable=_shipped(name, links).answerable)


def relevance_of(wanted: Relevance, candidates: Candidates) -> tuple[RelevanceModel | None, RelevanceSource]:
    """The model that gives these candidates their relevance, and why that one.

    wanted: see `mio_rag.selection.selector.Selector`.

    Raises `InputError` if a model is given that was fitted on another embedder than the candidates'.
    """
    unused = tuple(sorted(set(candidates.scores) - {"dense", "bm25", "fused", GIVEN, MADE}))
    if isinstance(wanted, RelevanceModel):
        if misfit := wanted.misfit(candidates.embedder):
            raise InputError(misfit)
        known = {part.partition(":")[2] for name in wanted.features for part in name.split("*")}
        ignored = tuple(name for name in unused if name not in known)
        return wanted, RelevanceSource("model", f"probabilities by the model '{wanted.name}'", ignored)
    formula = wanted if isinstance(wanted, DocumentModel) else None
    if wanted != "auto" and formula is None:
        return None, replace(_GIVEN, unused=unused)
    if is_document_pool(candidates):
        source = replace(_DOCUMENTS, unused=tuple(sorted(set(unused) - DOCUMENT_SCORES)))
        why = f"by the weights '{formula.name}' for units of documents" if formula else source.why
        return None, replace(source, why=why, formula=formula or source.formula)
    if formula is not None:
        raise InputError(
            f"'{formula.name}' weighs units of documents, and these candidates are none: retrieve them from "
            "an index of documents, or leave relevance_model at auto"
        )
    links = candidates.links is not None
    by_ranks = _shipped("ranks", links)
    if lacking(candidates, [name for name in by_ranks.features if name not in LINK_FEATURES]):
        scores = given(candidates)
        alike = len(candidates) > 1 and bool((scores == scores[0]).all())
        source = _ONE if len(candidates) == 1 else _EQUAL if alike else _SCORES
        return _shipped("scores", links), replace(source, unused=unused)
    if not np.allclose(given(candidates), candidates.scores["dense"], rtol=0, atol=_SAME):
        return _shipped("scores", links), replace(_REPLACED, unused=unused)
    besides = f" (without {', '.join(unused)}: fit a model to use it)" if unused else ""
    for name in _FITTED:
        fitted = _shipped(name, links)
        if not candidates.embedder.startswith(fitted.embedder):
            continue
        if (outside := fitted.outside(candidates)) is not None:
            beyond = _beyond(name, links)
            why = f"probabilities by ranks and gaps: {outside}{besides}"
            return beyond, RelevanceSource("ranks", why, unused)
        why = f"probabilities by weights fitted on '{name}'{besides}"
        return fitted, RelevanceSource("fitted weights", why, unused)
    return by_ranks, RelevanceSource("ranks", _RANKS + besides, unused)
