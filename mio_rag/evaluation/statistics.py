"""Statistics of ledger rows: means with intervals, paired comparisons, the first table of a run, warnings.

Intervals are 95 % percentile bootstrap over questions; a comparison resamples the *differences* of the same
questions. p-values come from sign-flip permutation tests and are corrected for the number of comparisons by
Benjamini and Hochberg's procedure (the q-values). All seeded.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.stats, which takes a second, on first use
from numpy.typing import NDArray

from mio_rag.evaluation.rows import is_parted, reading_column
from mio_rag.formulations.numbers import plural
from mio_rag.measures import Measure, compared_measures, evidence_measure, find_measure, measures, right
from mio_rag.methods import FITTING

RESAMPLES = 2000
_UNPROVABLE = (None, "ranked", "error")  # status of rows that ask for no proof

_NONE = "\u2013"

FloatArray = NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]


def mean_interval(values: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Return the mean with its 95 % bootstrap interval: {mean, low, high}; of one value, that value."""
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean())
    if data.size < 2 or np.all(data == data[0]):
        return {"mean": mean, "low": mean, "high": mean}
    # The draws of `scipy.stats.bootstrap`, without its checks, which cost more, for each of many measures.
    low, high = np.percentile(data[_resamples(data.size, seed)].mean(axis=1), [2.5, 97.5])
    return {"mean": mean, "low": float(low), "high": float(high)}


@functools.lru_cache(maxsize=2)  # every measure asks for the same
def _resamples(questions: int, seed: int) -> NDArray[np.int64]:
    """Return which questions each resample holds, shape (RESAMPLES, questions)."""
    found = np.random.default_rng(seed).integers(0, questions, size=(RESAMPLES, questions))
    found.flags.writeable = False
    return found


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], seed: int = 0
) -> dict[str, float | None] | None:
    """Return the ratio of the sums over the same questions with its interval; None if the divisor is 0.

    `high` is None where more than 2.5 % of the resamples are infinite.
    """
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if bottom.sum() <= 0:
        return None
    rows = _resamples(top.size, seed)
    sums = bottom[rows].sum(axis=1)
    ratios = np.full(RESAMPLES, np.inf)
    np.divide(top[rows].sum(axis=1), sums, out=ratios, where=sums > 0)
    # Both ends are resamples: nothing can be interpolated between a number and infinity.
    low, high = np.quantile(ratios, [0.025, 0.975], method="inverted_cdf")
    mean = float(top.sum() / bottom.sum())
    return {"mean": mean, "low": float(low), "high": float(high) if math.isfinite(high) else None}


# Means and paired comparisons -------------------------------------------------------------------------------


def _groups(rows: Rows) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], int(row["budget_tokens"])), []).append(row)
    return groups


def summarize(rows: Rows, seed: int = 0) -> list[dict[str, Any]]:
    """Return one entry per method and budget.

    {method, budget_tokens, n, failed, optimal_share, tokens_per_correct, <measure>: {mean, low, high}}

    Failed questions count: they score 0 where the measure is defined for the question. `tokens_per_correct`:
    tokens in and out of all questions with an accepted answer over the number answered right.
    """
    entries = []
    for (method, budget), group in _groups(rows).items():
        selected = [row for row in group if row.get("status") or row.get("error")]  # agents may read nothing
        proven = sum(row.get("status") == "optimal" for row in selected)
        unknown = all(row.get("status") in _UNPROVABLE for row in group)
        entry: dict[str, Any] = {
            "method": method,
            "budget_tokens": budget,
            "n": len(group),
            "failed": sum(bool(row.get("error")) for row in group),
            "optimal_share": None if unknown else proven / len(selected),
        }
        for name in (measure.name for measure in measures() if measure.of != "run"):
            values = [float(row[name]) for row in group if row.get(name) is not None]
            if values:
                entry[name] = mean_interval(values, seed)
                if len(values) < len(group):
                    entry[name]["n"] = len(values)
        asked = [row for row in group if right(row) is not None]
        if any(row.get("prompt_tokens") for row in asked):
            tokens = [
                float((row.get("prompt_tokens") or 0) + (row.get("completion_tokens") or 0)) for row in asked
            ]
            correct = [float(right(row) or 0.0) for row in asked]
            entry["tokens_per_correct"] = ratio_interval(tokens, correct, seed)
        entries.append(entry)
    return entries


def summarize_sets(rows: Rows, seed: int = 0) -> list[dict[str, Any]]:
    """`summarize` the rows of each question set, with its name as "dataset"; empty where there is one set."""
    sets: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("dataset") is not None:
            sets.setdefault(row["dataset"], []).append(row)
    return [{"dataset": name, **entry} for name, group in sets.items() for entry in summarize(group, seed)]


def compare_rows(rows: Rows, baseline: str, seed: int = 0) -> list[dict[str, Any]]:
    """Compare every method with the baseline; see `compare`.

    Compared are the measures that say so, the evidence found, and the tokens read (`reading_column`). Tokens
    of a question that a method read nothing for are left out, unless nothing answers it: that saves nothing.
    Gold passages found are not compared where single sentences may have been read; gold documents are.
    """
    reading = reading_column(rows)
    evidence = evidence_measure([name for name in row if row[name] is not None] for row in rows)
    names = [reading if measure.name == "tokens_used" else measure.name for measure in compared_measures()]
    names += [evidence.name] if evidence is not None and evidence.name not in names else []
    values: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    unread = _unread(rows)
    for key, group in _groups(rows).items():
        values[key] = {}
        for name in names:
            if name == "gold_recall" and is_parted(key[0]):
                continue
            known = [row for row in group if row.get(name) is not None]
            if name == reading:
                known = [row for row in known if (*key, row["question_id"]) not in unread]
            if known:
                values[key][name] = {row["question_id"]: float(row[name]) for row in known}
    return compare(values, baseline, seed)


def _unread(rows: Rows) -> set[tuple[str, int, str]]:
    """Return the rows without anything read for a question that may have an answer; none closed book."""
    if not any(row.get("tokens_used") for row in rows):
        return set()
    return {
        (row["method"], int(row["budget_tokens"]), row["question_id"])
        for row in rows
        if row.get("tokens_used") == 0 and row.get("question_type") != "unanswerable"
    }


def compare(
    values: Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]], baseline: str, seed: int = 0
) -> list[dict[str, Any]]:
    """Compare every method with the baseline at the same budget, over questions with both values.

    Keys: method, baseline, budget_tokens, measure, n, difference, low, high, p_value (two-sided), q_value
    (corrected over all rows of this list).
    """
    rows: list[dict[str, Any]] = []
    for (method, budget), by_measure in values.items():
        reference = values.get((baseline, budget))
        if method == baseline or reference is None:
            continue
        for measure, by_question in by_measure.items():
            other = reference.get(measure, {})
            shared = [q for q in by_question if q in other]
            if not shared:
                continue
            difference = np.array([by_question[q] - other[q] for q in shared])
            interval = mean_interval(difference.tolist(), seed)
            rows.append(
                {
                    "method": method, "baseline": baseline, "budget_tokens": budget, "measure": measure,
                    "n": len(shared), "difference": interval["mean"], "low": interval["low"],
                    "high": interval["high"], "p_value": _sign_flip(difference, seed),
                }
            )  # fmt: skip
    if rows:
        corrected = scipy.stats.false_discovery_control([r["p_value"] for r in rows], method="bh")
        for row, q in zip(rows, corrected, strict=True):
            row["q_value"] = float(q)
    return rows


def _sign_flip(difference: FloatArray, seed: int) -> float:
    """Return the two-sided p-value of a mean difference of zero, by flipping signs; zeros are left out."""
    moved = difference[difference != 0]
    if moved.size < 2:  # both signs are equally extreme
        return 1.0
    outcome = scipy.stats.permutation_test(
        (moved,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=4999,
        batch=max(1, 10**7 // moved.size),  # bounds the memory
        alternative="two-sided",
        rng=np.random.default_rng(seed),
    )
    return float(outcome.pvalue)


# The first table of a run -----------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of the first table.

    title: in lines.
    signs: 1 or -1 where a cell is clearly better or worse than the baseline.
    """

    title: str
    cells: tuple[str, ...]
    signs: tuple[int, ...] = ()
    left: bool = False


def lead_measures(summary: Rows) -> list[Measure]:
    """Return what is compared first: answers in the context, and the text of the evidence.

    Without labelled passages or quotes, the evidence found, which are documents.
    """
    found = {name for entry in summary for name in entry}
    known = [one for name in ("answer_in_context", "evidence_covered") if (one := find_measure(name))]
    leading = [measure for measure in known if measure.name in found]
    evidence = evidence_measure(summary)
    if evidence is not None and "evidence_covered" not in found:
        leading.append(evidence)
    return leading


def lead_table(summary: Rows, comparisons: Rows, baseline: str | None) -> list[Column]:
    """Return the columns that compare methods: what was found and read, and differences with intervals.

    Rows are those of the summary, in its order.
    """
    reading = reading_column(summary)
    rivals = baseline is not None and len({entry["method"] for entry in summary}) > 1
    found = {(c["method"], c["budget_tokens"], c["measure"]): c for c in comparisons}
    columns = [Column("method", tuple(entry["method"] for entry in summary), left=True)]
    if len({entry["budget_tokens"] for entry in summary}) > 1:
        columns.append(Column("budget", tuple(f"{entry['budget_tokens']}" for entry in summary)))

    def add(measure: str, title: str, form: str, scale: float, against: str, signed: str, sign: int) -> None:
        means = (form.format(scale * one[measure]["mean"]) if one.get(measure) else _NONE for one in summary)
        columns.append(Column(title, tuple(means)))
        cells, signs = [], []
        for entry in summary if rivals else ():
            cell, clear = "baseline" if entry["method"] == baseline else _NONE, 0
            one = found.get((entry["method"], entry["budget_tokens"], measure))
            if one is not None:
                ends = sorted(sign * scale * one[end] for end in ("low", "high"))
                shown = (_signless(signed, value) for value in (sign * scale * one["difference"], *ends))
                cell = "{} ({} to {})".format(*shown)
                clear = (ends[0] > 0) - (ends[1] < 0)
            cells.append(cell)
            signs.append(clear)
        if rivals:
            columns.append(Column(against, tuple(cells), tuple(signs)))

    for measure in lead_measures(summary):
        rate, words = measure.kind == "rate", measure.label.lower().split()
        half = (len(words) + 1) // 2  # titles are broken in the middle
        title = "\n".join(filter(None, (" ".join(words[:half]), " ".join(words[half:]))))
        against = f"against {baseline}\n({'points, ' * rate}95 % interval)"
        form, signed = ("{:.1f} %", "{:+.1f}") if rate else (measure.form, "{:+.3g}")
        add(measure.name, title, form, 100 if rate else 1, against, signed, 1)
    what = "tokens\nread" if reading == "tokens_used" else "prompt\ntokens"
    add(reading, what, "{:.0f}", 1, "tokens saved\n(95 % interval)", "{:.0f}", -1)
    return columns


def _signless(form: str, value: float) -> str:
    """Format a number; none that rounds to zero has a minus."""
    shown = form.format(value)
    return shown if any(digit in shown for digit in "123456789") else shown.replace("-", "+" * ("+" in form))


# Warnings ---------------------------------------------------------------------------------------------------


def notes(rows: Rows, summary: Rows, comparisons: Rows, run: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the first table must know."""
    found = [left_out(rows, summary), reading_nothing(rows), part_read(run, summary), by_twins(rows)]
    return [*filter(None, found), *proven_yet_behind(summary, comparisons), *too_few(summary, comparisons)]


#: With fewer questions, one moves a mean by more than most methods differ, and intervals are rough.
FEW_QUESTIONS = 30


def part_read(run: Mapping[str, Any], summary: Rows) -> str:
    """Return a note where evidence may be read in part, since sentences were chosen; else ""."""
    found = {name for entry in summary for name in entry if entry[name] is not None}
    if not {"gold_recall", "evidence_covered"} & found:
        return ""
    units = run.get("settings", {}).get("units", "auto")
    parted = [n for n in run.get("methods") or () if is_parted(n) and (n != FITTING or units != "passages")]
    if units != "sentences" and not parted:
        return ""
    named = f" (by {' and '.join(parted)})" if units != "sentences" else ""
    return (
        f'Where sentences are read{named}, "evidence found" counts a gold passage if any of it is read; '
        '"evidence text covered" counts how much of it is read.'
    )


def left_out(rows: Rows, summary: Rows) -> str:
    """Return a note with the questions for which nothing can be found, and why; else ""."""
    leading, counted = [measure.name for measure in lead_measures(summary)], set[Any]()
    of: dict[str, set[Any]] = {name: set() for name in leading}
    types: dict[Any, Any] = {}
    for row in rows:
        types[key := (row.get("dataset"), row["question_id"])] = row.get("question_type")
        for name in (name for name in leading if row.get(name) is not None):
            counted.add(key)
            of[name].add(key)
    without = ["unanswerable" if types[key] == "unanswerable" else "" for key in types if key not in counted]
    fewer = [(m.label, len({k for k in counted if k in of[m.name]})) for m in lead_measures(summary)]
    partly = "; ".join(f'"{label.lower()}" is over {n}' for label, n in fewer if n < len(counted))
    partly = f"Of {plural(len(counted), 'question')}, {partly}: the others have no such label." * bool(partly)
    if not without or not counted:
        return partly
    why = Counter(one or "without an answer or evidence to look for" for one in without)
    return (
        f"{len(without)} of {plural(len(types), 'question')} are left out of what is found: "
        f"{', '.join(f'{count} {one}' for one, count in why.items())}. {partly}".rstrip()
    )


def reading_nothing(rows: Rows) -> str:
    """Return a note with the questions that a method read nothing for; else ""."""
    counts = Counter((method, budget) for method, budget, _ in _unread(rows))
    named = [f"{m} at {counts[m, b]} ({b} tokens)" for m, b in _groups(rows) if counts[m, b]]
    if not named:
        return ""
    asked = len({row["question_id"] for row in rows})
    return (
        f"Nothing was read for some of {plural(asked, 'question')}: {', '.join(named)}. That counts as "
        'nothing found; "tokens saved" is over the other questions alone.'
    )


def by_twins(rows: Rows) -> str:
    """Return a note with the questions whose evidence was found in twins of gold passages; else ""."""
    named = {row["question_id"] for row in rows if row.get("gold_ids")}
    found = set()
    for row in rows:
        gold, recall = set(row.get("gold_ids") or ()), row.get("gold_recall")
        itself = len(gold & set(row.get("selected_ids") or ()))
        if recall is not None and itself < round(recall * len(gold)):
            found.add(row["question_id"])
    if not found:
        return ""
    return (
        "A near-duplicate, or a newer version, of a gold passage was read in its place, and counts as "
        f"found: by some method at {len(found)} of {plural(len(named), 'question')}."
    )


def behind(summary: Rows, comparisons: Rows) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    """Return, by setting, the comparisons in which a method is clearly below the baseline in what leads.

    Clearly: the paired 95 % interval of the difference lies below 0.
    """
    leading = {measure.name for measure in lead_measures(summary)}
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for one in comparisons:
        if one["measure"] in leading and one.get("high") is not None and one["high"] < 0:
            found.setdefault((one["method"], one["budget_tokens"]), []).append(one)
    return found


def proven_yet_behind(summary: Rows, comparisons: Rows) -> list[str]:
    """Return a sentence for every method that is proven optimal and clearly below the baseline."""
    below = behind(summary, comparisons)
    by_name = {measure.name: measure for measure in lead_measures(summary)}
    parts: dict[tuple[str, str, str], list[str]] = {}
    for entry in summary:
        proven = entry.get("optimal_share")
        for one in below.get((entry["method"], entry["budget_tokens"]), ()) if proven else ():
            measure = by_name[one["measure"]]
            scale, unit = (100, " points") if measure.kind == "rate" else (1, "")
            less, low, high = (abs(scale * one[end]) for end in ("difference", "high", "low"))
            parts.setdefault((entry["method"], measure.label.lower(), one["baseline"]), []).append(
                f"{less:.1f}{unit} less ({low:.1f} to {high:.1f}) at {entry['budget_tokens']} tokens, with "
                f"{proven:.0%} of its selections proven optimal"
            )
    return [
        f"{method} is clearly below {baseline} in {label}: {'; '.join(texts)}. The proof is about the "
        "program, not about the evidence: nothing scores higher by these settings, yet they ask for other "
        "passages than the questions need. Try another preset or policy, relevance fitted on your questions "
        "(mio-rag policy fit relevance), or a larger budget."
        for (method, label, baseline), texts in parts.items()
    ]


def too_few(summary: Rows, comparisons: Rows) -> list[str]:
    """Return a warning where too few questions are labelled to compare methods."""
    leading = {measure.name for measure in lead_measures(summary)}
    asked = max((int(c["n"]) for c in comparisons if c["measure"] in leading), default=0)
    if not 0 < asked < FEW_QUESTIONS:
        return []
    return [
        f"with {plural(asked, 'question')} methods cannot be told apart: one more that is found moves a mean "
        f"by {100 / asked:.0f} points. Run {FEW_QUESTIONS} or more before relying on a difference."
    ]
