"""``mio-rag unanswerable``: when to say that the passages do not answer a question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mio_rag.cli.options.shared import (
    Budget,
    GeneratorSpec,
    Json,
    MaxTokens,
    load_index,
)
from mio_rag.cli.output import open_output
from mio_rag.cli.progress import progress_bar
from mio_rag.cli.terminal import styled
from mio_rag.errors import InputError, collect

__all__ = ["unanswerable"]


def unanswerable(
    data: Annotated[
        str,
        typer.Argument(
            help="Questions of both kinds, with the corpus of the index; unanswerable ones have the type "
            "'unanswerable'."
        ),
    ],
    index: Annotated[Path, typer.Option("--index", help="Index of that corpus.")],
    out: Annotated[Path, typer.Option("--out", help="File for the model: JSON.")],
    generator: GeneratorSpec = "extractive",
    budget_tokens: Budget = 256,
    max_tokens: MaxTokens = 32,
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Draws the two halves.")] = 0,
    json_output: Json = False,
) -> None:
    """Fit when to refuse a question, and measure it. On two halves of a set, by the measures of SQuAD 2.0."""
    import dataclasses

    from mio_rag.cli.show.refusal import print_scores
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.harness import check_corpus
    from mio_rag.evaluation.ledger import environment
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.refusal.fitting import fit_refusal, observe, warnings_of
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output)

    def numbers() -> None:
        wrong = {"--limit": limit is not None and limit < 1, "--budget-tokens": budget_tokens < 1}
        wrong["--max-tokens"] = max_tokens < 1
        if any(wrong.values()):
            raise InputError([f"{name} must be >= 1" for name, is_wrong in wrong.items() if is_wrong])

    collect(
        lambda: check_source(data), lambda: check_index(index), lambda: check_generator(generator), numbers
    )
    dataset, corpus, reader = collect(
        lambda: load_dataset(data), lambda: load_index(index), lambda: make_generator(generator)
    )
    try:
        check_corpus(dataset, corpus)
        asked = dataclasses.replace(dataset, questions=dataset.questions[:limit])
        with progress_bar("answering", len(asked.questions)) as advance:
            observed = observe(
                asked, corpus, reader, budget_tokens=budget_tokens, max_tokens=max_tokens, progress=advance
            )
        model, scores = fit_refusal(
            observed,
            corpus,
            reader,
            seed,
            data=dataset.name,
            data_sha256=asked.content_hash(),
            budget_tokens=budget_tokens,
            max_tokens=max_tokens,
            **environment(),
        )
    finally:
        reader.close()
    model.save(out)
    if json_output:
        output.json(
            {
                "out": str(out),
                "threshold": model.threshold,
                "fitted_on": model.provenance["fitted_on"],
                "brier": model.provenance["brier"],
                "held_out": model.provenance["held_out"],
                "notes": warnings_of(scores),
            }
        )
        return
    count = next(iter(scores.values())).questions
    output.console.print(
        f"{dataset.name}: fitted on {model.provenance['fitted_on']} questions, measured on {count} others; "
        f"reader {model.reader}\n"
    )
    print_scores(output.console, "", list(scores), list(scores.values()))
    for note in warnings_of(scores):
        output.console.print(styled(("note:", "yellow"), f" {note}"), soft_wrap=True)
    output.console.print(
        f"\nrefused above a probability of {model.threshold:.3f}; Brier score {model.provenance['brier']:.3f}"
        f" -> {out}",
        soft_wrap=True,
    )
