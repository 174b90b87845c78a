"""``mio-rag profile``: memory and seconds of answering a question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mio_rag.cli.options.shared import GeneratorSpec, Json, Mapped, load_index
from mio_rag.cli.output import open_output
from mio_rag.errors import collect

if TYPE_CHECKING:
    from mio_rag.control.router.tier import Tier

__all__ = ["profile"]

_QUERIES = 200  # of the index's own passages, where no questions are given


def profile(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[
        str, typer.Option("--question", help="What is asked.")
    ] = "What is said about it, and when?",
    generator: GeneratorSpec = "extractive",
    device: Annotated[
        bool,
        typer.Option(
            "--device",
            help="Every form of the index: vectors exact, 8bit or pq; in memory or on disk; and its recall.",
        ),
    ] = False,
    questions: Annotated[
        str | None,
        typer.Option(
            "--questions",
            help="With --device: compare the nearest passages of these questions. [of passages of the index]",
        ),
    ] = None,
    tiers: Annotated[
        str | None,
        typer.Option(
            "--tiers",
            metavar="FILE",
            help="An answer at each tier: a TOML file of tiers, or 'published'.",
        ),
    ] = None,
    mapped: Mapped = False,
    json_output: Json = False,
) -> None:
    """Measure peak memory and processor seconds. Each component runs in a process of its own."""
    import numpy as np

    from mio_rag.cli.show.tables import Field, print_fields
    from mio_rag.corpora.load import check_source, load_questions
    from mio_rag.evaluation.footprint import fits, footprints, tier_footprints
    from mio_rag.generation import check_generator
    from mio_rag.retrieval.compact import VECTOR_KINDS, why_not
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output)
    *_, levels = collect(
        lambda: check_index(index),
        lambda: check_generator(generator),
        lambda: None if questions is None else check_source(questions),
        lambda: () if tiers is None else _tiers(tiers),
    )
    parts = footprints(index, question, generator, mapped=mapped)
    reached = tier_footprints(index, question, levels, generator, mapped=mapped) if levels else []
    forms, left_out = [], {}
    if device:
        corpus = load_index(index)
        if questions is None:
            drawn = np.random.default_rng(0).permutation(len(corpus))[:_QUERIES]
            queries = corpus.embeddings(sorted(map(int, drawn)))
        else:
            queries = corpus.embedder.encode([q.text for q in load_questions(questions)])
        forms = fits(corpus, queries, question)
        width = int(queries.shape[1])
        left_out = {kind: why for kind in VECTOR_KINDS if (why := why_not(kind, len(corpus), width))}
    if json_output:
        told = {"components": [vars(p) for p in parts], "tiers": [vars(p) for p in reached]}
        output.json({**told, "forms": [f.to_dict() for f in forms], "left_out": left_out})
        return
    print_fields(
        output.console,
        [Field("component", [p.component for p in parts], "left")],
        [
            Field("peak MB", [f"{p.peak_mb:.0f}" for p in parts]),
            Field("added MB", [f"{p.added_mb:.0f}" for p in parts]),
            Field("CPU s", [f"{p.seconds:.2f}" for p in parts]),
        ],
    )
    if reached:
        output.console.print("\nan answer at each tier, from the question on\n")
        print_fields(
            output.console,
            [Field("tier", [p.component.removeprefix("tier:") for p in reached], "left")],
            [
                Field("peak MB", [f"{p.peak_mb:.0f}" for p in reached]),
                Field("above the embedder MB", [f"{p.added_mb:.0f}" for p in reached]),
                Field("CPU s", [f"{p.seconds:.2f}" for p in reached]),
                Field("prompt tokens", [str(p.prompt_tokens) for p in reached]),
            ],
        )
    if forms:
        said = "of these questions" if questions is not None else "of passages of the index"
        output.console.print(f"\nforms of the index; recall of the 10 nearest {said}\n")
        print_fields(
            output.console,
            [
                Field("vectors", [f.vectors for f in forms], "left"),
                Field("kept", ["on disk" if f.mapped else "in memory" for f in forms], "left"),
            ],
            [
                Field("recall", [f"{f.recall:.3f}" for f in forms]),
                Field("vectors MB", [f"{f.vectors_mb:.1f}" for f in forms]),
                Field("peak MB", [f"{f.peak_mb:.0f}" for f in forms]),
                Field("MB above the model", [f"{f.above_model_mb:.0f}" for f in forms]),
            ],
        )
        for kind, why in left_out.items():
            output.console.print(f"{kind} is left out: {why}", soft_wrap=True)


def _tiers(given: str) -> tuple[Tier, ...]:
    from mio_rag.control.router.tier import PUBLISHED, read_tiers

    return PUBLISHED if given == "published" else read_tiers(Path(given))
