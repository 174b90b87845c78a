"""Rows of finished runs -> means with intervals, paired differences, and who is dominated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy  # loads scipy.stats, a second, where it is first used

from benchmarks.control.study import Set
from mio_rag.evaluation.rows import PARTS, seconds_column
from mio_rag.evaluation.statistics import compare, mean_interval

Row = Mapping[str, Any]

#: Controllers that follow the process, as far as they were run.
OURS = (
    "mdp",
    "mdp@confidence",
    "mdp, calibrated",
    "mdp@confidence, calibrated",
    "mdp, by bins",
    "mdp@confidence, by bins",
)
_COSTS = ("tokens", "lm_calls", "retrieval_calls", "steps", "total_seconds")


def _rows(folder: Path) -> list[dict[str, Any]]:
    file = folder / "rows.jsonl"
    if not file.is_file():
        return []
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:  # cut short by an interruption: its question is asked again
            continue
    return rows


def begun(chosen: Set, work: Path) -> int:
    """How many of the first questions any controller was asked."""
    return len({row["question_id"] for row in _rows(work / chosen.name / "given")})


def answered(chosen: Set, questions: Sequence[str], work: Path) -> int:
    """How many of the first questions all controllers have answered."""
    done: dict[str, set[str]] = {}
    for row in _rows(work / chosen.name / "given"):
        if not row["error"]:
            done.setdefault(row["question_id"], set()).add(row["method"])
    for count, question in enumerate(questions):
        if not set(chosen.all) <= done.get(question, set()):
            return count
    return len(questions)


def gather(chosen: Set, questions: Sequence[str], work: Path) -> dict[str, dict[str, Row]]:
    """Name of a controller -> question -> row, for the first questions that all have answered."""
    upto = answered(chosen, questions, work)
    asked = set(questions[:upto])
    found: dict[str, dict[str, Row]] = {name: {} for name in chosen.all}
    for row in _rows(work / chosen.name / "given"):
        if row["question_id"] in asked and row["method"] in found:
            found[row["method"]][row["question_id"]] = row
    for folder, label in (("calibrated", "calibrated"), ("by-bins", "by bins")):
        for fold in (0, 1):
            for row in _rows(work / chosen.name / f"{folder}-{fold}-of-{upto}"):
                found.setdefault(f"{row['method']}, {label}", {})[row["question_id"]] = row
    return {name: rows for name, rows in found.items() if len(rows) == upto}


def summarize(found: Mapping[str, Mapping[str, Row]], measure: str, seed: int = 0) -> dict[str, Any]:
    """Means, time by part, and every process against every other controller.

    Parameters
    ----------
    measure : str
        accuracy or token_f1: what quality is.

    Returns
    -------
    dict
        controllers: name -> quality, tokens, calls, steps and seconds with 95 % intervals, and the mean
        seconds of each part. differences: quality and tokens of each process less those of each other
        controller, question by question. dominated: process -> controllers at least as good, on average, for
        at most as many tokens, and better in one of the two.
    """
    values = {name: {q: _values(row, measure) for q, row in rows.items()} for name, rows in found.items()}
    controllers = {}
    for name, by_question in values.items():
        every = list(by_question.values())
        entry: dict[str, Any] = {
            key: mean_interval([v[key] for v in every], seed) for key in ("quality", *_COSTS)
        }
        rows = found[name].values()
        entry["seconds_by_part"] = {
            part: sum(float(row.get(seconds_column(part)) or 0) for row in rows) / len(every)
            for part in PARTS
        }
        controllers[name] = entry
    return {
        "controllers": controllers,
        "differences": _differences(values, seed),
        "dominated": {name: _better(controllers, name) for name in OURS if name in controllers},
    }


def _values(row: Row, measure: str) -> dict[str, float]:
    tokens = float(row["prompt_tokens"] + row["completion_tokens"])
    return {"quality": float(row[measure]), "tokens": tokens} | {
        key: float(row[key]) for key in _COSTS if key != "tokens"
    }


def _differences(values: Mapping[str, Mapping[str, Mapping[str, float]]], seed: int) -> list[dict[str, Any]]:
    """Paired; q-values are corrected over the whole list."""
    measured = {
        (name, 0): {key: {q: v[key] for q, v in rows.items()} for key in ("quality", "tokens")}
        for name, rows in values.items()
    }
    rows = []
    for other in values:
        pairs = {key: measured[key] for key in measured if key[0] in OURS or key[0] == other}
        rows += [row for row in compare(pairs, other, seed) if other not in OURS or row["method"] > other]
    if rows:
        corrected = scipy.stats.false_discovery_control([row["p_value"] for row in rows], method="bh")
        for row, q in zip(rows, corrected, strict=True):
            row["q_value"] = float(q)
            del row["budget_tokens"]
    return rows


def _better(controllers: Mapping[str, Any], name: str) -> list[str]:
    def at(other: str) -> tuple[float, float]:
        return controllers[other]["quality"]["mean"], -controllers[other]["tokens"]["mean"]

    own = at(name)
    return [
        other
        for other in controllers
        if at(other) != own and all(a >= b for a, b in zip(at(other), own, strict=True))
    ]
