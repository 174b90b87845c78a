"""What the commands ``mio-rag mdp`` print for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from mio_rag.control.plan import Plan
    from mio_rag.control.structure import Segment, Sensitivity, Structure

__all__ = ["print_plan"]

_SHOWN = 6  # segments of a step, before the rest is counted


def _rule(segments: Sequence[Segment]) -> str:
    shown = [f"{s.actions[0]} {s.start:.4g}\u2013{s.end:.4g}" for s in segments[:_SHOWN]]
    more = f", and {len(segments) - _SHOWN} more" if len(segments) > _SHOWN else ""
    return ", ".join(shown) + more


def print_plan(console: Console, plan: Plan, shape: Structure, changes: Sequence[Sensitivity]) -> None:
    """The policy step by step, what is odd about it, and what each parameter does to it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("step", "over U"):
        table.add_column(title, overflow="fold")
    for step, segments in enumerate(shape.segments):
        table.add_row("every" if plan.steps == 1 else str(step), _rule(segments))
    console.print(table)
    solution = plan.solution
    console.print(
        f"{solution.method}: values within {solution.error:.2g} of the grid's optimum, "
        f"V(1) = {plan.values()[-1]:.4f}"
        + (f", grid within {plan.grid_error.at_points:.2g}" if plan.grid_error else ""),
        markup=False,
    )
    for warning in shape.warnings:
        console.print(f"[yellow]note:[/] {escape(warning)}", soft_wrap=True)
    tied = sum(bool(step) for step in shape.ties)
    if tied:
        console.print(f"[dim]actions tie somewhere in {tied} of {plan.steps} steps (--json lists where)[/]")
    moved = Table(box=None, pad_edge=False, header_style="bold")
    moved.add_column("parameter")
    for title in ("times", "policy moved", "value"):
        moved.add_column(title, justify="right")
    for row in changes:
        name = "1 - discount" if row.parameter == "discount" else row.parameter
        moved.add_row(name, f"{row.factor:g}", f"{row.changed:.1%}", f"{row.value_change:.4f}")
    console.print()
    console.print(moved)
