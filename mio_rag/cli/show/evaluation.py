"""What the command line prints about an evaluation: what it ran on, the table of means, what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from mio_rag.cli.terminal import Terminal, styled
from mio_rag.measures import console_measures

if TYPE_CHECKING:
    from mio_rag.evaluation.harness import EvaluationResult

__all__ = ["evaluation_json", "print_failures", "print_run", "print_summary"]

_WIDE = 170  # columns of a terminal that holds everything


def evaluation_json(result: EvaluationResult) -> dict[str, Any]:
    """Plain data of an evaluation, for ``--json``."""
    return {
        "out": str(result.folder),
        "run": result.run,
        "summary": result.summary,
        "comparisons": result.comparisons,
    }


def print_run(console: Terminal, run: Mapping[str, Any]) -> None:
    """What an evaluation ran on."""
    console.print(
        f"{run['dataset']}: {run['questions']} questions, {run['passages']} passages, "
        f"embedder {run['embedder']}, reader {run['generator'] or 'none'}, pool {run['pool']}, "
        f"{run['seconds']:.0f} s\n"
    )


def print_failures(console: Terminal, rows: Sequence[Mapping[str, Any]]) -> None:
    """What went wrong, most frequent first."""
    reasons = Counter(str(row["error"]) for row in rows if row["error"])
    for reason, count in reasons.most_common(5):
        console.print(styled((f"failed {count}x:", "red"), f" {reason}"), soft_wrap=True)
    if len(reasons) > 5:
        console.print(f"and {len(reasons) - 5} other reasons, in the ledger", style="dim")


def _share(share: float | None) -> str:
    return "\u2013" if share is None else f"{share:.0%}"


def print_summary(console: Terminal, summary: Sequence[Mapping[str, Any]]) -> None:
    """One line per method and budget: means, with 95 % intervals where the terminal is wide enough."""
    wide = console.width >= _WIDE
    shown = [
        (measure, column)
        for measure in console_measures()
        if (column := measure.console) is not None
        and (wide or column.always)
        and any(entry.get(measure.name) for entry in summary)
    ]
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("budget", justify="right", no_wrap=True)
    for measure, _ in shown:
        table.add_column(measure.title, justify="right", no_wrap=True)
    table.add_column("proven", justify="right", no_wrap=True)
    if any(entry["failed"] for entry in summary):
        table.add_column("failed", justify="right", no_wrap=True)
    for entry in sorted(summary, key=lambda e: e["budget_tokens"]):
        cells: list[Text] = []
        for measure, column in shown:
            value, form = entry.get(measure.name), measure.form.format
            cells.append(Text("\u2013" if value is None else form(value["mean"])))
            if value is not None and column.interval and wide:
                cells[-1].append(f" {form(value['low'])}\u2013{form(value['high'])}", "dim")
        failed = [str(entry["failed"])] if any(e["failed"] for e in summary) else []
        table.add_row(
            entry["method"],
            str(entry["budget_tokens"]),
            *cells,
            _share(entry["optimal_share"]),
            *failed,
        )
    console.print(table)
