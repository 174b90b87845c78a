"""Find settings on labelled questions, and estimate their quality on unseen questions.

Nested cross-validation: questions are split into folds. For each fold, a search on the other folds chooses a
setting, which is then evaluated on the held-out fold. The quality on the search's own questions ("inner") is
optimistic, more so the longer the search; the quality on the held-out fold ("outer") is what to expect. The
returned setting comes from one more search, on all questions.

The search is optuna's (tree-structured Parzen estimators, Bergstra et al., NeurIPS 2011). A trial ends early
where it lies below the median of earlier ones, and a search where nothing better came for a while. Pools are
retrieved once; a trial only solves programs.

What a trial found is kept in an SQLite file. A search always begins at its first trial, with the same seed,
and takes from the file what was found before: so one that was interrupted, or is asked for more trials, draws
what an uninterrupted one would have drawn, and ends as that would have ended.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag import __version__
from mio_rag.candidates import Candidates
from mio_rag.errors import InputError, require
from mio_rag.evaluation.fit.goal import (
    VARIED,
    Goal,
    Reading,
    Setting,
    drawn,
    parameters,
    readings,
    valued_pools,
)
from mio_rag.evaluation.fit.reading_file import ReadingFile, opened_readings
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance.model import Kind
from mio_rag.relevance.source import Relevance
from mio_rag.selection.program import LINK_BENEFIT
from mio_rag.selection.selector import Selector
from mio_rag.types import Question

__all__ = ["TuneResult", "TuneSettings", "tune"]

_CHUNKS = 5  # parts of the questions after which a trial may end early

_FITTED = ("logistic", "isotonic")


@dataclass(frozen=True)
class TuneSettings:
    """The search.

    Parameters
    ----------
    goal : Goal
    start : Selector
        What is not varied, and the first setting that every search tries. Without embedding uncertainty.
    relevance : RelevanceModel, "logistic", "isotonic", "auto", "given" or None
        See `mio_rag.evaluation.fit.goal.valued_pools`. A model that was fitted on these very questions makes
        all figures too good: have it fitted within the folds instead.
    vary : sequence of str
        Of `VARIED`.
    trials : int
        Of each search, >= 1.
    patience : int
        A search ends after so many trials without a better one, >= 1.
    folds : int
        >= 2.
    seed : int
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
        if start.radius > 0 or start.uncertainty is not None or start.passage_radii:
            problems.append("settings are tuned without embedding uncertainty: set the radius afterwards")
        if "max_per_source" in self.vary and "sources" in start.side.prices:
            problems.append("max_per_source cannot be varied with a price on it: leave one of them out")
        if isinstance(self.relevance, str) and self.relevance not in (*_FITTED, "auto", "given"):
            problems.append(f"relevance '{self.relevance}' is unknown: {', '.join(_FITTED)}, auto or given")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, eq=False)
class TuneResult:
    """The chosen setting, and what it is worth.

    Parameters
    ----------
    setting : Setting
        Of the search on all questions.
    inner, outer, start : dict
        Mean recall and tokens {mean, low, high}: of the chosen settings on the questions that chose them, on
        those that did not, and of the setting to start from on all of them. `outer` also holds "gain" and
        "saved": paired differences to the start in recall and tokens.
    folds : list of dict
        Setting, inner and outer figures, and trials of each outer fold.
    trials : int
        Finished trials of all searches, one for each fold and one on all questions.
    improved : bool
        Whether the search on all questions found a better setting than the one that it started from; else
        `setting` is that one.
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
        """Whether, on questions not seen, more evidence was found or fewer tokens read, by the interval."""
        return self.improved and (self.outer["gain"]["low"] > 0 or self.outer["saved"]["low"] > 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
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

    Parameters
    ----------
    questions : sequence of Question
        Each with gold passages, or gold documents.
    pools : sequence of Candidates
        Of each question.
    storage : path
        SQLite file of what trials found. What another data set or other settings left there is not touched;
        more `trials`, or more `patience`, go on with the same searches.
    label : str
        Goes into the identity of the searches; name what the pools rest on.
    progress : callable, optional
        Called with (trials just finished or skipped, text); (folds + 1) * trials in all.

    Raises
    ------
    InputError
        If there are fewer questions than 5 a fold, or too few to fit relevance on; if the storage cannot be
        written, or another run is at work on it.
    MissingExtraError
        Without optuna.
    """
    if len(questions) < 5 * settings.folds:
        raise InputError(
            f"{len(questions)} labelled questions are too few for {settings.folds} folds: at least "
            f"{5 * settings.folds} are needed; label more, or lower --folds"
        )
    if settings.relevance in _FITTED and not all(len(q.gold_ids) for q in questions):
        raise InputError("relevance can only be fitted where every question names its gold passages")
    with opened_readings(Path(storage)) as kept:
        told = progress or (lambda n, text: None)
        return _nested(_Searches(questions, pools, settings, kept, label, told))


def _nested(searches: _Searches) -> TuneResult:
    """A search for each fold, judged on what it did not see, and one on all questions."""
    settings, questions = searches.settings, searches.questions
    order = np.random.default_rng(settings.seed).permutation(len(questions))
    parts = [sorted(map(int, part)) for part in np.array_split(order, settings.folds)]
    everything = sorted(map(int, order))
    folds: list[dict[str, Any]] = []
    inner, outer, start = list[Reading](), dict[int, Reading](), dict[int, Reading]()
    for k, test in enumerate(parts):
        train = [i for i in everything if i not in set(test)]
        found = searches.best(f"fold {k + 1}", train, test)
        reference = searches.read(searches.start, found.valued, test)
        outside = searches.read(found.setting, found.valued, test)
        start |= dict(zip(test, reference, strict=True))
        outer |= dict(zip(test, outside, strict=True))
        inner += found.inside
        folds.append(
            {
                "setting": dataclasses.asdict(found.setting),
                "inner": _means(found.inside),
                "outer": _means(outside),
                "trials": found.trials,
            }
        )
    final = searches.best("all questions", everything, [])
    before, after = ([d[i] for i in everything] for d in (start, outer))
    change = {
        "gain": mean_interval([a.recall - b.recall for a, b in zip(after, before, strict=True)]),
        "saved": mean_interval([b.tokens - a.tokens for a, b in zip(after, before, strict=True)]),
    }
    trials = sum(fold["trials"] for fold in folds) + final.trials
    return TuneResult(
        final.setting,
        _means(inner),
        _means(after) | change,
        _means(before),
        folds,
        trials,
        len(questions),
        final.setting != searches.start,
    )


def _means(found: Sequence[Reading]) -> dict[str, Any]:
    return {
        "recall": mean_interval([r.recall for r in found]),
        "tokens": mean_interval([r.tokens for r in found]),
    }


@dataclass(frozen=True, eq=False)
class _Found:
    setting: Setting
    inside: list[Reading]
    valued: Mapping[int, Candidates]
    trials: int


class _Searches:
    """Searches over parts of the questions, each a study of its own."""

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
        # The model has valued the pools by the time that programs are built.
        self.selector = settings.start.replace(relevance_model="given")
        start = settings.start
        if start.link_benefit == "auto":
            by_model = settings.relevance not in ("given", None)
            linked = by_model and all(p.links is not None or p.sources is not None for p in pools)
            start = dataclasses.replace(start, link_benefit=LINK_BENEFIT if linked else 0.0)
        self.start = Setting.of(start, settings.goal.budget_tokens)
        # All that a reading depends on; how long a search goes on is not part of it.
        model = settings.relevance
        told = {
            "version": __version__,
            "label": label,
            "questions": [q.id for q in questions],
            "goal": dataclasses.asdict(settings.goal),
            "selector": self.selector.to_dict(),
            "relevance": model.to_dict() if isinstance(model, RelevanceModel) else model,
            "folds": settings.folds,
            "seed": settings.seed,
        }
        self.identity = hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def read(self, setting: Setting, valued: Mapping[int, Candidates], part: Sequence[int]) -> list[Reading]:
        """What a setting makes of some of the questions."""
        return readings(setting, self.selector, [self.questions[i] for i in part], [valued[i] for i in part])

    def best(self, name: str, train: Sequence[int], test: Sequence[int]) -> _Found:
        """The best setting on `train`, and all pools as this search values them."""
        settings, optuna = self.settings, self.optuna
        valued = valued_pools(settings.relevance, self.questions, self.pools, train, test, settings.seed)
        shuffled = np.random.default_rng(settings.seed).permutation(list(train))
        chunks = [list(map(int, part)) for part in np.array_split(shuffled, _CHUNKS) if part.size]

        def objective(trial: Any) -> float:
            setting = drawn(trial, self.start, settings.vary, settings.goal)
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
        study.enqueue_trial(parameters(self.start, settings.vary, settings.goal))
        done: list[Any] = []
        while len(done) < settings.trials and not self._stale(done):
            study.optimize(objective, n_trials=1)
            done = study.get_trials(deepcopy=False)
            self.progress(1, name)
        self.progress(settings.trials - len(done), name)
        setting = self._winner(study, valued, train)
        return _Found(setting, self.read(setting, valued, train), valued, len(done))

    def _worth(self, found: Sequence[Reading]) -> float:
        recall = float(np.mean([r.recall for r in found]))
        return self.settings.goal.worth(recall, float(np.mean([r.tokens for r in found])))

    def _winner(self, study: Any, valued: Mapping[int, Candidates], train: Sequence[int]) -> Setting:
        """The best trial's setting, unless the start, which optuna may not be able to draw, is as good."""
        drawn_best = drawn(
            self.optuna.trial.FixedTrial(study.best_params),
            self.start,
            self.settings.vary,
            self.settings.goal,
        )
        if self._worth(self.read(self.start, valued, train)) >= study.best_value:
            return self.start
        return drawn_best

    def _stale(self, done: Sequence[Any]) -> bool:
        """Whether nothing better came in the last trials."""
        complete = [t for t in done if t.state.name == "COMPLETE"]
        if not complete:
            return False
        return len(done) - 1 - done.index(max(complete, key=lambda t: t.value)) >= self.settings.patience
