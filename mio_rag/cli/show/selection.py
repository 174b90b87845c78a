"""What the command line prints: tables, progress, errors; and JSON that nothing else can get into."""

from __future__ import annotations

import codecs
import errno
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from mio_rag.cli.streams import OutputError
from mio_rag.cli.terminal import Terminal, printable, styled
from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.corpora.dataset import LeftOut
    from mio_rag.selection.result import Selection
    from mio_rag.solvers.result import SolveResult
    from mio_rag.types import Answer

__all__ = [
    "Output",
    "collect",
    "print_answer",
    "print_failures",
    "print_left_out",
    "print_result",
    "print_run",
    "print_selection",
    "print_summary",
    "progress_bar",
]

errors = Terminal(stderr=True)


class Output:
    """Where a command's result goes.

    With `as_json`, exactly one JSON object is written to stdout. Native libraries write to file descriptor 1
    whenever they like, so that descriptor is pointed at stderr until the object is printed.

    Parameters
    ----------
    kept : callable, optional
        Says what an interrupt leaves behind; empty for nothing.
    """

    def __init__(self, as_json: bool, kept: Callable[[], str] | None = None) -> None:
        self.as_json, self.kept = as_json, kept
        self.console = Terminal(stderr=as_json)
        self._stdout: int | None = None
        if as_json and sys.stdout is not None:
            sys.stdout.flush()
            try:
                self._stdout = os.dup(1)
                os.dup2(2, 1)
            except OSError:  # no real descriptors (a test runner's capture)
                self._stdout = None

    def close(self) -> None:
        """Give stdout back."""
        if self._stdout is not None:
            sys.stdout.flush()
            os.dup2(self._stdout, 1)
            os.close(self._stdout)
            self._stdout = None

    def json(self, data: Mapping[str, Any]) -> None:
        """Print the one object, on one line; what JSON cannot hold (infinity, NaN) becomes null.

        Raises
        ------
        OutputError
            If stdout is closed, or takes nothing more.
        """
        self.close()
        text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False)
        if sys.stdout is None:
            raise OutputError(OSError(errno.EBADF, "stdout is closed"))
        if not _takes(sys.stdout.encoding or "utf-8", text):
            text = json.dumps(_finite(data), allow_nan=False)
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error) from error

    def problems(self, problems: Sequence[str], kind: str, headed: bool = True) -> None:
        """Report an error: to people on stderr, to programs as one object on stdout.

        Parameters
        ----------
        headed : bool
            Put "error:" before each problem.
        """
        for problem in problems:
            errors.print(styled(("error:", "bold red"), f" {problem}") if headed else problem, soft_wrap=True)
        if self.as_json:
            self.json({"error": {"kind": kind, "problems": list(problems)}})


def _takes(encoding: str, text: str) -> bool:
    """Whether the text can be written as it is: JSON is UTF-8, and other bytes would be read as that."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return text.isascii() or codecs.lookup(encoding).name == "utf-8"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def collect(*steps: Callable[[], Any]) -> list[Any]:
    """Run independent checks and report the problems of all of them at once.

    Raises
    ------
    InputError
        With the problems of every step that failed on its input.
    """
    results: list[Any] = []
    failures: list[InputError] = []
    for step in steps:
        try:
            results.append(step())
        except InputError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise InputError(list(dict.fromkeys(p for error in failures for p in error.problems)))
    return results


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar with rate and time left on stderr; silent where nobody watches a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(printable(label), total=total)
        yield lambda done, text="": bar.update(task, advance=done)


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


_WIDE = 170  # columns of a terminal that holds everything


def _share(share: float | None) -> str:
    return "\u2013" if share is None else f"{share:.0%}"


def print_summary(console: Terminal, summary: Sequence[Mapping[str, Any]]) -> None:
    """One line per method and budget: means, with 95 % intervals where the terminal is wide enough."""
    from mio_rag.measures import console_measures

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
