"""Whether the evidence is complete: the regression that ships, and how far off it is on unseen sets.

For every set, relevance is weighed by a model that was fitted on the other sets, and the regression is fitted
on the other sets' rows. A row is a question with what the program reads at one price; six prices from dear to
free, so that selections of all sizes are seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.default.models import EMBEDDERS, Pools, by_ranks
from mio_rag.files import replaced
from mio_rag.measures import evidence_found
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance.complete import SIGNALS, Completeness, signals
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions

__all__ = ["PRICES", "Rows", "fitted", "held_out", "reliability", "rows_of"]

FloatArray = NDArray[np.float64]

PRICES = (0.004, 0.002, 0.001, 0.0005, 0.0002, 0.0)
_BUDGET = 2048
_BINS = 10
_STRENGTH = 1.0  # C of the regression: there are thousands of rows for four weights


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one set with one embedder.

    Parameters
    ----------
    signals : array, shape (n, len(PRICES), len(SIGNALS))
    complete : array, shape (n, len(PRICES))
        1 where all gold passages were read.
    """

    name: str
    embedder: str
    signals: FloatArray
    complete: FloatArray


def rows_of(
    given: Pools, embedder: str, model: RelevanceModel, path: Path, say: Callable[[str], None]
) -> Rows:
    """The rows of a set, from a file where they are there already."""
    if path.is_file():
        with np.load(path) as kept:
            return Rows(given.name, embedder, kept["signals"], kept["complete"])
    base = Selector(relevance_model=model, options=SolveOptions(time_limit_seconds=1.0, relative_gap=1e-3))
    selectors = [dataclasses.replace(base, token_price=price) for price in PRICES]
    seen, done = [], []
    for question, pool in zip(given.questions, given.pools, strict=True):
        r = base.valued(pool).relevance
        chosen = [selector.choose(pool, _BUDGET).chosen for selector in selectors]
        seen.append([signals(r, one) if one else np.full(len(SIGNALS), np.nan) for one in chosen])
        done.append([float(evidence_found(question, pool, one) >= 1.0) for one in chosen])
    rows = Rows(given.name, embedder, np.array(seen), np.array(done))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as partial, partial.open("wb") as file:
        np.savez(file, signals=rows.signals, complete=rows.complete)
    say(f"{given.name}, {embedder}: {len(rows.complete)} questions")
    return rows


def fitted(every: Sequence[Rows], about: Mapping[str, Any] | None = None) -> Completeness:
    """The regression of these rows; sets weigh the same, and embedders within them."""
    from sklearn.linear_model import LogisticRegression

    x, y, weight = [], [], []
    for rows in every:
        flat, label = _flat(rows)
        x.append(flat)
        y.append(label)
        weight.append(np.full(len(label), 1.0 / len(label)))
    weights = np.concatenate(weight)
    model = LogisticRegression(C=_STRENGTH, max_iter=1000)
    model.fit(np.vstack(x), np.concatenate(y), sample_weight=weights / weights.mean())
    numbers = tuple(float(f"{value:.4g}") for value in model.coef_[0])
    return Completeness(numbers, float(f"{model.intercept_[0]:.4g}"), dict(about or {}))


def _flat(rows: Rows) -> tuple[FloatArray, FloatArray]:
    x, y = rows.signals.reshape(-1, len(SIGNALS)), rows.complete.reshape(-1)
    known = np.isfinite(x).all(axis=1)  # of nothing read there is nothing to say
    return x[known], y[known]


def held_out(every: Sequence[Rows]) -> dict[str, Any]:
    """Each set predicted by what was fitted on the others: probabilities, outcomes and errors."""
    by_set: dict[str, Any] = {}
    told, done = [], []
    for name in dict.fromkeys(rows.name for rows in every):
        model = fitted([rows for rows in every if rows.name != name])
        here = [_predicted(model, rows) for rows in every if rows.name == name]
        p, y = (np.concatenate([one[k] for one in here]) for k in (0, 1))
        by_set[name] = {"rows": len(y), **reliability(p, y)}
        told.append(p)
        done.append(y)
    return {"all": reliability(np.concatenate(told), np.concatenate(done)), "sets": by_set}


def _predicted(model: Completeness, rows: Rows) -> tuple[FloatArray, FloatArray]:
    x, y = _flat(rows)
    z = x @ np.array(model.weights) + model.intercept
    return 1 / (1 + np.exp(-z)), y


def reliability(p: FloatArray, y: FloatArray) -> dict[str, Any]:
    """Expected calibration error over bins of equal count, Brier score, and the bins."""
    order = np.argsort(p, kind="stable")
    bins = [part for part in np.array_split(order, _BINS) if len(part)]
    curve = [[float(p[part].mean()), float(y[part].mean()), len(part)] for part in bins]
    error = sum(abs(said - was) * count for said, was, count in curve) / len(p)
    return {
        "calibration_error": float(error),
        "brier": float(np.mean((p - y) ** 2)),
        "brier_of_the_rate": float(y.mean() * (1 - y.mean())),
        "rate": float(y.mean()),
        "mean": float(p.mean()),
        "curve": curve,
    }


def left_out(pools: Mapping[tuple[str, str], Pools], name: str) -> dict[str, RelevanceModel]:
    """Relevance for a set, by models fitted on the others."""
    return {
        by: by_ranks([p for (other, e), p in pools.items() if other != name and e == by], "left out")
        for by in EMBEDDERS
    }
