"""Find settings on labelled questions, and estimate their quality on unseen questions.

A setting is worth, by the goal, either

    at a budget      mean evidence found  -  0.01 * mean tokens / budget
    at a recall      -mean tokens / budget  -  10 * what is missing to the stated mean recall

Evidence is the gold passages, or the gold documents where only these are known; recall is the share found.

Nested cross-validation: for each fold, a search on the other folds chooses a setting, which is evaluated on
the held-out fold. The quality on the search's own questions ("inner") is optimistic, that on the held-out
fold ("outer") is what to expect. The returned setting comes from one more search, on all questions.

The search is optuna's (tree-structured Parzen estimators, Bergstra et al., NeurIPS 2011); a trial ends early
where it lies below the median of earlier ones. Results of trials are stored in an SQLite file. A search
always begins at its first trial, with the same seed, and reads stored results: one that was interrupted, or
has more trials, ends as an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mio_rag.defaults import __version__
from mio_rag.errors import DataError, InputError, SolverError, require
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.measures import evidence_found
from mio_rag.pool import Candidates
from mio_rag.relevance import Labelled, RelevanceModel, fit
from mio_rag.relevance.model import Kind, Relevance
from mio_rag.selection.program import LINK_BENEFIT
from mio_rag.selection.selector import Penalty, Selector
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import Status
from mio_rag.storage import claimed, make_parent
from mio_rag.types import Question

_INNER_FOLDS = 3
_TIE = 0.01
_MISSING = 10.0
_CHUNKS = 5  # parts of the questions after which a trial may end early
_FITTED = ("logistic", "isotonic")


@dataclass(frozen=True)
class Goal:
    """What a good setting is.

    budget_tokens: >= 1: the budget, or the largest one where a recall is the goal.
    recall: in (0, 1]: the mean evidence to find with the fewest tokens; the budget is then tuned as well.
    """

    budget_tokens: int = 256
    recall: float | None = None

    def __post_init__(self) -> None:
        problems = [f"budget_tokens={self.budget_tokens} must be >= 1"] if self.budget_tokens < 1 else []
        if self.recall is not None and not 0 < self.recall <= 1:
            problems.append(f"recall={self.recall} must be in (0, 1]")
        if problems:
            raise InputError(problems)

    def worth(self, recall: float, tokens: float) -> float:
        """Return the worth of mean recall and mean tokens; larger is better."""
        share = tokens / self.budget_tokens
        if self.recall is None:
            return recall - _TIE * share
        return -share - _MISSING * max(0.0, self.recall - recall)


#: What may vary -> the range of a number that may also be zero, on a logarithmic scale, or the choices.
_DRAWN: Mapping[str, tuple[float, float] | list[Any]] = {
    "redundancy_weight": (0.005, 0.5),
    "passage_penalty": (0.002, 0.3),
    "token_price": (1e-5, 1e-3),
    "radius": (0.005, 0.3),
    "link_benefit": (0.02, 1.0),
    "redundancy_by_relevance": [False, True],
    "max_per_source": [None, 1, 2, 3],
}
VARIED = tuple(_DRAWN)


@dataclass(frozen=True)
class Setting:
    """What tuning may change of a selector; fields as there."""

    redundancy_weight: float
    passage_penalty: Penalty
    token_price: float
    radius: float
    link_benefit: float
    redundancy_by_relevance: bool
    max_per_source: int | None
    budget_tokens: int

    @classmethod
    def of(cls, selector: Selector, budget_tokens: int) -> Setting:
        """Return the setting of a selector."""
        if not isinstance(selector.max_per_source, int | None):
            raise InputError("max_per_source must be one number here, the same for every source")
        values = {name: getattr(selector, name) for name in VARIED}
        if isinstance(values["link_benefit"], str):
            values["link_benefit"] = 0.0
        return cls(**values, budget_tokens=int(budget_tokens))

    def applied(self, selector: Selector) -> Selector:
        """Return the selector with this setting."""
        return selector.replace(**{name: getattr(self, name) for name in VARIED})


def _draw(trial: Any, start: Setting, vary: Sequence[str], goal: Goal) -> Setting:
    """Return the setting of an optuna trial: what is not varied stays as it was at the start."""
    drawn: dict[str, Any] = {}
    for name in vary:
        space = _DRAWN[name]
        if isinstance(space, list):
            drawn[name] = trial.suggest_categorical(name, space)
        elif trial.suggest_categorical(f"{name}_on", [False, True]):
            drawn[name] = float(trial.suggest_float(name, *space, log=True))
        else:
            drawn[name] = 0.0
    if goal.recall is not None:
        least, most = min(32, goal.budget_tokens), goal.budget_tokens
        drawn["budget_tokens"] = trial.suggest_int("budget_tokens", least, most, log=True)
    return replace(start, **drawn)


def _parameters(setting: Setting, vary: Sequence[str], goal: Goal) -> dict[str, Any]:
    """Return what optuna would have drawn for a setting, for those parts that lie in the space."""
    found: dict[str, Any] = {}
    for name in vary:
        value = getattr(setting, name)
        if isinstance(_DRAWN[name], list):
            found[name] = value
        elif not isinstance(value, str):  # else each pool decides
            found |= {f"{name}_on": value > 0, **({name: value} if value > 0 else {})}
    return found if goal.recall is None else found | {"budget_tokens": setting.budget_tokens}


@dataclass(frozen=True)
class Reading:
    """What was read for a question: the share of its evidence, and tokens."""

    recall: float
    tokens: float


def readings(
    setting: Setting, selector: Selector, questions: Sequence[Question], pools: Sequence[Candidates]
) -> list[Reading]:
    """Apply a setting to pools that carry their relevance; an infeasible program reads nothing.

    Raises `SolverError` if the solver failed.
    """
    chooser = setting.applied(selector)
    found = []
    for question, pool in zip(questions, pools, strict=True):
        chosen: list[int] = []
        if len(pool):
            result = solve(chooser.program(pool, setting.budget_tokens), chooser.solver, chooser.options)
            if result.status is Status.ERROR:
                raise SolverError(result.message)
            chosen = [i for i in result.selected if i < len(pool)]
        found.append(Reading(evidence_found(question, pool, chosen), float(pool.tokens[chosen].sum())))
    return found


def valued_pools(
    relevance: Relevance | Kind,
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    train: Sequence[int],
    test: Sequence[int],
    seed: int,
) -> dict[int, Candidates]:
    """Return pools with their relevance, by position; no fitted model values pools that it was fitted on.

    relevance: a kind to be fitted on `train`, or what `Selector.relevance_model` may be.
    train, test: positions. Pools of `train` get the predictions of models fitted on the other parts of
        `train`; those of `test`, of the one fitted on all of it.
    """
    if relevance != "logistic" and relevance != "isotonic":
        valuing = Selector(relevance_model=relevance)
        return {i: valuing.valued(pools[i]) for i in (*train, *test)}

    def valued(fitted_on: Sequence[int], part: Sequence[int]) -> dict[int, Candidates]:
        labelled = [Labelled(pools[i], frozenset(questions[i].gold_ids)) for i in fitted_on]
        model = fit(labelled, kind=relevance, seed=seed)
        return {i: model.valued(pools[i]) for i in part}

    found = valued(train, test) if len(test) else {}
    for part in np.array_split(np.random.default_rng(seed).permutation(list(train)), _INNER_FOLDS):
        inside = {int(i) for i in part}
        found |= valued([i for i in train if i not in inside], sorted(inside))
    return found


# Stored readings --------------------------------------------------------------------------------------------


class ReadingFile:
    """Readings by key in an SQLite file, which is made where it is missing; one run at a time.

    Raises `InputError` if it cannot be read or written (a full disk), or is no SQLite file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._named():
            self._connection = sqlite3.connect(path)
        with self._named(), self._connection:
            self._connection.execute("CREATE TABLE IF NOT EXISTS readings (key BLOB PRIMARY KEY, made TEXT)")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def get(self, key: Any, make: Callable[[], list[Reading]]) -> list[Reading]:
        """Return the readings under a key; missing ones are made, and on disk when this returns.

        key: data for JSON: all that the readings depend on.
        """
        digest = hashlib.sha256(json.dumps(key).encode()).digest()
        with self._named():
            row = self._connection.execute("SELECT made FROM readings WHERE key = ?", (digest,)).fetchone()
        if row is not None:
            try:
                return [Reading(float(recall), float(tokens)) for recall, tokens in json.loads(row[0])]
            except (ValueError, TypeError) as error:
                raise DataError(f"'{self.path}' is damaged ({error}): delete it and search again") from error
        found = make()
        text = json.dumps([(reading.recall, reading.tokens) for reading in found])
        with self._named(), self._connection:
            self._connection.execute("INSERT INTO readings VALUES (?, ?)", (digest, text))
        return found

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(f"'{self.path}' cannot hold the searches: {error}") from error


# The search -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TuneSettings:
    """The search.

    start: what is not varied, and the first setting that every search tries.
    relevance: see `valued_pools`. A model that was fitted on these very questions makes all figures too good.
    vary: of `VARIED`.
    patience: a search ends after so many trials without a better one.
    """

    goal: Goal
    start: Selector
    relevance: Relevance | Kind = "auto"
    vary: Sequence[str] = ("redundancy_weight", "passage_penalty", "token_price", "link_benefit")
    trials: int = 60
    patience: int = 25
    folds: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"'{n}' cannot be varied: choose from {', '.join(VARIED)}" for n in self.vary if n not in VARIED
        ]
        if not self.vary or len(set(self.vary)) < len(self.vary):
            problems.append("name the settings to vary, each once")
        for name, least in (("trials", 1), ("patience", 1), ("folds", 2)):
            if getattr(self, name) < least:
                problems.append(f"{name}={getattr(self, name)} must be >= {least}")
        if not 0 <= self.seed < 2**31:
            problems.append(f"seed={self.seed} must be between 0 and 2^31 - 1")
        start = self.start
        if start.uncertainty is not None or start.passage_radii:
            problems.append("only one radius of a norm is tuned: leave uncertainty and passage_radii out")
        if (start.radius > 0 or "radius" in self.vary) and self.relevance not in ("given", None):
            problems.append(
                "radius is tuned where relevance is the cosine: set selection.relevance_model=given, or "
                "leave the radius out"
            )
        if "max_per_source" in self.vary and "sources" in start.side.prices:
            problems.append("max_per_source cannot be varied with a price on it: leave one of them out")
        if isinstance(self.relevance, str) and self.relevance not in (*_FITTED, "auto", "given"):
            problems.append(f"relevance '{self.relevance}' is unknown: {', '.join(_FITTED)}, auto or given")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, eq=False)
class TuneResult:
    """The chosen setting, and what it is worth.

    setting: of the search on all questions.
    inner, outer, start: mean recall and tokens: of the chosen settings on the questions that chose them, on
        those that did not, and of the setting to start from. `outer` also holds "gain" and "saved": paired
        differences to the start in recall and tokens.
    folds: setting, inner and outer figures, and trials of each outer fold.
    trials: finished trials of all searches, one for each fold and one on all questions.
    improved: whether the search on all questions found a better setting than the start.
    """

    setting: Setting
    inner: dict[str, Any]
    outer: dict[str, Any]
    start: dict[str, Any]
    folds: list[dict[str, Any]]
    trials: int
    questions: int
    improved: bool

    @property
    def clearly_better(self) -> bool:
        """Whether, on unseen questions, more evidence was found or fewer tokens read, by the interval."""
        return self.improved and (self.outer["gain"]["low"] > 0 or self.outer["saved"]["low"] > 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**dataclasses.asdict(self), "clearly_better": self.clearly_better}


def tune(
    questions: Sequence[Question],
    pools: Sequence[Candidates],
    settings: TuneSettings,
    storage: str | Path,
    *,
    label: str = "",
    progress: Callable[[int, str], None] | None = None,
) -> TuneResult:
    """Search for a setting; see the head of this module.

    questions: each with gold passages, or gold documents.
    storage: SQLite file of the trials' results. More `trials` or `patience` continue the same searches.
    label: goes into the identity of the searches; name what the pools rest on.
    progress: called with (trials just finished or skipped, text); (folds + 1) * trials in all.

    Raises `InputError` if there are too few questions, or the storage cannot be used.
    """
    if len(questions) < 5 * settings.folds:
        raise InputError(
            f"{len(questions)} labelled questions are too few for {settings.folds} folds: at least "
            f"{5 * settings.folds} are needed; label more, or lower --folds"
        )
    if settings.relevance in _FITTED and not all(len(q.gold_ids) for q in questions):
        raise InputError("relevance can only be fitted where every question names its gold passages")
    order = np.random.default_rng(settings.seed).permutation(len(questions))
    everything = sorted(map(int, order))
    folds: list[dict[str, Any]] = []
    inner, outer, start = list[Reading](), dict[int, Reading](), dict[int, Reading]()
    make_parent(Path(storage))
    with claimed(Path(storage)), closing(ReadingFile(Path(storage))) as kept:
        searches = _Searches(questions, pools, settings, kept, label, progress or (lambda n, text: None))
        for k, part in enumerate(np.array_split(order, settings.folds), start=1):
            test = sorted(map(int, part))
            train = [i for i in everything if i not in set(test)]
            found = searches.best(f"fold {k}", train, test)
            outside = searches.read(found.setting, found.valued, test)
            start |= dict(zip(test, searches.read(searches.start, found.valued, test), strict=True))
            outer |= dict(zip(test, outside, strict=True))
            inner += found.inside
            figures = {"inner": _means(found.inside), "outer": _means(outside), "trials": found.trials}
            folds.append({"setting": dataclasses.asdict(found.setting), **figures})
        final = searches.best("all questions", everything, [])
    before, after = ([d[i] for i in everything] for d in (start, outer))
    gain = mean_interval([a.recall - b.recall for a, b in zip(after, before, strict=True)])
    saved = mean_interval([b.tokens - a.tokens for a, b in zip(after, before, strict=True)])
    return TuneResult(
        final.setting,
        _means(inner),
        _means(after) | {"gain": gain, "saved": saved},
        _means(before),
        folds,
        sum(fold["trials"] for fold in folds) + final.trials,
        len(questions),
        final.setting != searches.start,
    )


def _means(found: Sequence[Reading]) -> dict[str, Any]:
    return {name: mean_interval([getattr(r, name) for r in found]) for name in ("recall", "tokens")}


class _Found(NamedTuple):
    """The outcome of a search: the setting, its readings on `train`, and all pools as it values them."""

    setting: Setting
    inside: list[Reading]
    valued: Mapping[int, Candidates]
    trials: int


class _Searches:
    """Searches over parts of the questions."""

    def __init__(
        self,
        questions: Sequence[Question],
        pools: Sequence[Candidates],
        settings: TuneSettings,
        kept: ReadingFile,
        label: str,
        progress: Callable[[int, str], None],
    ) -> None:
        self.optuna: Any = require("optuna", "tune", "tuning")
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        self.questions, self.pools, self.settings = questions, pools, settings
        self.kept, self.progress = kept, progress
        # The pools have their relevance before programs are built.
        self.selector = settings.start.replace(relevance_model="given")
        start, model = settings.start, settings.relevance
        if start.link_benefit == "auto":
            by_model = model not in ("given", None)
            linked = by_model and all(p.links is not None or p.sources is not None for p in pools)
            start = start.replace(link_benefit=LINK_BENEFIT if linked else 0.0)
        self.start = Setting.of(start, settings.goal.budget_tokens)
        # All that a reading depends on; how long a search goes on is not part of it.
        identity = {
            "version": __version__,
            "label": label,
            "questions": [q.id for q in questions],
            "goal": dataclasses.asdict(settings.goal),
            "selector": self.selector.to_dict(),
            "relevance": model.to_dict() if isinstance(model, RelevanceModel) else model,
            "folds": settings.folds,
            "seed": settings.seed,
        }
        self.identity = hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def read(self, setting: Setting, valued: Mapping[int, Candidates], part: Sequence[int]) -> list[Reading]:
        """Apply a setting to some of the questions."""
        return readings(setting, self.selector, [self.questions[i] for i in part], [valued[i] for i in part])

    def best(self, name: str, train: Sequence[int], test: Sequence[int]) -> _Found:
        """Search for the best setting on `train`; pools of `test` are valued, too."""
        settings, optuna = self.settings, self.optuna
        valued = valued_pools(settings.relevance, self.questions, self.pools, train, test, settings.seed)
        shuffled = np.random.default_rng(settings.seed).permutation(list(train))
        chunks = [list(map(int, part)) for part in np.array_split(shuffled, _CHUNKS) if part.size]

        def objective(trial: Any) -> float:
            setting = _draw(trial, self.start, settings.vary, settings.goal)
            tried = [self.identity, name, dataclasses.asdict(setting)]
            found: list[Reading] = []
            worth = 0.0
            for k, chunk in enumerate(chunks):
                found += self.kept.get([*tried, chunk], partial(self.read, setting, valued, chunk))
                worth = self._worth(found)
                trial.report(worth, k)
                if trial.should_prune():
                    raise optuna.TrialPruned
            return worth

        study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=settings.seed, multivariate=True, n_startup_trials=10),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=8, n_warmup_steps=1),
        )
        study.enqueue_trial(_parameters(self.start, settings.vary, settings.goal))
        done: list[Any] = []
        while len(done) < settings.trials and not self._is_stale(done):
            study.optimize(objective, n_trials=1)
            done = study.get_trials(deepcopy=False)
            self.progress(1, name)
        self.progress(settings.trials - len(done), name)
        # The start, which optuna may not be able to draw, stays unless a trial is better.
        setting = self.start
        if self._worth(self.read(self.start, valued, train)) < study.best_value:
            fixed = optuna.trial.FixedTrial(study.best_params)
            setting = _draw(fixed, self.start, settings.vary, settings.goal)
        return _Found(setting, self.read(setting, valued, train), valued, len(done))

    def _worth(self, found: Sequence[Reading]) -> float:
        recall = float(np.mean([r.recall for r in found]))
        return self.settings.goal.worth(recall, float(np.mean([r.tokens for r in found])))

    def _is_stale(self, done: Sequence[Any]) -> bool:
        """Whether no better trial came within the patience."""
        complete = [t for t in done if t.state.name == "COMPLETE"]
        if not complete:
            return False
        return len(done) - 1 - done.index(max(complete, key=lambda t: t.value)) >= self.settings.patience
