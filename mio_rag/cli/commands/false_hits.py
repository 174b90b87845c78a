"""``mio-rag false-hits``: how often answers by meaning would be those of another question."""

from __future__ import annotations

from typing import Annotated

import typer

from mio_rag.cli.options.shared import EmbedderName, Json, load_embedder
from mio_rag.cli.output import open_output
from mio_rag.errors import collect

__all__ = ["false_hits"]


def false_hits(
    data: Annotated[
        str, typer.Argument(help="Questions with answers: a folder, 'demo', hf:NAME or FORMAT:PATH.")
    ],
    embedder: EmbedderName = "minilm",
    json_output: Json = False,
) -> None:
    """Measure wrong answers of a cache by meaning. How often --cache-by-meaning gives another question's."""
    from mio_rag.cli.show.tables import Field, print_fields
    from mio_rag.corpora.load import check_source, load_questions
    from mio_rag.evaluation.false_hits import false_hits as measured
    from mio_rag.retrieval.embedders import check_embedder

    output = open_output(json_output)
    collect(lambda: check_source(data), lambda: check_embedder(embedder))
    questions, model = collect(lambda: load_questions(data), lambda: load_embedder(embedder))
    model.fit([question.text for question in questions])
    rows = measured(questions, model)
    if json_output:
        output.json({"data": data, "embedder": embedder, "cosines": [row.to_dict() for row in rows]})
        return
    output.console.print(
        f"{data}: {rows[0].questions} different questions, each asked after all the others; "
        f"embedder {embedder}\n"
    )
    shown = [
        "\u2013"
        if r.rate is None
        else f"{100 * r.rate:.1f} % ({100 * (r.low or 0.0):.1f} to {100 * (r.high or 0.0):.1f})"
        for r in rows
    ]
    fields = [
        Field("hits", [str(r.hits) for r in rows]),
        Field("false", [str(r.false) for r in rows]),
        Field("false among hits (95 %)", shown),
    ]
    print_fields(output.console, [Field("cosine", [f"{r.cosine:.2f}" for r in rows])], fields)
    for asked, other in rows[0].examples:
        output.console.print(f"\nfalse: {asked}\n  gets the answer to: {other}", soft_wrap=True)
