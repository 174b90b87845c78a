"""Commands about an index: index, radius."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.cli.options import EmbedderName, Json, build_index, load_embedder, load_index, spread
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.corpora.dataset import Dataset


# -- index -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DocumentOptions:
    """What of a folder of documents is read."""

    follow_links: bool = False
    """Folder of documents: follow symbolic links out of it."""
    max_file_mb: float | None = None
    """Folder of documents: largest file that is read. [100]"""

    def checked(self) -> None:
        """Raise `InputError` for a size that is none."""
        if self.max_file_mb is not None and not 0 < self.max_file_mb < math.inf:
            raise InputError(f"--max-file-mb={self.max_file_mb:g} must be a number above 0")

    def load(self, data: str) -> Dataset:
        """The data set, its documents read as the options say."""
        from mio_rag.corpora.load import load_dataset

        self.checked()
        limit = self.max_file_mb
        return load_dataset(
            data,
            follow_links=self.follow_links or None,
            max_bytes=None if limit is None else max(1, round(limit * 1e6)),
        )


@spread
def index(
    data: Annotated[
        str,
        typer.Argument(
            help="Folder with corpus.jsonl[.gz], folder of .txt/.md/.pdf/.docx/.html, 'demo', hf:NAME, "
            "or FORMAT:PATH of a published set."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="New folder for the index.")],
    embedder: EmbedderName = "minilm",
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing index.")] = False,
    entities: Annotated[
        str | None,
        typer.Option(
            "--entities",
            help="Link passages by the named entities of a model: spacy:MODEL. [titles, or names]",
        ),
    ] = None,
    vectors: Annotated[
        str,
        typer.Option(
            "--vectors", help="How they are held: exact, 8bit (a quarter of the memory), or pq (a 16th)."
        ),
    ] = "exact",
    sentences: Annotated[
        bool,
        typer.Option(
            "--sentences", help="Embed every sentence, too: --units sentences then looks at more than words."
        ),
    ] = False,
    documents: DocumentOptions,
    json_output: Json = False,
) -> None:
    """Embed a corpus and write a searchable index."""
    import time

    from mio_rag.cli.show import print_left_out
    from mio_rag.corpora.load import check_source
    from mio_rag.formulations.numbers import plural
    from mio_rag.retrieval.embedders import check_embedder
    from mio_rag.retrieval.index import check_target
    from mio_rag.retrieval.links import entity_names
    from mio_rag.retrieval.repetition import contradicting
    from mio_rag.retrieval.vectors import check_vectors

    output = open_output(json_output)
    start = time.perf_counter()
    collect(
        lambda: check_source(data),
        documents.checked,
        lambda: check_embedder(embedder),
        lambda: check_vectors(vectors),
        lambda: check_target(out, overwrite),
    )
    dataset, model, name_of = collect(
        lambda: documents.load(data),
        lambda: load_embedder(embedder),
        lambda: None if entities is None else entity_names(entities),
    )
    built = build_index(dataset.passages, model, dataset.name, name_of, vectors, sentences)
    built.save(out, overwrite=overwrite)
    seconds = time.perf_counter() - start
    repeated = built.repetition
    cut = "" if built.sentences is None else f" in {plural(len(built.sentences), 'sentence')}"
    assert repeated is not None
    contradict = contradicting(dataset.passages)
    if json_output:
        output.json(
            {
                "index": str(out),
                "passages": len(built),
                "dimensions": built.dimensions,
                "embedder": embedder,
                "seconds": seconds,
                "overlapping": repeated.overlapping,
                "contradicting": contradict,
                "near_duplicates": repeated.copies,
                "sentences": 0 if built.sentences is None else len(built.sentences),
                "left_out": [asdict(item) for item in dataset.left_out],
            }
        )
        return
    output.console.print(
        f"{plural(len(built), 'passage')}{cut}, {built.dimensions} dimensions by {embedder}, "
        f"{seconds:.1f} s -> {out}",
    )
    said = [
        f"{count} {what}"
        for count, what in (
            (repeated.overlapping, "with a known place in their document (overlaps are read once)"),
            (contradict, "of documents with two texts at the same place (read by themselves)"),
            (repeated.copies, f"near-duplicate{'s' * (repeated.copies > 1)} of an earlier one"),
        )
        if count
    ]
    if said:
        output.console.print(f"of these, {', '.join(said)}")
    print_left_out(output.console, dataset.left_out)


# -- radius ----------------------------------------------------------------------------------------------


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
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.retrieval.index import check_index
    from mio_rag.retrieval.radius import check_method, measure_radius, write_radii

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
