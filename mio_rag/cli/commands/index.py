"""``mio-rag index``, and how far folders of documents are read."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.cli.options.shared import EmbedderName, Json, build_index, load_embedder, spread
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.corpora.dataset import Dataset

__all__ = ["DocumentOptions", "index"]


@dataclass(frozen=True)
class DocumentOptions:
    """What of a folder of documents is read."""

    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Folder of documents: follow symbolic links out of it.")
    ] = False
    max_file_mb: Annotated[
        float | None,
        typer.Option("--max-file-mb", help="Folder of documents: largest file that is read. [100]"),
    ] = None

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

    from mio_rag.cli.show.selection import print_left_out
    from mio_rag.corpora.load import check_source
    from mio_rag.formulations.numbers import plural
    from mio_rag.retrieval.compact import check_vectors
    from mio_rag.retrieval.embedders import check_embedder
    from mio_rag.retrieval.entities import entity_names
    from mio_rag.retrieval.index import check_target
    from mio_rag.retrieval.repetition import contradicting

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
