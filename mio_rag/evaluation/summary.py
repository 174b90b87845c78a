"""Ledger rows -> means with intervals, and paired comparisons with the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mio_rag.evaluation.caution import PARTED
from mio_rag.evaluation.expenses import reading_column
from mio_rag.evaluation.methods import RANKING_SOLVERS
from mio_rag.evaluation.statistics import compare, mean_interval, ratio_interval
from mio_rag.measures import compared_measures, evidence_measure, measures, right

__all__ = ["compare_rows", "summarize", "summarize_sets"]

Rows = Sequence[Mapping[str, Any]]


def _groups(rows: Rows) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], int(row["budget_tokens"])), []).append(row)
    return groups


def summarize(rows: Rows, seed: int = 0) -> list[dict[str, Any]]:
    """One entry per method and budget.

    {method, budget_tokens, n, failed, optimal_share, tokens_per_correct, <measure>: {mean, low, high}}

    ``n`` counts every question, failed ones included: they score 0 where the measure is defined for the
    question. A measure that no question defines is left out. ``tokens_per_correct`` is prompt and completion
    tokens of all questions with an accepted answer over the number answered exactly right (or, for multiple
    choice, right); its ``high`` is None where the interval is unbounded above.
    """
    entries = []
    for (method, budget), group in _groups(rows).items():
        ranked = all(row.get("solver") in RANKING_SOLVERS for row in group)
        selected = [row for row in group if row.get("status") or row.get("error")]  # agents may read nothing
        proven = [row for row in selected if row.get("status") == "optimal"]
        entry: dict[str, Any] = {
            "method": method,
            "budget_tokens": budget,
            "n": len(group),
            "failed": sum(bool(row.get("error")) for row in group),
            "optimal_share": None
            if ranked or not any(row.get("status") for row in group)
            else len(proven) / len(selected),
        }
        for name in (measure.name for measure in measures() if measure.of != "run"):
            values = [float(row[name]) for row in group if row.get(name) is not None]
            if values:
                entry[name] = mean_interval(values, seed)
        asked = [row for row in group if right(row) is not None]
        if asked and any(row.get("prompt_tokens") for row in asked):
            tokens = [
                float((row.get("prompt_tokens") or 0) + (row.get("completion_tokens") or 0)) for row in asked
            ]
            entry["tokens_per_correct"] = ratio_interval(
                tokens, [float(right(row) or 0.0) for row in asked], seed
            )
        entries.append(entry)
    return entries


def summarize_sets(rows: Rows, seed: int = 0) -> list[dict[str, Any]]:
    """`summarize` for the rows of each question set, with its name as "dataset"; empty where there is one."""
    sets: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("dataset") is not None:
            sets.setdefault(row["dataset"], []).append(row)
    return [{"dataset": name, **entry} for name, group in sets.items() for entry in summarize(group, seed)]


def compare_rows(rows: Rows, baseline: str, seed: int = 0) -> list[dict[str, Any]]:
    """Paired comparisons of every method with the baseline; see `statistics.compare`.

    Compared are the measures that say so, how much evidence was found, and what was read; see
    `reading_column`. Evidence is not, where sentences of it may have been read: it is labelled by passages.
    """
    reading = reading_column(rows)
    evidence = evidence_measure([name for name in row if row[name] is not None] for row in rows)
    names = [reading if measure.name == "tokens_used" else measure.name for measure in compared_measures()]
    names += [evidence.name] if evidence is not None and evidence.name not in names else []
    values = {
        key: {
            name: found
            for name in names
            if not (key[0] in PARTED and evidence is not None and name == evidence.name)
            and (
                found := {row["question_id"]: float(row[name]) for row in group if row.get(name) is not None}
            )
        }
        for key, group in _groups(rows).items()
    }
    return compare(values, baseline, seed)
