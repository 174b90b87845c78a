"""What the report's script reads: the data of the charts, the index of questions, the details of each row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from mio_rag.evaluation.methods import RANKING_SOLVERS
from mio_rag.evaluation.report.model import (
    Key,
    Record,
    Report,
    failed,
    setting,
    verdict,
)
from mio_rag.measures import Measure, page_measures, right

__all__ = ["details_and_passages", "page_data"]

#: Fields of a row that the page's index or its passages already hold.
_SHARED = ("decisions", "question", "question_type", "answers", "gold_ids", "selected_ids", "method")


def page_data(report: Report) -> dict[str, Any]:
    """Data of the charts and an index of the rows, small enough to be read at once."""
    first: dict[str, Record] = {}
    for row in report.rows:
        first.setdefault(row["question_id"], row)
    numbers = {question: i for i, question in enumerate(first)}
    context = ("generator", "embedder", "pool", "mode", "seed")
    quality = [m for m in report.measures if m.judged > 0]
    explained = page_measures()
    return {
        "methods": [_method(report, name) for name in report.methods],
        "budgets": report.budgets,
        "baseline": report.baseline,
        "reading": report.reading,
        "answered": report.answered,
        "rankings": RANKING_SOLVERS,
        "primary": report.primary.name if report.primary else None,
        "quality": [m.name for m in quality],
        "measures": {m.name: {"label": m.label, "kind": m.kind} for m in [*explained, *report.measures]},
        "card": [m.name for m in explained if m.page is not None and m.page.card],
        "points": [_point(report, key, quality) for key in report.points],
        "comparisons": [
            _difference(report, c) for c in report.comparisons if c.get("difference") is not None
        ],
        "latency": _latency(report),
        "context": [f"{name}: {report.run[name]}" for name in context if report.run.get(name) is not None],
        "questions": [_question(row) for row in first.values()],
        "read": [
            None if row.get(report.reading) is None else int(row[report.reading]) for row in report.rows
        ],
        "rows": [
            [
                numbers[row["question_id"]],
                report.place[row["method"]],
                report.budgets.index(row.get("budget_tokens")),
                _mark(report, row),
                int(failed(row)),
                _evidence(report, row),
            ]
            for row in report.rows
        ],
    }


def _method(report: Report, name: str) -> dict[str, Any]:
    tone, symbol = report.tone(name)
    return {"name": name, "tone": tone, "symbol": symbol}


def _question(row: Record) -> dict[str, Any]:
    """What all rows of one question share."""
    return {
        "id": str(row["question_id"]),
        "text": row.get("question") or "",
        "type": row.get("question_type") or "",
        "answers": row.get("answers") or [],
        "gold": row.get("gold_ids") or [],
    }


def _difference(report: Report, comparison: Record) -> dict[str, Any]:
    place = report.place[comparison["method"]]
    return {**comparison, "method": place, "clear": verdict(comparison) in ("above", "below")}


def _point(report: Report, key: Key, quality: Sequence[Measure]) -> dict[str, Any]:
    record, (method, budget) = report.points[key], key
    return {
        "method": report.place[method],
        "budget": budget,
        "n": record.get("n"),
        "failed": record.get("failed"),
        "values": {m.name: record[m.name] for m in report.measures if report.mean(key, m.name) is not None},
        "front": [m.name for m in quality if _undominated(report, key, m.name)],
    }


def _undominated(report: Report, key: Key, measure: str) -> bool:
    """Whether no other setting has at least the quality for at most the tokens, and more of one."""
    quality, tokens = report.mean(key, measure), report.mean(key, report.reading)
    if quality is None or tokens is None:
        return False
    for other, q in report.means[measure].items():
        t = report.mean(other, report.reading)
        if t is not None and q >= quality and t <= tokens and (q, t) != (quality, tokens):
            return False
    return True


def _latency(report: Report) -> list[dict[str, Any]]:
    """Median and 95th percentile seconds of every stage, by method and budget."""
    groups: dict[Key, list[Record]] = defaultdict(list)
    for row in report.rows:
        groups[setting(row)].append(row)
    found = []
    for (method, budget), rows in groups.items():
        timed = {}
        for stage in ("retrieve", "select", "decompose", "reason", "measure", "generate", "total"):
            seconds = [s for row in rows if (s := row.get(f"{stage}_seconds")) is not None]
            if seconds:
                timed[stage] = [float(np.median(seconds)), float(np.percentile(seconds, 95))]
        if timed:
            found.append({"method": report.place[method], "budget": budget, "n": len(rows), "stages": timed})
    return found


def _evidence(report: Report, row: Record) -> float | None:
    """How much of its evidence a question got."""
    value = None if report.evidence is None else row.get(report.evidence.name)
    return None if value is None else round(float(value), 4)


def _mark(report: Report, row: Record) -> str:
    """Of an answer of a language model r(ight), p(artly), w(rong); else a(ll), s(ome) or n(o) evidence found.

    "?": unknown.
    """
    overlap, found = row.get("token_f1"), _evidence(report, row)
    score = overlap if right(row) is None else right(row)
    if score is not None and report.answered:
        return "r" if score >= 1 else "p" if (overlap or 0) > 0 else "w"
    if found is None:
        return "?"
    return "a" if found >= 1 else "s" if found > 0 else "n"


def details_and_passages(rows: Sequence[Record]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One record per row for the drill-down, and the passages that they point to, each kept once."""
    places: dict[tuple[Any, ...], int] = {}
    details = []
    for row in rows:
        shown = []
        for d in row.get("decisions") or ():
            texts = (d.get("title") or "", d.get("source") or "", d.get("text") or "")
            place = places.setdefault((d["id"], d.get("tokens"), *texts), len(places))
            flags = [int(bool(d.get("selected"))), int(bool(d.get("gold")))]
            reasons = [d.get("reason") or "", d.get("redundant_with")]
            shown.append([place, d.get("relevance"), d.get("value"), *flags, *reasons])
        kept = {key: value for key, value in row.items() if key not in _SHARED and value is not None}
        details.append({**kept, "passages": shown})
    names = ("id", "tokens", "title", "source", "text")
    return details, [dict(zip(names, passage, strict=True)) for passage in places]
