"""``mio-rag radius``: measure the error of embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mio_rag.cli.options.shared import Json, load_index
from mio_rag.cli.output import open_output
from mio_rag.errors import collect

__all__ = ["radius"]


def radius(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="sq8, pq:M or pq:MxBITS, as pq:8x4 (what compression would cost), chunks (halves of "
            "passages), encoder (a second one: --other), paraphrases (of questions: --file).",
        ),
    ] = "sq8",
    other: Annotated[str | None, typer.Option("--other", help="Second embedder of --method encoder.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help='JSON lines {"texts": ["...", "..."]}: texts that mean the same.'),
    ] = None,
    quantile: Annotated[
        float, typer.Option("--quantile", help="Share of the errors that the radius must cover.")
    ] = 0.9,
    limit: Annotated[int, typer.Option("--limit", help="Passages to embed for chunks and encoder.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the sample.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File (.npz) for --radii: passages not measured get the radius."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Measure the error of embeddings. Gives a radius from data, for --radius."""
    from mio_rag.cli.progress import progress_bar
    from mio_rag.retrieval.index import check_index
    from mio_rag.retrieval.radius import check_method, measure_radius
    from mio_rag.retrieval.radius_file import write_radii

    output = open_output(json_output)
    collect(lambda: check_index(index), lambda: check_method(method, other, file, quantile, limit, out))
    corpus = load_index(index)
    with progress_bar(f"measuring by {method}", limit) as advance:
        found = measure_radius(
            corpus, method, other=other, file=file, limit=limit, seed=seed, progress=advance
        )
    summary = {"index": str(index), **found.to_dict(quantile)}
    rest = 0
    if out is not None:
        rest = write_radii(out, found, corpus.ids, summary["radius"])
        summary["not_measured"] = rest
    if json_output:
        output.json(summary)
        return
    output.console.print(
        f"{found.errors.size} errors by {found.method}: median {summary['median']:.4f}, "
        f"{quantile:.0%} within {summary['radius']:.4f}, largest {summary['largest']:.4f}\n"
        f"use --radius {summary['radius']:.4f}  ({found.meaning})",
        soft_wrap=True,
    )
    if rest:
        output.console.print(
            f"not measured: {rest} of {len(corpus)} passages; {out} gives them {summary['radius']:.4f}",
            soft_wrap=True,
        )
