"""``mio-rag allocate``: one total of tokens for many questions; it can be interrupted and resumed."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mio_rag.cli.options.policy import check_beside
from mio_rag.cli.options.relevance import RelevanceOptions
from mio_rag.cli.options.shared import (
    Exclude,
    Include,
    Json,
    ProgramOptions,
    SolverOptions,
    make_selector,
    spread,
)
from mio_rag.cli.options.side import SideOptions
from mio_rag.cli.output import open_output
from mio_rag.cli.show.batches import kept, pools_as_given, renamed, sentences, shown
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.batch import AllocationSummary, Engine
    from mio_rag.control.composed.allocating import Allocating

__all__ = ["allocate"]

#: What may stand beside a policy: what is shared, by whom, and how far programs are solved.
_BESIDE = {
    "candidates", "out", "total_tokens", "policy", "weights", "floor", "sample", "engine", "workers",
    "column", "shard_rows", "json_output", *(one.name for one in fields(SolverOptions)),
}  # fmt: skip


@spread
def allocate(
    context: typer.Context,
    candidates: Annotated[Path, typer.Argument(help="Parquet file of candidates, or a folder of them.")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the output; an interrupted run resumes there.")
    ],
    total_tokens: Annotated[
        int | None,
        typer.Option("--total-tokens", help="Tokens of all questions together; with --policy, its total."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="FILE|PRESET",
            help="Let a policy say the total, what is read and the most for a question.",
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="Column that says what each question counts.")
    ] = None,
    floor: Annotated[int, typer.Option("--floor", help="Minimum tokens of a question.")] = 0,
    ceiling: Annotated[
        int | None,
        typer.Option(
            "--ceiling", help="Maximum tokens of a question without a budget of its own. [no limit]"
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", help="Questions on which the price of a token is estimated first.")
    ] = 2000,
    engine: Annotated[str, typer.Option("--engine", help="local (processes) or ray.")] = "local",
    workers: Annotated[int, typer.Option("--workers", help="Worker processes; default: one per core.")] = 1,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="OURS=THEIRS: a column has another name. Repeatable."),
    ] = None,
    shard_rows: Annotated[int, typer.Option("--shard-rows", help="Maximum rows of an output file.")] = 5000,
    *,
    program: ProgramOptions,
    must_include: Include = None,
    must_exclude: Exclude = None,
    evidence: RelevanceOptions,
    side: SideOptions,
    solving: SolverOptions,
    json_output: Json = False,
) -> None:
    """Share a total of tokens among many questions. Of a Parquet file, with a proof of how good it is.

    Rows and outputs are those of select-batch. Every question pays the same price for a token, so that tokens
    go where they add most. Run it again to resume after an interruption.
    """
    from mio_rag.batch import allocate_batch as run

    output = open_output(json_output, lambda: kept(out))
    unused: tuple[str, ...] = ()
    if policy is not None:
        given, names = collect(
            lambda: _of_policy(policy, context, program, solving, total_tokens), lambda: renamed(column)
        )
        selector, unused = given.selector, given.unused
        total_tokens, ceiling = given.total_tokens, given.ceiling
    else:
        selector, names, *_ = collect(
            lambda: side.applied(
                lambda: evidence.applied(
                    lambda: make_selector(program, solving, must_include or (), must_exclude or ())
                ),
                program,
                pool_radii=True,
            ),
            lambda: renamed(column),
            lambda: pools_as_given(evidence.link_hops, evidence.rerank),
            lambda: _check_total(total_tokens),
        )
    assert total_tokens is not None
    with shown() as progress:
        done = run(
            candidates,
            out,
            total_tokens,
            selector,
            weighted=weights is not None,
            floor=floor,
            ceiling=ceiling,
            sample=sample,
            engine=cast("Engine", engine),
            workers=workers,
            columns=names if weights is None else {**names, "weight": weights},
            shard_rows=shard_rows,
            progress=progress,
        )
    if json_output:
        output.json({**done.to_dict(), **({"unused": list(unused)} if policy is not None else {})})
    else:
        for line in unused:
            output.console.print(f"policy: no effect of {line}", style="dim", soft_wrap=True)
        output.console.print(f"{_worth(done)}\n{sentences(done)}", soft_wrap=True)
    if done.rejected == done.rows:
        raise typer.Exit(1)


def _check_total(total_tokens: int | None) -> None:
    if total_tokens is None:
        raise InputError("there is no total to share: give --total-tokens, or --policy with one")


def _of_policy(
    policy: str,
    context: typer.Context,
    program: ProgramOptions,
    solving: SolverOptions,
    total_tokens: int | None,
) -> Allocating:
    """The allocation of a policy, with everything that is wrong about it."""
    from mio_rag.control.composed.allocating import allocating
    from mio_rag.control.composed.read import read_policy
    from mio_rag.control.composed.states import read_states

    check_beside(policy, context, _BESIDE)
    found = read_policy(policy)
    _, base = collect(lambda: read_states(found), lambda: make_selector(program, solving))
    return allocating(found, base, total_tokens)


def _worth(done: AllocationSummary) -> str:
    """What was reached, and what is proven of it."""
    text = f"value {done.value:.6g} with {done.tokens_used} of {done.total_tokens} tokens"
    if done.bound is None:
        return f"{text}; the solver proved no bound"
    gap = "" if done.gap is None else f" (gap {done.gap:.3%})"
    return f"{text}; no allocation can exceed {done.bound:.6g}{gap}; price of a token {done.token_price:.4g}"
