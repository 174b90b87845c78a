"""``mio-rag frontier``: what other budgets, penalties, weights and radii would choose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mio_rag.cli_options import (
    Budget,
    Exclude,
    Include,
    Json,
    ModeName,
    Pool,
    ProgramOptions,
    SolverOptions,
    check_request,
    make_selector,
    spread,
)
from mio_rag.cli_output import open_output
from mio_rag.cli_relevance import RelevanceOptions, doubt_embedder
from mio_rag.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from mio_rag.retrieval.retriever import Mode

__all__ = ["frontier_app"]

frontier_app = typer.Typer(
    help="What other settings would choose, every point with its proof.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Weights = Annotated[str, typer.Option("--weights", help="Comma-separated redundancy weights (lambda_1).")]
Radii = Annotated[str, typer.Option("--radii", help="Comma-separated radii (rho).")]


def numbers(name: str, text: str) -> tuple[float, ...]:
    """The numbers of a comma-separated option."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(
            f"{name}={text!r} must be numbers separated by commas, for instance 0,0.1"
        ) from error


@frontier_app.command()
@spread
def query(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    budget_tokens: Budget = 256,
    up_to: Annotated[
        int | None, typer.Option("--up-to", help="Largest budget looked at. [twice the budget]")
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
    """One question: every budget at which the selection changes, what more tokens buy, how many passages pay.

    Tokens are counted by an approximation, as in `select`.
    """
    from mio_rag.console import collect, progress_bar
    from mio_rag.frontier.plot import plot_query
    from mio_rag.frontier.query import query_frontier
    from mio_rag.retrieval import CorpusIndex, Retriever

    output = open_output(json_output)
    selector, corpus, lambdas, radius_list, *_ = collect(
        lambda: evidence.applied(
            lambda: make_selector(program, solving, must_include or (), must_exclude or ())
        ),
        lambda: CorpusIndex.load(index),
        lambda: numbers("--weights", weights),
        lambda: numbers("--radii", radii),
        lambda: check_request(question, budget_tokens, pool, retrieval),
    )
    doubt_embedder(selector, corpus)
    retriever = Retriever(corpus, pool=pool, mode=cast("Mode", retrieval), link_hops=evidence.link_hops)
    candidates = retriever.retrieve(question)
    with progress_bar("tokens settled", up_to or max(2 * budget_tokens, budget_tokens + 200)) as advance:
        found = query_frontier(
            candidates,
            selector,
            budget_tokens,
            up_to=up_to,
            weights=lambdas,
            radii=radius_list,
            progress=advance,
        )
    data = found.to_dict()
    if plot is not None:
        plot_query(data, plot)
    if json_output:
        output.json(data)
        return
    _print_query(output.console, data)
    if plot is not None:
        output.console.print(f"\n{plot}", markup=False, soft_wrap=True)


def _print_query(console: Console, data: dict[str, Any]) -> None:
    """The paths as three short tables."""
    from rich.table import Table

    passages, budget = data["passages"], data["budget"]

    def names(positions: list[int]) -> str:
        return ", ".join(passages[i]["id"] for i in positions) or "nothing"

    steps = budget["steps"]
    proof = "every step proven" if budget["certified"] else "steps marked ? are not proven"
    console.print(f"{len(steps)} selections up to {steps[-1]['until'] if steps else 0} tokens, {proof}")
    table = Table("tokens", "passages", "value", "per token", "what changes", box=None)
    for before, step in zip([None, *steps], steps, strict=False):
        was = set(before["selected"]) if before else set()
        gained = [f"+{passages[i]['id']}" for i in step["selected"] if i not in was]
        lost = [f"-{passages[i]['id']}" for i in sorted(was - set(step["selected"]))]
        price = before["next_price"] if before else None
        table.add_row(
            f"{step['tokens']}{'' if step['certified'] else ' ?'}",
            str(len(step["selected"])),
            f"{step['value']:.4f}",
            "" if price is None else f"{price:.2e}",
            " ".join(gained + lost),
        )
    console.print(table)
    for gain in budget["buys"]:
        console.print(
            f"+{gain['more_tokens']} tokens above {gain['budget_tokens']} buy {gain['gain']:.4f}"
            f" (+ {names(gain['added'])}; - {names(gain['removed'])})",
            markup=False,
        )
    table = Table("passage penalty", "passages", "tokens", "chosen", box=None)
    for piece in data["penalty"]["pieces"]:
        high = "and above" if piece["high"] is None else f"to {piece['high']:.4f}"
        mark = "" if piece["certified"] else " ?"
        table.add_row(
            f"{piece['low']:.4f} {high}{mark}",
            str(piece["passages"]),
            str(piece["tokens"]),
            names(piece["selected"]),
        )
    console.print(f"\nat {data['budget_tokens']} tokens:")
    console.print(table)
    table = Table("lambda_1", "rho", "tokens", "relevance", "redundancy", "guaranteed", "", box=None)
    for p in data["grid"]:
        state = "frontier" if p["frontier"] else "dominated" if p["certified"] else p["status"]
        figures = (f"{p[k]:.4f}" for k in ("relevance", "redundancy", "guaranteed"))
        table.add_row(f"{p['redundancy_weight']:g}", f"{p['radius']:g}", str(p["tokens"]), *figures, state)
    console.print(table)
