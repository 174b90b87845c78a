"""The tables of the report: means, paired differences, certificates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from mio_rag.evaluation.methods import RANKING_SOLVERS
from mio_rag.evaluation.report.model import (
    STATUSES,
    Key,
    Record,
    Report,
    measure_of,
    status,
    verdict,
)
from mio_rag.evaluation.report.text import between, escape, number, p_value, percent
from mio_rag.evaluation.summary import summarize_sets
from mio_rag.measures import Measure, find_measure

__all__ = ["certificate_table", "comparison_table", "set_table", "summary_table", "swatch"]

_PROOFS = {**STATUSES, "ranking": "Ranked, nothing to prove"}
_READINGS = {
    "above": "above",
    "below": "below",
    "unclear": "not after correction",
    "none": "no clear difference",
}


def swatch(report: Report, method: str) -> str:
    """A method's name behind its mark."""
    tone, symbol = report.tone(method)
    dot = f'<span class="dot" data-symbol="{symbol}" style="--c:var({tone})" aria-hidden="true"></span>'
    return dot + escape(method)


def _table(name: str, caption: str, columns: Sequence[tuple[str, str]], lines: Sequence[str]) -> str:
    """A sortable table; `columns` are labels and CSS classes, `lines` the inner HTML of each row."""
    heads = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{escape(label)}</button></th>'
        for label, kind in columns
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table id="{name}" class="sortable">'
        f"<caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(shown: str, order: float | str | None, kind: str = "num") -> str:
    """A cell of HTML that sorts by `order`, and last where that is None."""
    value = "" if order is None else f' data-order="{escape(order)}"'
    return f'<td{value} class="{kind}">{shown}</td>'


def _count_cell(count: int | None) -> str:
    return _cell(number(count, "count"), count)


def _method_cell(report: Report, method: str) -> str:
    place = report.place[method]
    return f'<th scope="row" data-order="{place}" class="name">{swatch(report, method)}</th>'


# Means -----------------------------------------------------------------------------------------------------


def summary_table(report: Report) -> str:
    """Method by budget; a mean is emphasised only where it is clearly the best of its budget."""
    if not report.summary:
        return '<p class="empty">No summary was given.</p>'
    best = {(key, measure.name) for measure in report.measures for key in _clear_best(report, measure)}
    columns = [("Budget", "num"), ("Method", "name")]
    columns += [(measure.label, _measure_class(report, measure)) for measure in report.measures]
    columns += [("n", "num"), ("Failed", "num")]
    ordered = sorted(report.points, key=lambda key: (report.budgets.index(key[1]), report.place[key[0]]))
    lines = [_summary_line(report, key, best) for key in ordered]
    return _table("summary-table", "Mean and 95 % interval by method and budget", columns, lines)


def set_table(report: Report) -> str:
    """Evidence and tokens of each question set; empty where there is one."""
    entries = summarize_sets(report.rows, int(report.run.get("seed") or 0))
    if not entries:
        return ""
    wanted = (report.evidence, find_measure("all_gold"), report.primary if report.answered else None)
    held = {name for entry in entries for name in entry}
    shown = list({m.name: m for m in wanted if m is not None and m.name in held}.values())
    shown.append(measure_of(report.reading))
    columns = [("Set", "name"), ("Budget", "num"), ("Method", "name"), ("n", "num")]
    columns += [(measure.label, "num") for measure in shown]
    names = list(dict.fromkeys(entry["dataset"] for entry in entries))
    lines = []
    for entry in entries:
        cells = [_cell(escape(entry["dataset"]), names.index(entry["dataset"]), "name")]
        cells += [_count_cell(entry["budget_tokens"]), _method_cell(report, entry["method"])]
        cells.append(_count_cell(entry["n"]))
        for measure in shown:
            of = entry.get(measure.name)
            mean = None if of is None else of["mean"]
            spread = "" if of is None else f"<small>{between(of, measure.kind)}</small>"
            cells.append(_cell(number(mean, measure.kind) + spread, mean))
        lines.append("".join(cells))
    return "<h3>By question set</h3>" + _table(
        "set-table", "Mean and 95 % interval by question set", columns, lines
    )


def _measure_class(report: Report, measure: Measure) -> str:
    """What is shown at once: evidence and tokens, and of answers what a language model wrote."""
    judged = report.answered or measure.of not in ("answer", "choice", "run")
    core = measure.page is not None and measure.page.core
    # Beside controllers, what they read is the prompts of all calls.
    if report.reading != "tokens_used" and measure.name in ("tokens_used", report.reading):
        core = measure.name == report.reading
    return "num" if core and judged else "num more"


def _summary_line(report: Report, key: Key, best: set[tuple[Key, str]]) -> str:
    record, (method, budget) = report.points[key], key
    failed = record.get("failed") or 0
    cells = [_count_cell(budget), _method_cell(report, method)]
    for measure in report.measures:
        mean = report.mean(key, measure.name)
        shown = number(mean, measure.kind)
        if (key, measure.name) in best:
            shown = f'<strong title="clearly the best at this budget">{shown}</strong>'
        if mean is not None:
            shown += f"<small>{between(record[measure.name], measure.kind)}</small>"
        cells.append(_cell(shown, mean, _measure_class(report, measure)))
    cells.append(_count_cell(record.get("n")))
    cells.append(_cell(number(failed, "count"), failed, "num warn" if failed else "num"))
    return "".join(cells)


def _clear_best(report: Report, measure: Measure) -> list[Key]:
    """Per budget, the setting that beats every other one clearly, if there is one."""
    if measure.judged == 0:
        return []
    found = []
    for budget in report.budgets:
        means = {key: measure.judged * m for key, m in report.means[measure.name].items() if key[1] == budget}
        if len(means) > 1:
            best = max(means, key=lambda key: means[key])
            if all(_clearly_better(report, measure, best, key) for key in means if key != best):
                found.append(best)
    return found


def _clearly_better(report: Report, measure: Measure, one: Key, other: Key) -> bool:
    """By the paired comparison where one of the two is the baseline, else by intervals that do not touch."""
    up, down = ("above", "below") if measure.judged > 0 else ("below", "above")
    for key, against, wanted in ((one, other, up), (other, one, down)):
        comparison = report.paired.get((key, measure.name))
        if comparison is not None and against[0] == report.baseline:
            return verdict(comparison) == wanted
    first, second = report.points[one][measure.name], report.points[other][measure.name]
    upper, lower = (first, second) if measure.judged > 0 else (second, first)
    low, high = upper.get("low"), lower.get("high")
    return low is not None and high is not None and low > high


# Paired differences ----------------------------------------------------------------------------------------


def comparison_table(report: Report) -> str:
    """Every paired difference from the baseline, and how to read it."""
    if not report.comparisons:
        return '<p class="empty">No comparison with a baseline was computed.</p>'
    columns = [
        ("Measure", "name"),
        ("Budget", "num"),
        ("Method", "name"),
        ("n", "num"),
        ("Difference", "num"),
    ]
    columns += [("95 % interval", "num"), ("p", "num"), ("Corrected p (q)", "num"), ("Reading", "name")]
    lines = [_comparison_line(report, c) for c in report.comparisons]
    return _table("comparison-table", f"Paired differences from {report.baseline_name()}", columns, lines)


def _comparison_line(report: Report, comparison: Record) -> str:
    measure, reading = measure_of(comparison["measure"]), _READINGS[verdict(comparison)]
    difference = comparison.get("difference")
    p, q = comparison.get("p_value"), comparison.get("q_value")
    cells = (
        _cell(escape(measure.label), measure.label, "name"),
        _count_cell(comparison.get("budget_tokens")),
        _method_cell(report, comparison["method"]),
        _count_cell(comparison.get("n")),
        _cell(number(difference, measure.kind, signed=True), difference),
        _cell(between(comparison, measure.kind, signed=True) or "–", comparison.get("low")),
        _cell(p_value(p), p),
        _cell(p_value(q), q),
        _cell(reading, reading, "name"),
    )
    return "".join(cells)


# Certificates ----------------------------------------------------------------------------------------------


def certificate_table(report: Report) -> str:
    """Per method, what was proven, and how far the rest can be from the optimum at most."""
    if not report.rows:
        return '<p class="empty">No rows were given, so there are no certificates to count.</p>'
    groups: dict[str, list[Record]] = defaultdict(list)
    for row in report.rows:
        groups[row["method"]].append(row)
    found = set(map(_proof, report.rows))
    seen = [name for name in _PROOFS if name in found]
    columns = [("Method", "name"), ("Selections", "num"), ("Share", "name")]
    columns += [(_PROOFS[name], "num") for name in seen]
    columns += [("Median gap of the unproven", "num"), ("Largest gap", "num"), ("Median solver time", "num")]
    ordered = sorted(groups, key=report.place.__getitem__)
    lines = [_certificate_line(report, method, groups[method], seen) for method in ordered]
    return _table("certificate-table", "Certificates by method, all budgets together", columns, lines)


def _proof(row: Record) -> str:
    """The kind of certificate; a ranking has none: its gap is to the optimum of its own score."""
    found = status(row)
    ranks = row.get("solver") in RANKING_SOLVERS and found in ("optimal", "bounded", "feasible")
    return "ranking" if ranks else found


def _certificate_line(report: Report, method: str, rows: Sequence[Record], seen: Sequence[str]) -> str:
    counts = Counter(map(_proof, rows))
    strip = "".join(f'<i class="s-{name}" style="flex:{counts[name]}"></i>' for name in seen if counts[name])
    strip = f'<span class="strip" aria-hidden="true">{strip}</span>'
    gaps = [row["gap"] for row in rows if _proof(row) == "bounded"]
    median, largest = (float(np.median(gaps)), max(gaps)) if gaps else (None, None)
    seconds = [row["solve_seconds"] for row in rows if row.get("solve_seconds") is not None]
    spent = float(np.median(seconds)) if seconds else None
    cells = (
        _method_cell(report, method),
        _count_cell(len(rows)),
        _cell(strip, counts["optimal"] / len(rows), "name"),
        *(_cell(number(counts[name], "count") if counts[name] else "·", counts[name]) for name in seen),
        _cell(percent(median), median),
        _cell(percent(largest), largest),
        _cell(number(spent, "seconds"), spent),
    )
    return "".join(cells)
