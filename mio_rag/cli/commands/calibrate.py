"""What the command line says about relevance and evidence links: the options, and `mio-rag calibrate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli.options.shared import Json, ModeName, Pool
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.context import PromptOrder
    from mio_rag.relevance.model import Kind
    from mio_rag.retrieval import CorpusIndex
    from mio_rag.retrieval.retriever import Mode
    from mio_rag.selection.selector import Selector

__all__ = ["RelevanceOptions", "Rerank", "calibrate", "doubt_embedder"]


Rerank = Annotated[
    list[str] | None,
    typer.Option(
        "--rerank",
        help="Look again at the pool: maxsim, cross-encoder:ID_OR_PATH or yes-no:GENERATOR. A score for the "
        "relevance model and for rankings. Repeatable.",
    ),
]


@dataclass(frozen=True)
class RelevanceOptions:
    """What relevance means, and what links between passages are worth."""

    relevance: Annotated[
        str,
        typer.Option(
            "--relevance",
            help="cosine; default: shipped weights; or the file that `mio-rag calibrate` wrote.",
        ),
    ] = "cosine"
    link_hops: Annotated[
        int,
        typer.Option(
            "--link-hops", help="Follow evidence links out of the pool, so many in a row. 0: do not."
        ),
    ] = 0
    link_benefit: Annotated[
        float,
        typer.Option(
            "--link-benefit", help="What choosing both ends of a link gains, times the better's relevance."
        ),
    ] = 0.0
    redundancy_by_relevance: Annotated[
        bool,
        typer.Option("--redundancy-by-relevance", help="Weigh similarity by the relevance of both passages."),
    ] = False
    prompt_order: Annotated[
        str, typer.Option("--prompt-order", help="best_first, best_at_ends or document.")
    ] = "best_first"
    rerank: Rerank = None

    def retrieval(self) -> dict[str, Any]:
        """What a `Retriever` takes of these."""
        return {"link_hops": self.link_hops, "rerankers": tuple(self.rerank or ())}

    def applied(self, make: Callable[[], Selector]) -> Selector:
        """The selector that `make` gives, with these settings; the problems of both at once."""
        import dataclasses

        from mio_rag.relevance.model import load_model

        selector, model, *_ = collect(make, lambda: load_model(self.relevance), self.check)
        return dataclasses.replace(
            cast("Selector", selector),
            relevance_model=model,
            link_benefit=self.link_benefit,
            redundancy_by_relevance=self.redundancy_by_relevance,
            prompt_order=cast("PromptOrder", self.prompt_order),
        )

    def check(self) -> None:
        """Raise `InputError` with what is out of range."""
        from mio_rag.retrieval.retriever import pool_problems
        from mio_rag.selection.selector import Selector

        if problems := pool_problems(1, "fused", self.link_hops, tuple(self.rerank or ())):
            raise InputError(problems)
        Selector(link_benefit=self.link_benefit, prompt_order=cast("PromptOrder", self.prompt_order))


def doubt_embedder(selector: Selector, index: CorpusIndex) -> None:
    """Say on stderr where the relevance model was fitted with another embedder than the index's."""
    model = selector.relevance_model
    doubt = model and model.doubt(index.embedder.name, index.embedder.fingerprint)
    if doubt:
        from mio_rag.cli.terminal import errors

        errors.print(f"note: {doubt}", soft_wrap=True)


def calibrate(
    data: Annotated[
        str, typer.Argument(help="Folder with corpus and questions that name gold passages, or 'demo'.")
    ],
    index: Annotated[Path, typer.Option("--index", help="Index of this corpus.")],
    out: Annotated[Path, typer.Option("--out", help="File of the model; its plot goes beside it (.png).")],
    kind: Annotated[str, typer.Option("--kind", help="logistic or isotonic.")] = "logistic",
    link_hops: Annotated[
        int, typer.Option("--link-hops", help="Expansion of the pool, as in later use. 0: none.")
    ] = 1,
    link_stages: Annotated[
        int, typer.Option("--link-stages", help="Stages with features from evidence links. 0: none.")
    ] = 1,
    rerank: Rerank = None,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first so many questions.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the folds.")] = 0,
    json_output: Json = False,
) -> None:
    """Fit what relevance means on labelled questions: the probability that a passage is needed."""
    from mio_rag.cli.progress import progress_bar
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.fit.relevance import calibrate as fit_model
    from mio_rag.evaluation.fit.relevance import write_model
    from mio_rag.retrieval import CorpusIndex, Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.retrieval.retriever import pool_problems

    output = open_output(json_output)
    asked = pool_problems(pool, retrieval, link_hops, tuple(rerank or ()))
    collect(
        lambda: check_source(data),
        lambda: check_index(index),
        lambda: _check(kind, link_stages, limit, seed, out, asked),
    )
    dataset, corpus = collect(lambda: load_dataset(data), lambda: CorpusIndex.load(index))
    retriever = Retriever(
        corpus, pool=pool, mode=cast("Mode", retrieval), link_hops=link_hops, rerankers=rerank or ()
    )
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
        )
    picture = write_model(model, out)
    if json_output:
        output.json({"out": str(out), "plot": str(picture), **model.to_dict()})
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


def _check(kind: str, link_stages: int, limit: int | None, seed: int, out: Path, problems: list[str]) -> None:
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
