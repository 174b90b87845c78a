"""One run as one HTML page: quality against tokens, what is proven, and every question behind the means.

The page opens offline: scripts, styles and data are inside it, and its content security policy forbids any
request. Question and passage text is foreign: Python escapes what it writes as HTML, the browser gets the
rest as JSON and inserts it as text. Per-question details are one JSON line each, read only when a question is
opened, so that thousands of rows cost nothing until they are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

from mio_rag.errors import require
from mio_rag.evaluation.report.data import details_and_passages, page_data
from mio_rag.evaluation.report.headlines import headlines
from mio_rag.evaluation.report.model import Record, Report
from mio_rag.evaluation.report.tables import (
    certificate_table,
    comparison_table,
    set_table,
    summary_table,
    swatch,
)
from mio_rag.evaluation.report.text import escape, flat, number, plain, script_json

__all__ = ["render_report"]

#: What the footer shows, in this order.
_RUN_KEYS = (
    "dataset", "data_sha256", "generator", "embedder", "pool", "mode", "seed", "methods", "budgets",
    "baseline", "started", "finished", "seconds", "settings", "versions", "hardware",
)  # fmt: skip


def render_report(
    rows: Sequence[Record], summary: Sequence[Record], comparisons: Sequence[Record], run: Record
) -> str:
    """The report as one self-contained HTML string.

    Parameters
    ----------
    rows : sequence of mappings
        One per question, method and budget. Measures may be None or absent. May be empty.
    summary : sequence of mappings
        One per method and budget; each measure is ``{"mean", "low", "high"}`` or None.
    comparisons : sequence of mappings
        One per method, budget and measure: the paired difference from the baseline. May be empty.
    run : mapping
        What was compared on what; see the page's footer for the keys it shows.

    Raises
    ------
    MissingExtraError
        If plotly is not installed.
    """
    plotly = require("plotly", "evaluation", "the HTML report")
    report = Report(*(plain(part) for part in (rows, summary, comparisons, run)))
    details, passages = details_and_passages(report.rows)
    return Template(_asset("template.html")).substitute(
        title=escape(f"mio-rag report: {report.dataset()}"),
        heading=escape(report.heading()),
        style=_asset("style.html"),
        plotly=plotly.offline.get_plotlyjs(),
        facts=_facts(report),
        headlines="".join(f"<li>{escape(sentence)}</li>" for sentence in headlines(report)),
        key=_method_key(report),
        summary=summary_table(report),
        sets=set_table(report),
        comparisons=comparison_table(report),
        certificates=certificate_table(report),
        measures="".join(
            f"<dt>{escape(m.label)}</dt><dd>{escape(m.meaning)}</dd>"
            for m in report.measures
            if m.page is not None
        ),
        reproduce=_reproduce(report.run),
        data=script_json(page_data(report)),
        details="\n".join(map(script_json, details)),
        passages="\n".join(map(script_json, passages)),
        script=_asset("script.html"),
        scroll=_asset("scroll.html"),
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _facts(report: Report) -> str:
    run = report.run
    facts = {
        "Data set": run.get("dataset"),
        "Questions": report.question_count(),
        "Passages": run.get("passages"),
        "Generator": run.get("generator") or "none (retrieval only)",
        "Embedder": run.get("embedder"),
        "Pool": run.get("pool"),
        "Mode": run.get("mode"),
        "Baseline": report.baseline,
        "Seed": run.get("seed"),
    }
    shown = {
        name: number(v, "count") if isinstance(v, int) and name != "Seed" else v for name, v in facts.items()
    }
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in shown.items()
        if value is not None
    )


def _method_key(report: Report) -> str:
    return "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-method="{place}">'
        f"{swatch(report, method)}{' <small>baseline</small>' if method == report.baseline else ''}</button>"
        for method, place in report.place.items()
    )


def _reproduce(run: Record) -> str:
    """Everything that is needed to run it again, flattened to name and value."""
    lines: list[tuple[str, Any]] = []
    for name in _RUN_KEYS:
        value = run.get(name)
        if isinstance(value, dict):
            lines += [(f"{name}: {key}", item) for key, item in value.items()]
        elif value is not None:
            lines.append((name.replace("_", " "), value))
    return "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(flat(value))}</td></tr>" for name, value in lines
    )
