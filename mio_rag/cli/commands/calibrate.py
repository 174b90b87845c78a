"""``mio-rag calibrate``: fit a relevance model on labelled questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mio_rag.cli.options.relevance import Rerank
from mio_rag.cli.options.shared import Json, ModeName, Pool, load_index
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.relevance.model import Kind

__all__ = ["calibrate"]


def calibrate(
    data: Annotated[
        str, typer.Argument(help="Folder with corpus and questions that name gold passages, or 'demo'.")
    ],
    index: Annotated[Path, typer.Option("--index", help="Index of this corpus.")],
    out: Annotated[
        Path, typer.Option("--out", help="File for the model; its plot is written beside it (.png).")
    ],
    kind: Annotated[str, typer.Option("--kind", help="logistic or isotonic.")] = "logistic",
    link_hops: Annotated[
        int,
        typer.Option("--link-hops", help="Links followed to extend the pool; use the same later. 0: none."),
    ] = 1,
    link_stages: Annotated[
        int, typer.Option("--link-stages", help="Stages with features from evidence links. 0: none.")
    ] = 1,
    sentences: Annotated[
        bool,
        typer.Option(
            "--sentences",
            help="Fit weights of sentences, too, on answers; no question need name gold passages then.",
        ),
    ] = False,
    rerank: Rerank = None,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the folds.")] = 0,
    json_output: Json = False,
) -> None:
    """Fit a relevance model on labelled questions. It gives the probability that a passage is needed."""
    from mio_rag.cli.progress import progress_bar
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.fit import calibrate as fit_model
    from mio_rag.evaluation.fit import write_model
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.retrieval.settings import Mode, RetrievalSettings

    output = open_output(json_output)
    *_, found, _ = collect(
        lambda: check_source(data),
        lambda: check_index(index),
        lambda: RetrievalSettings(pool, cast("Mode", retrieval), link_hops, tuple(rerank or ())),
        lambda: _check(kind, link_stages, limit, seed, out),
    )
    dataset, corpus = collect(lambda: load_dataset(data), lambda: load_index(index))
    retriever = Retriever.of(corpus, found)
    with progress_bar("retrieving", len(dataset.questions[:limit])) as advance:
        model = fit_model(
            dataset,
            retriever,
            kind=cast("Kind", kind),
            link_stages=link_stages,
            limit=limit,
            seed=seed,
            name=out.stem,
            progress=advance,
            sentences=sentences,
        )
    picture = write_model(model, out)
    if json_output:
        output.json({"out": str(out), "plot": picture and str(picture), **model.to_dict()})
        return
    if model.sentences is not None:
        said = model.sentences.measures
        output.console.print(
            f"{said['questions']} questions, {said['sentences']} sentences, {said['needed']} needed; "
            f"log loss {said['log_loss_after']:.4f} out of fold, {said['log_loss_before']:.4f} by what ships",
        )
    if picture is None:
        output.console.print(f"{out}: relevance of passages as it ships", soft_wrap=True)
        return
    measures = model.measures
    output.console.print(
        f"{measures['questions']} questions, {measures['candidates']} candidates, "
        f"{measures['needed']} needed; out of fold:",
    )
    for label, key in (("cosine as it is", "before"), (f"{model.kind} model", "after")):
        found = measures[key]
        output.console.print(
            f"  {label:<16} calibration error {found['ece']:.4f} ({found['ece_likely']:.4f} where likely), "
            f"log loss {found['log_loss']:.4f}",
        )
    output.console.print(f"{out}, {picture}", soft_wrap=True)


def _check(kind: str, link_stages: int, limit: int | None, seed: int, out: Path) -> None:
    problems = []
    if limit is not None and limit < 1:
        problems.append(f"--limit={limit} must be >= 1")
    if not 0 <= seed < 2**31:
        problems.append(f"--seed={seed} must be between 0 and 2^31 - 1")
    if kind not in ("logistic", "isotonic"):
        problems.append(f"--kind={kind!r} is unknown: choose logistic or isotonic")
    if not 0 <= link_stages <= 3:
        problems.append(f"--link-stages={link_stages} must be between 0 and 3")
    if out.is_dir() or out.suffix != ".json":
        problems.append(f"--out={out} must be a file that ends in .json")
    if problems:
        raise InputError(problems)
