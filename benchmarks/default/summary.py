"""Columns of numbers -> differences to the best ranking of each set, with intervals, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.default.study import BASELINES, BUDGETS, OURS, Columns
from mio_rag.evaluation.statistics import mean_interval


def summarize(rows: Mapping[str, Columns]) -> dict[str, Any]:
    """The figures of one set: by budget the best ranking in hindsight, and every row against it."""
    found: dict[str, Any] = {}
    for budget in map(str, BUDGETS):
        best = max(BASELINES, key=lambda name: float(np.mean(rows[name][budget]["recall"])))
        reference = rows[best][budget]
        entries = {}
        for name, columns in rows.items():
            column = columns[budget]
            pairs = zip(column["recall"], reference["recall"], strict=True)
            entries[name] = {
                "recall": float(np.mean(column["recall"])),
                "tokens": float(np.mean(column["tokens"])),
                "proven": float(np.mean(column["proven"])),
                "difference": mean_interval([ours - theirs for ours, theirs in pairs]),
                "token_share": float(np.mean(column["tokens"]) / np.mean(reference["tokens"])),
            }
        found[budget] = {"best": best, "rows": entries}
    return found


def over_budgets(rows: Mapping[str, Columns]) -> dict[str, Any]:
    """Each row of a set against the best ranking of each budget: a question counts once, with its mean."""
    best = {
        budget: max(BASELINES, key=lambda name: float(np.mean(rows[name][budget]["recall"])))
        for budget in map(str, BUDGETS)
    }
    found = {}
    for name, columns in rows.items():
        differences = [
            np.subtract(columns[budget]["recall"], rows[ranking][budget]["recall"])
            for budget, ranking in best.items()
        ]
        found[name] = mean_interval([float(d) for d in np.mean(differences, axis=0)])
    return found


def totals(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Over all cells: mean difference, share of tokens, and where a row is clearly below or above.

    `token_share` is the mean over cells, each of which counts alike; `share_of_all_tokens` divides what a row
    reads in all cells by what their best rankings read, so that large budgets count for more.
    """
    cells = [entry for by_budget in results.values() for entry in by_budget.values()]
    best = sum(entry["rows"][entry["best"]]["tokens"] for entry in cells)
    found = {}
    for name in (*BASELINES, *OURS):
        own = {
            (data, budget): entry["rows"][name]
            for data, by_budget in results.items()
            for budget, entry in by_budget.items()
        }
        found[name] = {
            "cells": len(own),
            "difference": float(np.mean([cell["difference"]["mean"] for cell in own.values()])),
            "token_share": float(np.mean([cell["token_share"] for cell in own.values()])),
            "share_of_all_tokens": sum(cell["tokens"] for cell in own.values()) / best,
            "clearly_below": [f"{d} {b}" for (d, b), c in own.items() if c["difference"]["high"] < 0],
            "clearly_above": [f"{d} {b}" for (d, b), c in own.items() if c["difference"]["low"] > 0],
        }
    return found


def table(
    results: Mapping[str, Mapping[str, Any]],
    summed: Mapping[str, Any],
    over: Mapping[str, Mapping[str, Any]],
    outside: Mapping[str, Mapping[str, Any]],
) -> str:
    """Sets and rows as text; an exclamation mark where the 95 % interval lies below 0, a plus where above."""
    lines = [
        "difference in evidence found to the best ranking of each set and budget (share of its tokens)",
        "",
    ]
    for data, by_budget in results.items():
        best = ", ".join(
            f"{b}: {e['best']} {e['rows'][e['best']]['recall']:.3f}" for b, e in by_budget.items()
        )
        lines.append(f"{data}  (best ranking at {best})")
        lines += [f"  {name:24} {_cells(by_budget, name)}" for name in (*BASELINES, *OURS)]
    lines += ["", "default, mean of a question over the budgets, against the best ranking of each:"]
    lines += [f"  {data:26} {_interval(entries['default'])}" for data, entries in over.items()]
    lines += ["", "all sets and budgets: mean difference, share of tokens (mean of cells, of all tokens),"]
    lines += ["cells clearly below and above"]
    for name, entry in summed.items():
        shares = f"{entry['token_share']:.3f}  {entry['share_of_all_tokens']:.3f}"
        lines.append(
            f"  {name:24} {entry['difference']:+.4f}  {shares}  "
            f"{len(entry['clearly_below'])} below, {len(entry['clearly_above'])} above, of {entry['cells']}"
        )
    return "\n".join([*lines, "", *_outside(outside)])


def _outside(outside: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [
        "questions of other sets: tokens that the default reads (without asking whether there is an answer;",
        "share of questions that nothing is read for), and the area under the ROC curve against its own",
    ]
    for data, by_budget in outside.items():
        cells = [(budget, by_budget[budget]) for budget in map(str, BUDGETS)]
        said = "   ".join(
            f"{budget}: {cell['tokens']:4.0f} ({cell['before']:4.0f}; {100 * cell['nothing']:2.0f} %)"
            for budget, cell in cells
        )
        lines.append(f"  {data:26} {said}   {by_budget['told']['area']:.3f}")
    for budget in map(str, BUDGETS):
        tokens, before = (
            float(np.mean([found[budget][key] for found in outside.values()])) for key in ("tokens", "before")
        )
        lines.append(f"  in the mean at {budget}: {tokens:.0f} of {before:.0f} tokens")
    return lines


def _cells(by_budget: Mapping[str, Any], name: str) -> str:
    cells: Sequence[Mapping[str, Any]] = [entry["rows"][name] for entry in by_budget.values()]
    said = []
    for cell in cells:
        said.append(f"{_interval(cell['difference'])} ({100 * cell['token_share']:3.0f} %)")
    return "   ".join(said)


def _interval(difference: Mapping[str, float]) -> str:
    mark = "!" if difference["high"] < 0 else "+" if difference["low"] > 0 else " "
    return f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]{mark}"
