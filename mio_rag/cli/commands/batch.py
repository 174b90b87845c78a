"""``mio-rag select-batch``: many questions as one job that can be interrupted and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli.options.relevance import RelevanceOptions
from mio_rag.cli.options.shared import (
    Budget,
    Exclude,
    Include,
    Json,
    ProgramOptions,
    SolverOptions,
    make_selector,
    spread,
)
from mio_rag.cli.options.side import SideOptions
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect
from mio_rag.formulations.numbers import plural

if TYPE_CHECKING:
    from mio_rag.batch import BatchSummary, Engine
    from mio_rag.batch.stages import Progress

__all__ = ["select_batch"]


@spread
def select_batch(
    candidates: Annotated[Path, typer.Argument(help="Parquet file of candidates, or a folder of them.")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the output; an interrupted run resumes there.")
    ],
    budget_tokens: Budget = 256,
    engine: Annotated[str, typer.Option("--engine", help="local (processes) or ray.")] = "local",
    workers: Annotated[int, typer.Option("--workers", help="Worker processes; default: one per core.")] = 1,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="OURS=THEIRS: a column has another name. Repeatable."),
    ] = None,
    shard_rows: Annotated[int, typer.Option("--shard-rows", help="Maximum rows of an output file.")] = 5000,
    *,
    program: ProgramOptions,
    must_include: Include = None,
    must_exclude: Exclude = None,
    evidence: RelevanceOptions,
    side: SideOptions,
    solving: SolverOptions,
    json_output: Json = False,
) -> None:
    """Choose passages for every row of a Parquet file. Run it again to resume after an interruption.

    A row holds a question's pool: query_id, ids, relevance, tokens and embeddings (or similarity) as lists;
    see docs/pages/batch.md for all columns.
    """
    from mio_rag.batch import select_batch as run

    output = open_output(json_output, lambda: _kept(out))
    selector, names, _ = collect(
        lambda: side.applied(
            lambda: evidence.applied(
                lambda: make_selector(program, solving, must_include or (), must_exclude or ())
            ),
            program,
            pool_radii=True,  # of a column
        ),
        lambda: _columns(column),
        lambda: _no_hops(evidence.link_hops),
    )
    with _shown() as progress:
        done = run(
            candidates,
            out,
            budget_tokens,
            selector,
            engine=cast("Engine", engine),
            workers=workers,
            columns=names,
            shard_rows=shard_rows,
            progress=progress,
        )
    if json_output:
        output.json(done.to_dict())
    else:
        output.console.print(_sentences(done), soft_wrap=True)
    if done.rejected == done.rows:
        raise typer.Exit(1)


def _kept(out: Path) -> str:
    """What an interrupt leaves behind."""
    finished = sum(1 for _ in (out / "selections").glob("part-*.parquet"))
    return (
        f"finished shards ({finished}) are kept in '{out}': run the same command to resume"
        if finished
        else ""
    )


def _columns(given: list[str] | None) -> dict[str, str]:
    names = {}
    for text in given or ():
        ours, sign, theirs = text.partition("=")
        if not (sign and ours.strip() and theirs.strip()):
            raise InputError(f"--column={text!r} must be OURS=THEIRS, for instance relevance=score")
        names[ours.strip()] = theirs.strip()
    return names


def _no_hops(link_hops: int | None) -> None:
    if link_hops:
        raise InputError("--link-hops expands a pool from an index: a batch takes its pools as they are")


def _sentences(done: BatchSummary) -> str:
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
def _shown() -> Iterator[Progress]:
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
