"""What is printed about search strategies: what each did, who found what is read, what a bandit learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from mio_rag.cli.terminal import Terminal

if TYPE_CHECKING:
    from mio_rag.learning.bandit_report import Replay

__all__ = ["found_by", "print_replay", "print_searched", "print_stats"]


def found_by(ranks: Mapping[str, int]) -> str:
    """Who found a passage, at which rank, in words."""
    said = [f"{name} {rank}" if rank else f"{name} by a link" for name, rank in ranks.items()]
    return ", ".join(said) or "nobody"


def print_searched(console: Terminal, searched: Mapping[str, Any]) -> None:
    """A line for each strategy, then one for each passage that is read.

    Parameters
    ----------
    searched : mapping
        As `mio_rag.control.bandit.pipeline.searched_json` gives it.
    """
    console.print("\nsearched by:", style="dim")
    for one in searched["strategies"]:
        tokens = one["prompt_tokens"] + one["completion_tokens"]
        said = one["note"] or " | ".join(one["queries"])
        console.print(f"  {one['strategy']}: {tokens} tokens; {said}", soft_wrap=True)
    console.print("found by (rank):", style="dim")
    for identity, ranks in searched["found_by"].items():
        console.print(f"  {identity}: {found_by(ranks)}", soft_wrap=True)
    told = {f"{one['strategy']}: {one['note']}" for one in searched["strategies"]}
    for note in searched["search_notes"]:
        if note not in told:  # what a strategy says of itself stands beside it
            console.print(f"note: {note}", soft_wrap=True)
    choice = searched["choice"]
    if choice["why"]:
        console.print(f"chosen: {choice['why']}", style="dim", soft_wrap=True)
    if choice["id"]:
        console.print(f"id for feedback: {choice['id']}", style="dim", soft_wrap=True)


def print_stats(console: Terminal, found: Mapping[str, Any]) -> None:
    """A line for each strategy, the state of the whole, and what was learned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = ("strategy", "ran", "share", "exploring", "adds in", "adds", "tokens", "seconds", "rating")
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place else "left")
    for name, each in found["strategies"].items():
        table.add_row(
            name,
            str(each["ran"]),
            _share(each["selection_rate"]),
            _share(each["share_exploring"]),
            "always runs" if each["always"] else _share(each["contribution_rate"]),
            "" if each["always"] else _number(each["contribution"], "+.3f"),
            _number(each["tokens"], ".0f"),
            _number(each["seconds"], ".2f"),
            f"{each['rating']:+.1f}",
        )
    console.print(table)
    console.print(
        f"{found['questions']} questions; lately the same set on {found['convergence']:.0%}, entropy of the "
        f"choices {found['entropy_bits']:.2f} bits; expected regret {found['regret']:.3f}; "
        f"{found['changes']} changes found",
        soft_wrap=True,
    )
    for kind, names in found["probation"].items():
        console.print(f"on probation for {kind} questions: {', '.join(names)}", soft_wrap=True)
    for said in found["insights"]:
        console.print(said, soft_wrap=True)


def print_replay(console: Terminal, found: Replay) -> None:
    """What was earned, and the estimates of what the policy would have earned."""
    console.print(f"{found.questions} questions; earned {found.earned:+.4f} a question, net of costs")
    for one in found.estimates:
        console.print(
            f"{found.policy}, {one.name}: {one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}], rests on "
            f"{one.effective:.0f} questions",
            soft_wrap=True,
        )
    if not found.differs:
        console.print(
            "It would have chosen alike on all of them (they may all lie in the cold start): this says "
            "nothing of the policy.",
            style="yellow",
            soft_wrap=True,
        )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
