"""The commands ``mio-rag route``: label questions by tiers, train a router, show what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mio_rag.cli.options.router import read_utility
from mio_rag.cli.options.shared import Json, ModeName, Pool, load_index
from mio_rag.cli.output import kept_rows, open_output
from mio_rag.errors import DataError, InputError, collect

if TYPE_CHECKING:
    from mio_rag.control.router.tier import Tier
    from mio_rag.control.router.worked import By, Unanswered
    from mio_rag.generation import Generator

__all__ = ["route_app"]

route_app = typer.Typer(
    help="How much a question needs, by tiers. Of depth, context and answer, and who chooses among them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _check_parquet(out: Path) -> None:
    if out.suffix != ".parquet" or out.is_dir():
        raise InputError(f"--out={out} must be a file that ends in .parquet")


def _tiers(path: Path | None) -> tuple[Tier, ...]:
    from mio_rag.control.router.tier import PUBLISHED, read_tiers

    return PUBLISHED if path is None else read_tiers(path)


def _reader(generator: str | None, replies: Path) -> Generator | None:
    """The model that answers; what it says is kept in a file, where that can be kept."""
    from mio_rag.generation import make_generator
    from mio_rag.generation.replies import RememberingGenerator

    if generator is None:
        return None
    made = make_generator(generator)
    if made.identity is None or isinstance(made, RememberingGenerator):
        return made
    return cast("Generator", RememberingGenerator(made, replies))


@route_app.command("label")
def label_command(
    data: Annotated[str, typer.Argument(help="Folder with corpus and questions, 'demo' or hf:NAME.")],
    index: Annotated[Path, typer.Option("--index", help="Index of this corpus.")],
    out: Annotated[
        Path, typer.Option("--out", help="Table of outcomes (.parquet); its run and replies lie beside it.")
    ],
    generator: Annotated[
        str | None, typer.Option("--generator", help="As in ask; not needed by evidence.")
    ] = None,
    tiers: Annotated[
        Path | None, typer.Option("--tiers", help="TOML file of tiers. [the three published ones]")
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="answers: exact match, or F1 of .6; evidence: all gold is read.")
    ] = "answers",
    unanswered: Annotated[
        str,
        typer.Option(
            "--unanswered",
            help="Label of a question that no tier answers: published (several hops the dearest tier, others "
            "the middle one), cheapest or dearest.",
        ),
    ] = "published",
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Recorded with the run.")] = 0,
    json_output: Json = False,
) -> None:
    """Run every tier on every question. Each is labelled with the cheapest tier that does.

    An interrupted run is continued by the same command; replies of the model are kept.
    """
    from mio_rag.cli.progress import progress_bar
    from mio_rag.cli.show.router import print_labels
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.tiers import LabelSettings, label_questions
    from mio_rag.files import make_parent
    from mio_rag.generation import check_generator
    from mio_rag.learning.router import write_table
    from mio_rag.retrieval.index import check_index
    from mio_rag.retrieval.settings import Mode, RetrievalSettings

    work = out.with_suffix(".run")
    output = open_output(json_output, kept_rows(work, "run the same command to go on"))

    def settings() -> LabelSettings:
        given, found = collect(
            lambda: _tiers(tiers), lambda: RetrievalSettings(pool, cast("Mode", retrieval), None, ())
        )
        return LabelSettings(
            given, cast("By", by), cast("Unanswered", unanswered), retrieval=found, limit=limit, seed=seed
        )

    def reader() -> None:
        if generator is not None:
            check_generator(generator)
        elif by == "answers":
            raise InputError("labels by answers need a model: give --generator, or --by evidence")

    given, *_ = collect(
        settings,
        reader,
        lambda: _check_parquet(out),
        lambda: check_source(data),
        lambda: check_index(index),
    )
    make_parent(out)
    dataset, corpus, model = collect(
        lambda: load_dataset(data),
        lambda: load_index(index),
        lambda: _reader(generator, out.with_suffix(".replies.sqlite")),
    )
    try:
        with progress_bar("labelling", len(dataset.questions[:limit])) as advance:
            found = label_questions(dataset, corpus, model, given, work, advance)
    finally:
        if model is not None:
            model.close()
    write_table(found.table, out)
    if json_output:
        shares = (found.table.outcomes.values["label"].mean(axis=0)).tolist()
        output.json(
            {
                "out": str(out),
                "questions": len(found.table),
                "unlabelled": found.unlabelled,
                "failed": found.failed,
                "unanswered": found.unanswered,
                "tiers": [tier.name for tier in given.tiers],
                "label_shares": shares,
            }
        )
        return
    print_labels(output.console, found)
    output.console.print(str(out), soft_wrap=True)


@route_app.command("train")
def train_command(
    tables: Annotated[list[Path], typer.Argument(help="Tables of outcomes of `mio-rag route label`.")],
    out: Annotated[Path, typer.Option("--out", help="File for the router (.safetensors).")],
    kind: Annotated[
        str, typer.Option("--kind", help="logistic, utility, mlp (as published), tfidf-svm or neighbours.")
    ] = "logistic",
    features: Annotated[
        str, typer.Option("--features", help="What it goes by: question+search, or question.")
    ] = "question+search",
    utility: Annotated[
        str | None,
        typer.Option("--utility", help="What the figures of the kind utility are at. [1,0.0005,0,0]"),
    ] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", help="How often the plausible tiers hold the right one.")
    ] = 0.9,
    correct_rate: Annotated[
        float | None,
        typer.Option("--correct-rate", help="Share of searches to call weak, and to read 5 passages more."),
    ] = None,
    correct_below: Annotated[
        float | None,
        typer.Option("--correct-below", help="The same below this cosine; .52 is published."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of folds and network.")] = 0,
    plots: Annotated[
        Path | None, typer.Option("--plots", help="Folder for pictures of training and frontier.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Train a router, and measure it on questions that it has not seen."""
    from mio_rag.cli.progress import progress_bar
    from mio_rag.cli.show.router import print_router, router_json
    from mio_rag.learning.router import FOLDS, FitSettings, fit_and_validate, read_table
    from mio_rag.learning.weights import write_weights

    output = open_output(json_output)

    def where() -> None:
        if out.suffix != ".safetensors" or out.is_dir():
            raise InputError(f"--out={out} must be a file that ends in .safetensors")

    settings, prices, table, _ = collect(
        lambda: FitSettings(kind, features, seed, confidence, correct_rate, correct_below),
        lambda: read_utility(utility),
        lambda: read_table(tables),
        where,
    )
    with progress_bar("folds", FOLDS) as advance:
        made, found = fit_and_validate(table, settings, prices, advance)
    write_weights(made.router.weights(), out)
    drawn = []
    if plots is not None:
        from mio_rag.control.router.pictures import plot_frontier, plot_history

        plots.mkdir(parents=True, exist_ok=True)
        drawn = [plots / "frontier.png"]
        plot_frontier(found, drawn[0])
        if made.history is not None:
            drawn.append(plots / "training.png")
            plot_history(made.history, drawn[-1])
    if json_output:
        output.json({"out": str(out), "plots": [str(path) for path in drawn], **router_json(made.router)})
        return
    print_router(output.console, made.router)
    output.console.print(", ".join(map(str, [out, *drawn])), soft_wrap=True)


@route_app.command("show")
def show_command(
    router: Annotated[Path, typer.Argument(help="File of a router.")],
    json_output: Json = False,
) -> None:
    """Show a router. Its tiers, what it goes by, where it comes from, and what its folds said."""
    from mio_rag.cli.show.router import print_router, router_json
    from mio_rag.control.router.model import read_router

    output = open_output(json_output)
    if not router.is_file():
        raise DataError(f"'{router}' does not exist: give the file of a router")
    found = read_router(str(router))
    if json_output:
        output.json(router_json(found))
        return
    print_router(output.console, found)
