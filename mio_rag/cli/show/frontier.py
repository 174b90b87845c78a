"""What ``mio-rag frontier`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from mio_rag.cli.terminal import Terminal
from mio_rag.frontier.summary import coverage_measure
from mio_rag.measures import Use, frontier_measures

__all__ = ["print_points", "print_query"]


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
            "" if price is None else f"{price:.2e}",
            " ".join(gained + lost),
        )
    console.print(table)
    for gain in budget["buys"]:
        console.print(
            f"+{gain['more_tokens']} tokens above {gain['budget_tokens']} buy {gain['gain']:.4f}"
            f" (+ {names(gain['added'])}; - {names(gain['removed'])})"
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
    table = Table("lambda_1", "rho", "tokens", "relevance", "redundancy", "guaranteed", "", box=None)
    for p in data["grid"]:
        state = "frontier" if p["frontier"] else "dominated" if p["certified"] else p["status"]
        figures = (f"{p[k]:.4f}" for k in ("relevance", "redundancy", "guaranteed"))
        table.add_row(f"{p['redundancy_weight']:g}", f"{p['radius']:g}", str(p["tokens"]), *figures, state)
    console.print(table)


def print_points(
    console: Terminal, points: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any] | None
) -> None:
    """Points that no other one beats, by tokens; the operating point last."""
    coverage = coverage_measure(points)
    names = [
        measure.name
        for measure in frontier_measures(Use.CONSOLE)
        if (measure.name == coverage or measure.frontier.use < Use.COVERAGE)
        and any(measure.name in p["measures"] for p in points)
    ]
    table = Table("l_1", "rho", "l_2", "budget", "tokens", box=None)
    for name in names:
        table.add_column(name.replace("_", " "), no_wrap=True)
    table.add_column("")
    shown = [p for p in points if p["dominated"] is False]
    for point in sorted(shown, key=lambda p: p["measures"]["tokens_used"]["mean"]):
        table.add_row(
            f"{point['redundancy_weight']:g}",
            f"{point['radius']:g}",
            str(point["passage_penalty"]),
            str(point["budget_tokens"]),
            f"{point['measures']['tokens_used']['mean']:.0f}",
            *(_mean(point["measures"].get(name), interval=name == coverage) for name in names),
            "*" if coverage in point["front"] else "",
        )
    open_points = sum(not p["certified"] for p in points)
    console.print(
        f"{len(points)} settings, {len(shown)} on the frontier, {len(points) - len(shown) - open_points} "
        f"dominated, {open_points} not certified\n"
        "l_1, rho, l_2: redundancy weight, radius, passage penalty; *: highest coverage for its tokens"
    )
    console.print(table)
    if chosen is None:
        console.print("no operating point: there are no labels, or no setting is certified")
        return
    console.print(f"{chosen['rule']}: {chosen['name']}, budget {chosen['budget_tokens']}", soft_wrap=True)
    if held := chosen["held_out"]:
        gain, cost = held[chosen["coverage"]], held["tokens_used"]
        console.print(
            f"the rule on held-out questions: {gain['mean']:.3f} ({gain['low']:.3f}-{gain['high']:.3f}) at "
            f"{cost['mean']:.0f} tokens"
        )


def _mean(value: Mapping[str, float] | None, *, interval: bool) -> str:
    if value is None:
        return ""
    return f"{value['mean']:.3f}" + (f" ({value['low']:.3f}-{value['high']:.3f})" if interval else "")
