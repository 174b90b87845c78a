"""Train a router on a table of outcomes, and measure it on questions that it has not seen.

The table is Parquet (`mio_rag.learning.outcomes`) with the columns `worked` (1 where a tier answered) and
`label` (1 for the tier that the question needs). What was seen of its questions before anything was read lies
next to it, as ``NAME.seen.safetensors``.

The measures come from cross-validation: a router that was trained without a question decides it. Rivals are
each fixed tier, the best mixture of fixed tiers at equal cost, a draw with the router's own shares, and the
oracle.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import scipy  # loads scipy.special, an eighth of a second, where it is first used
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator, Field, model_validator

from mio_rag import __version__
from mio_rag.errors import DataError, InputError, require
from mio_rag.learning.outcomes import Outcomes, mixtures, read_outcomes
from mio_rag.learning.router_model import (
    KINDS,
    REMOVED_KINDS,
    SEARCH,
    Correction,
    Router,
    Seen,
    Utility,
    row_of,
)
from mio_rag.learning.weights import Weights, read_weights, write_weights
from mio_rag.session.tiers import Tier, tiers_of
from mio_rag.settings import Settings
from mio_rag.solvers.capabilities import versions_of

# -- tables of outcomes -------------------------------------------------------------------------------------

FloatArray = NDArray[np.float64]

WORKED, LABEL = "worked", "label"

_KIND, _VERSION = "router-questions", 1


@dataclass(frozen=True, eq=False)
class Table:
    """n questions at m tiers.

    outcomes: with `worked`, `label`, and at least `prompt_tokens`; actions are the names of the tiers.
    tiers: length m.
    seen: length n.
    embedder: fingerprint.

    Raises `InputError` if they do not belong together.
    """

    outcomes: Outcomes
    tiers: tuple[Tier, ...]
    seen: tuple[Seen, ...]
    embedder: str

    def __post_init__(self) -> None:
        problems = []
        names = tuple(tier.name for tier in self.tiers)
        if names != self.outcomes.actions:
            problems.append(
                f"the table has the tiers {', '.join(self.outcomes.actions)}, not {', '.join(names)}"
            )
        if len(self.seen) != len(self.outcomes):
            problems.append(
                f"{len(self.seen)} questions were seen, and {len(self.outcomes)} are in the table"
            )
        problems += [
            f"the table has no column '{name}': make it with `mio-rag route label`"
            for name in (WORKED, LABEL, "prompt_tokens")
            if name not in self.outcomes.values
        ]
        if not problems:
            chosen = self.outcomes.of(LABEL)
            if not (np.isin(chosen, (0, 1)).all() and (chosen.sum(axis=1) == 1).all()):
                problems.append(
                    "the column 'label' must be 1 for one tier of each question, and 0 for others"
                )
        if problems:
            raise InputError(problems)

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def labels(self) -> NDArray[np.intp]:
        """Place of the tier that each question needs, shape (n,)."""
        return np.asarray(np.argmax(self.outcomes.of(LABEL), axis=1), dtype=np.intp)

    @property
    def worked(self) -> FloatArray:
        """1 where a tier did, shape (n, m)."""
        return self.outcomes.of(WORKED)

    @property
    def by(self) -> tuple[str, ...]:
        """What labels go by, as files say it: "answers" or "evidence"; joined tables may have both."""
        about = self.outcomes.provenance
        return tuple(sorted({str(one.get("by")) for one in about.get("tables", [about])}))

    def costs(self) -> FloatArray:
        """Mean tokens into and out of the model, seconds and peak megabytes of each tier, shape (m, 3).

        Seconds and memory that were not recorded are 0.
        """
        columns = (("prompt_tokens", "completion_tokens"), ("total_seconds",), ("peak_memory_mb",))
        return np.column_stack(
            [
                sum(
                    (
                        np.nan_to_num(self.outcomes.values[name])
                        for name in names
                        if name in self.outcomes.values
                    ),
                    start=np.zeros((len(self), len(self.tiers))),
                ).mean(axis=0)
                for names in columns
            ]
        )

    def where(self, kept: ArrayLike) -> Table:
        """The table of some questions; as `Outcomes.where`."""
        places = np.arange(len(self))[np.asarray(kept)]
        return Table(
            self.outcomes.where(places), self.tiers, tuple(self.seen[i] for i in places), self.embedder
        )

    @property
    def sha256(self) -> str:
        """Of questions, labels and outcomes."""
        digest = sha256(repr((self.outcomes.ids, self.outcomes.actions, self.embedder)).encode())
        for name in sorted(self.outcomes.values):
            digest.update(name.encode() + np.ascontiguousarray(self.outcomes.values[name]).tobytes())
        return digest.hexdigest()


def seen_path(path: Path) -> Path:
    """Where what was seen of a table's questions lies."""
    return path.with_name(f"{path.stem}.seen.safetensors")


def write_table(table: Table, path: Path) -> None:
    """Write table and what was seen, each whole or not at all.

    Raises `InputError` if they cannot be written.
    """
    arrays = {
        "embedding": np.array([one.embedding for one in table.seen], dtype=np.float32),
        "search": np.array([one.search for one in table.seen]),
    }
    about = {"ids": list(table.outcomes.ids), "embedder": table.embedder, "search": list(SEARCH)}
    write_weights(Weights(_KIND, _VERSION, arrays, about), seen_path(path))
    table.outcomes.write(path)


def read_table(paths: Sequence[Path]) -> Table:
    """The tables of files as one, in the order given.

    Raises `DataError` if a file is missing, damaged, foreign, lacks tiers for some questions, or tables
    differ in tiers, columns or embedder.
    """
    if not paths:
        raise DataError("there is no table of outcomes: give at least one")
    tables = [_read_one(path) for path in paths]
    first, problems = tables[0], []
    for path, table in zip(paths, tables, strict=True):
        if table.tiers != first.tiers:
            problems.append(
                f"'{path}' has other tiers than '{paths[0]}': label both with the same file of tiers"
            )
        if table.embedder != first.embedder:
            problems.append(f"'{path}' has questions of another embedder than '{paths[0]}'")
    if problems:
        raise DataError(problems)
    try:
        return joined(tables)
    except InputError as error:
        raise DataError([f"these tables do not go together: {p}" for p in error.problems]) from error


def joined(tables: Sequence[Table]) -> Table:
    """Tables of the same tiers as one, with the columns that all of them have.

    Raises `InputError` if a question is in two of them.
    """
    first = tables[0]
    names = [n for n in first.outcomes.values if all(n in table.outcomes.values for table in tables)]
    every = all(table.outcomes.questions for table in tables)
    named = all(table.outcomes.sets for table in tables)
    outcomes = Outcomes(
        tuple(i for table in tables for i in table.outcomes.ids),
        first.outcomes.actions,
        {name: np.concatenate([table.outcomes.values[name] for table in tables]) for name in names},
        tuple(q for table in tables for q in table.outcomes.questions) if every else (),
        tuple(s for table in tables for s in table.outcomes.sets) if named else (),
        {"tables": [dict(table.outcomes.provenance) for table in tables]} | {"tiers": _plain(first.tiers)},
    )
    return Table(outcomes, first.tiers, tuple(s for table in tables for s in table.seen), first.embedder)


def _plain(tiers: Sequence[Tier]) -> list[dict[str, Any]]:
    return [tier.to_dict() for tier in tiers]


def _read_one(path: Path) -> Table:
    outcomes = read_outcomes(path)
    held = read_weights(seen_path(path), _KIND, _VERSION)
    try:
        if tuple(held.about["ids"]) != outcomes.ids:
            raise DataError(f"'{seen_path(path)}' is of other questions than '{path}': label them anew")
        if list(held.about["search"]) != list(SEARCH):
            raise DataError(f"'{seen_path(path)}' was made by another release: label the questions anew")
        texts = outcomes.questions or outcomes.ids
        seen = tuple(
            Seen(text, np.asarray(vector, dtype=np.float64), np.asarray(search, dtype=np.float64))
            for text, vector, search in zip(
                texts, held.arrays["embedding"], held.arrays["search"], strict=True
            )
        )
        tiers = tiers_of(outcomes.provenance["tiers"], f"'{path}'")
        return Table(outcomes, tiers, seen, str(held.about["embedder"]))
    except (KeyError, TypeError) as error:
        raise DataError(f"'{path}' was not made by `mio-rag route label`: {error} is missing") from error
    except DataError:
        raise
    except (InputError, ValueError) as error:
        raise DataError(f"'{path}': {error}") from error


# -- the published network ----------------------------------------------------------------------------------

_HIDDEN = (256, 64)
_DROPOUT = 0.3
_RATE, _DECAY = 1e-3, 1e-4
_BATCH, _EPOCHS = 64, 60
_HELD_OUT = 0.15
_LEAST = 10  # questions, so that there is something on both sides


@dataclass
class History:
    """A curve of training: a number for each epoch.

    loss, held_out_loss: weighted cross-entropy while learning, and on the held-out questions.
    accuracy: share of the held-out questions whose tier is right.
    best: the epoch that is kept, from 0.
    """

    loss: list[float] = field(default_factory=list)
    held_out_loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    best: int = 0


def train_mlp(
    rows: FloatArray, labels: NDArray[np.intp], tiers: int, seed: int = 0
) -> tuple[dict[str, NDArray[Any]], History]:
    """Train the published network, exactly as published. Only this function needs torch.

    384 -> 256 -> ReLU -> dropout .3 -> 64 -> ReLU -> tiers, on L2-normalised question embeddings.
    Cross-entropy weighted by class, N / (C N_c); AdamW at 1e-3 with weight decay 1e-4; batches of 64; 60
    epochs; 85 % of the questions to learn from, and of all epochs the one that is right most often on the
    other 15 %.

    rows: shape (n, d); of length 1 where they are embeddings; n >= 10.
    labels: shape (n,); from 0 to tiers - 1.

    Returns weights_0 .. bias_2 as `mio_rag.learning.router_model` reads them, and the curve.

    Raises `InputError` for fewer than 10 questions; `MissingExtraError` without torch.
    """
    if len(rows) < _LEAST:
        raise InputError(f"{len(rows)} questions are too few to train the network: give at least {_LEAST}")
    torch: Any = require("torch", "retrieval", "training the published router")
    torch.manual_seed(seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    held = max(1, round(_HELD_OUT * len(rows)))
    x, y = torch.tensor(rows, dtype=torch.float32), torch.tensor(labels, dtype=torch.long)
    kept_out, learned = order[:held], order[held:]
    counts = np.bincount(labels[learned], minlength=tiers)
    # A class that nobody needs has no questions to weigh.
    weights = len(learned) / (tiers * np.maximum(counts, 1))
    nn = torch.nn
    network = nn.Sequential(
        nn.Linear(rows.shape[1], _HIDDEN[0]),
        nn.ReLU(),
        nn.Dropout(_DROPOUT),
        nn.Linear(_HIDDEN[0], _HIDDEN[1]),
        nn.ReLU(),
        nn.Linear(_HIDDEN[1], tiers),
    )
    loss_of = nn.CrossEntropyLoss(weight=torch.tensor(weights, dtype=torch.float32))
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    history, best = History(), None
    x_kept, y_kept, x, y = x[kept_out], y[kept_out], x[learned], y[learned]
    shuffle = torch.Generator().manual_seed(seed)
    for epoch in range(_EPOCHS):
        network.train()
        losses = []
        for part in torch.randperm(len(learned), generator=shuffle).split(_BATCH):
            optimizer.zero_grad()
            loss = loss_of(network(x[part]), y[part])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()) * len(part))
        network.eval()
        with torch.no_grad():
            said = network(x_kept)
            history.held_out_loss.append(float(loss_of(said, y_kept)))
            history.accuracy.append(float((said.argmax(1) == y_kept).float().mean()))
        history.loss.append(sum(losses) / len(learned))
        if best is None or history.accuracy[-1] > history.accuracy[history.best]:
            history.best = epoch
            best = [p.detach().clone() for p in network.parameters()]
    assert best is not None
    arrays = {
        f"{name}_{layer}": best[2 * layer + side].numpy().T.copy()
        for layer in range(3)
        for side, name in enumerate(("weights", "bias"))
    }
    return arrays, history


# -- training -----------------------------------------------------------------------------------------------

FOLDS = 5
_STRENGTHS = (0.03, 0.2, 1.0, 5.0, 20.0)  # inverse regularisation


def _kept_kind(value: Any) -> Any:
    if value in REMOVED_KINDS:
        raise ValueError(f"'{value}' was removed: choose {', '.join(KINDS)}")
    return value


class FitSettings(Settings):
    """How a router is trained."""

    kind: Annotated[Literal["mlp", "logistic", "utility"], BeforeValidator(_kept_kind)] = "mlp"
    """See `Router`."""
    features: Literal["question", "question+search"] = "question"
    """What it goes by."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of folds and of the network."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """How often the plausible tiers are to hold the right one."""
    correct_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the training questions whose search is called weak; their threshold is learned."""
    correct_below: Annotated[float, Field(ge=-1, le=1)] | None = None
    """That threshold, a cosine, if it is given; .52 is published, for one embedder."""

    @model_validator(mode="after")
    def _corrects_once(self) -> Self:
        if self.correct_rate is not None and self.correct_below is not None:
            raise ValueError("correct_rate and correct_below exclude each other: give one of them")
        return self


@dataclass(frozen=True, eq=False)
class Fitted:
    """A router, and the curve of its training where it has one."""

    router: Router
    history: History | None = None


def fit_once(table: Table, settings: FitSettings) -> Fitted:
    """Train on all questions of a table. What only unseen questions tell is not known yet.

    Shares are those of the labels, and every tier with an equal chance is plausible.

    Raises `InputError` for fewer than 10 questions, or where all need the same tier and the kind can learn
    nothing from that; `MissingExtraError` without scikit-learn, or torch for the network.
    """
    m, labels = len(table.tiers), table.labels
    if len(table) < 2 * FOLDS:
        raise InputError(f"{len(table)} questions are too few to train a router: give at least {2 * FOLDS}")
    scale = _scale(table) if settings.features == "question+search" else {}
    rows = np.array([row_of(one, settings.features, scale) for one in table.seen])
    history = None
    if settings.kind == "mlp":
        arrays, history = train_mlp(rows, labels, m, settings.seed)
    elif settings.kind == "utility":
        arrays = _success(rows, table.worked, settings.seed)
    else:
        arrays = _logistic(rows, labels, m, settings.seed)
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

    probabilities: shape (n, m); out of fold.

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
        "settings": settings.to_dict(),
        "versions": versions,
    }


# -- cross-validation ---------------------------------------------------------------------------------------

IntArray = NDArray[np.intp]

#: Prices of a token at which the frontier of a router of utility is drawn.
PRICES = (0.0, 1e-5, 3e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 1e-2)
_BINS = 10
_DRAWS = 1000
_FEW = 500  # questions whose draws are kept: 4 MB
LEAST = 13  # questions, of which 10 are left without a fold


@dataclass(frozen=True, eq=False)
class Validated:
    """What each question was told by a router that had not seen it.

    probabilities: shape (n, m); of each tier to be the one that is needed.
    success: shape (n, m), or None; of each tier to do; of the kind `utility` alone.
    choice: shape (n,); places of the tiers chosen, at the utility of the run.
    plausible: the conformal threshold.
    """

    table: Table
    probabilities: FloatArray
    success: FloatArray | None
    choice: IntArray
    plausible: float

    def up(self) -> IntArray:
        """The choices, one tier up where several are plausible."""
        several = (self.probabilities >= self.plausible).sum(axis=1) > 1
        return np.asarray(np.minimum(self.choice + several, len(self.table.tiers) - 1), dtype=np.intp)

    def at(self, utility: Utility) -> IntArray:
        """The choices at another utility; those of other kinds do not change."""
        if self.success is None:
            return self.choice
        return chosen_at(self.success, self.table.costs(), utility)


def chosen_at(success: FloatArray, costs: FloatArray, utility: Utility) -> IntArray:
    """Places of the tiers of largest utility, shape (n,).

    success: shape (n, m).
    costs: shape (m, 3); tokens, seconds and megabytes.
    """
    charged = costs @ np.array([utility.beta, utility.gamma, utility.delta])
    return np.asarray(np.argmax(utility.alpha * success - charged, axis=1), dtype=np.intp)


def out_of_fold(
    table: Table,
    settings: FitSettings,
    utility: Utility | None = None,
    progress: Callable[[int], None] | None = None,
) -> Validated:
    """Train without each fold in turn, and ask about it.

    progress: called with 1 as each fold is finished.

    Raises `InputError` for fewer than 13 questions.
    """
    if len(table) < LEAST:
        raise InputError(
            f"{len(table)} questions are too few to train a router and to measure it by folds: give at least "
            f"{LEAST}"
        )
    fold = folds_of(table.labels, settings.seed)
    n, m = len(table), len(table.tiers)
    probabilities, success = np.zeros((n, m)), np.zeros((n, m))
    for k in range(FOLDS):
        router = fit_once(table.where(fold != k), settings).router
        for place in np.flatnonzero(fold == k):
            seen = table.seen[place]
            probabilities[place] = router.probabilities(seen)
            if router.kind == "utility":
                success[place] = router.success(seen)
        if progress:
            progress(1)
    plausible = plausible_at(probabilities, table.labels, settings.confidence)
    known = success if settings.kind == "utility" else None
    choice = (
        np.argmax(probabilities, axis=1)
        if known is None
        else chosen_at(known, table.costs(), utility or Utility())
    )
    return Validated(table, probabilities, known, choice, plausible)


def fit_and_validate(
    table: Table,
    settings: FitSettings,
    utility: Utility | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Fitted, Validated]:
    """A router of all questions, with what folds say: measures, shares and the conformal threshold."""
    found = out_of_fold(table, settings, utility, progress)
    made = fit_once(table, settings)
    shares = np.bincount(found.choice, minlength=len(table.tiers)) / len(table)
    router: Router = replace(
        made.router,
        shares=tuple(shares.tolist()),
        plausible=found.plausible,
        measures=measured(found, utility or Utility()),
    )
    return Fitted(router, made.history), found


def measured(found: Validated, utility: Utility) -> dict[str, Any]:
    """Accuracy, confusion, calibration, cost and quality against rivals; plain data."""
    table, labels, m = found.table, found.table.labels, len(found.table.tiers)
    confusion = np.zeros((m, m), dtype=int)
    np.add.at(confusion, (labels, found.choice), 1)
    sets = (found.probabilities >= found.plausible).sum(axis=1)
    inside = found.probabilities[np.arange(len(labels)), labels] >= found.plausible
    rows = {
        "router": _point(table, found.choice),
        "router, up where unsure": _point(table, found.up()),
        **{f"tier:{tier.name}": _point(table, np.full(len(table), k)) for k, tier in enumerate(table.tiers)},
        "oracle": _point(table, table.labels),
        # Who knows the outcomes, and is charged for a tier what routers are.
        "oracle at the utility": _point(
            table, chosen_at(table.worked.astype(np.float64), table.costs(), utility)
        ),
    }
    return {
        "questions": len(table),
        "accuracy": float((found.choice == labels).mean()),
        "most_frequent_label": float(np.bincount(labels, minlength=m).max() / len(labels)),
        "label_shares": (np.bincount(labels, minlength=m) / len(labels)).tolist(),
        "confusion": confusion.tolist(),
        "calibration_error": calibration_error(found),
        "unsure_share": float((sets > 1).mean()),
        "right_tier_is_plausible": float(inside.mean()),
        "utility": dict(vars(utility)),
        "rows": rows,
        "best_mixture_at_equal_cost": _mixture(table, rows["router"]["prompt_tokens"]),
        "against_mixture": _against_mixture(table, found.choice),
    }


def calibration_error(found: Validated) -> float:
    """Expected calibration error of each tier, ten bins of equal width, mean over the tiers.

    Of the success of each tier where that is known, else of the label's probabilities (Kull et al. 2019,
    "Beyond temperature scaling", classwise). Never pooled over tiers: probabilities of one question sum to 1,
    so whoever says 1/m of every tier would be free of error.
    """
    if found.success is None:
        said, true = found.probabilities, np.eye(found.probabilities.shape[1])[found.table.labels]
    else:
        said, true = found.success, found.table.worked.astype(np.float64)
    bins, off = np.minimum((said * _BINS).astype(int), _BINS - 1), said - true
    # A bin's share of the questions times its mean error is the sum of its errors over all questions.
    return float(
        np.mean(
            [
                sum(abs(off[bins[:, j] == b, j].sum()) for b in range(_BINS)) / len(said)
                for j in range(said.shape[1])
            ]
        )
    )


def _point(table: Table, choice: IntArray) -> dict[str, float]:
    """Means under a choice, with what is defined everywhere."""
    outcomes = table.outcomes
    names = [WORKED, "prompt_tokens", "tokens_used", "exact_match", "token_f1", "gold_recall"]
    return {
        name: outcomes.mean(name, choice)
        for name in names
        if name in outcomes.values and not np.isnan(outcomes.values[name]).any()
    }


def _mixture(table: Table, tokens: float) -> float | None:
    """How often the best mixture of fixed tiers does at so many tokens; None below the cheapest tier."""
    found = table.outcomes.fixed_at(WORKED, "prompt_tokens", tokens)
    return None if np.isnan(found) else found


def _against_mixture(table: Table, choice: IntArray) -> dict[str, float]:
    """How much more often a choice does than the best mixture of fixed tiers at its tokens, with the 95 %
    interval: a bootstrap over questions, in which each draw has a mixture of its own."""
    n, rows = len(table), np.arange(len(table))
    worked, tokens = table.worked, table.outcomes.of("prompt_tokens")
    weights = _drawn(n) if n <= _FEW else _draw(n)
    spent, did = weights @ tokens[rows, choice], weights @ worked[rows, choice]
    gains = did - mixtures(weights @ worked, weights @ tokens, spent)
    low, high = np.quantile(gains[1:], [0.025, 0.975])
    return {"mean": float(gains[0]), "low": float(low), "high": float(high)}


def _draw(n: int) -> FloatArray:
    """Weights of the questions, shape (draws + 1, n): all alike, then those of each draw."""
    rng = np.random.default_rng(0)
    drawn = [np.bincount(rng.integers(n, size=n), minlength=n) / n for _ in range(_DRAWS)]
    return np.vstack([np.full(n, 1 / n), *drawn])


@functools.lru_cache(maxsize=2)  # routers of the same questions are measured one after the other
def _drawn(n: int) -> FloatArray:
    found = _draw(n)
    found.flags.writeable = False
    return found


def frontier(
    choices: Sequence[IntArray], table: Table, quality: str = WORKED, cost: str = "prompt_tokens"
) -> list[tuple[float, float]]:
    """(mean cost, mean quality) of choices, by cost."""
    return sorted((table.outcomes.mean(cost, one), table.outcomes.mean(quality, one)) for one in choices)
