"""What people see of selections, evaluations and frontiers: lines and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from mio_rag.cli.terminal import Table, Terminal, dim, heading, printable, styled
from mio_rag.formulations.numbers import plural

if TYPE_CHECKING:
    from mio_rag.evaluation.harness import Report
    from mio_rag.measures import Measure
    from mio_rag.selection.result import Selection
    from mio_rag.session.cache import Hit

Record = Mapping[str, Any]
Column = tuple[str, Sequence[Any]]
_NONE = "\u2013"


# -- selection -------------------------------------------------------------------------------------------


def reasons_of(selection: Selection, console: Terminal) -> Iterator[Any]:
    """Why each passage is chosen, and why the best of the rest are not: as many as a terminal holds."""
    chosen = set(selection.chosen)
    rest = [i for i in range(len(selection.candidates)) if i not in chosen]
    rest.sort(key=lambda i: -selection.decisions[i].value)
    room = max(8, (console.height - 10) // 2) if console.is_terminal else 60
    shown = selection.chosen[: room - 3]
    others = rest[: min(8, room - len(shown))]
    for title, rows in (("selected:", shown), ("left out, most valuable first:", others)):
        if rows:
            yield dim(f"\n{title}")
        for i in rows:
            one = selection.decisions[i]
            name = f" - {one.id}, {plural(one.tokens, 'token')}: "
            width = max(24, min(console.width, 110) - len(name))
            yield f"{name}{shortened(selection.candidates.texts[i], width)}"
            yield dim(f"   {one.reason}")
    if more := len(chosen) - len(shown) + len(rest) - len(others):
        yield dim(f"   and {more} more; --why --json lists everything")
    yield ""


def shortened(text: str, width: int) -> str:
    """How a text begins, on one line."""
    text = " ".join(printable(text).split())
    return text if len(text) <= width else f"{text[: width - 4].rstrip()} ..."


def proof_of(selection: Selection, *, full: bool = False, room: str | None = None) -> str:
    """How much is read, and what is proven about the choice.

    full: also the whole certificate, and where relevance comes from.
    room: what limits how much is read, where that is no budget of tokens.
    """
    result, source = selection.result, selection.relevance_source
    if result.x is None:
        return selection.explain()
    what = plural(len(selection.chosen), selection.unit)
    used = f"Used {selection.tokens_used:,} of {plural(selection.budget_tokens, 'token')}, {what}"
    if selection.is_ranking:
        return f"{used}: ranked by {selection.method}, which proves nothing."
    if room is not None:
        used = f"Used {plural(selection.tokens_used, 'token')} ({room}), {what}"
    lines = [f"{used}: {_proof(selection)}."]
    if full:
        lines.append(result.certificate())
        if selection.counts_parts is not None:
            lines.append(f"the certificate is for choices {selection.counts_parts}")
        lines += [f"relevance: {source.why}"] if source is not None else []
    if source is not None and source.unused:
        lines.append(
            f"{' and '.join(source.unused)} changed nothing: no model that was fitted with it gives "
            "relevance (`mio-rag policy fit relevance`)"
        )
    lines += [selection.worst_case.explain()] if selection.worst_case else []
    return "\n".join(lines)


def _proof(selection: Selection) -> str:
    result = selection.result
    if result.is_optimal and not selection.chosen:
        return "proven: nothing that is allowed and fits is worth its price"
    if result.is_optimal:
        within = f" to within {result.gap:.2%}" if result.gap and result.gap > 1e-4 else ""
        return f"proven optimal{within} by the estimated relevance"
    why = "; ".join(filter(None, [result.limit and f"the {result.limit} limit came first", result.message]))
    most = ""
    if result.gap is not None:  # what is not proven never reads as nothing
        most = f": the best choice is worth at most {max(result.gap, 1e-4):.2%} more"
    return f"not proven optimal{most}" + (f" ({why})" if why else "")


def known_lines(known: Hit) -> list[str]:
    """When an answer was given before, and what was read for it."""
    told, ago = known.answer, f"{plural(round(known.age_seconds), 'second')} ago"
    for unit, size in (("minutes", 60), ("hours", 3600), ("days", 86400)):
        if known.age_seconds >= 2 * size:
            ago = f"{known.age_seconds / size:.0f} {unit} ago"
    places = ((", ".join(p["ids"]), " > ".join(p["section"]) or p["source"]) for p in told["parts"])
    read = ", ".join(f"{ids} ({place})" for ids, place in places)
    refused = ["Refused before."] if told.get("refusal", {}).get("refused") else []
    when = f"cached: {told['model']} answered the same question {ago}; nothing was asked now"
    return [*refused, when, f"read then: {read or 'nothing'}"]


# -- evaluation ------------------------------------------------------------------------------------------

_SIGNS = {-1: "red", 0: "", 1: "green"}
_OF = {
    "selection": "Of a selection",
    "answer": "Of an answer",
    "choice": "Of a chosen option",
    "cost": "Of what it cost, and how it was proven",
    "run": "Of a method, over all questions",
}


def measure_lines(found: Sequence[Measure]) -> Iterator[Any]:
    """A table for each kind: name and meaning; below them direction, unit and source."""
    for of, title in _OF.items():
        rows: list[tuple[str, str]] = []
        for m in (m for m in found if m.of == of):
            better = "no direction" if m.better == "none" else f"{m.better} is better"
            rows += [(m.name, m.meaning), ("", f"{better}; {m.unit}; {m.source}")]
        if rows:
            yield Table.rows(f"|{title}", rows, left=2)
            yield ""


def evaluation_json(result: Report, refused: Mapping[Any, Any]) -> dict[str, Any]:
    """Plain data of an evaluation."""
    told: dict[str, Any] = {
        "out": str(result.folder),
        "run": result.run,
        "summary": result.summary,
        "comparisons": result.comparisons,
    }
    told |= {"by_set": result.by_set} if result.by_set else {}
    scores = [{"method": m, "budget_tokens": b, **one.to_dict()} for (m, b), one in refused.items()]
    return {**told, **({"refusal": scores} if scores else {})}


def evaluation_lines(result: Report, refused: Mapping[Any, Any], details: bool) -> Iterator[Any]:
    """What an evaluation ran on, what each method found and read, and what failed."""
    from mio_rag.evaluation.statistics import by_twins, part_read, reading_nothing

    run = result.run
    yield (
        f"{run['dataset']}: {run['questions']} questions, {run['passages']} passages, embedder "
        f"{run['embedder']}, reader {run['generator'] or 'none'}, pool {run['pool']}, {run['seconds']:.0f} s"
    )
    if named := (run["settings"].get("instruments") or {}).items():
        yield "; ".join(f"{kind}: {one['name']}" for kind, one in named)
    yield ""
    yield from summary_lines(result.summary, result.comparisons, run["baseline"], details=details)
    for note in filter(None, (reading_nothing(result.rows), part_read(run), by_twins(result.rows))):
        yield styled((f"\nnote: {note}", "yellow"))
    yield from _set_lines(result.by_set)
    if refused:
        several = len({budget for _, budget in refused}) > 1
        names = [f"{m} @{b}" if several else m for m, b in refused]
        yield "\nunanswerable questions: HasAns and NoAns as by SQuAD 2.0\n"
        yield score_table("method", names, list(refused.values()))
    if not details:
        yield dim("every measure, with intervals: --details, summary.json and the report")
    reasons = Counter(str(row["error"]) for row in result.rows if row["error"])
    for reason, count in reasons.most_common(5):
        yield styled((f"failed {count}x:", "red"), f" {reason}")
    if len(reasons) > 5:
        yield dim(f"and {len(reasons) - 5} other reasons, in the ledger")
    yield f"\nreport: {result.folder}/report.html"


def score_table(title: str, names: Sequence[str], scores: Sequence[Any]) -> Table:
    """One row a name: percent of all questions, of the answerable ones and of the others."""
    columns = {"F1": "f1", "exact": "exact", "HasAns F1": "has_answer_f1", "HasAns exact": "has_answer_exact",
               "NoAns": "no_answer", "refused": "refused", "best F1": "best_f1"}  # fmt: skip
    cells: list[Column] = []
    for head, name in columns.items():
        values = [getattr(score, name) for score in scores]
        cells.append((head, [_NONE if value is None else f"{100 * value:.1f}" for value in values]))
    return Table([(title, list(names)), *cells], keys=1)


def summary_lines(
    summary: Sequence[Record],
    comparisons: Sequence[Record] = (),
    baseline: str | None = None,
    *,
    details: bool = False,
) -> Iterator[Any]:
    """What each method found and read, against the baseline; below it everything else.

    Summary and comparisons are those of `mio_rag.evaluation.statistics`. With `details` the second table
    shows every measure, with 95 % intervals.
    """
    from mio_rag.evaluation.rows import reading_column
    from mio_rag.evaluation.statistics import lead_measures, lead_table, proven_yet_behind, too_few

    entries = sorted(summary, key=lambda entry: entry["budget_tokens"])
    columns: list[Column] = []
    for one in lead_table(entries, comparisons, baseline):
        styles = [_SIGNS[sign] for sign in one.signs] or [""] * len(one.cells)
        columns.append(
            (one.title, [Text(cell, style) for cell, style in zip(one.cells, styles, strict=True)])
        )
    keys = columns[: 1 + (columns[1][0] == "budget")]
    budgets = list(dict.fromkeys(entry["budget_tokens"] for entry in entries))
    count = max((entry.get("n") or 0 for entry in entries), default=0)
    said = f"Means over {plural(count, 'question')}" if count else "Means"
    said += f" at a budget of {budgets[0]} tokens" if len(budgets) == 1 else ""
    rivals = baseline is not None and len({entry["method"] for entry in entries}) > 1
    yield f"{said}{f'; the baseline is {baseline}' * rivals}."
    if not lead_measures(entries):
        yield "The questions have no answers and name no evidence, so nothing found can be counted."
    if reading_column(entries) == "prompt_tokens":
        yield "Prompt tokens: of all calls, since controllers ask more than once."
    yield ""
    yield Table(columns, keys=len(keys))
    for warning in [*too_few(entries, comparisons), *proven_yet_behind(entries, comparisons)]:
        yield styled(("\nnote:", "yellow"), f" {warning}")
    if shown := _others(entries, comparisons, details):
        yield styled(("\nanswers, proofs and costs", "bold"))
        yield Table([*keys, *shown], keys=len(keys))


def _set_lines(by_set: Sequence[Record]) -> Iterator[Any]:
    """What was found and read in each question set; nothing where there is one set."""
    from mio_rag.evaluation.rows import reading_column
    from mio_rag.evaluation.statistics import lead_measures

    if not by_set:
        return
    entries = sorted(by_set, key=lambda entry: entry["budget_tokens"])
    keys: list[Column] = [
        ("set", [entry["dataset"] for entry in entries]), ("method", [entry["method"] for entry in entries])
    ]  # fmt: skip
    if len({entry["budget_tokens"] for entry in entries}) > 1:
        keys.append(("budget", [str(entry["budget_tokens"]) for entry in entries]))
    fields: list[Column] = [("questions", [str(entry["n"]) for entry in entries])]
    for measure in lead_measures(entries):
        form = _percent if measure.kind == "rate" else measure.form.format
        fields.append((heading(measure.label.lower()), _means(entries, measure.name, form)))
    fields.append(("tokens\nread", _means(entries, reading_column(entries), "{:.0f}".format)))
    yield styled(("\nby question set", "bold"))
    yield Table([*keys, *fields], left=2, keys=len(keys))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _means(entries: Sequence[Record], name: str, form: Callable[[float], str]) -> list[str]:
    return [_NONE if (value := entry.get(name)) is None else form(value["mean"]) for entry in entries]


def _others(entries: Sequence[Record], comparisons: Sequence[Record], details: bool) -> list[Column]:
    from mio_rag.evaluation.rows import reading_column
    from mio_rag.evaluation.statistics import behind, lead_measures
    from mio_rag.measures import added_measures, console_measures

    first = () if details else (*(one.name for one in lead_measures(entries)), reading_column(entries))
    own = {measure.name for measure in added_measures()}
    fields: list[Column] = []
    for measure in console_measures():
        column = measure.console
        asked = details or measure.name in own or (column is not None and column.always)
        if asked and measure.name not in first and any(entry.get(measure.name) for entry in entries):
            fields.append((heading(measure.title), _cells(entries, measure, details)))
    proofs = [entry.get("optimal_share") for entry in entries]
    if any(share is not None for share in proofs):
        below = behind(entries, comparisons)
        cells = []
        for entry, share in zip(entries, proofs, strict=True):
            less = ", finds less" * ((entry["method"], entry["budget_tokens"]) in below)
            cells.append(_NONE if share is None else f"{share:.0%}{less}")
        fields.append(("proven", cells))
    if any(share is not None and share < 1 for share in proofs):
        unproven = [entry if share is not None else {} for entry, share in zip(entries, proofs, strict=True)]
        fields.append(("mean\ngap", _means(unproven, "gap", lambda value: f"{100 * value:.2f} %")))
    if any(entry["failed"] for entry in entries):
        fields.append(("failed", [str(entry["failed"]) for entry in entries]))
    return fields


def _cells(entries: Sequence[Record], measure: Measure, details: bool) -> list[Text]:
    """Means of a measure, with intervals where details are wanted."""
    cells = []
    for entry in entries:
        value = entry.get(measure.name)
        cell = Text(_NONE if value is None else measure.form.format(value["mean"]))
        if value is not None and details and value["low"] != value["high"]:
            low = measure.form.format(value["low"])
            high = "unbounded" if value["high"] is None else measure.form.format(value["high"])
            cell.append(f" ({low} to {high})", "dim")
        cells.append(cell)
    return cells


# -- frontier --------------------------------------------------------------------------------------------


def query_lines(data: Mapping[str, Any]) -> Iterator[Any]:
    """The paths of a question as three short tables."""
    passages, budget = data["passages"], data["budget"]

    def names(positions: Iterable[int], sign: str = "") -> list[str]:
        return [f"{sign}{passages[i]['id']}" for i in positions]

    steps = budget["steps"]
    if not steps:
        yield "no selection satisfies the constraints at any of these budgets"
        return
    proof = "every step proven" if budget["certified"] else "steps marked ? are not proven"
    yield f"{len(steps)} selections up to {steps[-1]['until']} tokens, {proof}"
    rows: list[tuple[object, ...]] = []
    for before, step in zip([None, *steps], steps, strict=False):
        was, now = set(before["selected"]) if before else set(), step["selected"]
        changes = names((i for i in now if i not in was), "+") + names(sorted(was - set(now)), "-")
        price = before["next_price"] if before else None
        mark = "" if step["certified"] else " ?"
        rows.append((f"{step['tokens']}{mark}", len(now), f"{step['value']:.4f}",
                     "" if price is None else f"{price:.5f}", " ".join(changes)))  # fmt: skip
    yield Table.rows("tokens|passages|value|per token|what changes", rows, left=5)
    for gain in budget["buys"]:
        changes = names(gain["added"], "+") + names(gain["removed"], "-")
        yield (
            f"+{gain['more_tokens']} tokens above {gain['budget_tokens']} buy {gain['gain']:.4f}"
            f" ({', '.join(changes) or 'the same passages'})"
        )
    yield f"\nat {data['budget_tokens']} tokens:"
    rows = []
    for piece in data["penalty"]["pieces"]:
        high = "and above" if piece["high"] is None else f"to {piece['high']:.4f}"
        span = f"{piece['low']:.4f} {high}{'' if piece['certified'] else ' ?'}"
        rows.append(
            (span, piece["passages"], piece["tokens"], ", ".join(names(piece["selected"])) or "nothing")
        )
    yield Table.rows("passage penalty|passages|tokens|chosen", rows, left=4)
    rows = []
    for row, weights in alike(data["grid"]).items():
        for radii in dict.fromkeys(weights.values()):  # weights that choose it at the same radii share a line
            listed = ", ".join(f"{weight:g}" for weight, at in weights.items() if at == radii)
            rows.append((*row[:-1], listed, ", ".join(f"{radius:g}" for radius in radii)))
    yield Table.rows("tokens|relevance|redundancy|guaranteed||lambda_1|rho", rows, left=7)
    yield "guaranteed: the value that is left when every embedding is off by the largest rho of the table"


def alike(grid: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], dict[float, tuple[float, ...]]]:
    """What a row says, and the passages behind it -> the settings that choose them: weight -> radii."""
    found: dict[tuple[str, ...], dict[float, tuple[float, ...]]] = {}
    for p in grid:
        state = "frontier" if p["frontier"] else "dominated" if p["certified"] else p["status"]
        figures = (f"{p[k]:.4f}" for k in ("relevance", "redundancy", "guaranteed"))
        row = (str(p["tokens"]), *figures, state, str(sorted(p["selected"])))
        weights = found.setdefault(row, {})
        weights[p["redundancy_weight"]] = (*weights.get(p["redundancy_weight"], ()), p["radius"])
    return found


def frontier_lines(
    points: Sequence[Record], chosen: Record | None, prices: Record | None = None
) -> Iterator[Any]:
    """The settings on the frontier, by tokens; the operating point, and one price for all questions."""
    from mio_rag.frontier.summary import deciding_measures
    from mio_rag.measures import Use, evidence_measure, frontier_measures

    evidence = evidence_measure(p["measures"] for p in points)
    shown = [p for p in points if p["dominated"] is False]
    shown.sort(key=lambda p: p["measures"]["tokens_used"]["mean"])
    open_points = sum(not p["certified"] for p in points)
    yield (
        f"{len(points)} settings, {len(shown)} on the frontier, {len(points) - len(shown) - open_points} "
        f"dominated, {open_points} not certified"
    )
    deciding = ", ".join(["tokens", *(measure.title for measure in deciding_measures(points))])
    mark = "; *: finds the most evidence for its tokens" if evidence else ""
    yield dim(
        f"on the frontier: no other certified setting is as good in {deciding} and better in one of "
        f"them{mark}"
    )
    yield ""
    columns: list[Column] = [
        (title, [f"{p[name]:g}" if isinstance(p[name], float) else str(p[name]) for p in shown])
        for title, name in (("redundancy\nweight", "redundancy_weight"), ("radius", "radius"),
                            ("passage\npenalty", "passage_penalty"), ("budget", "budget_tokens"))
    ]  # fmt: skip
    columns.append(("tokens\nread", [f"{p['measures']['tokens_used']['mean']:.0f}" for p in shown]))
    if evidence is not None:
        values = [p["measures"].get(evidence.name) for p in shown]
        marks = ["*" if evidence.name in p["front"] else " " for p in shown]
        found = [f"{_share(value)} {mark}" for value, mark in zip(values, marks, strict=True)]
        columns += [("evidence\nfound  ", found), ("95 % interval", list(map(_interval, values)))]
    for measure in frontier_measures(Use.CONSOLE):
        if measure.frontier.use < Use.EVIDENCE and any(measure.name in p["measures"] for p in points):
            form = measure.form if measure.kind == "count" else "{:.3f}"
            means = (p["measures"].get(measure.name) for p in shown)
            cells = ["" if mean is None else form.format(mean["mean"]) for mean in means]
            columns.append((heading(measure.title), cells))
    yield Table(columns, left=0, keys=4)
    yield ""
    if chosen is None:
        yield "no operating point: there are no labels, or no setting is certified"
    else:
        yield f"operating point: {chosen['name']}, budget {chosen['budget_tokens']} ({chosen['rule']})"
        if held := chosen["held_out"]:
            value = held[chosen["coverage"]]
            yield (
                f"the rule on held-out questions: evidence found {_share(value)} ({_interval(value)}) at "
                f"{held['tokens_used']['mean']:.0f} tokens"
            )
    if prices is not None:
        yield styled(("\none price of a token for all questions", "bold"))
        at = prices["prices"]
        columns = [("price", [f"{p['token_price']:g}" for p in at])]
        columns.append(("tokens\nread", [f"{p['tokens']['mean']:.0f}" for p in at]))
        if any(p["evidence"] is not None for p in at):
            columns.append(("evidence\nfound", [_share(p["evidence"]) for p in at]))
            columns.append(("95 % interval", [_interval(p["evidence"]) for p in at]))
        yield Table(columns, left=0, keys=1)
        yield dim(f"each reads at most {prices['ceiling']} tokens; price.png compares prices with budgets")


def _share(value: Mapping[str, float] | None) -> str:
    return "" if value is None else _percent(value["mean"])


def _interval(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{100 * value['low']:.1f} to {100 * value['high']:.1f}"
