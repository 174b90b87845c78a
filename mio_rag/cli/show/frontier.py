"""What ``mio-rag frontier`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from mio_rag.cli.show.tables import Field, heading, print_fields
from mio_rag.cli.terminal import Terminal
from mio_rag.frontier.summary import deciding_measures
from mio_rag.measures import Measure, Use, evidence_measure, frontier_measures

__all__ = ["print_points", "print_prices", "print_query"]


def print_query(console: Terminal, data: Mapping[str, Any]) -> None:
    """The paths as three short tables."""
    passages, budget = data["passages"], data["budget"]

    def names(positions: list[int]) -> str:
        return ", ".join(passages[i]["id"] for i in positions) or "nothing"

    steps = budget["steps"]
    if not steps:
        console.print("no selection satisfies the constraints at any of these budgets")
        return
    proof = "every step proven" if budget["certified"] else "steps marked ? are not proven"
    console.print(f"{len(steps)} selections up to {steps[-1]['until']} tokens, {proof}")
    table = Table("tokens", "passages", "value", "per token", "what changes", box=None)
    for before, step in zip([None, *steps], steps, strict=False):
        was = set(before["selected"]) if before else set()
        gained = [f"+{passages[i]['id']}" for i in step["selected"] if i not in was]
        lost = [f"-{passages[i]['id']}" for i in sorted(was - set(step["selected"]))]
        price = before["next_price"] if before else None
        table.add_row(
            f"{step['tokens']}{'' if step['certified'] else ' ?'}",
            str(len(step["selected"])),
            f"{step['value']:.4f}",
            "" if price is None else f"{price:.5f}",
            " ".join(gained + lost),
        )
    console.print(table)
    for gain in budget["buys"]:
        changes = [f"+{passages[i]['id']}" for i in gain["added"]]
        changes += [f"-{passages[i]['id']}" for i in gain["removed"]]
        console.print(
            f"+{gain['more_tokens']} tokens above {gain['budget_tokens']} buy {gain['gain']:.4f}"
            f" ({', '.join(changes) or 'the same passages'})"
        )
    table = Table("passage penalty", "passages", "tokens", "chosen", box=None)
    for piece in data["penalty"]["pieces"]:
        high = "and above" if piece["high"] is None else f"to {piece['high']:.4f}"
        mark = "" if piece["certified"] else " ?"
        table.add_row(
            f"{piece['low']:.4f} {high}{mark}",
            str(piece["passages"]),
            str(piece["tokens"]),
            names(piece["selected"]),
        )
    console.print(f"\nat {data['budget_tokens']} tokens:")
    console.print(table)
    table = Table("tokens", "relevance", "redundancy", "guaranteed", "", "lambda_1", "rho", box=None)
    for row, weights in _alike(data["grid"]).items():
        for radii in dict.fromkeys(weights.values()):  # weights that choose it at the same radii share a line
            listed = ", ".join(f"{weight:g}" for weight, at in weights.items() if at == radii)
            table.add_row(*row[:-1], listed, ", ".join(f"{radius:g}" for radius in radii))
    console.print(table)
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
    shown = [p for p in points if p["dominated"] is False]
    shown.sort(key=lambda p: p["measures"]["tokens_used"]["mean"])
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
        cells = [f"{_percent(value)} {mark}" for value, mark in zip(values, best, strict=True)]
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
            f"the rule on held-out questions: evidence found {_percent(found)} ({_interval(found)}) at "
            f"{held['tokens_used']['mean']:.0f} tokens"
        )


def print_prices(console: Terminal, data: Mapping[str, Any]) -> None:
    """What questions read and find at one price of a token for all, as `price_curve` returns it."""
    points = data["prices"]
    console.print("\none price of a token for all questions", style="bold")
    fields = [Field("tokens\nread", [f"{p['tokens']['mean']:.0f}" for p in points])]
    if any(p["evidence"] is not None for p in points):
        fields.append(Field("evidence\nfound", [_percent(p["evidence"]) for p in points]))
        fields.append(Field("95 % interval", [_interval(p["evidence"]) for p in points]))
    print_fields(console, [Field("price", [f"{p['token_price']:g}" for p in points])], fields)
    console.print(
        f"each reads at most {data['ceiling']} tokens; price.png compares prices with budgets", style="dim"
    )


def _percent(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{100 * value['mean']:.1f} %"


def _interval(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{100 * value['low']:.1f} to {100 * value['high']:.1f}"


def _mean(value: Mapping[str, float] | None, measure: Measure) -> str:
    if value is None:
        return ""
    return (measure.form if measure.kind == "count" else "{:.3f}").format(value["mean"])
