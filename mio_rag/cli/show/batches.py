"""What commands over Parquet files share: names of columns, progress, and what they say at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import plural

if TYPE_CHECKING:
    from mio_rag.batch import BatchSummary
    from mio_rag.batch.stages import Progress

__all__ = ["kept", "pools_as_given", "renamed", "sentences", "shown"]


def kept(out: Path) -> str:
    """What an interrupt leaves behind."""
    finished = sum(1 for _ in (out / "selections").glob("part-*.parquet"))
    return (
        f"finished shards ({finished}) are kept in '{out}': run the same command to resume"
        if finished
        else ""
    )


def renamed(given: list[str] | None) -> dict[str, str]:
    """Ours to theirs, of ``--column``."""
    names = {}
    for text in given or ():
        ours, sign, theirs = text.partition("=")
        if not (sign and ours.strip() and theirs.strip()):
            raise InputError(f"--column={text!r} must be OURS=THEIRS, for instance relevance=score")
        names[ours.strip()] = theirs.strip()
    return names


def pools_as_given(link_hops: int | None, rerank: Sequence[str] | None) -> None:
    """Refuse what changes pools: a batch takes them as they are."""
    problems = []
    if link_hops:
        problems.append("--link-hops expands a pool from an index: a batch takes its pools as they are")
    if rerank:
        problems.append(
            "--rerank scores a pool anew: a batch takes its pools as they are; give the scores in a column "
            f"'score:{rerank[0]}', and --relevance a model that was fitted with them"
        )
    if problems:
        raise InputError(problems)


def sentences(done: BatchSummary) -> str:
    """The outcome for people."""
    statuses = ", ".join(f"{count} {status}" for status, count in done.statuses.items()) or "none answered"
    text = f"{done.rows} rows: {statuses}, {done.rejected} rejected"
    if done.rejected:
        text += f" (reasons: {done.out / 'rejected.jsonl'})"
    if done.done_before:
        text += f"; {done.done_before} were finished before"
    peak = (
        "peak memory unknown here"
        if done.peak_worker_mb is None
        else f"at most {done.peak_worker_mb:.0f} MB each"
    )
    if done.done_before >= done.rows:
        return f"{text}: nothing was left to do -> {done.out}"
    return (
        f"{text}\n{_rate(done.rows_per_second)}, {done.seconds:.0f} s, "
        f"{plural(done.workers, 'worker')}, {peak} -> {done.out}"
    )


def _rate(per_second: float) -> str:
    """Rows in a time in which there is at least one."""
    units = {"second": 1, "minute": 60, "hour": 3600}
    unit = next((unit for unit, seconds in units.items() if per_second * seconds >= 1), "hour")
    return f"{per_second * units[unit]:.3g} rows per {unit}"


@contextmanager
def shown() -> Iterator[Progress]:
    """Bars with rate and time left on stderr; silent where nobody watches a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    from mio_rag.cli.terminal import errors

    class Rate(ProgressColumn):
        """Steps a second over the last half minute."""

        def render(self, task: Task) -> Text:
            return Text("" if not task.speed else f"{task.speed:,.0f}/s")

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal, speed_estimate_period=30) as bars:
        tasks: dict[str, Any] = {}

        def tell(kind: str, total: int, done: int) -> None:
            if kind not in tasks:
                tasks[kind] = bars.add_task({"reading": "reading (bytes)"}.get(kind, kind), total=total)
            bars.update(tasks[kind], advance=done)

        yield tell
