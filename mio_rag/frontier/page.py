"""A frontier as pictures, and that of a data set as one HTML page, where a setting shows its selections.

The page opens offline: scripts, styles and data are inside it, and its content security policy forbids any
request. Question and passage text is untrusted: it is embedded as JSON and inserted as text.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import require
from mio_rag.evaluation.markup import escape, number, plain, plural, script_json, shortened
from mio_rag.measures import Use, frontier_measures
from mio_rag.pictures import label_points, save_figure, set_title
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


_FRONT, _REST = "#0072b2", "#9aa1a8"


def _figure(width: float, height: float) -> Any:
    library = require("matplotlib.figure", "evaluation", "plotting a frontier")
    return library.Figure(figsize=(width, height), layout="constrained")


def _bars(points: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Lengths below and above each mean."""
    return [[p["mean"] - p["low"] for p in points], [p["high"] - p["mean"] for p in points]]


def plot_query(data: Mapping[str, Any], path: Path) -> None:
    """Draw what `QueryFrontier.to_dict` returns."""
    figure = _figure(9, 8)
    above, middle, below = figure.subplots(3, 1)
    if steps := data["budget"]["steps"]:
        edges = [step["tokens"] for step in steps] + [steps[-1]["until"]]
        above.stairs([s["value"] for s in steps], edges, baseline=None, color=_FRONT, label="value")
        bounds = [float("nan") if s["bound"] is None else s["bound"] for s in steps]
        above.stairs(bounds, edges, baseline=None, color=_REST, ls=":", label="bound")
        hull = [(s["tokens"], s["value"]) for s in steps if s["supported"]]
        above.plot(*zip(*hull, strict=True), "o", ms=4, color=_FRONT, label="worth a price per token")
    above.axvline(data["budget_tokens"], color="black", lw=0.8)
    above.set(xlabel="token budget", ylabel="best value")
    above.legend(frameon=False)
    if pieces := data["penalty"]["pieces"]:
        end = 1.15 * max(pieces[-1]["low"], data["settings"]["passage_penalty"], 1e-9)
        edges = [p["low"] for p in pieces] + [end]
        middle.stairs([p["passages"] for p in pieces], edges, baseline=None, color=_FRONT)
    middle.axvline(data["settings"]["passage_penalty"], color="black", lw=0.8)
    middle.set(xlabel="passage penalty (lambda_2)", ylabel="passages")
    spots: dict[tuple[float, float], list[str]] = {}
    for kept, colour, label in ((False, _REST, "dominated or not proven"), (True, _FRONT, "frontier")):
        points = [p for p in data["grid"] if p["frontier"] is kept]
        x, y = ([p[name] for p in points] for name in ("redundancy", "guaranteed"))
        below.plot(x, y, "o", color=colour, label=label)
    for p in data["grid"]:
        names = spots.setdefault((round(p["redundancy"], 9), round(p["guaranteed"], 9)), [])
        names.append(f"({p['redundancy_weight']:g}, {p['radius']:g})")
    below.set(
        xlabel="redundancy: sum of cosines (less is better); beside points: (lambda_1, rho)",
        ylabel="guaranteed value",
    )
    below.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
    set_title(figure, data["question"] or "frontier")
    best_first = sorted(spots.items(), key=lambda item: -item[0][1])
    left_out = label_points(
        below,
        [(spot, f"{first} and {len(rest)} more" if rest else first) for spot, (first, *rest) in best_first],
    )
    if left_out:
        below.set_xlabel(f"{below.get_xlabel()}, no room for {left_out}")
    save_figure(figure, path)


def plot_data(data: Mapping[str, Any], path: Path) -> None:
    """Draw a data set's frontier: each measure against mean tokens, with 95 % intervals.

    Filled points are best for their tokens: no other certified one is as good for as few. Crosses are not
    certified.
    """
    points = data["points"]
    shown = [m for m in frontier_measures(Use.PLOT) if any(m.name in p["measures"] for p in points)]
    figure = _figure(9, 3 * max(1, len(shown)))
    axes = figure.subplots(max(1, len(shown)), 1, squeeze=False, sharex=True)[:, 0]
    for axis, measure in zip(axes, shown, strict=False):
        name = measure.name
        measured = [p for p in points if name in p["measures"]]
        for point in measured:
            value, tokens, front = point["measures"][name], point["measures"]["tokens_used"], point["front"]
            best = name in front
            axis.errorbar(
                tokens["mean"], value["mean"], xerr=_bars([tokens]), yerr=_bars([value]),
                fmt="o" if point["certified"] else "x", color=_FRONT if best else _REST,
                mfc=_FRONT if best else "none", elinewidth=0.5, zorder=3 if best else 2,
            )  # fmt: skip
        ends = [p["measures"][name][end] for p in measured for end in ("low", "high")]
        if min(ends) >= 0 and max(ends) <= 1 and max(ends) - min(ends) < 0.02:
            axis.set_ylim(-0.05, 1.05)  # equal shares: not a picture of their rounding
        # A registered measure may have any label.
        label = "\n".join(textwrap.wrap(measure.label, 30, max_lines=2, placeholder=" \u2026"))
        axis.set_ylabel(label, parse_math=False)
        fronts = [p["measures"] for p in points if name in p["front"]]
        line = sorted((found["tokens_used"]["mean"], found[name]["mean"]) for found in fronts)
        axis.plot([x for x, _ in line], [y for _, y in line], color=_FRONT, lw=1)
    axes[-1].set_xlabel(
        "context tokens, mean per question; filled: best for its tokens, cross: not certified"
    )
    run = data["run"]
    set_title(figure, f"{run['dataset']}: {run['questions']} questions, {len(points)} settings")
    save_figure(figure, path)


def plot_price(data: Mapping[str, Any], title: str, path: Path) -> None:
    """Draw what `mio_rag.frontier.dataset.price_curve` returns: two curves, with 95 % intervals."""
    figure = _figure(10, 4.5)
    panels = figure.subplots(1, 2)
    labels = {"evidence": "evidence found", "everything": "share of questions with all evidence"}
    curves = (
        ("prices", "token_price", _FRONT, "one price of a token for all"),
        ("budgets", "budget_tokens", _REST, "one budget for all"),
    )
    placed = []
    for panel, (measure, label) in zip(panels, labels.items(), strict=True):
        spots: list[tuple[tuple[float, float], str]] = []
        for kind, setting, colour, name in curves:
            points = [p for p in data[kind] if p[measure] is not None]
            points.sort(key=lambda p: p["tokens"]["mean"])
            if not points:
                continue
            tokens, values = [p["tokens"] for p in points], [p[measure] for p in points]
            x, y = ([one["mean"] for one in found] for found in (tokens, values))
            style = {"marker": "o", "ms": 4, "color": colour, "elinewidth": 0.6, "label": name}
            panel.errorbar(x, y, xerr=_bars(tokens), yerr=_bars(values), **style)
            spots += [(at, f"{p[setting]:g}") for p, at in zip(points, zip(x, y, strict=True), strict=True)]
        panel.set(xlabel="context tokens, mean per question", ylabel=label)
        placed.append((panel, spots))
    handles, names = panels[0].get_legend_handles_labels()
    if handles:  # below both panels, where no interval runs through it
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    set_title(figure, title)
    for panel, spots in placed:
        label_points(panel, spots)
    save_figure(figure, path)
