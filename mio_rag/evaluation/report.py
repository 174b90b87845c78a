"""One run as one HTML page: quality against tokens, proofs, and every question behind the means.

The page opens offline: scripts, styles and data are inside it, and its content security policy forbids any
request. Question and passage text is untrusted: Python escapes what it writes as HTML, the browser gets the
rest as JSON and inserts it as text. Details of a question are a JSON line, parsed when it is opened.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from mio_rag.errors import require
from mio_rag.evaluation.markup import (
    between,
    escape,
    flat,
    number,
    p_value,
    percent,
    plain,
    plural,
    script_json,
)  # fmt: skip
from mio_rag.evaluation.rows import reading_column
from mio_rag.evaluation.statistics import FEW_QUESTIONS, lead_measures, notes, summarize_sets
from mio_rag.measures import Measure, evidence_measure, find_measure, page_measures, right

Record = Mapping[str, Any]
Key = tuple[str, int | None]  # method, budget_tokens

_QUOTES = "extractive"  # the reader that quotes a sentence

#: Interval and corrected p must both clear zero at this level before a difference is called clear.
_LEVEL = 0.05

#: Kinds of certificate, from the best, as the page names them.
_PROOFS = {
    "optimal": "Proven optimal", "bounded": "Feasible, with a bound", "feasible": "Feasible, no bound",
    "infeasible": "Infeasible", "no_solution": "No solution", "error": "Error", "none": "No certificate",
    "ranked": "Ranked, nothing to prove",
}  # fmt: skip
_VERDICTS = {
    "above": "above", "below": "below", "unclear": "not after correction", "none": "no clear difference"
}  # fmt: skip
#: What the footer shows, in this order.
_RUN_KEYS = (
    "dataset", "data_sha256", "generator", "embedder", "pool", "mode", "seed", "methods", "budgets",
    "baseline", "started", "finished", "seconds", "settings", "versions", "hardware",
)  # fmt: skip
#: Fields of a row that the page's index or its passages already hold.
_SHARED = ("decisions", "question", "question_type", "answers", "gold_ids", "selected_ids", "method")


def render_report(
    rows: Sequence[Record], summary: Sequence[Record], comparisons: Sequence[Record], run: Record
) -> str:
    """Return the report of a run as one self-contained HTML string; measures may be None or absent."""
    plotly = require("plotly", "evaluation", "the HTML report")
    report = _Report(*(plain(part) for part in (rows, summary, comparisons, run)))
    details, passages = _details_and_passages(report.rows)
    explained = [(m.label, m.meaning) for m in report.measures if m.page is not None]
    return Template(_asset("template.html")).substitute(
        title=escape(f"mio-rag report: {report.dataset}"),
        heading=escape(report.heading()),
        style=_asset("style.html"),
        plotly=plotly.offline.get_plotlyjs(),
        facts="".join(f"<div>{_defined(*fact)}</div>" for fact in _facts(report)),
        headlines="".join(f"<li>{escape(sentence)}</li>" for sentence in _headlines(report)),
        key="".join(
            f'<button type="button" class="chip" aria-pressed="true" data-method="{place}">'
            f"{report.swatch(name)}{' <small>baseline</small>' if name == report.baseline else ''}</button>"
            for name, place in report.place.items()
        ),
        summary=_summary_table(report),
        sets=_set_table(report),
        comparisons=_comparison_table(report),
        certificates=_certificate_table(report),
        measures="".join(_defined(*pair) for pair in explained),
        reproduce="".join(
            f"<tr><th scope='row'>{escape(name)}</th><td>{escape(flat(value))}</td></tr>"
            for name, value in _settings(report.run)
        ),
        data=script_json(_page_data(report)),
        details="\n".join(map(script_json, details)),
        passages="\n".join(map(script_json, passages)),
        script=_asset("script.html"),
        scroll=_asset("scroll.html"),
    )


def _defined(term: str, meaning: Any) -> str:
    return f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>"


def _asset(name: str) -> str:
    return resources.files("mio_rag").joinpath("data", "report", name).read_text(encoding="utf-8")


def _setting(record: Record) -> Key:
    return record["method"], record.get("budget_tokens")


def _measure_of(name: str) -> Measure:
    """Return the measure of that name; an unknown one is shown, but not judged."""
    unit = "seconds" if name.endswith("_seconds") else "tokens" if name.endswith("_tokens") else "number"
    label = name.replace("_", " ").capitalize()
    return find_measure(name) or Measure(name, label, "", "cost", "none", unit, "", page=None)


def _verdict(comparison: Record) -> str:
    """Return "above", "below", "none", or "unclear": only the interval excludes zero, not the corrected p."""
    low, high, q = comparison.get("low"), comparison.get("high"), comparison.get("q_value")
    if low is None or high is None or low <= 0 <= high:
        return "none"
    if q is not None and q > _LEVEL:
        return "unclear"
    return "above" if low > 0 else "below"


def _failed(row: Record) -> bool:
    return bool(row.get("error")) or row.get("status") == "error"


def _status(row: Record) -> str:
    """Return a key of `_PROOFS`; a feasible selection counts as bounded only with a gap."""
    found = row.get("status") or ("error" if row.get("error") else "none")
    if found == "feasible":
        return "bounded" if row.get("gap") is not None else "feasible"
    return found if found in _PROOFS else "none"


class _Report:
    """The four inputs, with orders and look-ups that every section shares."""

    def __init__(
        self, rows: list[Record], summary: list[Record], comparisons: list[Record], run: Record
    ) -> None:
        self.rows, self.summary, self.comparisons, self.run = rows, summary, comparisons, run
        everything = [*summary, *rows, *comparisons]
        named = dict.fromkeys([*(run.get("methods") or ()), *(record["method"] for record in everything)])
        self.methods = list(named)
        self.place: dict[str, int] = {method: place for place, method in enumerate(named)}
        budgets = {record.get("budget_tokens") for record in everything}
        self.budgets: list[int | None] = sorted(budgets, key=lambda b: (b is None, b or 0))
        tested = next((c.get("baseline") for c in comparisons), None)
        self.baseline: str | None = run.get("baseline") or tested
        self.baseline_name = self.baseline or "the baseline"
        self.dataset = str(run.get("dataset") or "an unnamed data set")
        stated = run.get("questions")
        self.questions = stated if isinstance(stated, int) else len({row["question_id"] for row in rows})
        self.points: dict[Key, Record] = {_setting(record): record for record in summary}
        self.paired: dict[tuple[Key, str], Record] = {(_setting(c), c["measure"]): c for c in comparisons}
        self.means: dict[str, dict[Key, float]] = {}  # measure -> setting -> mean, where it is defined
        for key, record in self.points.items():
            for name, value in record.items():
                if isinstance(value, dict) and value.get("mean") is not None:
                    self.means.setdefault(name, {})[key] = value["mean"]
        # First those that the page explains, then what else the summary holds.
        self.measures = [measure for measure in page_measures() if measure.name in self.means]
        self.measures += [m for m in map(_measure_of, self.means) if m.page is None]
        known = [[name for name in row if row[name] is not None] for row in rows]
        #: How much evidence was found, where the questions name it.
        self.evidence = evidence_measure([self.means, *known])
        #: Column of the tokens that were read.
        self.reading = reading_column([*summary, *rows])
        #: Whether a language model answered; quotes are not judged.
        self.answered = str(run.get("generator") or _QUOTES).split(":")[0] != _QUOTES
        spoken = [(m.page.headline, m) for m in self.measures if m.page and m.page.headline is not None]
        #: The measure of the headlines.
        self.primary: Measure | None = min(spoken, key=lambda pair: pair[0])[1] if spoken else None

    def mean(self, key: Key, measure: str) -> float | None:
        """Return the mean of a measure, None where it is undefined."""
        return self.means.get(measure, {}).get(key)

    def heading(self) -> str:
        """Return what was compared on what, in one line."""
        budgets = f" at {plural(len(self.budgets), 'token budget')}" if len(self.budgets) > 1 else ""
        questions = plural(self.questions, "question")
        return f"{plural(len(self.methods), 'method')}{budgets} on {questions} from {self.dataset}"

    def tone(self, method: str) -> tuple[str, int]:
        """Return colour variable and symbol number of a method; the baseline is neutral."""
        if method == self.baseline:
            return "--base", 0
        place = [name for name in self.methods if name != self.baseline].index(method)
        return f"--m{place % 8}", 1 + place

    def swatch(self, method: str) -> str:
        """Return the HTML of a method's name after its mark."""
        tone, symbol = self.tone(method)
        style = f'data-symbol="{symbol}" style="--c:var({tone})"'
        return f'<span class="dot" {style} aria-hidden="true"></span>{escape(method)}'


def _facts(report: _Report) -> list[tuple[str, Any]]:
    run = report.run
    facts = {
        "Data set": run.get("dataset"), "Questions": number(report.questions, "count"),
        "Passages": number(run["passages"], "count") if run.get("passages") is not None else None,
        "Generator": run.get("generator") or "none (retrieval only)", "Embedder": run.get("embedder"),
        "Pool": run.get("pool"), "Mode": run.get("mode"), "Baseline": report.baseline,
        "Seed": run.get("seed"),
    }  # fmt: skip
    return [(name, value) for name, value in facts.items() if value is not None]


def _settings(run: Record) -> Iterator[tuple[str, Any]]:
    """Yield everything that is needed to run it again, flattened to names and values."""
    for name in _RUN_KEYS:
        value = run.get(name)
        if isinstance(value, dict):
            yield from ((f"{name}: {key}", item) for key, item in value.items())
        elif value is not None:
            yield name.replace("_", " "), value


# Headlines --------------------------------------------------------------------------------------------------


def _headlines(report: _Report) -> list[str]:
    """Return a few statements that claim no more than the intervals allow."""
    told = notes(report.rows, report.summary, report.comparisons, report.run)
    sentences = [_best(report), _tally(report), _proven(report), *told, _failures(report)]
    if report.questions == 1:
        sentences.append("One question says nothing about others: read no interval here.")
    elif 0 < report.questions < FEW_QUESTIONS:
        sentences.append(f"With only {plural(report.questions, 'question')}, every interval here is rough.")
    return [sentence for sentence in sentences if sentence]


def _best(report: _Report) -> str:
    """Return the best setting, and what may be said of its difference from the baseline."""
    measure, name = report.primary, report.baseline_name
    if measure is None:
        return "No quality measure is defined for this run, so methods are not ranked."
    means = report.means[measure.name]
    best = max(means, key=lambda key: (means[key], -(report.mean(key, report.reading) or 0)))
    method, budget = best
    spread = between(report.points[best][measure.name])
    shared = sum(value == means[best] for value in means.values()) - 1
    tie = f" ({plural(shared, 'other setting')} reached the same mean)" if shared else ""
    interval = f", 95 % interval {spread}" if spread else ""
    at = "without a budget" if budget is None else f"at a budget of {number(budget, 'count')} tokens"
    label = measure.label[0].lower() + measure.label[1:]
    first = f"Highest mean {label}: {method} {at}, {number(means[best])}{interval}{tie}."
    comparison = report.paired.get((best, measure.name))
    if len(report.methods) < 2:
        return f"{first} Only one method was run, so there is nothing to compare it with."
    if method == report.baseline:
        return f"{first} That is the baseline itself."
    if comparison is None:
        return f"{first} Its difference from a baseline was not tested."
    found, q = _verdict(comparison), comparison.get("q_value")
    difference = number(comparison.get("difference"), signed=True)
    numbers = f"{difference}, 95 % interval {between(comparison, signed=True)}"
    if found == "none":
        return f"{first} No clear difference from {name} at the same budget ({numbers})."
    if found == "unclear":
        return (
            f"{first} The interval of its difference from {name} at the same budget excludes zero ({numbers})"
            f", but not after correction for the number of comparisons (p = {p_value(q)}): no clear "
            "difference."
        )
    corrected = "" if q is None else f", corrected p {'' if q < 0.001 else '= '}{p_value(q)}"
    return f"{first} That is {found} {name} at the same budget ({numbers}{corrected})."


def _tally(report: _Report) -> str:
    """Count all comparisons on the primary measure, since the best of many settings looks too good."""
    measure = report.primary
    tested = [c for c in report.comparisons if measure is not None and c["measure"] == measure.name]
    if measure is None or len(tested) < 2:
        return ""
    verdicts = Counter(map(_verdict, tested))
    above, below = verdicts["above"], verdicts["below"]
    return (
        f"Of {len(tested)} comparisons with {report.baseline_name} on {measure.label}, {above} "
        f"{'is' if above == 1 else 'are'} clearly above it, {below} clearly below, and "
        f"{len(tested) - above - below} show no clear difference."
    )


def _proven(report: _Report) -> str:
    # A controller that read nothing made no selection.
    asked = [row for row in report.rows if _status(row) not in ("none", "ranked")]
    programs = {row["method"] for row in asked if _status(row) != "error"}  # of a ranking, failures remain
    asked = [row for row in asked if row["method"] in programs]
    if not asked:
        return ""
    total = Counter(row["method"] for row in asked)
    optimal = Counter(row["method"] for row in asked if _status(row) == "optimal")
    proven = optimal.total()
    names = [f"{name} {optimal[name]} of {total[name]}" for name in report.methods if optimal[name]]
    text = f"{number(proven, 'count')} of {plural(len(asked), 'selection')} by optimization "
    text += f"{'is' if proven == 1 else 'are'} proven optimal"
    text += f" ({', '.join(names)})" if len(names) > 1 else ""
    gaps = [row["gap"] for row in asked if _status(row) == "bounded"]
    if gaps:
        text += f"; {len(gaps)} more carry a bound (median gap {percent(float(np.median(gaps)))})"
    return text + "."


def _failures(report: _Report) -> str:
    if not report.rows:
        count = sum(record.get("failed") or 0 for record in report.summary)
        return f"{plural(count, 'evaluation')} failed." if count else ""
    failures = [row for row in report.rows if _failed(row)]
    if not failures:
        return "No question failed."
    questions = len({row["question_id"] for row in failures})
    return (
        f"{plural(questions, 'question')} failed at least once ({len(failures)} of "
        f"{plural(len(report.rows), 'evaluation')}); failures are counted and listed below."
    )


# Tables -----------------------------------------------------------------------------------------------------


def _table(
    name: str, caption: str, columns: Sequence[tuple[str, str]], lines: Sequence[Sequence[str]]
) -> str:
    """Return a sortable table; `columns` are labels and CSS classes, `lines` the cells of each row."""
    heads = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{escape(label)}</button></th>'
        for label, kind in columns
    )
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table id="{name}" class="sortable">'
        f"<caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(shown: str, order: float | str | None, kind: str = "num") -> str:
    """Return a cell of HTML that sorts by `order`, and last where that is None."""
    value = "" if order is None else f' data-order="{escape(order)}"'
    return f'<td{value} class="{kind}">{shown}</td>'


def _count(count: int | None, kind: str = "num") -> str:
    return _cell(number(count, "count"), count, kind)


def _method(report: _Report, method: str) -> str:
    return f'<th scope="row" data-order="{report.place[method]}" class="name">{report.swatch(method)}</th>'


def _mean_cell(found: Record | None, measure: Measure, kind: str = "num") -> str:
    """Return a cell with a mean and its interval."""
    if found is None or found.get("mean") is None:
        return _cell(number(None), None, kind)
    mean = found["mean"]
    return _cell(f"{number(mean, measure.kind)}<small>{between(found, measure.kind)}</small>", mean, kind)


def _summary_table(report: _Report) -> str:
    """Method by budget."""
    if not report.summary:
        return '<p class="empty">No summary was given.</p>'
    kinds = [(measure, _measure_class(report, measure)) for measure in report.measures]
    columns = [("Budget", "num"), ("Method", "name"), *((one.label, kind) for one, kind in kinds)]
    lines = []
    for key in sorted(report.points, key=lambda key: (report.budgets.index(key[1]), report.place[key[0]])):
        record, failed = report.points[key], report.points[key].get("failed") or 0
        means = [_mean_cell(record.get(one.name), one, kind) for one, kind in kinds]
        counts = [_count(record.get("n")), _count(failed, "num warn" if failed else "num")]
        lines.append([_count(key[1]), _method(report, key[0]), *means, *counts])
    caption = "Mean and 95 % interval by method and budget"
    return _table("summary-table", caption, [*columns, ("n", "num"), ("Failed", "num")], lines)


def _measure_class(report: _Report, measure: Measure) -> str:
    """Return the class of columns shown at once: evidence, tokens, and answers that a model wrote."""
    judged = report.answered or measure.of not in ("answer", "choice", "run")
    core = measure.page is not None and measure.page.core
    # With controllers, the tokens read are the prompts of all calls.
    if report.reading != "tokens_used" and measure.name in ("tokens_used", report.reading):
        core = measure.name == report.reading
    return "num" if core and judged else "num more"


def _set_table(report: _Report) -> str:
    """Evidence and tokens of each question set; empty where there is one."""
    entries = summarize_sets(report.rows, int(report.run.get("seed") or 0))
    if not entries:
        return ""
    shown = [*lead_measures(entries), _measure_of(report.reading)]
    columns = [("Set", "name"), ("Budget", "num"), ("Method", "name"), ("n", "num")]
    columns += [(measure.label, "num") for measure in shown]
    names = list(dict.fromkeys(entry["dataset"] for entry in entries))
    lines = [
        [
            _cell(escape(entry["dataset"]), names.index(entry["dataset"]), "name"),
            *(_count(entry["budget_tokens"]), _method(report, entry["method"]), _count(entry["n"])),
            *(_mean_cell(entry.get(measure.name), measure) for measure in shown),
        ]
        for entry in entries
    ]
    table = _table("set-table", "Mean and 95 % interval by question set", columns, lines)
    return f"<h3>By question set</h3>{table}"


def _comparison_table(report: _Report) -> str:
    """Every paired difference from the baseline, and its verdict."""
    if not report.comparisons:
        return '<p class="empty">No comparison with a baseline was computed.</p>'
    columns = [("Measure", "name"), ("Budget", "num"), ("Method", "name"), ("n", "num")]
    columns += [("Difference", "num"), ("95 % interval", "num"), ("p", "num"), ("Corrected p (q)", "num")]
    lines = []
    for c in report.comparisons:
        measure, verdict = _measure_of(c["measure"]), _VERDICTS[_verdict(c)]
        difference, p, q = c.get("difference"), c.get("p_value"), c.get("q_value")
        lines.append([
            _cell(escape(measure.label), measure.label, "name"), _count(c.get("budget_tokens")),
            _method(report, c["method"]), _count(c.get("n")),
            _cell(number(difference, measure.kind, signed=True), difference),
            _cell(between(c, measure.kind, signed=True) or "–", c.get("low")),
            _cell(p_value(p), p), _cell(p_value(q), q), _cell(verdict, verdict, "name"),
        ])  # fmt: skip
    caption = f"Paired differences from {report.baseline_name}"
    return _table("comparison-table", caption, [*columns, ("Reading", "name")], lines)


def _certificate_table(report: _Report) -> str:
    """Per method, what was proven, and how far the rest can be from the optimum at most."""
    if not report.rows:
        return '<p class="empty">No rows were given, so there are no certificates to count.</p>'
    groups: dict[str, list[Record]] = defaultdict(list)
    for row in report.rows:
        groups[row["method"]].append(row)
    found = set(map(_status, report.rows))
    seen = [name for name in _PROOFS if name in found]
    columns = [("Method", "name"), ("Selections", "num"), ("Share", "name")]
    columns += [(_PROOFS[name], "num") for name in seen]
    columns += [("Median gap of the unproven", "num"), ("Largest gap", "num"), ("Median solver time", "num")]
    lines = []
    for method in sorted(groups, key=report.place.__getitem__):
        rows = groups[method]
        counts = Counter(map(_status, rows))
        strip = "".join(f'<i class="s-{n}" style="flex:{counts[n]}"></i>' for n in seen if counts[n])
        gaps = [row["gap"] for row in rows if _status(row) == "bounded"]
        seconds = [row["solve_seconds"] for row in rows if row.get("solve_seconds") is not None]
        median, largest, share = _median(gaps), max(gaps, default=None), counts["optimal"] / len(rows)
        lines.append([
            _method(report, method), _count(len(rows)),
            _cell(f'<span class="strip" aria-hidden="true">{strip}</span>', share, "name"),
            *(_cell(number(counts[n], "count") if counts[n] else "·", counts[n]) for n in seen),
            _cell(percent(median), median), _cell(percent(largest), largest),
            _cell(number(_median(seconds), "seconds"), _median(seconds)),
        ])  # fmt: skip
    return _table("certificate-table", "Certificates by method, all budgets together", columns, lines)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


# Data for the page's script ---------------------------------------------------------------------------------


def _page_data(report: _Report) -> dict[str, Any]:
    """Return the data of the charts and an index of the rows, small enough to be read at once."""
    first: dict[str, Record] = {}
    for row in report.rows:
        first.setdefault(row["question_id"], row)
    numbers = {question: i for i, question in enumerate(first)}
    quality = [m for m in report.measures if m.judged > 0]
    explained = page_measures()
    tones = {name: report.tone(name) for name in report.methods}
    context = ("generator", "embedder", "pool", "mode", "seed")
    tested = [c for c in report.comparisons if c.get("difference") is not None]
    return {
        "methods": [{"name": n, "tone": tone, "symbol": symbol} for n, (tone, symbol) in tones.items()],
        "budgets": report.budgets,
        "baseline": report.baseline,
        "reading": report.reading,
        "answered": report.answered,
        "primary": report.primary.name if report.primary else None,
        "quality": [m.name for m in quality],
        "measures": {m.name: {"label": m.label, "kind": m.kind} for m in [*explained, *report.measures]},
        "card": [m.name for m in explained if m.page is not None and m.page.card],
        "points": [
            {
                "method": report.place[key[0]],
                "budget": key[1],
                "n": record.get("n"),
                "failed": record.get("failed"),
                "values": {m.name: record[m.name] for m in report.measures if key in report.means[m.name]},
                "front": [m.name for m in quality if _is_undominated(report, key, m.name)],
            }
            for key, record in report.points.items()
        ],
        "comparisons": [
            {**c, "method": report.place[c["method"]], "clear": _verdict(c) in ("above", "below")}
            for c in tested
        ],
        "latency": _latency(report),
        "context": [f"{name}: {report.run[name]}" for name in context if report.run.get(name) is not None],
        "questions": [
            {
                "id": str(row["question_id"]),
                "text": row.get("question") or "",
                "type": row.get("question_type") or "",
                "answers": row.get("answers") or [],
                "gold": row.get("gold_ids") or [],
            }
            for row in first.values()
        ],
        "read": [None if r.get(report.reading) is None else int(r[report.reading]) for r in report.rows],
        "rows": [
            [
                numbers[row["question_id"]],
                report.place[row["method"]],
                report.budgets.index(row.get("budget_tokens")),
                _mark(report, row),
                int(_failed(row)),
                _evidence(report, row),
            ]
            for row in report.rows
        ],
    }


def _is_undominated(report: _Report, key: Key, measure: str) -> bool:
    """Whether no other setting has at least the quality for at most the tokens, and more of one."""
    quality, tokens = report.mean(key, measure), report.mean(key, report.reading)
    if quality is None or tokens is None:
        return False
    others = [(q, report.mean(other, report.reading)) for other, q in report.means[measure].items()]
    return not any(
        t is not None and q >= quality and t <= tokens and (q, t) != (quality, tokens) for q, t in others
    )


def _latency(report: _Report) -> list[dict[str, Any]]:
    """Return median and 95th percentile seconds of every stage, by method and budget."""
    groups: dict[Key, list[Record]] = defaultdict(list)
    for row in report.rows:
        groups[_setting(row)].append(row)
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


def _evidence(report: _Report, row: Record) -> float | None:
    """Return the share of its evidence that a question got."""
    value = None if report.evidence is None else row.get(report.evidence.name)
    return None if value is None else round(float(value), 4)


def _mark(report: _Report, row: Record) -> str:
    """Return r(ight), p(artly) or w(rong) for a model's answer; else a(ll), s(ome) or n(o) evidence found.

    "?": unknown.
    """
    overlap, found = row.get("token_f1"), _evidence(report, row)
    score = overlap if right(row) is None else right(row)
    if score is not None and report.answered:
        return "r" if score >= 1 else "p" if (overlap or 0) > 0 else "w"
    if found is None:
        return "?"
    return "a" if found >= 1 else "s" if found > 0 else "n"


def _details_and_passages(rows: Sequence[Record]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return one record per row, and the passages that they point to, each once."""
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
