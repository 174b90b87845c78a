"""Train a router on a table of outcomes, and measure it on questions that it has not seen.

The table is Parquet (`mio_rag.learning.outcomes`) with the columns `worked` (1 where a tier answered) and
`label` (1 for the tier that the question needs), and what was seen of its questions before anything was read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import scipy  # loads scipy.special, an eighth of a second, where it is first used
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from mio_rag.defaults import __version__
from mio_rag.errors import DataError, InputError, choose, require
from mio_rag.learning.outcomes import Outcomes, gain_over_mixtures, read_outcomes
from mio_rag.learning.router_model import SEARCH, TOKEN_PRICE, Correction, Router, Seen, row_of
from mio_rag.measures.answers import chosen_right, exact_match, token_f1
from mio_rag.session.tiers import Tier, tiers_of
from mio_rag.settings import Settings
from mio_rag.solvers.capabilities import versions_of
from mio_rag.types import Question

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

# -- labels -------------------------------------------------------------------------------------------------

#: Token F1 from which an answer counts as right, besides exact matches; as published.
F1_ENOUGH = 0.6

By = Literal["answers", "evidence"]
BY = ("answers", "evidence")

#: Which tier a question needs that none answers.
Unanswered = Literal["published", "cheapest", "dearest"]
UNANSWERED = ("published", "cheapest", "dearest")


def answer_worked(question: Question, text: str, choice: int | None) -> bool:
    """Return whether an answer is right: the option chosen, an exact match, or a token F1 of at least .6.

    Raises `InputError` if no right answer is known.
    """
    if not question.answers and question.type != "unanswerable":
        raise InputError(f"question '{question.id}' has no answers: nothing can be compared with them")
    if question.choices and choice is not None:
        return bool(chosen_right(question, choice))
    return bool(exact_match(text, question.answers)) or token_f1(text, question.answers) >= F1_ENOUGH


def row_worked(row: Mapping[str, Any], by: By) -> float | None:
    """Return whether the row of a ledger answered its question; None where that is unknown.

    by: "answers": an exact match, or a token F1 of at least .6; of options, the right one. "evidence": all
        gold passages are read (gold documents, where only these are known), and the answer stands in what was
        read, where it is a text that can stand there.
    """
    if by == "answers":
        if row.get("accuracy") is not None:
            return float(row["accuracy"])
        if row.get("exact_match") is None:
            return None
        return float(row["exact_match"] == 1 or row["token_f1"] >= F1_ENOUGH)
    found = row.get("gold_recall") if row.get("gold_recall") is not None else row.get("source_recall")
    return None if found is None else float(found == 1 and row.get("answer_in_context") in (None, 1.0))


def labels(worked: ArrayLike, several_hops: Sequence[bool], unanswered: Unanswered = "published") -> IntArray:
    """Return the cheapest tier that answers each question, shape (n,).

    worked: shape (n, m); 1 where a tier answered; tiers in the order of their cost.
    several_hops: length n; whether a question takes several passages together.
    unanswered: of a question that no tier answers. "published": the most expensive tier where it takes
        several passages, otherwise the middle one (of an even number the upper one); "cheapest"; "dearest".

    """
    table = np.asarray(worked, dtype=np.float64) > 0
    m = table.shape[1]
    if unanswered not in UNANSWERED:
        raise InputError(f"unanswered={unanswered!r} is unknown: {choose(unanswered, UNANSWERED)}")
    published = np.where(np.asarray(several_hops, dtype=bool), m - 1, m // 2)
    rest = {"cheapest": 0, "dearest": m - 1, "published": published}[unanswered]
    return np.asarray(np.where(table.any(axis=1), table.argmax(axis=1), rest), dtype=np.intp)


# -- tables -------------------------------------------------------------------------------------------------

WORKED, LABEL = "worked", "label"
#: Measures of a tier's cost: tokens, seconds and peak megabytes.
_COSTS = (("prompt_tokens", "completion_tokens"), ("total_seconds",), ("peak_memory_mb",))
_NEEDED = ("tiers", "embedder", "search"), (WORKED, LABEL, "prompt_tokens"), ("embedding", "search")


@dataclass(frozen=True, eq=False)
class Table:
    """n questions at m tiers.

    outcomes: with `worked`, `label`, and at least `prompt_tokens`; actions are the names of the tiers. Its
        arrays are those of `seen_arrays`, its provenance has tiers, embedder and the names of `SEARCH`.
    """

    outcomes: Outcomes

    def __len__(self) -> int:
        return len(self.outcomes)

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """The m tiers."""
        return tiers_of(self.outcomes.provenance["tiers"], "tiers")

    @property
    def embedder(self) -> str:
        """Fingerprint of the embedder of the questions."""
        return str(self.outcomes.provenance["embedder"])

    @cached_property
    def seen(self) -> tuple[Seen, ...]:
        """What was seen of each question."""
        arrays = (self.outcomes.arrays[name].astype(np.float64) for name in ("embedding", "search"))
        return tuple(map(Seen, self.outcomes.questions or self.outcomes.ids, *arrays))

    @property
    def labels(self) -> IntArray:
        """Place of the tier that each question needs, shape (n,)."""
        return np.asarray(np.argmax(self.outcomes.of(LABEL), axis=1), dtype=np.intp)

    @property
    def worked(self) -> FloatArray:
        """1 where a tier answered, shape (n, m)."""
        return self.outcomes.of(WORKED)

    @property
    def by(self) -> tuple[str, ...]:
        """What labels go by: "answers" or "evidence"; joined tables may have both."""
        return tuple(sorted({str(one.get("by")) for one in self.origins}))

    @property
    def origins(self) -> Sequence[Mapping[str, Any]]:
        """The provenance of each table that was joined."""
        about = self.outcomes.provenance
        return list(about.get("tables", [about]))

    def costs(self) -> FloatArray:
        """Return mean tokens, seconds and peak megabytes of each tier, shape (m, 3); 0 where not recorded."""
        values, found = self.outcomes.values, np.zeros((len(self.tiers), len(_COSTS)))
        for column, names in enumerate(_COSTS):
            for name in filter(values.__contains__, names):
                found[:, column] += np.nan_to_num(values[name]).mean(axis=0)
        return found

    def where(self, kept: ArrayLike) -> Table:
        """Return the table of some questions; as `Outcomes.where`."""
        return Table(self.outcomes.where(kept))

    @property
    def sha256(self) -> str:
        """Hash of questions, labels and outcomes."""
        digest = sha256(repr((self.outcomes.ids, self.outcomes.actions, self.embedder)).encode())
        for name in sorted(self.outcomes.values):
            digest.update(name.encode() + np.ascontiguousarray(self.outcomes.values[name]).tobytes())
        return digest.hexdigest()


def seen_arrays(seen: Sequence[Seen]) -> dict[str, NDArray[Any]]:
    """Return what was seen of questions, as a table of outcomes holds it."""
    embeddings = np.array([one.embedding for one in seen], dtype=np.float32)
    return {"embedding": embeddings, "search": np.array([one.search for one in seen])}


def read_table(paths: Sequence[Path]) -> Table:
    """Return the tables of files as one, in the order given.

    Raises `DataError` if a file is missing, damaged, foreign, lacks tiers for some questions, or tables
    differ in tiers or embedder, or share questions.
    """
    if not paths:
        raise DataError("there is no table of outcomes: give at least one")
    tables, problems = [Table(read_outcomes(path)) for path in paths], list[str]()
    for path, table in zip(paths, tables, strict=True):
        found = table.outcomes
        parts = found.provenance, found.values, found.arrays
        if not all(set(names) <= part.keys() for names, part in zip(_NEEDED, parts, strict=True)):
            raise DataError(f"'{path}' is no table of tiers: make it with `mio-rag policy fit router`")
        if found.provenance["search"] != list(SEARCH):
            problems.append(f"'{path}' was made by another release: label the questions anew")
        if table.tiers != tables[0].tiers:
            problems.append(
                f"'{path}' has other tiers than '{paths[0]}': label both with the same file of tiers"
            )
        if table.embedder != tables[0].embedder:
            problems.append(f"'{path}' has questions of another embedder than '{paths[0]}'")
    if problems:
        raise DataError(problems)
    try:
        return joined(tables)
    except InputError as error:
        raise DataError([f"these tables do not go together: {p}" for p in error.problems]) from error


def joined(tables: Sequence[Table]) -> Table:
    """Return tables of the same tiers as one, with the columns that all of them have.

    Raises `InputError` if a question is in two of them.
    """
    parts = [table.outcomes for table in tables]
    first = parts[0]

    def stacked(name: str) -> dict[str, NDArray[Any]]:
        each: list[Mapping[str, NDArray[Any]]] = [getattr(part, name) for part in parts]
        names = [key for key in each[0] if all(key in one for one in each)]
        return {key: np.concatenate([one[key] for one in each]) for key in names}

    def texts(name: str) -> tuple[str, ...]:
        each = [getattr(part, name) for part in parts]
        return tuple(text for one in each for text in one) if all(each) else ()

    about = {name: first.provenance[name] for name in ("tiers", "embedder", "search")}
    about["tables"] = [dict(part.provenance) for part in parts]
    sides = texts("ids"), first.actions, stacked("values"), texts("questions"), texts("sets")
    return Table(Outcomes(*sides, about, stacked("arrays")))


# -- training -----------------------------------------------------------------------------------------------

_LEAST = 10  # questions, so that there is something on both sides
FOLDS = 5
_STRENGTHS = (0.03, 0.2, 1.0, 5.0, 20.0)  # inverse regularisation


class FitSettings(Settings):
    """How a router is trained."""

    kind: Literal["mlp", "logistic", "utility"] = "mlp"
    """See `mio_rag.learning.router_model.KINDS`."""
    features: Literal["question", "question+search"] = "question"
    """What it goes by."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of folds and of the network."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """How often the plausible tiers are to include the right one."""
    correct_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the training questions whose search is called weak; their threshold is learned."""
    correct_below: Annotated[float, Field(ge=-1, le=1)] | None = None
    """That threshold, a cosine, if it is given; .52 is published, for one embedder."""
    correct_more: Annotated[int, Field(ge=1)] = 5
    """Passages that are read besides where the search is weak."""
    hidden: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (256, 64)
    """Widths of hidden layers. This and what follows is of mlp alone; the defaults are published."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Behind its first layer."""
    rate: Annotated[float, Field(gt=0)] = 1e-3
    """Of AdamW."""
    decay: Annotated[float, Field(ge=0)] = 1e-4
    """Weight decay of AdamW."""
    batch: Annotated[int, Field(ge=1)] = 64
    """Questions of a step."""
    epochs: Annotated[int, Field(ge=1)] = 60
    """Of all epochs the one with the best validation counts."""
    held: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the questions that validate."""

    @model_validator(mode="after")
    def _corrects_once(self) -> Self:
        if self.correct_rate is not None and self.correct_below is not None:
            raise ValueError("correct_rate and correct_below exclude each other: give one of them")
        return self


def train_mlp(
    rows: FloatArray, labels: IntArray, tiers: int, how: FitSettings
) -> tuple[dict[str, NDArray[Any]], list[tuple[float, float, float]]]:
    """Train the published network. Only this function needs torch.

    As published: 384 -> 256 -> ReLU -> dropout -> 64 -> ReLU -> tiers, on L2-normalised question embeddings;
    cross-entropy weighted by class, N / (C N_c); of all epochs the one that is right most often on what was
    held out.

    rows: shape (n, d); n >= 10.
    labels: shape (n,); from 0 to tiers - 1.

    Returns weights_0 to bias_2, as a `Router` reads them, and for each epoch the mean loss, the accuracy in
    training and the accuracy in validation.
    """
    torch: Any = require("torch", "torch", "training the published router")
    nn = torch.nn
    torch.manual_seed(how.seed)
    order = np.random.default_rng(how.seed).permutation(len(rows))
    held = max(1, round(how.held * len(rows)))
    x, y = torch.tensor(rows, dtype=torch.float32), torch.tensor(labels, dtype=torch.long)
    kept_out, learned = order[:held], order[held:]
    # A class that no question needs has none to weigh.
    counts = np.maximum(np.bincount(labels[learned], minlength=tiers), 1)
    one, other = how.hidden
    layers = [nn.Linear(rows.shape[1], one), nn.Linear(one, other), nn.Linear(other, tiers)]
    network = nn.Sequential(layers[0], nn.ReLU(), nn.Dropout(how.dropout), layers[1], nn.ReLU(), layers[2])
    loss_of = nn.CrossEntropyLoss(weight=torch.tensor(len(learned) / (tiers * counts), dtype=torch.float32))
    optimizer = torch.optim.AdamW(network.parameters(), lr=how.rate, weight_decay=how.decay)
    best: tuple[float, list[NDArray[Any]]] = (-1.0, [])
    curve: list[tuple[float, float, float]] = []
    x_kept, y_kept, x, y = x[kept_out], y[kept_out], x[learned], y[learned]
    shuffle = torch.Generator().manual_seed(how.seed)
    for _ in range(how.epochs):
        network.train()
        for part in torch.randperm(len(learned), generator=shuffle).split(how.batch):
            optimizer.zero_grad()
            loss_of(network(x[part]), y[part]).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            said = network(x)
            accuracy = float((network(x_kept).argmax(1) == y_kept).float().mean())
            curve.append((float(loss_of(said, y)), float((said.argmax(1) == y).float().mean()), accuracy))
        if accuracy > best[0]:
            best = accuracy, [p.detach().clone().numpy().T.copy() for p in network.parameters()]
    names = [f"{name}_{layer}" for layer in range(3) for name in ("weights", "bias")]
    return dict(zip(names, best[1], strict=True)), curve


def folds_of(labels: IntArray, seed: int) -> IntArray:
    """Return a fold for each question, shape (n,): every label is dealt out evenly, in an order by seed."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(np.flatnonzero(labels == one)) for one in np.unique(labels)])
    fold = np.zeros(len(labels), dtype=np.intp)
    fold[order] = np.arange(len(order)) % FOLDS
    return fold


def _regression(rows: FloatArray, labels: NDArray[Any], strength: float = 1.0) -> Any:
    linear: Any = require("sklearn.linear_model", "retrieval", "training a router")
    return linear.LogisticRegression(C=strength, max_iter=2000).fit(rows, labels)


def _tuned(
    rows: FloatArray,
    labels: IntArray,
    seed: int,
    score: Callable[[Any, FloatArray], FloatArray],
    loss: Callable[[FloatArray, IntArray], float],
) -> tuple[Any, FloatArray]:
    """A regression whose strength has the least loss over folds, and the scores out of fold."""
    fold, tried = folds_of(labels, seed), []
    order = np.argsort(fold, kind="stable")
    for strength in _STRENGTHS:
        models = [_regression(rows[fold != k], labels[fold != k], strength) for k in range(FOLDS)]
        parts = np.concatenate([score(model, rows[fold == k]) for k, model in enumerate(models)])
        scores = np.empty_like(parts)
        scores[order] = parts
        tried.append((loss(scores, labels), strength, scores))
    _, strength, scores = min(tried, key=lambda one: one[0])
    return _regression(rows, labels, strength), scores


def _logistic(rows: FloatArray, labels: IntArray, m: int, seed: int) -> dict[str, NDArray[Any]]:
    """Multinomial logistic regression, its strength by log loss over folds."""
    weights, bias = np.zeros((rows.shape[1], m)), np.full(m, -30.0)  # what is never needed is never chosen
    if (labels == labels[0]).all():
        bias[labels[0]] = 0.0
        return {"weights": weights, "bias": bias}

    def score(model: Any, x: FloatArray) -> FloatArray:
        chances = np.full((len(x), m), 1e-6)
        chances[:, model.classes_] = model.predict_proba(x)
        return np.asarray(np.log(np.maximum(chances, 1e-6)), dtype=np.float64)

    def loss(scores: FloatArray, y: IntArray) -> float:
        return -float(scores[np.arange(len(y)), y].sum())

    best, _ = _tuned(rows, labels, seed, score, loss)
    coefficients, intercepts = best.coef_, best.intercept_
    if len(best.classes_) == 2:  # scikit-learn keeps one row: the log odds of the second
        coefficients, intercepts = np.vstack([0 * coefficients, coefficients]), np.append(0.0, intercepts)
    weights[:, best.classes_], bias[best.classes_] = coefficients.T, intercepts
    return {"weights": weights, "bias": bias}


def _success(rows: FloatArray, did: IntArray, seed: int) -> tuple[FloatArray, float, float, float]:
    """Weights, bias, slope and shift of a tier's success.

    A logistic regression, its strength by log loss over folds, and Platt's line through the decisions out of
    fold (Platt, 1999).
    """
    if min(did.sum(), len(did) - did.sum()) < FOLDS:  # too few of one kind to tell them apart
        return np.zeros(rows.shape[1]), scipy.special.logit((did.sum() + 1) / (len(did) + 2)), 1.0, 0.0

    def loss(scores: FloatArray, y: IntArray) -> float:
        return float(np.logaddexp(0, np.where(y > 0, -scores, scores)).mean())

    made, scores = _tuned(rows, did, seed, lambda model, x: model.decision_function(x), loss)
    line = _regression(scores[:, None], did)
    if line.coef_[0, 0] > 0:
        return made.coef_[0], made.intercept_[0], line.coef_[0, 0], line.intercept_[0]
    # The scores out of fold tell nothing: the mean is what is known.
    return made.coef_[0], made.intercept_[0], 0.0, scipy.special.logit(did.mean())


def fit_once(table: Table, settings: FitSettings) -> Router:
    """Train on all questions of a table; shares are those of the labels, and every tier is plausible.

    Raises `InputError` for fewer than 10 questions; `MissingExtraError` without scikit-learn or torch.
    """
    m, needed, seed = len(table.tiers), table.labels, settings.seed
    if len(table) < _LEAST:
        raise InputError(f"{len(table)} questions are too few to train a router: give at least {_LEAST}")
    search, scale = np.array([one.search for one in table.seen]), {}
    if settings.features == "question+search":
        width = search.std(axis=0)
        scale = {"search_mean": search.mean(axis=0), "search_scale": np.where(width > 1e-12, width, 1.0)}
    rows = np.array([row_of(one, settings.features, scale) for one in table.seen])
    curve: list[tuple[float, float, float]] = []
    if settings.kind == "mlp":
        arrays, curve = train_mlp(rows, needed, m, settings)
    elif settings.kind == "logistic":
        arrays = _logistic(rows, needed, m, seed)
    else:
        did, place = np.unique(table.worked > 0, axis=1, return_inverse=True)  # tiers that did the same
        parts = [_success(rows, one.astype(np.intp), seed) for one in did.T]
        each = zip(*(parts[k] for k in place.ravel()), strict=True)
        names = ("weights", "bias", "slope", "shift")
        arrays = {name: np.stack(part, axis=-1) for name, part in zip(names, each, strict=True)}
    below = settings.correct_below
    if settings.correct_rate is not None:
        below = float(np.quantile(search[:, SEARCH.index("best_cosine")], settings.correct_rate))
    correction = None if below is None else Correction(below, settings.correct_more)
    provenance = {
        "table_sha256": table.sha256,
        "questions": len(table),
        "sets": dict(Counter(table.outcomes.sets)),
        "by": list(table.by),
        "generators": sorted({str(one.get("generator")) for one in table.origins}),
        "settings": settings.to_dict(),
        "labels": list(_shares(needed, m)),
        "curve": curve,  # of the network: loss, accuracy in training and in validation by epoch
        "versions": {"mio-rag": __version__, **versions_of(("numpy", "torch", "scikit-learn"))},
    }
    return Router(
        settings.kind, table.tiers, settings.features, table.embedder, {**arrays, **scale}, table.costs(),
        _shares(needed, m), 1 / m, settings.confidence, correction, provenance=provenance,
    )  # fmt: skip


def _shares(places: IntArray, m: int) -> tuple[float, ...]:
    return tuple((np.bincount(places, minlength=m) / len(places)).tolist())


def plausible_at(probabilities: FloatArray, labels: IntArray, confidence: float) -> float:
    """Return the conformal threshold: tiers of at least this probability include the right one so often.

    Split conformal prediction with the probability of the right class as score (Sadinle, Lei and Wasserman,
    JASA 2019): the ceil((n + 1)(1 - confidence))-th smallest, less one. With out-of-fold probabilities of
    shape (n, m) the promise holds approximately.
    """
    right = np.sort(probabilities[np.arange(len(labels)), labels])
    place = int(np.floor((len(right) + 1) * (1 - confidence) + 1e-9))  # 10 * (1 - .8) is 2
    return float(right[place - 1]) if place >= 1 else 0.0


# -- cross-validation ---------------------------------------------------------------------------------------

_BINS = 10
LEAST = 13  # questions, of which 10 are left without a fold
_SHOWN = (WORKED, "prompt_tokens", "tokens_used", "exact_match", "token_f1", "gold_recall")


@dataclass(frozen=True, eq=False)
class Validated:
    """What a router that had not seen a question gave for it.

    probabilities: shape (n, m); of each tier to be the one that is needed.
    success: shape (n, m); of each tier to answer; of the kind `utility` alone.
    choice: shape (n,); places of the tiers chosen.
    plausible: the conformal threshold.
    """

    table: Table
    probabilities: FloatArray
    success: FloatArray | None
    choice: IntArray
    plausible: float


def chosen_at(success: ArrayLike, costs: FloatArray, price: float) -> IntArray:
    """Return places of the tiers of most net success, shape (n,), by success (n, m) and costs (m, 3)."""
    return np.asarray(np.argmax(np.asarray(success) - price * costs[:, 0], axis=1), dtype=np.intp)


def out_of_fold(
    table: Table,
    settings: FitSettings,
    price: float = TOKEN_PRICE,
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
    fold, known = folds_of(table.labels, settings.seed), settings.kind == "utility"
    probabilities, success = np.zeros((2, len(table), len(table.tiers)))
    for k in range(FOLDS):
        router = fit_once(table.where(fold != k), settings)
        for place in np.flatnonzero(fold == k):
            probabilities[place] = router.probabilities(table.seen[place])
            if known:
                success[place] = router.success(table.seen[place])
        if progress:
            progress(1)
    plausible = plausible_at(probabilities, table.labels, settings.confidence)
    choice = chosen_at(success, table.costs(), price) if known else probabilities.argmax(axis=1)
    return Validated(table, probabilities, success if known else None, choice, plausible)


def fit_and_validate(
    table: Table,
    settings: FitSettings,
    price: float = TOKEN_PRICE,
    progress: Callable[[int], None] | None = None,
) -> tuple[Router, Validated]:
    """Return a router of all questions, with measures, shares and the conformal threshold from folds."""
    found = out_of_fold(table, settings, price, progress)
    shares, measures = _shares(found.choice, len(table.tiers)), measured(found, price)
    made = replace(fit_once(table, settings), shares=shares, plausible=found.plausible, measures=measures)
    return made, found


def measured(found: Validated, price: float = TOKEN_PRICE) -> dict[str, Any]:
    """Return accuracy, confusion, calibration, cost and quality against rivals, as plain data.

    Rivals are each fixed tier, the best mixture of fixed tiers at equal cost, and the oracle.
    """
    table, needed, m = found.table, found.table.labels, len(found.table.tiers)
    outcomes, n = table.outcomes, len(table)
    confusion = np.zeros((m, m), dtype=int)
    np.add.at(confusion, (needed, found.choice), 1)
    plausible = found.probabilities >= found.plausible
    several = plausible.sum(axis=1) > 1
    defined = [k for k in _SHOWN if k in outcomes.values and not np.isnan(outcomes.values[k]).any()]
    choices = {
        "router": found.choice,
        "router, up where unsure": np.minimum(found.choice + several, m - 1),
        **{f"tier:{tier.name}": np.full(n, k, dtype=np.intp) for k, tier in enumerate(table.tiers)},
        "oracle": needed,
        # With the outcomes known, and charged for a tier what routers are.
        "oracle at the utility": chosen_at(table.worked, table.costs(), price),
    }
    rows = {name: {k: outcomes.mean(k, choice) for k in defined} for name, choice in choices.items()}
    gain = gain_over_mixtures(table.worked, outcomes.of("prompt_tokens"), found.choice, draws=1000)
    shares = _shares(needed, m)
    return {
        "questions": n,
        "accuracy": float((found.choice == needed).mean()),
        "most_frequent_label": max(shares),
        "label_shares": list(shares),
        "confusion": confusion.tolist(),
        "calibration_error": calibration_error(found),
        "unsure_share": float(several.mean()),
        "right_tier_is_plausible": float(plausible[np.arange(n), needed].mean()),
        "token_price": price,
        "rows": rows,
        "best_mixture_at_equal_cost": rows["router"][WORKED] - gain[0],
        "against_mixture": dict(zip(("mean", "low", "high"), gain, strict=True)),
    }


def calibration_error(found: Validated) -> float:
    """Return the expected calibration error of each tier, ten bins of equal width, mean over the tiers.

    Of the success of each tier where that is known, else of the label's probabilities (Kull et al. 2019,
    "Beyond temperature scaling", classwise). Never pooled over tiers: probabilities of one question sum to 1,
    so a router that gives 1/m to every tier would be free of error.
    """
    if found.success is None:
        given, true = found.probabilities, np.eye(found.probabilities.shape[1])[found.table.labels]
    else:
        given, true = found.success, found.table.worked.astype(np.float64)
    bins, off = np.minimum((given * _BINS).astype(int), _BINS - 1), given - true
    # A bin's share of the questions times its mean error is the sum of its errors over all questions.
    each = [np.bincount(bins[:, j], off[:, j], _BINS) for j in range(given.shape[1])]
    return float(np.abs(each).sum(axis=1).mean() / len(given))
