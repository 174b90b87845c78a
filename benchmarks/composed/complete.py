"""Whether the evidence is complete: the regression that ships, and how far off its probabilities are.

For every set, relevance is weighed by a model that was fitted on the other sets. A row is a question with
what the program reads at one price; six prices from dear to free, so that selections of all sizes are seen.
Three questions are asked of the regression: how far off is it on other questions of sets that it knows, on a
set that it does not know, and on other questions of a set that alone it was fitted on?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.default.models import EMBEDDERS, Pools, by_ranks
from mio_rag.evaluation.fit import PRICES, calibration_error
from mio_rag.measures import evidence_found
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance.complete import SIGNALS, Completeness, fit, signals
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.storage import replaced

FloatArray = NDArray[np.float64]

_BUDGET = 2048
_BINS, _FOLDS = 10, 5


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one set with one embedder.

    Parameters
    ----------
    signals : array, shape (n, len(PRICES), len(SIGNALS))
        NaN where nothing was read.
    complete : array, shape (n, len(PRICES))
        1 where all gold passages were read.
    """

    name: str
    embedder: str
    signals: FloatArray
    complete: FloatArray

    def flat(self, questions: NDArray[np.intp] | None = None) -> tuple[FloatArray, FloatArray]:
        """Signals and outcomes of these questions, by default of all, row by row."""
        seen, done = self.signals, self.complete
        if questions is not None:
            seen, done = seen[questions], done[questions]
        x, y = seen.reshape(-1, len(SIGNALS)), done.reshape(-1)
        known = np.isfinite(x).all(axis=1)
        return x[known], y[known]


def rows_of(
    name: str,
    embedder: str,
    path: Path,
    given: Pools | None,
    model: RelevanceModel | None,
    say: Callable[[str], None],
) -> Rows:
    """The rows of a set, from a file where they are there already; else of these pools.

    Parameters
    ----------
    model : RelevanceModel or None
        None: the weights that ship.
    """
    if path.is_file():
        with np.load(path) as kept:
            return Rows(name, embedder, kept["signals"], kept["complete"])
    assert given is not None
    options = SolveOptions(time_limit_seconds=1.0, relative_gap=1e-3)
    base = Selector(options=options) if model is None else Selector(relevance_model=model, options=options)
    selectors = [base.replace(token_price=price) for price in PRICES]
    seen, done = [], []
    for question, pool in zip(given.questions, given.pools, strict=True):
        r = base.valued(pool).relevance
        chosen = [selector.choose(pool, _BUDGET).chosen for selector in selectors]
        nothing = np.full(len(SIGNALS), np.nan)
        seen.append([signals(r, one, question.text) if one else nothing for one in chosen])
        done.append([float(evidence_found(question, pool, one) >= 1.0) for one in chosen])
    rows = Rows(name, embedder, np.array(seen), np.array(done))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as partial, partial.open("wb") as file:
        np.savez(file, signals=rows.signals, complete=rows.complete)
    say(f"{name}, {embedder}: {len(rows.complete)} questions")
    return rows


def left_out(pools: Mapping[tuple[str, str], Pools], name: str) -> dict[str, RelevanceModel]:
    """Relevance for a set, by models fitted on the others."""
    return {
        by: by_ranks([p for (other, e), p in pools.items() if other != name and e == by], "left out")
        for by in EMBEDDERS
    }


def fitted(every: Sequence[Rows], about: Mapping[str, Any] | None = None) -> Completeness:
    """The regression of all these rows, rounded as it ships."""
    parts = [rows.flat() for rows in every]
    made = fit(np.vstack([x for x, _ in parts]), np.concatenate([y for _, y in parts]), dict(about or {}))
    weights = tuple(float(f"{weight:.4g}") for weight in made.weights)
    return Completeness(weights, float(f"{made.intercept:.4g}"), made.about)


def studied(every: Sequence[Rows]) -> dict[str, Any]:
    """Known sets, unknown sets, and each set alone: how far off, set by set."""
    names = list(dict.fromkeys(rows.name for rows in every))
    known, unknown, alone = ({name: _Told() for name in names} for _ in range(3))
    for name in names:
        here = [rows for rows in every if rows.name == name]
        model = fitted([rows for rows in every if rows.name != name])
        for rows in here:
            unknown[name].add(model, *rows.flat())
    for fold in range(_FOLDS):
        training = [rows.flat(_fold(rows, fold, inside=False)) for rows in every]
        model = _fit(training)
        for rows, own in zip(every, training, strict=True):
            test = rows.flat(_fold(rows, fold, inside=True))
            known[rows.name].add(model, *test)
            alone[rows.name].add(_fit([own]), *test)
    told = {"known sets": known, "unknown set": unknown, "own set alone": alone}
    return {
        kind: {
            "all": reliability(*_joined(list(found.values()))),
            "sets": {name: reliability(*one.both()) for name, one in found.items()},
        }
        for kind, found in told.items()
    }


def _fit(parts: Sequence[tuple[FloatArray, FloatArray]]) -> Completeness:
    return fit(np.vstack([x for x, _ in parts]), np.concatenate([y for _, y in parts]))


def _fold(rows: Rows, fold: int, *, inside: bool) -> NDArray[np.intp]:
    """Questions of a fold, the same for both embedders."""
    place = np.arange(len(rows.complete))
    return np.flatnonzero((place % _FOLDS == fold) == inside)


class _Told:
    """Probabilities and what came of them."""

    def __init__(self) -> None:
        self.parts: list[tuple[FloatArray, FloatArray]] = []

    def add(self, model: Completeness, x: FloatArray, y: FloatArray) -> None:
        z = x @ np.array(model.weights) + model.intercept
        self.parts.append((1 / (1 + np.exp(-z)), y))

    def both(self) -> tuple[FloatArray, FloatArray]:
        return _joined([self])


def _joined(told: Sequence[_Told]) -> tuple[FloatArray, FloatArray]:
    parts = [part for one in told for part in one.parts]
    return np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts])


def reliability(p: FloatArray, y: FloatArray) -> dict[str, Any]:
    """Expected calibration error over bins of equal count, Brier score, and the bins."""
    order = np.argsort(p, kind="stable")
    bins = [part for part in np.array_split(order, _BINS) if len(part)]
    curve = [[round(float(p[part].mean()), 4), round(float(y[part].mean()), 4), len(part)] for part in bins]
    return {
        "rows": len(p),
        "calibration_error": round(calibration_error(p, y), 4),
        "brier": round(float(np.mean((p - y) ** 2)), 4),
        "brier_of_the_rate": round(float(y.mean() * (1 - y.mean())), 4),
        "rate": round(float(y.mean()), 4),
        "curve": curve,
    }
