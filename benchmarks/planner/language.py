"""The language model as planner on the questions of a table: what it writes, what that gives and costs.

Under the grammar nothing but a workflow can be written; free, what is none becomes `plain`. Rows are kept
line by line beside the table, and a later run goes on from there. Nobody was trained: all questions count.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planner.live import loaded
from mio_rag.generation import make_generator
from mio_rag.learning.planner_training import Table
from mio_rag.measures import answer_measures
from mio_rag.policies.make import make_controller
from mio_rag.policies.setup import ControlSettings, Setup
from mio_rag.session.budget import Limits
from mio_rag.storage import append_lines

KINDS = ("planner-lm", "planner-lm:free")
_MAX_TOKENS = 24
_NORMAL = 1.959963984540054


def written(table: Table, given: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Both kinds on the first questions of the table, beside `plain` on the same ones."""
    path = Path(given.table) / "language.jsonl"
    rows = _kept(path)
    done = {(row["question_id"], row["planner"]) for row in rows}
    questions = list(table.outcomes.ids)[: given.language]
    missing = [(i, kind) for i in questions for kind in KINDS if (i, kind) not in done]
    if missing and given.generator is not None:
        _ask(table, given, missing, path, say)
        rows = _kept(path)
    return _told(table, rows, questions)


def _kept(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # cut short by a kill
            continue
    return rows


def _ask(
    table: Table,
    given: argparse.Namespace,
    missing: list[tuple[str, str]],
    path: Path,
    say: Callable[[str], None],
) -> None:
    budget = int(table.outcomes.provenance.get("budget_tokens") or 256)
    reader = make_generator(given.generator)
    try:
        known: dict[str, Any] = {}
        for identity, kind in missing:
            name, _, question_id = identity.partition(":")
            if name not in known:
                known[name] = loaded(given, name, reader)
            retriever, questions = known[name]
            setup = Setup(ControlSettings(limits=Limits(40, 20_000, 1e6)), retriever, max_tokens=_MAX_TOKENS)
            question = questions[question_id]
            got = make_controller(kind, setup).attempt(question, reader, budget)
            total = got.costs.total()
            trace = got.trace
            f1 = answer_measures(question, trace.answer, trace.choice).get("token_f1") or 0.0
            row = {
                "question_id": identity,
                "planner": kind,
                "workflow": trace.columns()["workflow"],
                "token_f1": 0.0 if got.error is not None else f1,
                "tokens": total.prompt_tokens + total.completion_tokens,
                "planning_tokens": sum(c.prompt_tokens + c.completion_tokens for c in trace.opening),
                "format": str(getattr(trace, "fallback", "") or "").startswith("format"),
                "error": trace.error,
            }
            append_lines(path, [json.dumps(row)])
            say(f"{kind} {identity}: {row['workflow']}")
    finally:
        reader.close()


def _told(table: Table, rows: list[dict[str, Any]], questions: list[str]) -> dict[str, Any]:
    actions = list(table.outcomes.actions)
    at = {name: place for place, name in enumerate(table.outcomes.ids)}
    plain = actions.index("plain")
    f1, tokens = table.outcomes.of("token_f1"), table.outcomes.of("tokens")
    told: dict[str, Any] = {}
    for kind in KINDS:
        found = [row for row in rows if row["planner"] == kind and row["question_id"] in set(questions)]
        if not found:
            continue
        places = [at[row["question_id"]] for row in found]
        gain = np.array([row["token_f1"] for row in found]) - f1[places, plain]
        half = _NORMAL * float(gain.std(ddof=1)) / len(gain) ** 0.5 if len(gain) > 1 else float("nan")
        told[kind] = {
            "questions": len(found),
            "f1": float(np.mean([row["token_f1"] for row in found])),
            "f1_of_plain": float(f1[places, plain].mean()),
            "gain": {
                "mean": float(gain.mean()),
                "low": float(gain.mean() - half),
                "high": float(gain.mean() + half),
            },
            "tokens": float(np.mean([row["tokens"] for row in found])),
            "cost": float(np.mean([row["tokens"] for row in found]) / tokens[places, plain].mean()),
            "planning_tokens": float(np.mean([row["planning_tokens"] for row in found])),
            "no_workflow_written": sum(row["format"] for row in found),
            "failed": sum(row["error"] is not None for row in found),
            "workflows": dict(Counter(row["workflow"] for row in found).most_common(12)),
        }
    return told
