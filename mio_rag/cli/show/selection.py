"""What the command line prints about selections, answers and solves, and about files left out of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from mio_rag.cli.terminal import Terminal, styled

if TYPE_CHECKING:
    from mio_rag.corpora.dataset import LeftOut
    from mio_rag.selection.result import Selection
    from mio_rag.solvers.result import SolveResult
    from mio_rag.types import Answer

__all__ = ["print_answer", "print_left_out", "print_result", "print_selection"]


def print_selection(console: Terminal, selection: Selection, show_rest: int = 8) -> None:
    """The chosen passages, then the best of the rest, each with its reason; the certificate last."""
    if selection.result.x is None:
        console.print(selection.explain())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, kind in (
        ("", "left"),
        ("passage", "left"),
        ("tokens", "right"),
        ("relevance", "right"),
        ("why", "left"),
    ):
        table.add_column(name, justify=kind, overflow="fold")  # type: ignore[arg-type]
    chosen = list(selection.chosen)
    rest = sorted(
        (i for i in range(len(selection.candidates)) if i not in set(chosen)),
        key=lambda i: -selection.decisions[i].value,
    )
    for i in chosen + rest[:show_rest]:
        d, passage = selection.decisions[i], selection.candidates.passage(i)
        label = styled(f"{passage.title} ", (d.id, "dim")) if passage.title else d.id
        mark, style = (("\u2713", "green"), "") if d.selected else (("\u00b7", "dim"), "dim")
        table.add_row(
            styled(mark),
            label,
            str(d.tokens),
            f"{round(d.relevance, 3) + 0.0:.3f}",
            d.reason,
            style=style,
        )
    console.print(table)
    if len(rest) > show_rest:
        console.print(f"  and {len(rest) - show_rest} more left out", style="dim")
    count = f"{len(chosen)} passage{'' if len(chosen) == 1 else 's'}"
    console.print(
        styled(
            (f"{count}, {selection.tokens_used} of {selection.budget_tokens} tokens", "bold"),
            f" \u2014 {selection.result.certificate()}",
        )
    )
    for line in (*([selection.worst_case.explain()] if selection.worst_case else []), *selection.notes):
        console.print(line)


def print_answer(console: Terminal, answer: Answer) -> None:
    """What the reader said, and what that took."""
    console.print(answer.text or "(no answer)", style="bold")
    console.print(
        f"{answer.generator}: {answer.prompt_tokens} prompt and {answer.completion_tokens} answer tokens, "
        f"{answer.latency_seconds:.2f} s\n",
        style="dim",
    )


def print_result(console: Terminal, result: SolveResult, tokens_used: float | None) -> None:
    """A solve result in two lines."""
    console.print(result.certificate())
    if result.x is not None:
        console.print(f"selected {list(result.selected)}, cost {tokens_used:g}")


def print_left_out(console: Terminal, left_out: Sequence[LeftOut]) -> None:
    """Files of a folder that are not in the corpus, those of one reason together."""
    if not left_out:
        return
    reasons: dict[str, list[str]] = {}
    for item in left_out:
        reasons.setdefault(item.reason, []).append(item.path)
    console.print(f"left out: {len(left_out)}", style="yellow")
    for reason, paths in list(reasons.items())[:20]:
        named = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        console.print(f"  {named}: {reason}", soft_wrap=True)
    if len(reasons) > 20:
        console.print(f"  and {len(reasons) - 20} other reasons; --json lists everything")
