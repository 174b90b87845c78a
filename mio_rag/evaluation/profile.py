"""Where the time of a run went: a table like a profiler's, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mio_rag.evaluation.expenses import parts_of

__all__ = ["profile"]


def profile(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Seconds by method, budget and part, the slowest part first.

    Returns
    -------
    list of dict
        method, budget_tokens, part, questions (that used it), seconds (in all), share (of the method's time),
        mean, median and p95 (seconds for a question that used it).
    """
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], int(row["budget_tokens"])), []).append(row)
    table = []
    for (method, budget), group in groups.items():
        total = sum(float(row.get("total_seconds") or 0.0) for row in group)
        parts = []
        for part, column in parts_of(dict.fromkeys(name for row in group for name in row)).items():
            taken = [float(s) for row in group if (s := row.get(column))]
            if not taken:
                continue
            parts.append(
                {
                    "method": method,
                    "budget_tokens": budget,
                    "part": part,
                    "questions": len(taken),
                    "seconds": sum(taken),
                    "share": sum(taken) / total if total else 0.0,
                    "mean": float(np.mean(taken)),
                    "median": float(np.median(taken)),
                    "p95": float(np.percentile(taken, 95)),
                }
            )
        table += sorted(parts, key=lambda entry: -float(str(entry["seconds"])))
    return table
