"""What people see of selections, answers, evaluations and frontiers."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from mio_rag.cli.terminal import Terminal, printable, styled
from mio_rag.evaluation.rows import reading_column
from mio_rag.evaluation.statistics import behind, lead_measures, lead_table, proven_yet_behind, too_few
from mio_rag.formulations.numbers import plural
from mio_rag.frontier.summary import deciding_measures
from mio_rag.measures import (
    Measure,
    Use,
    added_measures,
    console_measures,
    evidence_measure,
    find_measure,
    frontier_measures,
)
from mio_rag.refusal.fitting import Scores

if TYPE_CHECKING:
    from mio_rag.documents.files import LeftOut
    from mio_rag.evaluation.harness import Report
    from mio_rag.measures import Measure
    from mio_rag.selection.result import Selection
    from mio_rag.session.cache import Hit
    from mio_rag.solvers.result import SolveResult


# -- tables ----------------------------------------------------------------------------------------------

_BETWEEN = 2  # columns of air between two fields
_LEAST = 12  # columns that a name keeps, however narrow the terminal


@dataclass(frozen=True)
class Field:
    """A column of a table: a title, whose lines are kept, and a cell for each row."""

    title: str
    cells: Sequence[str | Text]
    justify: Literal["left", "right"] = "right"

    @property
    def width(self) -> int:
        """Columns of the terminal that it needs."""
        texts = [self.title, *(cell.plain if isinstance(cell, Text) else cell for cell in self.cells)]
        return max(cell_len(line) for text in texts for line in printable(text).split("\n"))


def heading(label: str) -> str:
    """A label as the head of a field: in lines of about 14 columns, whole words each."""
    return "\n".join(textwrap.wrap(label, 14, break_long_words=False, break_on_hyphens=False))


def print_fields(console: Terminal, keys: Sequence[Field], fields: Sequence[Field]) -> None:
    """Print the fields in their order, in as many tables as the terminal needs.

    Every table begins with the keys. Only the first of them, a name, is folded where the terminal is narrow.
    """
    widest = max((field.width for field in fields), default=0)
    rest = sum(key.width + _BETWEEN for key in keys[1:]) + (widest + _BETWEEN if fields else 0)
    name = min(keys[0].width, max(_LEAST, console.width - rest))
    room = console.width - name - sum(key.width + _BETWEEN for key in keys[1:])
    parts: list[list[Field]] = [[]]
    left = room
    for field in fields:
        left -= field.width + _BETWEEN
        if left < 0 and parts[-1]:
            parts.append([])
            left = room - field.width - _BETWEEN
        parts[-1].append(field)
    for place, part in enumerate(parts):
        if place:
            console.print()
        widths = [name, *(key.width for key in keys[1:])]
        widths += [min(field.width, max(_LEAST, room - _BETWEEN)) for field in part]
        _print(console, [*keys, *part], widths)


def _print(console: Terminal, fields: Sequence[Field], widths: Sequence[int]) -> None:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for field, width in zip(fields, widths, strict=True):
        table.add_column(
            Text(printable(field.title)),
            justify=field.justify,
            vertical="bottom",
            overflow="fold",
            no_wrap=field.width <= width,
            min_width=width,
            max_width=width,
        )
    for cells in zip(*(field.cells for field in fields), strict=True):
        table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells))
    console.print(table)


def print_rows(console: Terminal, titles: str, rows: Iterable[Sequence[object]], left: int = 1) -> None:
    """Print a plain table of titles with bars between them; the first columns hold text, others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles.split("|")):
        table.add_column(Text(title), justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console.print(table)


# -- selection -------------------------------------------------------------------------------------------

_SNIPPET = 160  # characters


def print_reasons(console: Terminal, selection: Selection) -> None:
    """Why each passage is chosen, and why the best of the rest are not: as many as a terminal holds."""
    chosen = set(selection.chosen)
    rest = [i for i in range(len(selection.candidates)) if i not in chosen]
    rest.sort(key=lambda i: -selection.decisions[i].value)
    room = max(8, (console.height - 10) // 2) if console.is_terminal else 60
    shown = selection.chosen[: room - 3]
    for title, rows in (
        ("selected:", shown),
        ("left out, most valuable first:", rest[: min(8, room - len(shown))]),
    ):
        if rows:
            console.print(f"\n{title}", style="dim")
        for i in rows:
            d = selection.decisions[i]
            name = f" - {d.id}, {plural(d.tokens, 'token')}: "
            width = max(24, min(console.width, 110) - len(name))
            text = " ".join(printable(selection.candidates.texts[i]).split())
            cut = text if len(text) <= width else f"{text[: width - 4].rstrip()} ..."
            console.print(f"{name}{cut}", soft_wrap=not console.is_terminal)
            _print_indented(console, d.reason)
    if more := len(chosen) - len(shown) + len(rest) - min(8, room - len(shown), len(rest)):
        console.print(f"   and {more} more; --why --json lists everything", style="dim")
    console.print()


def print_passage(
    console: Terminal, place: int, title: str, identifier: str, tokens: int, text: str, found_by: str = ""
) -> None:
    """Which passage is read, what it costs, and how it begins."""
    name = ((title, "bold"), "  ", (identifier, "dim")) if title else ((identifier, "bold"),)
    told = styled(f"{place}. ", *name, (f", {plural(tokens, 'token')}", "dim"))
    console.print(told, soft_wrap=not console.is_terminal)
    short = textwrap.shorten(printable(text), _SNIPPET, placeholder=" ...", break_on_hyphens=False)
    _print_indented(console, short, "")
    if found_by:
        _print_indented(console, f"found by {found_by}")


def _print_indented(console: Terminal, text: str, style: str = "dim") -> None:
    lines = textwrap.wrap(text, max(20, console.width - 3)) if console.is_terminal else [text]
    for line in lines:
        console.print(f"   {line}", style=style, soft_wrap=True)


def proof_of(selection: Selection, *, full: bool = False, room: str | None = None) -> str:
    """How much is read, and what is proven about the choice.

    With ``full`` also the whole certificate, and where relevance comes from. ``room`` says what limits how
    much is read, where that is no budget of tokens.
    """
    result, source = selection.result, selection.relevance_source
    if result.x is None:
        return selection.explain()
    if selection.is_ranking:
        what = plural(len(selection.chosen), selection.unit)
        return (
            f"Used {selection.tokens_used:,} of {plural(selection.budget_tokens, 'token')}, {what}: "
            f"ranked by {selection.method}, which proves nothing."
        )
    used = f"Used {selection.tokens_used:,} of {plural(selection.budget_tokens, 'token')}"
    if room is not None:
        used = f"Used {plural(selection.tokens_used, 'token')} ({room})"
    lines = [f"{used}, {plural(len(selection.chosen), selection.unit)}: {_proof(selection)}."]
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
        of = "" if selection.counts_parts is None else f" {selection.counts_parts},"
        return f"proven optimal{within}: no other choice{of} is worth more"
    why = [f"the {result.limit} limit came first"] if result.limit else []
    why += [result.message] if result.message else []
    most = ""
    if result.gap is not None:  # what is not proven never reads as nothing
        most = f": the best choice is worth at most {max(result.gap, 1e-4):.2%} more"
    return f"not proven optimal{most}" + (f" ({'; '.join(why)})" if why else "")


def known_lines(known: Hit) -> list[str]:
    """When an answer was given before, and what was read for it."""
    told = known.answer
    read = ", ".join(
        f"{', '.join(p['ids'])} ({' > '.join(p['section']) or p['source']})" for p in told["parts"]
    )
    refused = ["Refused before."] if told.get("refusal", {}).get("refused") else []
    when = f"cached: {told['model']} answered the same question {_ago(known.age_seconds)}"
    return [*refused, f"{when}; nothing was asked now", f"read then: {read or 'nothing'}"]


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{plural(round(seconds), 'second')} ago"


def print_result(console: Terminal, result: SolveResult, tokens_used: float | None) -> None:
    """A solve result in two lines."""
    console.print(result.certificate())
    if result.x is not None:
        console.print(f"selected {list(result.selected)}, cost {tokens_used:g}")


def print_left_out(console: Terminal, left_out: Sequence[LeftOut]) -> None:
    """Files that are not in the index, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for item in left_out:
        reasons.setdefault(item.reason, []).append(item.path)
    for reason, paths in list(reasons.items())[:20]:
        named = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        console.print(f"not read  {named}: {reason}", soft_wrap=True)
    if len(reasons) > 20:
        console.print(f"and {len(reasons) - 20} other reasons; --json lists everything")


# -- refusal ---------------------------------------------------------------------------------------------


def print_scores(console: Terminal, title: str, names: Sequence[str], scores: Sequence[Scores]) -> None:
    """One row a name: percent of all questions, of the answerable ones and of the others."""

    def percent(value: float | None) -> str:
        return "\u2013" if value is None else f"{100 * value:.1f}"

    columns: dict[str, Sequence[float | None]] = {
        "F1": [s.f1 for s in scores],
        "exact": [s.exact for s in scores],
        "HasAns F1": [s.has_answer_f1 for s in scores],
        "HasAns exact": [s.has_answer_exact for s in scores],
        "NoAns": [s.no_answer for s in scores],
        "refused": [s.refused for s in scores],
        "best F1": [s.best_f1 for s in scores],
    }
    fields = [Field(head, [percent(value) for value in values]) for head, values in columns.items()]
    print_fields(console, [Field(title, list(names), "left")], fields)


# -- measures --------------------------------------------------------------------------------------------

_OF = {
    "selection": "Of a selection",
    "answer": "Of an answer",
    "choice": "Of a chosen option",
    "cost": "Of what it cost, and how it was proven",
    "run": "Of a method, over all questions",
}


def print_measures(console: Terminal, found: Sequence[Measure]) -> None:
    """A table for each kind: name and meaning; below them direction, unit and source."""
    for of, heading in _OF.items():
        rows: list[tuple[str, str]] = []
        for m in (m for m in found if m.of == of):
            better = "no direction" if m.better == "none" else f"{m.better} is better"
            rows += [(m.name, m.meaning), ("", f"{better}; {m.unit}; {m.source}")]
        if rows:
            print_rows(console, f"|{heading}", rows, left=2)
            console.print()


# -- evaluation ------------------------------------------------------------------------------------------

Record = Mapping[str, Any]
_NONE = "\u2013"
_SIGNS = {-1: "red", 0: "", 1: "green"}


def evaluation_json(result: Report) -> dict[str, Any]:
    """Plain data of an evaluation, for ``--json``."""
    return {
        "out": str(result.folder),
        "run": result.run,
        "summary": result.summary,
        "comparisons": result.comparisons,
        **({"by_set": result.by_set} if result.by_set else {}),
    }


def print_run(console: Terminal, run: Mapping[str, Any]) -> None:
    """What an evaluation ran on."""
    console.print(
        f"{run['dataset']}: {run['questions']} questions, {run['passages']} passages, "
        f"embedder {run['embedder']}, reader {run['generator'] or 'none'}, pool {run['pool']}, "
        f"{run['seconds']:.0f} s"
    )
    named = (run["settings"].get("instruments") or {}).items()
    if named:
        console.print("; ".join(f"{kind}: {one['name']}" for kind, one in named), soft_wrap=True)
    console.print("")


def print_sets(console: Terminal, by_set: Sequence[Record]) -> None:
    """What was found and read in each question set; nothing where there is one set."""
    if not by_set:
        return
    entries = sorted(by_set, key=lambda entry: entry["budget_tokens"])
    keys = [Field("set", [entry["dataset"] for entry in entries], "left")]
    keys.append(Field("method", [entry["method"] for entry in entries], "left"))
    if len({entry["budget_tokens"] for entry in entries}) > 1:
        keys.append(Field("budget", [str(entry["budget_tokens"]) for entry in entries]))
    fields = [Field("questions", [str(entry["n"]) for entry in entries])]
    for measure in lead_measures(entries):
        form = _percent if measure.kind == "rate" else measure.form.format
        fields.append(Field(heading(measure.label.lower()), _means(entries, measure.name, form)))
    fields.append(Field("tokens\nread", _means(entries, reading_column(entries), _count)))
    console.print("\nby question set", style="bold")
    print_fields(console, keys, fields)


def print_failures(console: Terminal, rows: Sequence[Mapping[str, Any]]) -> None:
    """What went wrong, most frequent first."""
    reasons = Counter(str(row["error"]) for row in rows if row["error"])
    for reason, count in reasons.most_common(5):
        console.print(styled((f"failed {count}x:", "red"), f" {reason}"), soft_wrap=True)
    if len(reasons) > 5:
        console.print(f"and {len(reasons) - 5} other reasons, in the ledger", style="dim")


def print_summary(
    console: Terminal,
    summary: Sequence[Record],
    comparisons: Sequence[Record] = (),
    baseline: str | None = None,
    *,
    details: bool = False,
) -> None:
    """What each method found and read, against the baseline; below it everything else.

    Summary and comparisons are those of `mio_rag.evaluation.statistics`. With ``details`` the second table
    shows every measure, with 95 % intervals.
    """
    entries = sorted(summary, key=lambda entry: entry["budget_tokens"])
    columns = []
    for one in lead_table(entries, comparisons, baseline):
        styles = [_SIGNS[sign] for sign in one.signs] or [""] * len(one.cells)
        cells = [Text(cell, style) for cell, style in zip(one.cells, styles, strict=True)]
        columns.append(Field(one.title, cells, "left" if one.left else "right"))
    keys = columns[: 1 + (columns[1].title == "budget")]
    rivals = baseline is not None and len({entry["method"] for entry in entries}) > 1
    console.print(f"{_at(entries)}{f'; the baseline is {baseline}' * rivals}.")
    if not lead_measures(entries):
        console.print("The questions have no answers and name no evidence, so nothing found can be counted.")
    if reading_column(entries) == "prompt_tokens":
        console.print("Prompt tokens: of all calls, since controllers ask more than once.")
    console.print()
    print_fields(console, keys, columns[len(keys) :])
    for warning in [*too_few(entries, comparisons), *proven_yet_behind(entries, comparisons)]:
        console.print(styled(("\nnote:", "yellow"), f" {warning}"))
    shown = _others(entries, comparisons, details)
    if shown:
        console.print("\nanswers, proofs and costs", style="bold")
        print_fields(console, keys, shown)


def _at(entries: Sequence[Record]) -> str:
    budgets = list(dict.fromkeys(entry["budget_tokens"] for entry in entries))
    count = _count_of(entries)
    over = f"Means over {count} question{'s' * (count != 1)}" if count else "Means"
    return over + (f" at a budget of {budgets[0]} tokens" if len(budgets) == 1 else "")


def _count_of(entries: Sequence[Record]) -> int:
    return max((entry.get("n") or 0 for entry in entries), default=0)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _count(tokens: float) -> str:
    return f"{tokens:.0f}"


def _means(entries: Sequence[Record], name: str, form: Callable[[float], str]) -> list[str]:
    return [_NONE if (value := entry.get(name)) is None else form(value["mean"]) for entry in entries]


def _others(entries: Sequence[Record], comparisons: Sequence[Record], details: bool) -> list[Field]:
    first = () if details else (*(one.name for one in lead_measures(entries)), reading_column(entries))
    own = {measure.name for measure in added_measures()}
    fields = []
    for measure in console_measures():
        column = measure.console
        asked = details or measure.name in own or (column is not None and column.always)
        if asked and measure.name not in first and any(entry.get(measure.name) for entry in entries):
            fields.append(Field(heading(measure.title), _cells(entries, measure, details)))
    proofs = [entry.get("optimal_share") for entry in entries]
    if any(share is not None for share in proofs):
        below = behind(entries, comparisons)
        cells = []
        for entry, share in zip(entries, proofs, strict=True):
            less = ", finds less" * ((entry["method"], entry["budget_tokens"]) in below)
            cells.append(_NONE if share is None else f"{share:.0%}{less}")
        fields.append(Field("proven", cells))
    if any(share is not None and share < 1 for share in proofs):
        gap = find_measure("gap")
        assert gap is not None
        unproven = [entry if share is not None else {} for entry, share in zip(entries, proofs, strict=True)]
        fields.append(Field("mean\ngap", _means(unproven, gap.name, lambda value: f"{100 * value:.2f} %")))
    if any(entry["failed"] for entry in entries):
        fields.append(Field("failed", [str(entry["failed"]) for entry in entries]))
    return fields


def _cells(entries: Sequence[Record], measure: Measure, details: bool) -> list[str | Text]:
    """Means of a measure, with intervals where details are wanted."""
    cells: list[str | Text] = []
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


def print_query(console: Terminal, data: Mapping[str, Any]) -> None:
    """The paths as three short tables."""
    passages, budget = data["passages"], data["budget"]

    def names(positions: Iterable[int], sign: str = "") -> list[str]:
        return [f"{sign}{passages[i]['id']}" for i in positions]

    steps = budget["steps"]
    if not steps:
        console.print("no selection satisfies the constraints at any of these budgets")
        return
    proof = "every step proven" if budget["certified"] else "steps marked ? are not proven"
    console.print(f"{len(steps)} selections up to {steps[-1]['until']} tokens, {proof}")
    rows: list[tuple[object, ...]] = []
    for before, step in zip([None, *steps], steps, strict=False):
        was, now = set(before["selected"]) if before else set(), step["selected"]
        changes = names((i for i in now if i not in was), "+") + names(sorted(was - set(now)), "-")
        price = before["next_price"] if before else None
        mark = "" if step["certified"] else " ?"
        rows.append((f"{step['tokens']}{mark}", len(now), f"{step['value']:.4f}",
                     "" if price is None else f"{price:.5f}", " ".join(changes)))  # fmt: skip
    print_rows(console, "tokens|passages|value|per token|what changes", rows, left=5)
    for gain in budget["buys"]:
        changes = names(gain["added"], "+") + names(gain["removed"], "-")
        console.print(
            f"+{gain['more_tokens']} tokens above {gain['budget_tokens']} buy {gain['gain']:.4f}"
            f" ({', '.join(changes) or 'the same passages'})"
        )
    console.print(f"\nat {data['budget_tokens']} tokens:")
    rows = []
    for piece in data["penalty"]["pieces"]:
        high = "and above" if piece["high"] is None else f"to {piece['high']:.4f}"
        span = f"{piece['low']:.4f} {high}{'' if piece['certified'] else ' ?'}"
        chosen = ", ".join(names(piece["selected"])) or "nothing"
        rows.append((span, piece["passages"], piece["tokens"], chosen))
    print_rows(console, "passage penalty|passages|tokens|chosen", rows, left=4)
    rows = []
    for row, weights in _alike(data["grid"]).items():
        for radii in dict.fromkeys(weights.values()):  # weights that choose it at the same radii share a line
            listed = ", ".join(f"{weight:g}" for weight, at in weights.items() if at == radii)
            rows.append((*row[:-1], listed, ", ".join(f"{radius:g}" for radius in radii)))
    print_rows(console, "tokens|relevance|redundancy|guaranteed||lambda_1|rho", rows, left=7)
    console.print(
        "guaranteed: the value that is left when every embedding is off by the largest rho of the table"
    )


def _alike(grid: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], dict[float, tuple[float, ...]]]:
    """What a row says, and the passages behind it -> the settings that choose them: weight -> radii."""
    found: dict[tuple[str, ...], dict[float, tuple[float, ...]]] = {}
    for p in grid:
        state = "frontier" if p["frontier"] else "dominated" if p["certified"] else p["status"]
        figures = (f"{p[k]:.4f}" for k in ("relevance", "redundancy", "guaranteed"))
        row = (str(p["tokens"]), *figures, state, str(sorted(p["selected"])))
        weights = found.setdefault(row, {})
        weights[p["redundancy_weight"]] = (*weights.get(p["redundancy_weight"], ()), p["radius"])
    return found


def print_points(
    console: Terminal, points: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any] | None
) -> None:
    """The settings on the frontier, by tokens; the operating point last."""
    evidence = evidence_measure(p["measures"] for p in points)
    shown = sorted(
        (p for p in points if p["dominated"] is False), key=lambda p: p["measures"]["tokens_used"]["mean"]
    )
    open_points = sum(not p["certified"] for p in points)
    console.print(
        f"{len(points)} settings, {len(shown)} on the frontier, {len(points) - len(shown) - open_points} "
        f"dominated, {open_points} not certified"
    )
    deciding = ", ".join(["tokens", *(measure.title for measure in deciding_measures(points))])
    console.print(
        f"on the frontier: no other certified setting is as good in {deciding} and better in one of them"
        + ("; *: finds the most evidence for its tokens" if evidence else ""),
        style="dim",
    )
    console.print()
    keys = [
        Field("redundancy\nweight", [f"{p['redundancy_weight']:g}" for p in shown]),
        Field("radius", [f"{p['radius']:g}" for p in shown]),
        Field("passage\npenalty", [str(p["passage_penalty"]) for p in shown]),
        Field("budget", [str(p["budget_tokens"]) for p in shown]),
    ]
    fields = [Field("tokens\nread", [f"{p['measures']['tokens_used']['mean']:.0f}" for p in shown])]
    if evidence is not None:
        values = [p["measures"].get(evidence.name) for p in shown]
        best = ["*" if evidence.name in p["front"] else " " for p in shown]
        cells = [f"{_percent_of_frontier(value)} {mark}" for value, mark in zip(values, best, strict=True)]
        fields += [
            Field("evidence\nfound  ", cells),
            Field("95 % interval", [_interval(value) for value in values]),
        ]
    for measure in frontier_measures(Use.CONSOLE):
        if measure.frontier.use < Use.EVIDENCE and any(measure.name in p["measures"] for p in points):
            means = [_mean(p["measures"].get(measure.name), measure) for p in shown]
            fields.append(Field(heading(measure.title), means))
    print_fields(console, keys, fields)
    console.print()
    if chosen is None:
        console.print("no operating point: there are no labels, or no setting is certified")
        return
    console.print(
        f"operating point: {chosen['name']}, budget {chosen['budget_tokens']} ({chosen['rule']})",
        soft_wrap=True,
    )
    if held := chosen["held_out"]:
        found = held[chosen["coverage"]]
        console.print(
            f"the rule on held-out questions: evidence found {_percent_of_frontier(found)} "
            f"({_interval(found)}) at {held['tokens_used']['mean']:.0f} tokens"
        )


def print_prices(console: Terminal, data: Mapping[str, Any]) -> None:
    """What questions read and find at one price of a token for all, as `price_curve` returns it."""
    points = data["prices"]
    console.print("\none price of a token for all questions", style="bold")
    fields = [Field("tokens\nread", [f"{p['tokens']['mean']:.0f}" for p in points])]
    if any(p["evidence"] is not None for p in points):
        fields.append(Field("evidence\nfound", [_percent_of_frontier(p["evidence"]) for p in points]))
        fields.append(Field("95 % interval", [_interval(p["evidence"]) for p in points]))
    print_fields(console, [Field("price", [f"{p['token_price']:g}" for p in points])], fields)
    console.print(
        f"each reads at most {data['ceiling']} tokens; price.png compares prices with budgets", style="dim"
    )


def _percent_of_frontier(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{100 * value['mean']:.1f} %"


def _interval(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{100 * value['low']:.1f} to {100 * value['high']:.1f}"


def _mean(value: Mapping[str, float] | None, measure: Measure) -> str:
    if value is None:
        return ""
    return (measure.form if measure.kind == "count" else "{:.3f}").format(value["mean"])
