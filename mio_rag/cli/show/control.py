"""What the commands ``mio-rag mdp`` print for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from mio_rag.cli.show.selection import print_passage
from mio_rag.cli.show.strategies import found_by
from mio_rag.cli.terminal import Terminal, styled
from mio_rag.control.bandit.trace import SearchTrace
from mio_rag.control.mdp.policies import open_actions
from mio_rag.control.mdp.trace import ProcessTrace
from mio_rag.control.router.trace import TierTrace

if TYPE_CHECKING:
    from mio_rag.control.trace import Trace
    from mio_rag.learning.mdp import Plan, Segment, Sensitivity, Structure
    from mio_rag.learning.mdp_calibration import Calibration, Estimate

__all__ = ["print_calibration", "print_outcome", "print_plan"]

_SHOWN = 6  # segments of a step, before the rest is counted
_WHAT = 120  # characters of what a step searched for: small models write on and on; JSON has all of it


def _cut(text: str) -> str:
    return text if len(text) <= _WHAT else f"{text[:_WHAT].rstrip()} ..."


def _rule(segments: Sequence[Segment]) -> str:
    shown = [f"{s.actions[0]} {s.start:.4g}\u2013{s.end:.4g}" for s in segments[:_SHOWN]]
    more = f", and {len(segments) - _SHOWN} more" if len(segments) > _SHOWN else ""
    return ", ".join(shown) + more


def print_plan(console: Terminal, plan: Plan, shape: Structure, changes: Sequence[Sensitivity]) -> None:
    """The policy step by step, what is odd about it, and what each parameter does to it."""
    table = _table("step", "over U", left=2)
    for step, segments in enumerate(shape.segments):
        table.add_row("every" if plan.model.horizon is None else str(step), _rule(segments))
    console.print(table)
    solution = plan.solution
    console.print(
        f"{solution.method}: values within {solution.error:.2g} of the grid's optimum, "
        f"V(1) = {plan.values()[-1]:.4f}"
        + (f", grid within {plan.grid_error.at_points:.2g}" if plan.grid_error else "")
    )
    _print_notes(console, shape.warnings)
    tied = sum(bool(step) for step in shape.ties)
    if tied:
        console.print(
            f"actions tie somewhere in {tied} of {plan.steps} steps (--json lists where)", style="dim"
        )
    moved = _table("parameter", "times", "policy moved", "value")
    for row in changes:
        name = "1 - discount" if row.parameter == "discount" else row.parameter
        moved.add_row(name, f"{row.factor:g}", f"{row.changed:.1%}", f"{row.value_change:.4f}")
    console.print()
    console.print(moved)


def _print_notes(console: Terminal, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(styled(("note:", "yellow"), f" {note}"), soft_wrap=True)


def _table(*titles: str, left: int = 1) -> Table:
    """A plain table; the first columns hold text, the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        table.add_column(
            title,
            justify="left" if place < left else "right",
            overflow="fold",
        )
    return table


def print_outcome(console: Terminal, trace: Trace) -> None:
    """The answer, what was read for it, then every step: what was done and what it brought.

    Of the process U and worth as well.
    """
    console.print(trace.answer or "(no answer)", style="bold")
    parts = trace.parts.values()
    process = trace if isinstance(trace, ProcessTrace) else None
    gauge = "" if process is None else f", U {process.gauge}"
    console.print(
        f"{trace.spent()}, {sum(p.seconds for p in parts):.2f} s; {trace.controller}{gauge}\n",
        style="dim",
    )
    levels = [] if process is None else _levels(process)
    found = trace.found if isinstance(trace, SearchTrace) else {}
    for place, passage in enumerate(trace.passages, 1):
        said = f"found by {found_by(found[passage['id']])}" if passage["id"] in found else ""
        print_passage(
            console, place, passage["title"], passage["id"], passage["tokens"], passage["text"], said
        )
    if trace.passages:
        console.print()
    table = _table("step", "action", "what", "new", *(("U", "then", "Q") if levels else ()), "s", left=3)
    for k, step in enumerate(trace.steps):
        table.add_row(
            str(step.step),
            step.action,
            _cut(step.query or step.note or "(nothing new)"),
            str(len(step.new_ids)) if step.action == "retrieve" or found else "",
            *(levels[k] if levels else ()),
            f"{sum(call.seconds for call in step.calls):.2f}",
        )
    if trace.steps:
        console.print(table)
    if isinstance(trace, SearchTrace):
        _print_notes(console, trace.notes)
        if trace.chosen.get("id"):
            console.print(f"id for feedback: {trace.chosen['id']}", style="dim", soft_wrap=True)
    if trace.error is not None:
        console.print(trace.error, style="red", soft_wrap=True)
    if isinstance(trace, TierTrace) and trace.tier:
        console.print(trace.explain(), soft_wrap=True)
    console.print(f"ended: {trace.ended}{'' if process is None else _end(process)}")


def _levels(trace: ProcessTrace) -> list[tuple[str, str, str]]:
    """Of every step U before and after, and the worth of the actions."""
    closed_book = bool(trace.settings["closed_book"])
    return [
        (
            f"{step.uncertainty:.3f}",
            f"{step.next_uncertainty:.3f}",
            _worth(step.q_values, open_actions(trace.steps[:k], closed_book, step.closed)),
        )
        for k, step in enumerate(trace.steps)
    ]


def _end(trace: ProcessTrace) -> str:
    """U in the end, and why nothing more was done."""
    closed_book = bool(trace.settings["closed_book"])
    worth = _worth(trace.last_q_values, open_actions(trace.steps, closed_book, trace.last_closed))
    return f", at U = {trace.uncertainty:.3f}" + (f"; {worth}" if worth and trace.ended == "stop" else "")


def _worth(q_values: Mapping[str, float] | None, possible: Sequence[str]) -> str:
    """The worth of each action; in brackets those that could bring nothing new, and were not to be taken."""
    shown = [(action, f"{action} {q:.3f}") for action, q in (q_values or {}).items()]
    return " ".join(text if action in possible else f"({text})" for action, text in shown)


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "\u2013"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f} (too few questions for an interval, n = {estimate.n})"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f}, n = {estimate.n})"


def print_calibration(console: Terminal, found: Calibration, shapes: Mapping[str, Structure]) -> None:
    """Estimates with intervals, for all U and by bins; the assumptions; the first decision before and
    after."""
    console.print(
        f"{found.retrievals} retrievals and {found.reasonings} reasoning steps on {found.questions} "
        f"questions, U by {found.gauge}\n"
    )
    table = _table("U", "p_s", "delta_r", "delta_p", left=4)
    table.add_row(
        "all", _interval(found.success), _interval(found.retrieve_drop), _interval(found.reason_drop)
    )
    for part in found.bins:
        table.add_row(
            f"{part.low:.2f}\u2013{part.high:.2f}",
            _interval(part.success),
            _interval(part.retrieve_drop),
            _interval(part.reason_drop),
        )
    console.print(table)
    console.print(
        f"costs: retrieve {_interval(found.retrieve_cost)}, reason {_interval(found.reason_cost)}\n"
    )
    for check in found.checks:
        said = {None: ("too few data", "dim"), True: ("violated", "red"), False: ("not violated", "")}
        value = "" if check.value is None else f" ({check.value:.2f}, n = {check.n})"
        console.print(styled(f"{check.name}: ", said[check.violated], value))
    _print_notes(console, found.notes)
    console.print()
    rules = _table("process", "first decision over U", left=2)
    for name, shape in shapes.items():
        rules.add_row(name, _rule(shape.segments[0]))
    console.print(rules)
    _print_notes(console, shapes["calibrated"].warnings)
