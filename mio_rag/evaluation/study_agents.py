"""Tables and figures of the published agents: where time goes (ARGO), and which workflows pay (MAO-ARAG)."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.errors import InputError
from mio_rag.evaluation.rows import seconds_column
from mio_rag.evaluation.statistics import mean_interval
from mio_rag.evaluation.studies import Column, StudyRun, figure, spread, table
from mio_rag.learning.planner import IntArray, Planner, Tree
from mio_rag.learning.planner_regression import Experience
from mio_rag.learning.planner_training import Table, Training, judged, read_table, train_planner
from mio_rag.pictures import label_points
from mio_rag.policy import Policy
from mio_rag.retrieval.embedders import make_embedder
from mio_rag.storage import read_text, replaced

# -- where time goes --------------------------------------------------------------------------------------

#: Component -> parts of the ledger.
_COMPONENTS = {
    "retriever": ("retrieve",),
    "decomposer": ("decompose",),
    "reasoner": ("reason",),
    "synthesizer": ("answer",),
}
_MEASURED = 0.005  # seconds: what takes less is not compared


def _seconds(run: StudyRun) -> dict[str, dict[str, float]]:
    """Label -> mean seconds of a question by component; the overhead is what no component took.

    Not of the first question, on which models are loaded, and kernels: for whoever is asked first.
    """
    found = {}
    for (label, _), every in run.groups.items():
        rows = every[1:] or every
        parts = {name: tuple(map(seconds_column, own)) for name, own in _COMPONENTS.items()}
        parts["total"] = ("total_seconds",)
        each = {
            name: float(np.mean([sum(float(row.get(one) or 0.0) for one in own) for row in rows]))
            for name, own in parts.items()
        }
        found[label] = {**each, "overhead": max(0.0, 2 * each["total"] - sum(each.values()))}
    return found


@table("latency")
def _latency(run: StudyRun, given: Mapping[str, Any]) -> list[Column]:
    """Seconds of a question, how much faster than the slowest, shares of components, and projections."""
    found = _seconds(run)
    totals = [one["total"] for one in found.values()]
    faster = [f"{max(totals) / t:.2f}" if t >= _MEASURED else "\u2013" for t in totals]
    columns: list[Column] = [
        ("system", list(found)), ("seconds", [f"{t:.2f}" for t in totals]), ("speed-up", faster),
        *((name, [f"{one[name] / max(one['total'], 1e-9):.1%}" for one in found.values()])
          for name in (*_COMPONENTS, "overhead")),
    ]  # fmt: skip
    for questions in given.get("questions", (1000,)):
        each = [t * questions / 3600 for t in totals]
        hours = [
            f"{one:,.0f} h" if one >= 10 else f"{one:.2g} h" if one >= 0.01 else "under 0.01 h"
            for one in each
        ]
        columns.append((f"time for {questions:,} questions", hours))
    return columns


@figure("latency")
def _latency_drawn(run: StudyRun, given: Mapping[str, Any], axes: Any) -> None:
    """Seconds of a question, stacked by component."""
    found = _seconds(run)
    below = np.zeros(len(found))
    for name in (*_COMPONENTS, "overhead"):
        heights = np.array([one[name] for one in found.values()])
        axes.bar(range(len(found)), heights, bottom=below, label=name)
        below += heights
    axes.set_xticks(range(len(found)), list(found), rotation=30, ha="right", fontsize=7)
    axes.set_ylabel("seconds of a question")
    axes.legend(fontsize=7)


# -- which workflows pay ----------------------------------------------------------------------------------

_FOLDS = 5
_SYSTEMS = ("published", "ours")


@dataclasses.dataclass(frozen=True, eq=False)
class _Planned:
    """Decisions on questions that a planner has not learned from.

    chosen: (system, alpha) -> a workflow for each question; invalid: share of the plans in training that
    were no workflow.
    """

    table: Table
    whole: Experience
    chosen: Mapping[tuple[str, float], IntArray]
    invalid: Mapping[tuple[str, float], float]


@lru_cache(maxsize=1)
def _planned(folder: Path, alphas: tuple[float, ...], ppo: tuple[tuple[str, Any], ...] = ()) -> _Planned:
    """Learn from all folds but one, and decide on that one, at every price; ppo: changes of its settings."""
    found = read_table(folder, make_embedder("minilm"))
    n = len(found.outcomes)
    fold = np.random.default_rng(0).permutation(n) % _FOLDS
    chosen: dict[tuple[str, float], IntArray] = {}
    invalid: dict[tuple[str, float], float] = {}
    for system in _SYSTEMS:
        how = Training.from_dict(Policy.load(f"{system}/mao-arag").training, "training")
        known: dict[int, Planner] = {}
        for alpha in alphas:
            made, wrong = np.zeros(n, dtype=np.intp), []
            asked = how.replace(ppo=how.ppo.replace(alphas=(alpha,), **dict(ppo)))
            for k in range(_FOLDS):
                learned, held = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
                if k not in known or how.method == "ppo":  # a regression decides at any price
                    known[k], curve = train_planner(found, learned, asked)
                    wrong += [row[4] for row in curve]
                planner = known[k]
                made[held] = planner.choices(_experience(found, planner, held).observed, alpha)
            chosen[system, alpha] = made
            invalid[system, alpha] = float(np.mean(wrong)) if wrong else 0.0
    everyone = np.arange(n, dtype=np.intp)
    first, _ = train_planner(found, everyone, Training(weights=how.weights))
    return _Planned(found, _experience(found, first, everyone), chosen, invalid)


def _experience(found: Table, planner: Planner, places: IntArray) -> Experience:
    return found.experience(
        Tree(found.workflows, planner.tree.mode), planner.features, places, planner.unit, planner.cost,
        planner.weights,
    )  # fmt: skip


def _of(run: StudyRun, given: Mapping[str, Any]) -> _Planned:
    folder = run.folder / str(given.get("outcomes", "published.outcomes"))
    if not folder.is_dir():
        raise InputError(f"'{folder}' holds no outcomes: the study prepares them by `policy fit planner`")
    alphas = tuple(map(float, given.get("alphas", (0.0, 0.05, 0.1, 0.2, 0.5))))
    return _planned(folder, alphas, tuple(given.get("ppo", {}).items()))


@table("planners")
def _planners_table(run: StudyRun, given: Mapping[str, Any]) -> list[Column]:
    """F1 and cost at each price, against the best mixture of fixed workflows; ours against published."""
    found, lines = _of(run, given), []
    names = [workflow.name for workflow in found.table.workflows]
    fixed = {(name, 0.0): np.full(len(found.whole), k, dtype=np.intp) for k, name in enumerate(names)}
    for (system, alpha), chosen in {**found.chosen, **fixed}.items():
        point = judged(system, found.whole, chosen, alpha)
        learned = system in _SYSTEMS
        other = found.chosen.get(("published", alpha)) if system == "ours" else None
        paired = "\u2013"
        if other is not None:
            gain = found.whole.reward(chosen, alpha) - found.whole.reward(other, alpha)
            paired = spread(mean_interval(gain.tolist()), sign="+")
        invalid = f"{found.invalid[system, alpha]:.1%}" if system == "published" else "\u2013"
        lines.append(
            (system, f"{alpha:g}" if learned else "", f"{point.quality:.3f}", f"{point.cost:.2f}",
             spread((point.gain, point.low, point.high), sign="+"), paired, invalid)
        )  # fmt: skip
    heads = ("planner or workflow", "alpha", "F1", "cost", "above the best mixture of workflows",
             "reward less that of published", "no workflow, in training")  # fmt: skip
    return [(head, list(cells)) for head, cells in zip(heads, zip(*lines, strict=True), strict=True)]


@figure("planners")
def _planners_drawn(run: StudyRun, given: Mapping[str, Any], axes: Any) -> None:
    """F1 against cost: both planners over their prices, and the fixed workflows."""
    whole, chosen = (found := _of(run, given)).whole, found.chosen
    for system in _SYSTEMS:
        own = {alpha: made for (name, alpha), made in chosen.items() if name == system}
        points = [judged(system, whole, made, alpha, draws=1) for alpha, made in own.items()]
        axes.plot([one.cost for one in points], [one.quality for one in points], "o-", ms=3, label=system)
    spots = [((float(c), float(q)), w.name) for c, q, w in zip(
        whole.cost.mean(axis=0), whole.quality.mean(axis=0), found.table.workflows, strict=True)]  # fmt: skip
    axes.scatter(*zip(*(spot for spot, _ in spots), strict=True), color="#888888", label="fixed workflows")
    axes.set(xlabel="cost (tokens of a plain answer: 1; searches and turns)", ylabel="token F1")
    axes.legend(fontsize=7)
    label_points(axes, spots)


#: Columns of the table of decisions; the last one is filled in by hand.
_DECISION = (
    *("question", "right answers", "workflow", "answer", "F1", "cheapest right workflow", "of F1 >= .6"),
    "judged",
)
_JUDGED = "decisions.csv"


@table("decisions")
def _decisions(run: StudyRun, given: Mapping[str, Any]) -> list[Column]:
    """What a planner chose for each question, what came of it, and the cheapest workflow that is right.

    Also a CSV file, in which decisions are judged by hand; what was judged there before stays.
    """
    found = _of(run, given)
    system, alpha, right = str(given.get("system", "ours")), float(given.get("alpha", 0.1)), 0.6
    whole, chosen, lines = found.whole, found.chosen[system, alpha], []
    names = [workflow.name for workflow in found.table.workflows]
    replies = {(row["question_id"], row["action"]): str(row["answer"]) for row in found.table.rows}
    asked = run.folder / "learn" / "questions.jsonl"
    gold = {
        row["question"]: row.get("answers") or () for row in map(json.loads, read_text(asked).splitlines())
    }
    marks = _marks(run)
    for i in range(min(len(whole), int(given.get("questions", 50)))):
        fine = np.flatnonzero(whole.quality[i] >= right)
        cheapest = names[int(fine[np.argmin(whole.cost[i, fine])])] if len(fine) else "none is right"
        name, f1 = names[chosen[i]], float(whole.quality[i, chosen[i]])
        verdict = "hopeless" if not len(fine) else "missed" if f1 < right else "right, dearer"
        verdict = "right, cheapest" if name == cheapest else verdict
        question, reply = found.table.outcomes.questions[i], replies[found.table.outcomes.ids[i], name]
        told = " / ".join(gold.get(question, ()))
        mark = marks.get((question, name), ("",))[0]
        lines.append((question, told, name, reply, f"{f1:.2f}", cheapest, verdict, mark))
    with replaced(run.folder / _JUDGED) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([_DECISION, *lines])
    short = [[" ".join(cell.split()).replace("|", "/")[:70] for cell in line] for line in lines]
    return [(head, list(cells)) for head, cells in zip(_DECISION, zip(*short, strict=True), strict=True)]


def _marks(run: StudyRun) -> dict[tuple[str, str], tuple[str, str]]:
    """Return (question, workflow) -> what was judged by hand, and the verdict by F1."""
    path = run.folder / _JUDGED
    if not path.is_file():
        return {}
    rows = list(csv.DictReader(io.StringIO(read_text(path))))
    if rows and (missing := [name for name in _DECISION if name not in rows[0]]):
        raise InputError(f"'{path}' lacks the column {missing[0]}: give it back, or delete the file")
    found = {
        (row["question"], row["workflow"]): (row["judged"].strip().lower(), row["of F1 >= .6"])
        for row in rows
    }
    if wrong := [mark for mark, _ in found.values() if mark not in ("", *_MARKS)]:
        raise InputError(f"'{path}': judged is {wrong[0]!r}: write yes or no, or leave it blank")
    return found


_MARKS = {"yes": 1.0, "no": 0.0}


@table("judged")
def _judged(run: StudyRun, given: Mapping[str, Any]) -> list[Column]:
    """What was judged by hand, and how far the verdict by F1 agrees."""
    known = [(_MARKS[mark], verdict) for mark, verdict in _marks(run).values() if mark]
    able = [float(mark == (verdict == "right, cheapest")) for mark, verdict in known if verdict != "hopeless"]
    shares = [mean_interval(values) if values else None for values in ([mark for mark, _ in known], able)]
    cells = [
        "\u2013" if one is None else "{mean:.0%} ({low:.0%} to {high:.0%})".format(**one) for one in shares
    ]
    heads = (
        f"decisions judged in {_JUDGED}",
        "right",
        "the verdict by F1 agrees, where any workflow is right",
    )
    return [(head, [cell]) for head, cell in zip(heads, (str(len(known)), *cells), strict=True)]
