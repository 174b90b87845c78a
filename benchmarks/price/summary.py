"""Numbers of questions -> means with intervals, differences of pairs, the table and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.files import replaced
from benchmarks.price.study import Asked, Row
from mio_rag.errors import require
from mio_rag.evaluation.statistics import mean_interval

#: Ours against whom, question by question.
_PAIRS = (
    ("allocation 250", "fused 512"),
    ("allocation 250", "fused 256"),
    ("allocation 250", "program 256"),
    ("allocation 400", "fused 1024"),
    ("allocation 400", "program 512"),
    ("allocation 1000", "fused 1024"),
    ("allocation 1000", "program 1024"),
    ("program 256", "probabilities 256"),
    ("program 1024", "probabilities 1024"),
)
_COLOURS = {
    "fused": "0.45",
    "probabilities": "tab:olive",
    "program": "tab:orange",
    "default": "tab:red",
    "price": "tab:blue",
    "allocation": "tab:green",
}


def summarized(rows: Sequence[Row], asked: Sequence[Asked]) -> dict[str, Any]:
    """Each row: means with 95 % intervals over all questions, and means of each set."""
    sets = {name: [k for k, one in enumerate(asked) if one.data == name] for name in {a.data for a in asked}}
    return {
        row.name: {
            "rule": row.rule,
            "setting": row.setting,
            "tokens": mean_interval(row.tokens),
            "recall": mean_interval(row.recall),
            "everything": mean_interval(row.everything),
            "proven": float(np.mean(row.proven)),
            "certificate": row.certificate,
            "sets": {
                name: {
                    key: float(np.mean([values[k] for k in here]))
                    for key, values in (
                        ("tokens", row.tokens), ("recall", row.recall), ("everything", row.everything)
                    )
                }
                for name, here in sorted(sets.items())
            },
        }
        for row in rows
    }  # fmt: skip


def compared(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Differences of pairs of rows, with 95 % intervals."""
    by_name = {row.name: row for row in rows}
    found = []
    for ours, theirs in _PAIRS:
        a, b = by_name[ours], by_name[theirs]
        columns = {"recall": (a.recall, b.recall), "everything": (a.everything, b.everything)}
        columns["tokens"] = (a.tokens, b.tokens)
        found.append(
            {
                "row": ours,
                "against": theirs,
                **{
                    key: mean_interval([x - y for x, y in zip(*pair, strict=True)])
                    for key, pair in columns.items()
                },
            }
        )
    return found


def table(summary: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]], about: str) -> str:
    """The figures as text."""
    lines = [about, "", f"{'rule':22} {'tokens':>22} {'evidence found':>24} {'all of it':>24}  proven"]
    for name, entry in summary.items():
        certificate = entry["certificate"]
        gap = "" if certificate is None or certificate["gap"] is None else f"  gap {certificate['gap']:.4%}"
        lines.append(
            f"{name:22} {_cell(entry['tokens'], 0):>22} {_cell(entry['recall'], 3):>24} "
            f"{_cell(entry['everything'], 3):>24}  {entry['proven']:.1%}{gap}"
        )
    lines += ["", "question by question"]
    for pair in pairs:
        lines.append(
            f"{pair['row'] + ' - ' + pair['against']:38} evidence {_cell(pair['recall'], 3, '+'):>25}  "
            f"all of it {_cell(pair['everything'], 3, '+'):>25}  tokens {_cell(pair['tokens'], 0, '+'):>20}"
        )
    lines += ["", "by set: tokens, evidence found, all of it"]
    for name, entry in summary.items():
        cells = "   ".join(
            f"{data} {c['tokens']:5.0f} {c['recall']:.3f} {c['everything']:.3f}"
            for data, c in entry["sets"].items()
        )
        lines.append(f"{name:22} {cells}")
    return "\n".join(lines)


def _cell(entry: Mapping[str, float], digits: int, sign: str = "") -> str:
    mean, low, high = (f"{entry[end]:{sign}.{digits}f}" for end in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def draw(summary: Mapping[str, Any], path: Path) -> None:
    """Evidence against mean tokens, each rule a line with 95 % intervals, as a PNG."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    figure = figures.Figure(figsize=(11, 4.8), layout="constrained")
    measures = (("recall", "evidence found"), ("everything", "share of questions with all evidence"))
    for panel, (key, label) in zip(figure.subplots(1, 2), measures, strict=True):
        for rule, colour in _COLOURS.items():
            points = sorted(
                (entry for entry in summary.values() if entry["rule"] == rule),
                key=lambda entry: entry["tokens"]["mean"],
            )
            x = np.array([p["tokens"]["mean"] for p in points])
            y = np.array([p[key]["mean"] for p in points])
            low, high = (np.array([p[key][end] for p in points]) for end in ("low", "high"))
            panel.errorbar(
                x, y, yerr=[y - low, high - y], marker="o", markersize=4, color=colour, elinewidth=0.8,
                capsize=2, label=rule,
            )  # fmt: skip
        panel.set(xlabel="mean tokens of a question", ylabel=label, xlim=(0, None))
        panel.grid(alpha=0.2)
        panel.legend(frameon=False)
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
