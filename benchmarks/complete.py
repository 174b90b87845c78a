"""Whether the evidence is complete: how far off the probabilities of the regression are.

Relevance of every set is weighed by a model that was fitted on the other sets. A row is a question with what
the program reads at one price, of six. Measured are other questions of sets that the regression was fitted
on, a set that it was not fitted on, and one after an adaptation to some of its questions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.questions import Pools, left_out, load_sets, pools_of
from benchmarks.runner import Measured, figure, note, stored, text_table, write_text
from mio_rag.errors import InputError
from mio_rag.evaluation.fit import PRICES, calibration_error
from mio_rag.measures import evidence_found
from mio_rag.relevance import RelevanceModel
from mio_rag.relevance import complete as shipped
from mio_rag.relevance.complete import SIGNALS, Completeness, adapt, fit, signals
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions

FloatArray = NDArray[np.float64]
_BUDGET, _BINS, _FOLDS = 2048, 10, 5
_OWN, _TESTED, _DRAWS = 30, 100, 8  # own questions, questions that they are tested on, draws of both


@dataclass(frozen=True, eq=False)
class Rows:
    """One set with one embedder.

    signals: naN if nothing was read.
    """

    name: str
    signals: FloatArray
    complete: FloatArray

    def flat(self, questions: Any = slice(None)) -> tuple[FloatArray, FloatArray]:
        """Return signals and outcomes of these questions, row by row."""
        x, y = self.signals[questions].reshape(-1, len(SIGNALS)), self.complete[questions].reshape(-1)
        known = np.isfinite(x).all(axis=1)
        return x[known], y[known]


def measure(given: argparse.Namespace) -> Measured:
    """Fit and test on the rows of every set with every embedder."""
    rows: list[Rows] = []
    for embedder in given.embedders.split(","):
        pools = {one.name: pools_of(one, given.limit) for one in load_sets(given, embedder)}
        models = left_out(pools)
        for name, of in pools.items():
            key = [[q.id for q in of.questions], models[name].to_dict()]
            path = given.work / f"{name}-{embedder}.json"
            found = stored(path, key, partial(_rows, of, models[name]))
            rows.append(Rows(name, *(np.array(found[k], dtype=np.float64) for k in ("signals", "complete"))))
    if given.ship:
        _ship(rows)
    found = studied(rows, given.seed)
    sets = list(dict.fromkeys(one.name for one in rows))
    table = text_table(
        ("calibration error", "all", "Brier", *sets),
        [
            (kind, f"{one['all']['calibration_error']:.3f}", f"{one['all']['brier']:.3f}",
             *(f"{one['sets'][name]['calibration_error']:.3f}" for name in sets))
            for kind, one in found.items()
        ],
    )  # fmt: skip
    counts = {one.name: len(one.complete) for one in rows}
    return Measured({"questions": counts, "results": found}, table, partial(_draw, found))


def _rows(given: Pools, model: RelevanceModel) -> dict[str, Any]:
    base = Selector(relevance_model=model, options=SolveOptions(time_limit_seconds=1.0, relative_gap=1e-3))
    selectors = [base.replace(token_price=price) for price in PRICES]
    nothing = [float("nan")] * len(SIGNALS)
    seen, done = [], []
    for question, pool in zip(given.questions, given.pools, strict=True):
        relevance = base.valued(pool).relevance
        chosen = [selector.choose(pool, _BUDGET).chosen for selector in selectors]
        seen.append(
            [np.asarray(signals(relevance, c, question.text)).tolist() if c else nothing for c in chosen]
        )
        done.append([float(evidence_found(question, pool, c) >= 1.0) for c in chosen])
    note(f"{given.name}: {len(done)} questions read at {len(PRICES)} prices")
    return {"signals": seen, "complete": done}


def _fit(parts: Sequence[tuple[FloatArray, FloatArray]]) -> Completeness:
    return fit(np.vstack([x for x, _ in parts]), np.concatenate([y for _, y in parts]))


def _ship(rows: Sequence[Rows]) -> None:
    """Write the regression of all rows into the package."""
    made = _fit([one.flat() for one in rows])
    counts = ", ".join(f"{n} of {name}" for name, n in {one.name: len(one.complete) for one in rows}.items())
    about = {
        "fitted": f"questions of public sets ({counts}), at six prices; relevance weighed without the set."
    }
    weights = tuple(float(f"{weight:.4g}") for weight in made.weights)
    model = Completeness(weights, float(f"{made.intercept:.4g}"), about)
    write_text(Path(shipped.__file__).parent / "complete.json", model.to_json())


def studied(rows: Sequence[Rows], seed: int = 0) -> dict[str, Any]:
    """Return reliability by kind of test, over all sets and by set."""
    parts: dict[str, list[tuple[str, FloatArray, FloatArray]]] = {}

    def test(kind: str, name: str, model: Completeness, x: FloatArray, y: FloatArray) -> None:
        parts.setdefault(kind, []).append((name, model.of(x), y))

    names = list(dict.fromkeys(one.name for one in rows))
    others = {name: _fit([one.flat() for one in rows if one.name != name]) for name in names}
    for fold in range(_FOLDS):
        inside = [np.arange(len(one.complete)) % _FOLDS == fold for one in rows]
        training = [one.flat(~mask) for one, mask in zip(rows, inside, strict=True)]
        known = _fit(training)
        for one, mask, own in zip(rows, inside, training, strict=True):
            test("known sets", one.name, known, *one.flat(mask))
            test("own set alone", one.name, _or(others[one.name], fit, *own), *one.flat(mask))
    rng = np.random.default_rng(seed)
    for one in rows:
        test("unknown set", one.name, others[one.name], *one.flat())
        for _ in range(_DRAWS):
            order = rng.permutation(len(one.complete))
            tested = min(_TESTED, len(order) // 2)
            own = one.flat(order[: min(_OWN, len(order) - tested)])
            model = others[one.name]
            adapted = _or(model, adapt, model, *own)
            test(f"unknown set, {_OWN} own questions", one.name, adapted, *one.flat(order[-tested:]))
    return {
        kind: {
            "all": _reliability([(p, y) for _, p, y in found]),
            "sets": {name: _reliability([(p, y) for of, p, y in found if of == name]) for name in names},
        }
        for kind, found in parts.items()
    }


def _or(fallback: Completeness, make: Callable[..., Completeness], *given: Any) -> Completeness:
    """Fit; too few questions, or all alike, keep what there is."""
    try:
        return make(*given)
    except InputError:
        return fallback


def _reliability(parts: Sequence[tuple[FloatArray, FloatArray]]) -> dict[str, Any]:
    """Return expected calibration error, Brier score, and a curve over bins of equal count."""
    p, y = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    bins = [b for b in np.array_split(np.argsort(p, kind="stable"), _BINS) if len(b)]
    return {
        "rows": len(p),
        "calibration_error": calibration_error(p, y),
        "brier": float(np.mean((p - y) ** 2)),
        "brier_of_the_rate": float(y.mean() * (1 - y.mean())),
        "curve": [[float(p[b].mean()), float(y[b].mean()), len(b)] for b in bins],
    }


def _draw(found: Mapping[str, Any], path: Path) -> None:
    made, (panel,) = figure(1)
    panel.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
    for kind, one in found.items():
        curve = one["all"]["curve"]
        label = f"{kind}: off by {one['all']['calibration_error']:.3f}"
        panel.plot([c[0] for c in curve], [c[1] for c in curve], marker="o", markersize=4, label=label)
    panel.set(xlabel="probability that the evidence is complete", ylabel="share of selections that were")
    panel.legend(frameon=False, fontsize=8)
    panel.grid(alpha=0.3)
    made.savefig(path, format="png", dpi=120)
