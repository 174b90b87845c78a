"""What is printed of policies, and of a question under one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from mio_rag.cli.show.plan import print_answered
from mio_rag.cli.terminal import Terminal
from mio_rag.control.composed.describe import described, price_in_words

if TYPE_CHECKING:
    from mio_rag.control.composed.policy import Policy
    from mio_rag.control.composed.states import States
    from mio_rag.control.composed.trace import PolicyTrace

__all__ = ["print_policy", "print_policy_run", "print_presets"]


def _table(*titles: str) -> Table:
    lines = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        lines.add_column(title, overflow="fold")
    return lines


def print_presets(console: Terminal, presets: Mapping[str, str]) -> None:
    """The policies that ship, one a line."""
    lines = _table("policy", "what it is for")
    for name, said in presets.items():
        lines.add_row(name, said)
    console.print(lines)


def print_policy(console: Terminal, policy: Policy, states: States) -> None:
    """Who decides what, the price, the limits, models and files."""
    console.print(policy.name, style="bold")
    if policy.about:
        console.print(policy.about, soft_wrap=True, markup=False)
    lines = _table("decision", "who", "how")
    lines.add_row("price", "one for all", price_in_words(policy))
    for line in described(policy, states):
        lines.add_row(line.decision, line.who, line.how)
    limits = policy.limits
    lines.add_row(
        "limits",
        "every question",
        f"{limits.tokens:,} tokens, {limits.steps} steps of a model, {limits.seconds:g} s",
    )
    console.print()
    console.print(lines)
    for name, model in policy.models.items():
        dollars = f"${model.input:g} in, ${model.output:g} out per million tokens" if model.is_priced else ""
        console.print(f"model {name}: {', '.join(filter(None, [model.spec, dollars]))}", soft_wrap=True)
    for file, digest in states.hashes.items():
        console.print(f"{file}: {digest[:12]}", style="dim", soft_wrap=True)
    console.print(f"content {states.sha256[:12]}", style="dim")


def print_policy_run(console: Terminal, trace: PolicyTrace) -> None:
    """The answer, what was read, then the question's way, a sentence a step."""
    print_answered(console, trace, trace.controller, trace.search.get("found_by"))
    if trace.passages:
        console.print()
    console.print(trace.explain(), soft_wrap=True, markup=False, highlight=False)
    if trace.search.get("id"):
        console.print(f"id for feedback: {trace.search['id']}", style="dim", soft_wrap=True)
    if trace.fallback is not None:
        console.print(f"answered another way: {trace.fallback}", style="yellow", soft_wrap=True)
    if trace.error is not None:
        console.print(trace.error, style="red", soft_wrap=True)
