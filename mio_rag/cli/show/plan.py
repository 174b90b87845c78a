"""What the commands ``mio-rag plan`` print for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from mio_rag.cli.show.selection import print_passage
from mio_rag.cli.show.strategies import found_by
from mio_rag.cli.terminal import Terminal

if TYPE_CHECKING:
    from mio_rag.control.planner.trace import PlanTrace
    from mio_rag.control.planner.workflow import Workflow
    from mio_rag.learning.outcomes import Outcomes
    from mio_rag.learning.planner import Point

__all__ = [
    "plain_table",
    "print_answered",
    "print_named",
    "print_planner",
    "print_points",
    "print_table",
    "print_workflow_run",
]

_SHOWN = (
    "token_f1",
    "exact_match",
    "evidence",
    "tokens",
    "lm_calls",
    "retrieval_calls",
    "dollars",
    "seconds",
)


def plain_table(*titles: str) -> Table:
    """A table of text on the left and numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place else "left", overflow="fold")
    return table


def print_named(console: Terminal, workflows: Mapping[str, Workflow]) -> None:
    """All workflows, one a line."""
    lines = plain_table("workflow", "steps")
    lines.columns[1].justify = "left"
    for workflow in workflows.values():
        lines.add_row(workflow.name, ", ".join(_step(node.do, node.settings) for node in workflow.nodes))
    console.print(lines)


def print_planner(console: Terminal, about: Mapping[str, Any]) -> None:
    """What a planner decides, at which prices, and what it learned from."""
    span = ", ".join(f"{alpha:g}" for alpha in about["alphas"]) or "any"
    when = "before the first step" if about["mode"] == "once" else "before every step"
    lines = plain_table("planner", f"{about['method']}, decides {when}")
    lines.columns[1].justify = "left"
    for name, said in (
        ("chooses from", ", ".join(about["workflows"])),
        ("alphas", span),
        ("a cost of 1", f"{about['unit']:.4g} {about['cost']}"),
        ("questions are embedded by", about["embedder"] or "nothing"),
        (
            "learned from",
            f"{about.get('questions', '?')} questions, answered by {about.get('generator', '?')}",
        ),
    ):
        lines.add_row(name, said)
    console.print(lines)


def _step(do: str, settings: Mapping[str, object]) -> str:
    told = [
        str(value) if isinstance(value, str) else f"{name.replace('_', ' ')} {value:g}"
        for name, value in settings.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    ]
    return f"{do} ({', '.join(told)})" if told else do


def print_answered(
    console: Terminal, trace: PlanTrace, by: str, found: Mapping[str, Mapping[str, int]] | None = None
) -> None:
    """The answer, what it took and by whom, what was read, and where that is known by whom it was found."""
    console.print(trace.answer or "(no answer)", style="bold")
    console.print(f"{trace.spent()}, {trace.seconds:.2f} s; {by}\n", style="dim")
    for place, passage in enumerate(trace.passages, 1):
        ranks = (found or {}).get(passage["id"])
        said = f"found by {found_by(ranks)}" if ranks else ""
        print_passage(
            console, place, passage["title"], passage["id"], passage["tokens"], passage["text"], said
        )


def print_workflow_run(console: Terminal, trace: PlanTrace) -> None:
    """The answer, what was read, and every node: what it gave and cost, and why it was dropped."""
    from mio_rag.control.planner.money import asked_by_model

    asked = asked_by_model(trace)
    each = ", ".join(f"{name} {into} + {out}" for name, (into, out) in asked.items())
    by = f"; prompt and answer tokens by model: {each}" if len(asked) > 1 else ""
    print_answered(console, trace, f"workflow {trace.workflow.get('name', '')}{by}")
    costs = trace.by_node()
    lines = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("node", "does", "gave", "tokens", "s"):
        lines.add_column(title, justify="right" if title in ("tokens", "s") else "left", overflow="fold")
    for step in trace.steps:
        spent = costs[step.node]
        gave = step.gave if step.dropped is None else f"dropped: {step.dropped}"
        tokens = spent.prompt_tokens + spent.completion_tokens
        does = f"{step.action} by {step.model}" if step.model else step.action
        lines.add_row(step.node, does, gave, str(tokens), f"{spent.seconds:.2f}")
    console.print()
    console.print(lines)
    if trace.fallback is not None:
        console.print(f"the workflow gave no answer itself: {trace.fallback}", style="yellow", soft_wrap=True)
    if trace.error is not None:
        console.print(trace.error, style="red", soft_wrap=True)


def print_points(console: Terminal, points: Sequence[Point]) -> None:
    """Policies and fixed workflows: quality, cost, and what a mixture of fixed ones has at that cost."""
    lines = plain_table("who", "alpha", "quality", "cost", "reward", "fixed at cost", "gain", "95 %")
    for point in points:
        lines.add_row(
            point.name,
            *(f"{value:.3f}" for value in (point.alpha, point.quality, point.cost, point.reward)),
            f"{point.fixed:.3f}",
            f"{point.gain:+.3f}",
            f"{point.low:+.3f} to {point.high:+.3f}",
        )
    console.print(lines)
    for point in points:
        if len(point.shares) > 1:
            told = sorted(point.shares.items(), key=lambda item: -item[1])
            said = ", ".join(f"{name} {share:.0%}" for name, share in told)
            console.print(f"{point.name} at {point.alpha:g}: {said}", style="dim", soft_wrap=True)
    console.print(_verdict(points), soft_wrap=not console.is_terminal)


def _verdict(points: Sequence[Point]) -> str:
    """Where the planner is worth having, by the intervals."""
    planned = [point for point in points if point.name == "planner"]
    better = [f"{point.alpha:g}" for point in planned if point.low > 0]
    worse = [f"{point.alpha:g}" for point in planned if point.high < 0]
    if better:
        said = (
            "the planner has more than any mixture of fixed workflows at its cost for alpha "
            f"{', '.join(better)}"
        )
    else:
        said = (
            "at no price the planner clearly has more than a mixture of fixed workflows at its cost: "
            "use one of these, or learn from more questions"
        )
    return said + (f"; clearly less for alpha {', '.join(worse)}" if worse else "")


def _figure(mean: float) -> str:
    """Three digits behind the point; none of large numbers, more of dollars."""
    if mean >= 10:
        return f"{mean:.0f}"
    return f"{mean:.3g}" if 0 < mean < 1e-3 else f"{mean:.3f}"


def print_table(console: Terminal, table: Outcomes) -> None:
    """Means of every workflow, over the questions of the table."""
    shown = [measure for measure in _SHOWN if measure in table.values]
    lines = plain_table("workflow", *shown)
    for place, name in enumerate(table.actions):
        means = [float(np.nanmean(table.values[measure][:, place])) for measure in shown]
        lines.add_row(name, *map(_figure, means))
    console.print(lines)
    console.print(f"{len(table)} questions", style="dim")
