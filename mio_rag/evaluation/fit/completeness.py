"""Whether the evidence is complete, calibrated on one's own questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.measures import evidence_found
from mio_rag.relevance.complete import SIGNALS, Completeness, adapt, shipped, signals
from mio_rag.retrieval.index import CorpusIndex
from mio_rag.retrieval.retriever import Retriever
from mio_rag.selection.selector import Selector

__all__ = ["PRICES", "Calibrated", "by_chance", "calibrate_completeness", "calibration_error"]

FloatArray = NDArray[np.float64]

#: From dear to free, so that selections of all sizes are seen.
PRICES = (0.004, 0.002, 0.001, 0.0005, 0.0002, 0.0)
_BUDGET = 2048
_FOLDS, _BINS = 5, 10


@dataclass(frozen=True)
class Calibrated:
    """The shipped regression moved towards one's own questions, and how far off it is on others of them.

    Parameters
    ----------
    error, shipped_error : float
        Expected calibration error on held-out questions, in [0, 1]; that of the regression that ships.
    chance : float
        Error that true probabilities would show, on average, on so many questions.
    brier, shipped_brier : float
        Likewise the mean squared error.
    rate : float
        Share of the selections that are complete.
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
        """Plain data for JSON, without the regression."""
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
    """Move the shipped regression towards labelled questions, and measure that by folds.

    Parameters
    ----------
    dataset : Dataset
        With gold passages, or gold documents.
    selector : Selector, optional
        The program; its price of a token is varied.
    limit : int, optional
        Most questions, drawn by seed.
    progress : callable, optional
        Called with the number of questions just finished.

    Raises
    ------
    InputError
        If too few questions are labelled.
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
    x, y = _flat(seen, done)
    about = {"adapted": f"to {len(seen)} questions of {name}, at {len(PRICES)} prices"}
    model = adapt(shipped(), x, y, about)
    said, was, before, asked = [], [], [], []
    fold = np.arange(len(seen)) % _FOLDS
    for k in range(_FOLDS):
        training, (test, truth) = (
            _flat(seen[fold != k], done[fold != k]),
            _flat(seen[fold == k], done[fold == k]),
        )
        said.append(adapt(shipped(), *training).of(test))
        before.append(shipped().of(test))
        was.append(truth)
        known = np.isfinite(seen[fold == k]).all(axis=2)
        asked.append(np.repeat(np.flatnonzero(fold == k), known.sum(axis=1)))
    own, other, true = np.concatenate(said), np.concatenate(before), np.concatenate(was)
    return Calibrated(
        model,
        len(seen),
        calibration_error(own, true),
        calibration_error(other, true),
        by_chance(own, np.concatenate(asked)),
        float(np.mean((own - true) ** 2)),
        float(np.mean((other - true) ** 2)),
        float(true.mean()),
    )


def _flat(seen: FloatArray, done: FloatArray) -> tuple[FloatArray, FloatArray]:
    x, y = seen.reshape(-1, len(SIGNALS)), done.reshape(-1)
    known = np.isfinite(x).all(axis=1)
    return x[known], y[known]


def calibration_error(said: FloatArray, was: FloatArray) -> float:
    """Expected calibration error over ten bins of equal count."""
    bins = [part for part in np.array_split(np.argsort(said, kind="stable"), _BINS) if len(part)]
    off = sum(abs(float(said[part].mean() - was[part].mean())) * len(part) for part in bins)
    return off / len(said)


def by_chance(said: FloatArray, asked: NDArray[np.intp], draws: int = 100, seed: int = 0) -> float:
    """The calibration error that probabilities show, on average, where every one of them is true.

    Parameters
    ----------
    asked : array, shape (n,)
        Of which question each is: what comes of one question comes together.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        luck = rng.random(int(asked.max()) + 1)[asked]
        found.append(calibration_error(said, (luck < said).astype(np.float64)))
    return float(np.mean(found))
