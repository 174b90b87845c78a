"""``mio-rag frontier``: the selections of other budgets, penalties, weights and radii."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from mio_rag.cli.options.relevance import RelevanceOptions, check_weights
from mio_rag.cli.options.shared import (
    Budget,
    Exclude,
    Include,
    Json,
    MaxTokens,
    ModeName,
    Pool,
    ProgramOptions,
    SolverOptions,
    build_index,
    check_request,
    load_embedder,
    load_index,
    make_selector,
    numbers,
    penalty,
    spread,
    whole_numbers,
)
from mio_rag.cli.output import kept_rows, open_output
from mio_rag.errors import InputError, collect

__all__ = ["frontier_app"]

frontier_app = typer.Typer(
    help="The selections of other settings, each with its certificate.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Weights = Annotated[str, typer.Option("--weights", help="Comma-separated redundancy weights (lambda_1).")]
Radii = Annotated[str, typer.Option("--radii", help="Comma-separated radii (rho) of the grid.")]


def grid(name: str, text: str) -> tuple[float, ...]:
    """The numbers of a comma-separated option that spans a grid."""
    from mio_rag.frontier.grid import check_values

    found = numbers(name, text)
    if problems := check_values(name, found):
        raise InputError(problems)
    return found


@frontier_app.command()
@spread
def query(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    budget_tokens: Budget = 256,
    up_to: Annotated[
        int | None, typer.Option("--up-to", help="Largest budget of the path. [twice the budget]")
    ] = None,
    weights: Weights = "0,0.05,0.1,0.2,0.4",
    radii: Radii = "0,0.05,0.1",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw it into this .png, .svg or .pdf file.")
    ] = None,
    *,
    program: ProgramOptions,
    must_include: Include = None,
    must_exclude: Exclude = None,
    evidence: RelevanceOptions,
    solving: SolverOptions,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    json_output: Json = False,
) -> None:
    """One question, at every budget. Where the selection changes, the gain from more tokens, other penalties.

    Tokens are counted by an approximation, as in `select`.
    """
    from mio_rag.cli.progress import progress_bar
    from mio_rag.cli.show.frontier import print_query
    from mio_rag.frontier.plot import plot_query
    from mio_rag.frontier.query import query_frontier
    from mio_rag.pictures import check_figure
    from mio_rag.retrieval import Retriever
    from mio_rag.retrieval.index import check_index
    from mio_rag.selection.selector import check_ids

    output = open_output(json_output)
    selector, lambdas, radius_list, _, _, pools, *_ = collect(
        lambda: evidence.applied(
            lambda: make_selector(program, solving, must_include or (), must_exclude or ())
        ),
        lambda: grid("--weights", weights),
        lambda: grid("--radii", radii),
        lambda: check_index(index),
        lambda: check_request(question, budget_tokens),
        lambda: evidence.retrieval(pool, retrieval),
        lambda: _check_reach(up_to, budget_tokens),
        lambda: None if plot is None else check_figure(plot),
    )
    corpus = load_index(index)
    check_ids(selector, corpus.ids)
    check_weights(selector, corpus)
    retriever = Retriever.of(corpus, pools)
    candidates = retriever.retrieve(question)
    with progress_bar("tokens settled", up_to or max(2 * budget_tokens, budget_tokens + 200)) as advance:
        found = query_frontier(
            candidates,
            selector,
            budget_tokens,
            up_to=up_to,
            weights=lambdas,
            radii=radius_list,
            counter=retriever.counter,
            progress=advance,
        )
    data = found.to_dict()
    if plot is not None:
        plot_query(data, plot)
    if json_output:
        output.json(data)
        return
    print_query(output.console, data)
    if plot is not None:
        output.console.print(f"\n{plot}", soft_wrap=True)


def _check_reach(up_to: int | None, budget_tokens: int) -> None:
    if up_to is not None and up_to < budget_tokens:
        raise InputError(f"--up-to={up_to} is below --budget-tokens={budget_tokens}: the path ends there")


def _check_radius(program: ProgramOptions) -> None:
    if program.radius is not None:
        raise InputError(
            f"--radius={program.radius:g} does not apply to a grid: --radii lists its radii, and selections "
            "are measured under --reference-radius"
        )


def _check_embedder(index: Path | None, embedder: str | None) -> None:
    if index is not None and embedder is not None:
        raise InputError("--index and --embedder exclude each other: an index has its embedder")


_FOR_MANY = SolverOptions(time_limit=2.0, relative_gap=0.001)
"""A grid over a data set solves many programs, so a small gap is accepted."""


@frontier_app.command()
@spread
def data(
    data: Annotated[
        str, typer.Argument(help="Folder with corpus and questions, 'demo', hf:NAME, FORMAT:PATH.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of ledger, frontier.json, .png and .html.")],
    index: Annotated[
        Path | None, typer.Option("--index", help="Index of this corpus; default: build one.")
    ] = None,
    embedder: Annotated[
        str | None, typer.Option("--embedder", help="Embedder of the index that is built. [minilm]")
    ] = None,
    budget_tokens: Annotated[str, typer.Option("--budget-tokens", help="Comma-separated token budgets.")] = (
        "128,256,512"
    ),
    weights: Weights = "0,0.1",
    radii: Radii = "0,0.05",
    penalties: Annotated[
        str, typer.Option("--penalties", help="Comma-separated passage penalties, adaptive or auto.")
    ] = "adaptive,0.05",
    token_prices: Annotated[
        str,
        typer.Option(
            "--token-prices",
            help="Comma-separated prices of a token (lambda_3): what questions find at one price for all, "
            "beside the budgets. [none]",
        ),
    ] = "",
    reference_radius: Annotated[
        float, typer.Option("--reference-radius", help="Embedding error for measuring robustness.")
    ] = 0.05,
    draws: Annotated[
        int, typer.Option("--draws", help="Random errors per question for stability. 0: not measured.")
    ] = 3,
    slack: Annotated[
        float,
        typer.Option("--slack", help="Evidence found that the operating point may trade for fewer tokens."),
    ] = 0.02,
    generator: Annotated[
        str, typer.Option("--generator", help="As in ask: answers are scored too. none: selection alone.")
    ] = "none",
    limit: Annotated[int | None, typer.Option("--limit", help="Use only the first N questions.")] = None,
    *,
    program: ProgramOptions,
    evidence: RelevanceOptions,
    solving: SolverOptions = _FOR_MANY,
    pool: Pool = 50,
    retrieval: ModeName = "fused",
    max_tokens: MaxTokens = 32,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    json_output: Json = False,
) -> None:
    """A data set, with every setting. Evidence found, diversity, robustness and tokens; and a page to browse.

    --redundancy, --passage-penalty and --reference-radius define the program in which the guaranteed value of
    every selection is measured; the settings of the grid are separate.
    """
    from mio_rag.cli.progress import progress_bar
    from mio_rag.cli.show.frontier import print_points, print_prices
    from mio_rag.corpora.load import check_source, load_dataset
    from mio_rag.evaluation.ledger import check_folder
    from mio_rag.frontier.dataset import FrontierSettings
    from mio_rag.frontier.run import data_frontier
    from mio_rag.generation import check_generator, make_generator
    from mio_rag.retrieval.embedders import check_embedder
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output, kept_rows(out))
    settings, pools, *_ = collect(
        lambda: FrontierSettings(
            budgets=whole_numbers("--budget-tokens", budget_tokens),
            weights=numbers("--weights", weights),
            radii=numbers("--radii", radii),
            penalties=tuple(penalty(part) for part in penalties.split(",") if part.strip()),
            selector=evidence.applied(lambda: make_selector(program, solving)),
            reference_radius=reference_radius,
            draws=draws,
            limit=limit,
            max_tokens=max_tokens,
            seed=solving.seed,
            token_prices=numbers("--token-prices", token_prices),
        ),
        lambda: evidence.retrieval(pool, retrieval),
        lambda: check_source(data),
        lambda: None if generator == "none" else check_generator(generator),
        lambda: check_embedder(embedder or "minilm") if index is None else check_index(index),
        lambda: _check_embedder(index, embedder),
        lambda: check_folder(out, resume),
        lambda: _check_radius(program),
    )
    settings = dataclasses.replace(settings, retrieval=pools)
    dataset, reader, corpus, model = collect(
        lambda: load_dataset(data),
        lambda: None if generator == "none" else make_generator(generator),
        lambda: None if index is None else load_index(index),
        lambda: None if index is not None else load_embedder(embedder or "minilm"),
    )
    try:
        corpus = corpus or build_index(dataset.passages, model, dataset.name)
        check_weights(settings.selector, corpus)
        with progress_bar("questions", len(dataset.questions[:limit])) as advance:
            found = data_frontier(
                dataset,
                corpus,
                settings,
                out,
                generator=reader,
                slack=slack,
                resume=resume,
                progress=advance,
            )
    finally:
        if reader is not None:
            reader.close()
    if json_output:
        output.json(
            {
                "out": str(out),
                "run": found.run,
                "points": found.points,
                "operating_point": found.chosen,
                **({} if found.price is None else {"price": found.price}),
            }
        )
        return
    print_points(output.console, found.points, found.chosen)
    if found.price is not None:
        print_prices(output.console, found.price)
    output.console.print(f"\npage: {out / 'frontier.html'}", soft_wrap=True)
