"""Columns of numbers -> means with intervals, paired differences, tokens at matched recall, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.relevance.methods import BASELINES
from benchmarks.relevance.study import Columns
from mio_rag.evaluation.statistics import matched_tokens, mean_interval
from mio_rag.pool import Candidates
from mio_rag.relevance import RelevanceModel, calibration_measures
from mio_rag.types import Question


def summarize(columns: Mapping[str, Columns], budgets: Sequence[int], match_at: int) -> dict[str, Any]:
    """The figures of one set.

    Parameters
    ----------
    columns : mapping of method to its columns
    match_at : int
        Budget whose best baseline recall is matched.
    """
    best = {
        str(b): max(BASELINES, key=lambda m: float(np.mean(columns[m][str(b)]["recall"]))) for b in budgets
    }
    methods = {}
    for name, by_budget in columns.items():
        methods[name] = {
            budget: _entry(column, columns[best[budget]][budget], name not in BASELINES)
            for budget, column in by_budget.items()
        }
    curves = {
        name: (_table(by_budget, budgets, "tokens"), _table(by_budget, budgets, "recall"))
        for name, by_budget in columns.items()
        if len(by_budget) == len(budgets)
    }
    matched = matched_tokens(curves, best[str(match_at)], list(budgets).index(match_at))
    return {"best_baseline": best, "methods": methods, "matched_at": match_at, "matched": matched}


def _table(columns: Columns, budgets: Sequence[int], key: str) -> Any:
    return np.array([columns[str(b)][key] for b in budgets], dtype=np.float64).T


def _entry(
    column: Mapping[str, list[float]], reference: Mapping[str, list[float]], paired: bool
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "recall": mean_interval(column["recall"]),
        "all_gold": mean_interval(column["all_gold"]),
        "tokens": float(np.mean(column["tokens"])),
        "proven": float(np.mean(column["proven"])),
        "milliseconds": {
            "median": 1e3 * float(np.median(column["seconds"])),
            "p95": 1e3 * float(np.percentile(column["seconds"], 95)),
        },
    }
    if paired:
        for key in ("recall", "all_gold"):
            difference = np.array(column[key]) - np.array(reference[key])
            entry[f"{key}_against_best_baseline"] = mean_interval(difference.tolist())
    return entry


def needed(questions: Sequence[Question], pools: Sequence[Candidates]) -> NDArray[np.float64]:
    """1 for each candidate of each pool that is a gold passage, 0 for the others."""
    return np.concatenate(
        [
            np.array([float(i in set(q.gold_ids)) for i in p.ids])
            for q, p in zip(questions, pools, strict=True)
        ]
    )


def calibration(
    models: Mapping[str, RelevanceModel],
    questions: Sequence[Question],
    pools: Sequence[Candidates],
) -> dict[str, dict[str, float]]:
    """Calibration on questions that no model was fitted on: of the cosine, and of each model."""
    labels = needed(questions, pools)
    found = {"cosine": np.concatenate([np.clip(p.relevance, 0, 1) for p in pools])}
    for name, model in models.items():
        found[name] = np.concatenate([model.probabilities(p) for p in pools])
    return {name: calibration_measures(np.clip(p, 0, 1), labels) for name, p in found.items()}
