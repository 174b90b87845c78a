"""Fit relevance models on labelled questions, and measure how far probabilities can be believed.

Cross-validation never splits a question. Every later stage, and the isotonic curve, is fitted on predictions
that the stage before made for questions it had not seen; all reported measures are of such predictions.

Source: logistic calibration, Platt (1999); isotonic, Zadrozny and Elkan (2002); stacking, Wolpert (1992).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # loads scipy.special, an eighth of a second, where it is first used
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError, require
from mio_rag.formulations.numbers import is_setting
from mio_rag.pictures import set_title
from mio_rag.pool import Candidates
from mio_rag.relevance.documents import TERMS, DocumentModel, terms
from mio_rag.relevance.features import LINK_FEATURES, available_features, feature_matrix, is_monotone
from mio_rag.relevance.model import Kind, RelevanceModel, Stage, answerable_for
from mio_rag.storage import make_parent, replaced

# -- fitting ---------------------------------------------------------------------------------------------

FloatArray = NDArray[np.float64]
_FOLDS = 5
_STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # inverse regularisation, on standardised features


@dataclass(frozen=True, eq=False)
class Labelled:
    """One question's pool, and which candidates it needs.

    gold: ids of the passages that hold the evidence; those that retrieval missed are simply not in the pool.
    weight: > 0, of the question.
    """

    candidates: Candidates
    gold: frozenset[str]
    weight: float = 1.0

    @property
    def labels(self) -> FloatArray:
        """1 for each candidate that is needed, shape (n,)."""
        return np.array([float(i in self.gold) for i in self.candidates.ids])


def fit(
    pools: Sequence[Labelled],
    *,
    kind: Kind = "logistic",
    features: Sequence[str] | None = None,
    link_stages: int = 1,
    rank_prior: float = 0.0,
    strengths: Sequence[float] = _STRENGTHS,
    seed: int = 0,
    name: str = "model",
    provenance: str = "",
    embedder: str = "",
    progress: Callable[[int], None] | None = None,
) -> RelevanceModel:
    """Fit a model.

    pools: one per question, at least 10 with a needed passage in the pool.
    kind: one of logistic, isotonic; isotonic bends the last stage's probability by a monotone curve, and
        wants some thousand candidates.
    features: of the first stage; by default all that every pool can give.
    link_stages: stages with link features after the first; left out where pools have no links.
    rank_prior: >= 0: taken off the log-odds of every stage per log of the fused rank, before they are
        calibrated once more. It draws the order towards plain fused ranking.
    strengths: inverse regularisation on standardised features, > 0; the one with the smallest log loss on
        questions outside the fold is taken.
    name, provenance, embedder: kept with the model, see `RelevanceModel`.
    progress: called with 1 after each stage.

    Returns with out-of-fold `measures`: of the model, and of the cosine taken for a probability ("before").

    Raises `InputError` if there is too little to fit on, pools lack a feature, or no feature tells what is
    needed from what is not.
    """
    labelled = [pool for pool in pools if len(pool.candidates)]
    usable = sum(bool(pool.labels.any()) for pool in labelled)
    if usable < 2 * _FOLDS:
        raise InputError(
            f"{usable} of {len(pools)} questions have a needed passage in their pool: at least {2 * _FOLDS} "
            "are needed to fit a model; label more questions (gold_ids), or leave relevance at auto"
        )
    useless = sum(not pool.labels.all() for pool in labelled)
    if useless < 2 * _FOLDS:
        raise InputError(
            f"{useless} of {len(pools)} questions have a passage in their pool that is not needed: at least "
            f"{2 * _FOLDS} are needed to fit a model; retrieve larger pools, or check gold_ids"
        )
    if not is_setting(rank_prior):
        raise InputError(f"rank_prior={rank_prior!r} must be a number >= 0")
    if not strengths or not all(is_setting(strength) and strength > 0 for strength in strengths):
        raise InputError(f"strengths={strengths!r} must be numbers > 0, at least one")
    if not 0 <= link_stages <= 3:
        raise InputError(f"link_stages={link_stages} must be between 0 and 3")
    every = [set(available_features(pool.candidates)) for pool in labelled]
    common = set.intersection(*every)
    first = tuple(
        features or (n for n in available_features(labelled[0].candidates, links=False) if n in common)
    )
    stages_of = [first] + [(*first, *LINK_FEATURES)] * (link_stages if set(LINK_FEATURES) <= common else 0)
    split = _Split(labelled, seed)
    before: list[FloatArray | None] = [None] * len(labelled)
    stages = []
    for names in stages_of:
        matrix = np.concatenate(
            [
                feature_matrix(pool.candidates, names, before=p)
                for pool, p in zip(labelled, before, strict=True)
            ]
        )
        stage, outside, strength = split.stage(matrix, names, strengths)
        if rank_prior > 0:
            stage, outside = split.drawn_to_fused(stage, outside, labelled, rank_prior)
        stages.append(stage)
        before = list(np.split(outside, split.ends))
        if progress:
            progress(1)
    knots: tuple[tuple[float, float], ...] = ()
    if kind == "isotonic":
        outside, knots = split.bent(outside)
    cosine = np.concatenate([np.clip(pool.candidates.relevance, 0, 1) for pool in labelled])
    measures: dict[str, Any] = {
        "questions": len(labelled),
        "candidates": int(split.y.size),
        "needed": int(split.y.sum()),
        "inverse_regularisation": strength,
        "before": calibration_measures(cosine, split.y),
        "after": calibration_measures(outside, split.y),
        "reliability_before": reliability(cosine, split.y),
        "reliability_after": reliability(outside, split.y),
    }
    likely = answerable_for(embedder)
    return RelevanceModel(tuple(stages), kind, knots, name, provenance, embedder, measures, answerable=likely)


def fit_documents(
    pools: Sequence[Candidates],
    needed: Sequence[NDArray[np.bool_]],
    *,
    start: DocumentModel | None = None,
    strengths: Sequence[float] = (0.0, 1.0, 10.0, 100.0, 1000.0),
    scaled: bool = True,
    seed: int = 0,
    name: str = "documents",
    provenance: str = "",
) -> DocumentModel:
    """Fit the weights of the formula for units of documents.

    pools: of documents, one per question, at least 10 with a needed unit.
    needed: length m of each pool, which of its units hold evidence.
    start: where weights begin, and what they are drawn to; by default what ships.
    scaled: whether level and slope are fitted, too. Otherwise they are those of `start`, and weights are
        scaled to spread log scores as far as its do (for made questions, which say nothing of how likely
        units are).
    strengths: >= 0, of that pull; the one with the least loss on questions outside the fold is taken.

    The weights maximise the likelihood that a unit drawn with probability proportional to exp(z) is a needed
    one (conditional logit, McFadden 1974), under a normal prior around those of `start` with a variance of
    their squares over the strength; level and slope are then fitted to z outside the fold (Platt 1999).

    Raises `InputError` for too few questions.
    """
    start = start or DocumentModel()
    rows = [
        (terms(pool), mark) for pool, mark in zip(pools, needed, strict=True) if mark.any() and not mark.all()
    ]
    if len(rows) < 2 * _FOLDS:
        raise InputError(
            f"{len(rows)} of {len(pools)} questions have a needed unit in their pool: at least {2 * _FOLDS} "
            "are needed to fit weights; give more questions, or leave relevance at auto"
        )
    prior = np.array(start.weights)

    def loss(weights: FloatArray, some: Sequence[int]) -> tuple[float, FloatArray]:
        total, slope = 0.0, np.zeros(len(TERMS))
        for k in some:
            matrix, mark = rows[k]
            z = matrix @ weights
            chance = scipy.special.softmax(z)
            hit = scipy.special.softmax(z[mark])
            total += scipy.special.logsumexp(z) - scipy.special.logsumexp(z[mark])
            slope += chance @ matrix - hit @ matrix[mark]
        return total, slope

    def fitted(some: Sequence[int], strength: float) -> FloatArray:
        def pulled(weights: FloatArray) -> tuple[float, FloatArray]:
            value, slope = loss(weights, some)
            away = (weights - prior) / prior**2
            return value + strength / 2 * float(away @ (weights - prior)), slope + strength * away

        found = scipy.optimize.minimize(pulled, prior, jac=True, bounds=[(0, None)] * len(TERMS))
        return np.asarray(found.x)

    parts = np.array_split(np.random.default_rng(seed).permutation(len(rows)), _FOLDS)
    folds = [(np.setdiff1d(np.arange(len(rows)), part).tolist(), part.tolist()) for part in parts]
    tried = {}
    for strength in strengths:
        outside = [(test, fitted(train, strength)) for train, test in folds]
        tried[strength] = sum(loss(weights, test)[0] for test, weights in outside), outside
    best = min(tried, key=lambda strength: tried[strength][0])
    gaps, labels = [], []
    for test, weights in tried[best][1]:
        for k in test:
            z = rows[k][0] @ weights
            gaps.append(z - z.max())
            labels.append(rows[k][1])
    gap, label = np.concatenate(gaps), np.concatenate(labels).astype(np.float64)

    def platt(of: FloatArray) -> tuple[float, FloatArray]:
        z = of[0] + of[1] * gap
        off = scipy.special.expit(z) - label
        return float(np.logaddexp(0, z).sum() - label @ z), np.array([off.sum(), off @ gap])

    if not scaled:
        own = fitted(range(len(rows)), best)
        spread = [sum(float(np.std(matrix @ each)) for matrix, _ in rows) for each in (prior, own)]
        final, level, slope = own * spread[0] / max(spread[1], 1e-12), start.level, start.slope
    else:
        final = fitted(range(len(rows)), best)
        fit_scale = scipy.optimize.minimize(
            platt, [start.level, start.slope], jac=True, bounds=[(None, None), (0, None)]
        )
        level, slope = map(float, fit_scale.x)
    measures = {
        "questions": len(rows),
        "units": int(label.size),
        "needed": int(label.sum()),
        "strength": best,
        "log_loss_before": float(loss(prior, range(len(rows)))[0]) / len(rows),
        "log_loss_after": float(tried[best][0]) / len(rows),
    }
    return DocumentModel(tuple(map(float, final)), level, slope, name, provenance, measures)


class _Split:
    """Labels and folds of all candidates, questions whole."""

    def __init__(self, pools: Sequence[Labelled], seed: int) -> None:
        selection: Any = require("sklearn.model_selection", "retrieval", "fitting a relevance model")
        self.y = np.concatenate([pool.labels for pool in pools])
        sizes = [len(pool.candidates) for pool in pools]
        self.ends = np.cumsum(sizes)[:-1]
        groups = np.repeat(np.arange(len(pools)), sizes)
        weights = np.repeat([pool.weight for pool in pools], sizes)
        self.weights = weights / weights.mean()
        folds = selection.GroupKFold(_FOLDS, shuffle=True, random_state=seed)
        self.folds = list(folds.split(groups, self.y, groups))

    def stage(
        self, matrix: FloatArray, names: Sequence[str], strengths: Sequence[float]
    ) -> tuple[Stage, FloatArray, float]:
        """The stage on all data, its out-of-fold probabilities, and the regularisation that these chose.

        With one BLAS thread: a dozen features are too few to share, and threads that wait for one another
        take most of the time.
        """
        require("sklearn.linear_model", "retrieval", "fitting a relevance model")  # brings a BLAS of its own
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1, user_api="blas"):
            return self._stage(matrix, names, strengths)

    def _stage(
        self, matrix: FloatArray, names: Sequence[str], strengths: Sequence[float]
    ) -> tuple[Stage, FloatArray, float]:
        best: tuple[float, float, FloatArray] | None = None
        for strength in strengths:
            outside = np.empty(self.y.size)
            for train, test in self.folds:
                part = self._regression(matrix[train], self.y[train], self.weights[train], names, strength)
                outside[test] = scipy.special.expit(matrix[test] @ np.array(part.weights) + part.intercept)
            safe = np.clip(outside, 1e-12, 1 - 1e-12)
            losses = self.y * np.log(safe) + (1 - self.y) * np.log(1 - safe)
            loss = float(-(self.weights * losses).mean())
            if best is None or loss < best[0] - 1e-6:
                best = loss, strength, outside
        assert best is not None
        _, strength, outside = best
        stage = self._regression(matrix, self.y, self.weights, names, strength)
        if not any(stage.weights):
            why = [f"'{name}' ({_no_use(column)})" for name, column in zip(names, matrix.T, strict=True)]
            raise InputError(
                f"no feature distinguishes needed passages from others: {', '.join(why)}. Check that "
                "gold_ids name the needed passages, fit on more features, or leave relevance at auto"
            )
        return stage, outside, strength

    def _regression(
        self, matrix: FloatArray, y: FloatArray, weights: FloatArray, names: Sequence[str], strength: float
    ) -> Stage:
        """Logistic regression with weights >= 0 on the monotone features.

        Scikit-learn has no signs to constrain: the most negative of these weights is put to zero, and the
        rest fitted again, until none is negative. Where no feature is left, or all labels are the same, the
        intercept alone says how often passages are needed.
        """
        linear: Any = require("sklearn.linear_model", "retrieval", "fitting a relevance model")
        mean, scale = matrix.mean(axis=0), matrix.std(axis=0)
        scale = np.where(scale > 1e-12, scale, 1.0)
        kept = [k for k in range(len(names)) if np.ptp(matrix[:, k]) > 0] if np.ptp(y) > 0 else []
        while kept:
            model = linear.LogisticRegression(C=strength, max_iter=1000)
            model.fit((matrix[:, kept] - mean[kept]) / scale[kept], y, sample_weight=weights)
            coefficients = model.coef_[0] / scale[kept]
            wrong = {k: c for k, c in zip(kept, coefficients, strict=True) if is_monotone(names[k]) and c < 0}
            if not wrong:
                break
            kept.remove(min(wrong, key=lambda k: wrong[k] * scale[k]))
        full = np.zeros(len(names))
        if kept:
            full[kept] = coefficients
            intercept = float(model.intercept_[0] - full @ mean)
        else:
            rare = 0.5 / y.size
            intercept = float(scipy.special.logit(np.clip(np.average(y, weights=weights), rare, 1 - rare)))
        return Stage(tuple(names), tuple(float(w) for w in full), intercept)

    def drawn_to_fused(
        self, stage: Stage, outside: FloatArray, pools: Sequence[Labelled], prior: float
    ) -> tuple[Stage, FloatArray]:
        """The stage with a prior on the fused rank, and its out-of-fold probabilities, calibrated again."""
        linear: Any = require("sklearn.linear_model", "retrieval", "fitting a relevance model")
        by_rank = "log_rank_fused"
        ranks = np.concatenate([feature_matrix(pool.candidates, [by_rank])[:, 0] for pool in pools])
        odds = scipy.special.logit(np.clip(outside, 1e-12, 1 - 1e-12)) - prior * ranks
        platt = linear.LogisticRegression(C=1e6, max_iter=1000)
        platt.fit(odds[:, None], self.y, sample_weight=self.weights)
        scale, offset = float(platt.coef_[0, 0]), float(platt.intercept_[0])
        weights = dict(zip(stage.features, stage.weights, strict=True))
        weights[by_rank] = weights.get(by_rank, 0.0) - prior
        drawn = Stage(
            tuple(weights),
            tuple(scale * weight for weight in weights.values()),
            scale * stage.intercept + offset,
        )
        return drawn, np.asarray(scipy.special.expit(scale * odds + offset))

    def bent(self, p: FloatArray) -> tuple[FloatArray, tuple[tuple[float, float], ...]]:
        """Out-of-fold isotonic probabilities, and the knots of the curve on all data."""
        isotonic: Any = require("sklearn.isotonic", "retrieval", "fitting an isotonic relevance model")

        def curve(rows: NDArray[np.int64] | slice) -> Any:
            return isotonic.IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(
                p[rows], self.y[rows], sample_weight=self.weights[rows]
            )

        outside = np.empty(p.size)
        for train, test in self.folds:
            outside[test] = curve(train).predict(p[test])
        whole = curve(slice(None))
        knots: dict[float, float] = {}
        for x, value in zip(whole.X_thresholds_, whole.y_thresholds_, strict=True):
            knots[float(x)] = float(value)
        return outside, tuple(knots.items())


def _no_use(column: FloatArray) -> str:
    """Why a feature has no weight where none has."""
    same = np.ptp(column) == 0
    return (
        "the same for every candidate"
        if same
        else "lower where a passage is needed, and may not count against it"
    )


# -- calibration -----------------------------------------------------------------------------------------

_BINS = 10
_FEW = 10  # candidates in a bin whose share is drawn as a hint
_Z = 1.959964  # of a two-sided 95 % interval


def reliability(probabilities: ArrayLike, labels: ArrayLike, bins: int = _BINS) -> list[dict[str, float]]:
    """Mean prediction and share of positives by bins of equal width.

    probabilities: shape (m,); in [0, 1].
    labels: shape (m,); 0 or 1.

    Returns {low, high, count, predicted, observed} for every bin that holds anything.
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    place = np.minimum((p * bins).astype(int), bins - 1)
    rows = []
    for k in range(bins):
        inside = place == k
        if inside.any():
            rows.append(
                {
                    "low": k / bins,
                    "high": (k + 1) / bins,
                    "count": int(inside.sum()),
                    "predicted": float(p[inside].mean()),
                    "observed": float(y[inside].mean()),
                }
            )
    return rows


def calibration_measures(probabilities: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Expected calibration error, Brier score and log loss; smaller is better.

    The expected calibration error is the mean over all candidates of |predicted - observed| of their bin, of
    ten bins of equal width (Naeini, Cooper and Hauskrecht, AAAI 2015). Most candidates are plainly
    irrelevant, so `ece_likely` is the same over those with a prediction of at least 0.1.
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if p.size == 0 or p.shape != y.shape or not np.all((p >= 0) & (p <= 1)):
        raise InputError(
            f"{p.size} probabilities in [0, 1] and {y.size} labels: expected as many of both, not none"
        )
    safe = np.clip(p, 1e-12, 1 - 1e-12)
    likely = p >= 1 / _BINS
    return {
        "ece": _error(p, y),
        "ece_likely": _error(p[likely], y[likely]),
        "brier": float(np.mean((p - y) ** 2)),
        "log_loss": float(-np.mean(y * np.log(safe) + (1 - y) * np.log(1 - safe))),
    }


def _error(p: Any, y: Any) -> float:
    rows = reliability(p, y) if len(p) else []
    return float(sum(r["count"] * abs(r["predicted"] - r["observed"]) for r in rows) / max(len(p), 1))


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    share: in [0, 1].
    count: observations, >= 1, counted as independent.
    """
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + (_Z / (2 * count)) ** 2) / (1 + _Z**2 / count)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def reliability_plot(path: Path, curves: Mapping[str, Sequence[Mapping[str, float]]], title: str) -> None:
    """Draw reliability curves with 95 % intervals, and how many candidates lie in each bin, as a PNG.

    Bins of fewer than ten candidates are hollow and stand outside the line: their shares say little.

    Raises `MissingExtraError` if matplotlib is not installed; `InputError` if the file cannot be written.
    """
    figures: Any = require("matplotlib.figure", "evaluation", "the reliability plot")
    figure = figures.Figure(figsize=(7.2, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    upper.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="perfect")
    width = 0.09 / max(len(curves), 1)
    for k, (label, rows) in enumerate(curves.items()):
        colour = f"C{k}"
        firm = [r for r in rows if r["count"] >= _FEW]
        upper.plot(
            [r["predicted"] for r in firm],
            [r["observed"] for r in firm],
            "o-",
            ms=4,
            color=colour,
            label=label,
        )
        for r in rows:
            low, high = share_interval(r["observed"], int(r["count"]))
            upper.errorbar(
                r["predicted"],
                r["observed"],
                yerr=[[r["observed"] - low], [high - r["observed"]]],
                fmt="o",
                ms=4,
                color=colour,
                mfc=colour if r["count"] >= _FEW else "white",
                elinewidth=0.8,
                alpha=0.9 if r["count"] >= _FEW else 0.5,
            )
        places = [r["low"] + 0.005 + (k + 0.5) * width for r in rows]
        bars = lower.bar(places, [r["count"] for r in rows], width=width, color=colour)
        counts = [f"{int(r['count'])}" for r in rows]
        lower.bar_label(bars, counts, fontsize=6, padding=1, rotation=0 if len(curves) < 3 else 90)
    upper.set(ylabel="share that is needed, 95 % interval", xlim=(0, 1), ylim=(-0.03, 1.03))
    upper.plot([], [], "o", color="0.4", mfc="white", ms=4, label=f"fewer than {_FEW} candidates")
    set_title(figure, title)
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    lower.set(xlabel="predicted probability", ylabel="candidates", yscale="log")
    lower.margins(y=0.25)  # room for the counts
    make_parent(path)
    with replaced(path) as partial:
        figure.savefig(partial, format="png", dpi=120)
