"""The frontier of a data set as one HTML page: hover over a setting to see its selection for a question.

The page opens offline: scripts, styles and data are inside it, and its content security policy forbids any
request. Question and passage text is untrusted: it is embedded as JSON and inserted as text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import require
from mio_rag.evaluation.markup import escape, number, plain, plural, script_json, shortened
from mio_rag.measures import Use, frontier_measures
from mio_rag.types import Question

_MOST_QUESTIONS = 60  # whose selections the page holds, spread evenly over the set


def render_page(
    data: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    dataset: Dataset,
    questions: Sequence[Question],
    deciding: str,
    picture: bytes | None = None,
) -> str:
    """Return the page as one self-contained string.

    data: as in frontier.json.
    rows: every question at every point.
    deciding: measures that decide, with tokens, what is on the frontier.
    picture: a PNG of the curve over prices.
    """
    plotly = require("plotly", "evaluation", "the frontier page")
    run, points = data["run"], data["points"]
    shown = list(questions)[:: max(1, -(-len(questions) // _MOST_QUESTIONS))]
    report, here = resources.files("mio_rag") / "data" / "report", resources.files("mio_rag.frontier")
    facts = {
        "Data set": run["dataset"],
        "Questions": number(run["questions"], "count"),
        "Settings": len(points),
        "Certified": sum(p["certified"] for p in points),
        "Embedder": run["embedder"],
        "Reader": run["generator"] or "none",
        "Reference radius": run["settings"]["reference_radius"],
    }
    return Template(here.joinpath("page_template.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"mio-rag frontier: {run['dataset']}"),
        heading=escape(f"What each setting reads: {run['dataset']}"),
        style=report.joinpath("style.html").read_text(encoding="utf-8"),
        facts="".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items()),
        deciding=escape(deciding or "nothing else"),
        price=_price_section(data, picture),
        sentence=escape(_sentence(data.get("operating_point"))),
        plotly=plotly.offline.get_plotlyjs(),
        data=script_json(plain(_page_data(data, rows, dataset, shown))),
        scroll=report.joinpath("scroll.html").read_text(encoding="utf-8"),
        script=here.joinpath("page_script.html").read_text(encoding="utf-8"),
    )


def _price_section(data: Mapping[str, Any], picture: bytes | None) -> str:
    """The curve over prices as a picture; nothing without it. The figures are in frontier.json."""
    if picture is None or "price" not in data:
        return ""
    image = base64.b64encode(picture).decode()
    return (
        '<section aria-labelledby="h-price"><h2 id="h-price">One price for every token</h2>'
        '<p class="lead">Each question reads what is worth the price of a token, at most '
        f"{data['price']['ceiling']} tokens, against the same program under one budget for all.</p>"
        f'<img alt="Evidence against mean tokens" style="max-width:100%" src="data:image/png;base64,{image}">'
        "</section>"
    )


def _sentence(chosen: Mapping[str, Any] | None) -> str:
    """The operating point in words."""
    if chosen is None:
        return "No operating point: there are no labels, or no setting is certified."
    text = f"Operating point ({chosen['rule']}): {chosen['name']}, budget {chosen['budget_tokens']}."
    held = chosen["held_out"]
    if held is None:
        return text
    gain, cost = held[chosen["coverage"]], held["tokens_used"]
    return (
        f"{text} The rule on held-out questions: evidence found {number(gain['mean'])} "
        f"({number(gain['low'])} to {number(gain['high'])}) at {cost['mean']:.0f} tokens, "
        f"{plural(held['n'], 'question')}."
    )


def _page_data(
    data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], dataset: Dataset, shown: Sequence[Question]
) -> dict[str, Any]:
    """Points, questions, what each reads where, and each passage once."""
    points, known = data["points"], frontier_measures(Use.POINT)
    place = {(p["name"], p["budget_tokens"]): k for k, p in enumerate(points)}
    texts = {p.id: p for p in dataset.passages}
    order: dict[str, int] = {}
    picks: dict[str, list[Any]] = {q.id: [None] * len(points) for q in shown}
    for row in rows:
        if row["question_id"] not in picks:
            continue
        picks[row["question_id"]][place[row["method"], row["budget_tokens"]]] = {
            "read": [order.setdefault(i, len(order)) for i in row["selected_ids"]],
            "relevance": row["relevance"],
            "tokens": row["tokens_used"],
            "status": row["status"],
            "gap": row["gap"],
            "answer": row.get("answer"),
            "error": row.get("error"),
            "values": {m.name: row[m.name] for m in known if row.get(m.name) is not None},
        }
    chosen = data.get("operating_point")
    return {
        "points": points,
        "chosen": None if chosen is None else place[chosen["name"], chosen["budget_tokens"]],
        "measures": {
            m.name: m.frontier.label or m.label for m in known if any(m.name in p["measures"] for p in points)
        },
        "questions": [
            {"id": q.id, "text": q.text, "answers": q.answers, "gold": q.gold_ids, "picks": picks[q.id]}
            for q in shown
        ],
        "passages": [
            {"id": i, "title": texts[i].title, "source": texts[i].source, "text": shortened(texts[i].text)}
            for i in order
        ],
    }
