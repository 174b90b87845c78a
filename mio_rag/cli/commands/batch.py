"""``mio-rag select-batch``: many questions as one job that can be interrupted and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

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
from mio_rag.cli.show.batches import kept, pools_as_given, renamed, sentences, shown
from mio_rag.errors import collect

if TYPE_CHECKING:
    from mio_rag.batch import Engine

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

    output = open_output(json_output, lambda: kept(out))
    selector, names, _ = collect(
        lambda: side.applied(
            lambda: evidence.applied(
                lambda: make_selector(program, solving, must_include or (), must_exclude or ())
            ),
            program,
            pool_radii=True,  # of a column
        ),
        lambda: renamed(column),
        lambda: pools_as_given(evidence.link_hops, evidence.rerank),
    )
    with shown() as progress:
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
        output.console.print(sentences(done), soft_wrap=True)
    if done.rejected == done.rows:
        raise typer.Exit(1)
