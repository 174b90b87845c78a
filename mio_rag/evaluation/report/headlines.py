"""The sentences at the top of the report."""

from __future__ import annotations

from collections import Counter

import numpy as np

from mio_rag.evaluation.caution import FEW_QUESTIONS, PARTED, part_read, proven_yet_behind
from mio_rag.evaluation.methods import RANKING_SOLVERS
from mio_rag.evaluation.report.model import Key, Report, failed, status, verdict
from mio_rag.evaluation.report.text import at_budget, between, number, p_value, percent, plural
from mio_rag.measures import Measure, evidence_measure

__all__ = ["headlines"]


def headlines(report: Report) -> list[str]:
    """A few statements that claim no more than the intervals allow."""
    behind = proven_yet_behind(report.summary, report.comparisons)
    said = (
        _best(report), part_read(report.run), _tally(report), _proofs(report), *behind, _failures(report),
        _caution(report),
    )  # fmt: skip
    return [sentence for sentence in said if sentence]


def _best(report: Report) -> str:
    measure = report.primary
    if measure is None:
        return "No quality measure is defined for this run, so methods are not ranked."
    means = report.means[measure.name]
    if measure == evidence_measure(report.summary):  # which does not compare, of sentences
        means = {key: mean for key, mean in means.items() if key[0] not in PARTED} or means
    best = max(means, key=lambda key: (means[key], -(report.mean(key, report.reading) or 0)))
    spread = between(report.points[best][measure.name])
    label = measure.label[0].lower() + measure.label[1:]
    shared = sum(value == means[best] for value in means.values()) - 1
    tie = f" ({plural(shared, 'other setting')} reached the same mean)" if shared else ""
    interval = f", 95 % interval {spread}" if spread else ""
    return (
        f"Highest mean {label}: {best[0]} {at_budget(best[1])}, {number(means[best])}{interval}{tie}. "
        f"{_against_baseline(report, best, measure)}"
    )


def _against_baseline(report: Report, best: Key, measure: Measure) -> str:
    """What may be said of the best setting beside the baseline at the same budget."""
    if len(report.methods) < 2:
        return "Only one method was run, so there is nothing to compare it with."
    if best[0] == report.baseline:
        return "That is the baseline itself."
    comparison = report.paired.get((best, measure.name))
    if comparison is None:
        return "Its difference from a baseline was not tested."
    name, found, q = report.baseline_name(), verdict(comparison), comparison.get("q_value")
    difference = number(comparison.get("difference"), signed=True)
    numbers = f"{difference}, 95 % interval {between(comparison, signed=True)}"
    if found == "none":
        return f"No clear difference from {name} at the same budget ({numbers})."
    if found == "unclear":
        return (
            f"The interval of its difference from {name} at the same budget excludes zero ({numbers}), "
            f"but not after correction for the number of comparisons (p = {p_value(q)}): no clear difference."
        )
    corrected = "" if q is None else f", corrected p {'' if q < 0.001 else '= '}{p_value(q)}"
    return f"That is {found} {name} at the same budget ({numbers}{corrected})."


def _tally(report: Report) -> str:
    """All comparisons on the primary measure, since the best of many settings is a flattering choice."""
    measure = report.primary
    tested = [c for c in report.comparisons if measure is not None and c["measure"] == measure.name]
    if measure is None or len(tested) < 2:
        return ""
    verdicts = Counter(map(verdict, tested))
    above, below = verdicts["above"], verdicts["below"]
    return (
        f"Of {len(tested)} comparisons with {report.baseline_name()} on {measure.label}, {above} "
        f"{'is' if above == 1 else 'are'} clearly above it, {below} clearly below, and "
        f"{len(tested) - above - below} show no clear difference."
    )


def _proofs(report: Report) -> str:
    # A controller that read nothing asked for no selection.
    asked = [r for r in report.rows if r.get("solver") not in RANKING_SOLVERS and status(r) != "none"]
    if not asked:
        return ""
    total = Counter(row["method"] for row in asked)
    optimal = Counter(row["method"] for row in asked if status(row) == "optimal")
    proven = optimal.total()
    names = [f"{name} {optimal[name]} of {total[name]}" for name in report.methods if optimal[name]]
    text = f"{number(proven, 'count')} of {plural(len(asked), 'selection')} by optimization "
    text += f"{'is' if proven == 1 else 'are'} proven optimal"
    text += f" ({', '.join(names)})" if len(names) > 1 else ""
    gaps = [row["gap"] for row in asked if status(row) == "bounded"]
    if gaps:
        text += f"; {len(gaps)} more carry a bound (median gap {percent(float(np.median(gaps)))})"
    return text + "."


def _failures(report: Report) -> str:
    if not report.rows:
        count = sum(record.get("failed") or 0 for record in report.summary)
        return f"{plural(count, 'evaluation')} failed." if count else ""
    failures = [row for row in report.rows if failed(row)]
    if not failures:
        return "No question failed."
    questions = len({row["question_id"] for row in failures})
    return (
        f"{plural(questions, 'question')} failed at least once ({len(failures)} of "
        f"{plural(len(report.rows), 'evaluation')}); failures are counted and listed below."
    )


def _caution(report: Report) -> str:
    count = report.question_count()
    if count == 1:
        return "One question says nothing about others: read no interval here."
    if 0 < count < FEW_QUESTIONS:
        return f"With only {plural(count, 'question')}, every interval here is rough."
    return ""
