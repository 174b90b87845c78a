"""Rows -> means, paired differences, the table and the pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.files import replaced
from benchmarks.router.rows import COST, Group, Row, mixture
from mio_rag.errors import require
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.learning.outcomes import Outcomes
from mio_rag.learning.router import LABEL, WORKED

FloatArray = NDArray[np.float64]

#: Columns of the published tables: measure -> heading, digits.
PUBLISHED = {
    "exact_match": ("EM", 3),
    "token_f1": ("F1", 3),
    "retrieved_recall_5": ("R@5", 3),
    "retrieved_recall_10": ("R@10", 3),
    "retrieved_precision_5": ("P@5", 3),
    "retrieved_precision_10": ("P@10", 3),
    "retrieved_reciprocal_rank": ("MRR", 3),
    "context_precision": ("context precision", 3),
    "context_recall": ("context recall", 3),
    "faithfulness": ("faithful", 3),
    "question_cosine": ("relevance", 3),
    COST: ("input tokens", 0),
    "completion_tokens": ("output tokens", 1),
    "total_seconds": ("seconds", 2),
}
_PAIRED = tuple(m for m in PUBLISHED if m not in ("exact_match", "token_f1", COST))
MEASURES = (WORKED, "gold_recall", "gold_precision", "answer_in_context", "answer_cosine", *PUBLISHED)
_BASELINE = "k5"
_COLOURS = {
    "tier": "tab:red",
    "fixed k": "0.45",
    "price": "tab:blue",
    "sentences": "tab:purple",
    "router": "tab:olive",
    "utility": "tab:orange",
    "both": "tab:green",
    "oracle": "black",
}
_SAVES = 0.4  # share of tokens
_FEW = 100  # questions, below which intervals say little


def summarized(rows: Sequence[Row], group: Group) -> dict[str, Any]:
    """Each row: means, and question by question its difference to the baseline, to the best mixture of fixed
    tiers and to the best mixture of prices at equal tokens; then its shares of actions by set."""
    outcomes = group.outcomes
    base = next(row for row in rows if row.name == _BASELINE)
    columns = {
        kind: [int(np.argmax(row.chances[0])) for row in rows if row.kind == kind]
        for kind in ("tier", "price")
    }
    sets = {name: np.array([s == name for s in outcomes.sets]) for name in dict.fromkeys(outcomes.sets)}
    summary: dict[str, Any] = {}
    known: dict[tuple[bytes, bool], dict[str, Any]] = {}  # rows of several prices often choose alike
    for row in rows:
        alike = row.chances.tobytes(), row.about.get("shown") is False
        if alike in known:
            summary[row.name] = {"kind": row.kind, **row.about, **known[alike]}
            continue
        entry: dict[str, Any] = {}
        for measure in MEASURES:
            if measure in outcomes.values:
                found = row.values(outcomes, measure)
                entry[measure] = _interval(found)
        entry["means"] = {
            measure: float(np.nanmean(values))
            for measure in outcomes.values
            if measure not in (*MEASURES, LABEL)
            and not np.isnan(values := row.values(outcomes, measure)).all()
        }
        spent = float(row.values(outcomes, COST).mean())
        did = row.values(outcomes, WORKED)
        read, read_before = row.values(outcomes, COST), base.values(outcomes, COST)
        entry["against k5"] = _differences(row, base, group)
        for label, kind in (("against fixed tiers", "tier"), ("against prices", "price")):
            chances = mixture(outcomes, columns[kind], spent)
            entry[label] = {WORKED: _interval(did - outcomes.of(WORKED) @ chances)}
            entry[label]["tokens_there"] = float((outcomes.of(COST) @ chances).mean())
        entry["sets"] = {
            name: {
                "shares": {
                    action: float(share)
                    for action, share in zip(outcomes.actions, row.chances[here].mean(axis=0), strict=True)
                    if share > 0
                },
                "saved": float(1 - read[here].mean() / read_before[here].mean()),
                **({} if row.about.get("shown") is False else _against(row, base, outcomes, here)),
                **{
                    measure: float(np.nanmean(row.values(outcomes, measure)[here]))
                    for measure in (WORKED, COST, "exact_match")
                    if measure in outcomes.values
                },
            }
            for name, here in sets.items()
        }
        known[alike] = entry
        summary[row.name] = {"kind": row.kind, **row.about, **entry}
    return summary


def shortened(results: Mapping[str, Any]) -> dict[str, Any]:
    """The report as it is kept: of rows that only the picture shows, what the picture shows."""
    kept = ("kind", "learner", "features", "price", "shown", WORKED, COST)
    groups = {
        group: {
            **found,
            "rows": {
                name: {k: entry[k] for k in kept if k in entry} if entry.get("shown") is False else entry
                for name, entry in found["rows"].items()
            },
        }
        for group, found in results["groups"].items()
    }
    return {**results, "groups": groups}


def _against(row: Row, base: Row, outcomes: Outcomes, here: NDArray[np.bool_]) -> dict[str, Any]:
    """Paired differences to the baseline on some questions."""
    named = {"against k5": WORKED, "exact match against k5": "exact_match"}
    return {
        name: _interval((row.values(outcomes, measure) - base.values(outcomes, measure))[here])
        for name, measure in named.items()
        if measure in outcomes.values
    }


def _differences(row: Row, base: Row, group: Group) -> dict[str, Any]:
    outcomes = group.outcomes
    told: dict[str, Any] = {}
    for measure in (WORKED, *PUBLISHED):
        if measure in outcomes.values:
            told[measure] = _interval(row.values(outcomes, measure) - base.values(outcomes, measure))
    spent, before = row.values(outcomes, COST).mean(), base.values(outcomes, COST).mean()
    told["token_reduction"] = float(1 - spent / before)
    if "total_seconds" in outcomes.values:
        took = row.values(outcomes, "total_seconds").mean()
        told["speedup"] = float(base.values(outcomes, "total_seconds").mean() / took) if took else None
    return told


def _interval(values: FloatArray) -> dict[str, float] | None:
    known = values[~np.isnan(values)]
    return mean_interval(known.tolist()) if len(known) else None


def _cell(entry: Mapping[str, float] | None, digits: int, sign: str = "") -> str:
    if entry is None:
        return "-"
    mean, low, high = (f"{entry[end]:{sign}.{digits}f}" for end in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def table(results: Mapping[str, Any]) -> str:
    """The figures as text."""
    lines = [results["about"], ""]
    for name, found in results["groups"].items():
        count = found["questions"]
        few = f"; fewer than {_FEW} questions: no verdict" if count < _FEW else ""
        lines.append(f"{name}: {count} questions ({_sets(found['sets'])}){few}")
        lines.append(
            f"  {'row':34} {'does':>24} {'tokens':>22} {'against fixed tiers':>27} {'against prices':>27}"
            f" {'saved':>6} label"
        )
        for row, entry in found["rows"].items():
            if entry.get("shown") is False:
                continue
            accuracy = f"{entry['accuracy']:.3f}" if "accuracy" in entry and "price" not in entry else ""
            lines.append(
                f"  {row:34} {_cell(entry[WORKED], 3):>24} {_cell(entry[COST], 0):>22} "
                f"{_cell(entry['against fixed tiers'][WORKED], 3, '+'):>27} "
                f"{_cell(entry['against prices'][WORKED], 3, '+'):>27} "
                f"{entry['against k5']['token_reduction']:>6.0%} {accuracy}"
            )
        lines += _published(found["rows"])
        lines += _paired(found["rows"])
        lines += _by_set(found["rows"])
        lines.append("  labels by set (easy, medium, hard): " + _shares(found["labels"]))
        lines.append("  published router by set: " + _shares(found["routed"]))
        lines.append("")
    seconds = ", ".join(f"{k} {1e3 * s:.3f} ms" for k, s in results["deciding_seconds"].items())
    lines.append(f"one decision, processor time: {seconds}")
    for live in results.get("live", []):
        lines.append(
            f"live, {live['router']}: {live['questions']} questions asked by the controller; as the table "
            f"foretells are the tier of {live['same_tier']:.3f}, the prompt's tokens of "
            f"{live['same_tokens']:.3f}, the outcome of {live['same_outcome']:.3f}; mean tokens "
            f"{live['tokens']:.0f}, foretold {live['tokens_foretold']:.0f}"
        )
    lines += [
        "",
        "goals",
        *(f"  {goal['met']:8} {goal['goal']}: {goal['found']}" for goal in results["goals"]),
    ]
    return "\n".join(lines)


def _published(rows: Mapping[str, Any]) -> list[str]:
    """The columns of the published tables, with EM and F1 against k = 5, of rows that need no price."""
    shown = {name: entry for name, entry in rows.items() if entry.get("shown") is not False}
    columns = {m: told for m, told in PUBLISHED.items() if any(entry.get(m) for entry in shown.values())}
    lines = ["  the measures of the published tables; differences and ratios are to k = 5"]
    heads = "".join(f" {head:>{max(len(head), 6)}}" for head, _ in columns.values())
    lines.append(f"  {'row':34}{heads}   saved speedup {'EM':>24} {'F1':>24}")
    for name, entry in shown.items():
        told = {m: "-" if entry.get(m) is None else f"{entry[m]['mean']:.{columns[m][1]}f}" for m in columns}
        cells = "".join(f" {told[m]:>{max(len(head), 6)}}" for m, (head, _) in columns.items())
        against = entry["against k5"]
        speedup = "-" if against.get("speedup") is None else f"{against['speedup']:.2f}"
        pairs = " ".join(f"{_cell(against.get(m), 3, '+'):>24}" for m in ("exact_match", "token_f1"))
        lines.append(f"  {name:34}{cells} {against['token_reduction']:>7.0%} {speedup:>7} {pairs}")
    return lines


def _paired(rows: Mapping[str, Any]) -> list[str]:
    """Differences to k = 5 of measures that the table of means has without an interval."""
    shown = {name: entry["against k5"] for name, entry in rows.items() if entry.get("shown") is not False}
    told = {m: PUBLISHED[m] for m in _PAIRED if any(against.get(m) for against in shown.values())}
    lines = ["  question by question against k = 5"] if told else []
    for name, against in shown.items() if told else ():
        cells = [f"{head} {_cell(against[m], digits, '+')}" for m, (head, digits) in told.items()]
        lines.append(f"  {name:34} {'; '.join(cells)}")
    return lines


def _by_set(rows: Mapping[str, Any]) -> list[str]:
    """Of rows that save many tokens: what they do more than k = 5, set by set."""
    lines = ["  set by set: how often more than k = 5, and tokens saved; rows that save 40 % or more"]
    for name, entry in rows.items():
        if entry.get("shown") is False or entry["against k5"]["token_reduction"] < _SAVES:
            continue
        cells = [
            f"{data} {_cell(part['against k5'], 2, '+')} {part['saved']:.0%}"
            for data, part in entry["sets"].items()
        ]
        lines.append(f"  {name:34} {'; '.join(cells)}")
    return lines


def _sets(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _shares(by_set: Mapping[str, Sequence[float]]) -> str:
    told = [f"{name} {' '.join(f'{s:.2f}' for s in shares)}" for name, shares in by_set.items()]
    return "; ".join(told)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """How often each row does, against prompt tokens, one panel a group, as a PNG."""
    figures: Any = require("matplotlib.figure", "evaluation", "the picture")
    groups = results["groups"]
    figure = figures.Figure(figsize=(7.5 * len(groups), 5.4), layout="constrained")
    for panel, (name, found) in zip(
        figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True
    ):
        for kind, colour in _COLOURS.items():
            if kind in ("utility", "both"):
                for features, style in (("question", "--"), ("question+search", "-")):
                    some = [
                        e for e in found["rows"].values() if e["kind"] == kind and e["features"] == features
                    ]
                    _line(panel, some, f"{kind}, {features}", colour, f".{style}")
                continue
            some = [entry for entry in found["rows"].values() if entry["kind"] == kind]
            _line(
                panel, some, kind, colour, "o-" if kind in ("tier", "fixed k", "price", "sentences") else "D"
            )
        few = " (few)" if found["questions"] < _FEW else ""
        panel.set(
            title=f"{name}\n{found['questions']} questions{few}",
            xlabel="prompt tokens of a question",
            ylabel=results["quality"],
        )
        panel.grid(alpha=0.2)
        panel.legend(frameon=False, fontsize=8)
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _line(panel: Any, entries: Sequence[Mapping[str, Any]], label: str, colour: str, style: str) -> None:
    points = sorted((entry[COST]["mean"], entry[WORKED]["mean"]) for entry in entries)
    if points:
        panel.plot(*zip(*points, strict=True), style, color=colour, label=label, markersize=5)
