"""What is printed about search strategies: what each did, and who found what is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mio_rag.cli.terminal import Terminal

__all__ = ["found_by", "print_searched"]


def found_by(ranks: Mapping[str, int]) -> str:
    """Who found a passage, at which rank, in words."""
    said = [f"{name} {rank}" if rank else f"{name} by a link" for name, rank in ranks.items()]
    return ", ".join(said) or "nobody"


def print_searched(console: Terminal, searched: Mapping[str, Any]) -> None:
    """A line for each strategy, then one for each passage that is read.

    Parameters
    ----------
    searched : mapping
        As `mio_rag.control.bandit.road.searched_json` gives it.
    """
    console.print("\nsearched by:", style="dim")
    for one in searched["strategies"]:
        tokens = one["prompt_tokens"] + one["completion_tokens"]
        said = one["note"] or " | ".join(one["queries"])
        console.print(f"  {one['strategy']}: {tokens} tokens; {said}", soft_wrap=True)
    console.print("found by (rank):", style="dim")
    for identity, ranks in searched["found_by"].items():
        console.print(f"  {identity}: {found_by(ranks)}", soft_wrap=True)
    choice = searched["choice"]
    if choice["why"]:
        console.print(f"chosen: {choice['why']}", style="dim", soft_wrap=True)
    if choice["id"]:
        console.print(f"id for feedback: {choice['id']}", style="dim", soft_wrap=True)
