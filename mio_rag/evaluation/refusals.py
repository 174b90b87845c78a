"""What refusing did in a run: the measures of SQuAD 2.0 for each method and budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mio_rag.refusal.scores import Scores, squad_scores

__all__ = ["refusal_scores"]


def refusal_scores(rows: Iterable[Mapping[str, Any]], threshold: float) -> dict[tuple[str, int], Scores]:
    """The scores by method and budget, in the order of the rows; of rows that a refusal model judged.

    Parameters
    ----------
    rows : iterable of mapping
        Of a ledger, with ``said`` and ``refusal_probability``. Rows that failed count as refused. Questions
        without a key are left out.
    threshold : float
        Above it a question is refused.
    """
    parts: dict[tuple[str, int], tuple[list[Any], list[str], list[float]]] = {}
    for row in rows:
        failed = bool(row.get("error"))
        if not (failed or "refusal_probability" in row):
            continue
        if not row["answers"] and row["question_type"] != "unanswerable":
            continue
        keys, said, chances = parts.setdefault((row["method"], row["budget_tokens"]), ([], [], []))
        keys.append(row["answers"])
        said.append("" if failed else row["said"])
        chances.append(1.0 if failed else row["refusal_probability"])
    return {name: squad_scores(*found, threshold) for name, found in parts.items()}
