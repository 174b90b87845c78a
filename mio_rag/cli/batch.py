"""Commands over many questions: select-batch, answer-batch, allocate."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mio_rag.cli.control_options import check_beside
from mio_rag.cli.options import (
    Budget,
    Exclude,
    GeneratorSpec,
    Include,
    Json,
    ProgramOptions,
    RelevanceOptions,
    SideOptions,
    SolverOptions,
    make_selector,
    spread,
)
from mio_rag.cli.output import open_output
from mio_rag.cli.show_control import kept, pools_as_given, renamed, sentences, shown
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.batch import AllocationSummary, Engine
    from mio_rag.batch.ask import AskedSummary
    from mio_rag.policy import Policy
    from mio_rag.policy_files import Allocating


# -- batch -----------------------------------------------------------------------------------------------


@spread
def select_batch(
    candidates: Annotated[Path, typer.Argument(help="Parquet file of candidates, or a folder of them.")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the output; an interrupted run resumes there.")
    ],
    budget_tokens: Budget = 256,
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
    """Choose passages for every row of a Parquet file. Run it again to resume after an interruption.

    A row holds a question's pool: query_id, ids, relevance, tokens and embeddings (or similarity) as lists;
    see docs/pages/batch.md for all columns.
    """
    from mio_rag.batch import select_batch as run

    output = open_output(json_output, lambda: kept(out))
    selector, names, _ = collect(
        lambda: side.applied(
            lambda: evidence.applied(
                lambda: make_selector(program, solving, must_include or (), must_exclude or ())
            ),
            program,
            pool_radii=True,  # of a column
        ),
        lambda: renamed(column),
        lambda: pools_as_given(evidence.link_hops, evidence.rerank),
    )
    with shown() as progress:
        done = run(
            candidates,
            out,
            budget_tokens,
            selector,
            engine=cast("Engine", engine),
            workers=workers,
            columns=names,
            shard_rows=shard_rows,
            progress=progress,
        )
    if json_output:
        output.json(done.to_dict())
    else:
        output.console.print(sentences(done), soft_wrap=True)
    if done.rejected == done.rows:
        raise typer.Exit(1)


# -- answer batch ----------------------------------------------------------------------------------------


def answer_batch(
    questions: Annotated[
        str, typer.Argument(help="JSONL or Parquet file with id and question, or a question set.")
    ],
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of ledger and answers; an interrupted run resumes there.")
    ],
    policy: Annotated[
        str, typer.Option("--policy", metavar="FILE|PRESET", help="Who decides what on a question's way.")
    ] = "balanced",
    generator: GeneratorSpec = "extractive",
    total_tokens: Annotated[
        int | None,
        typer.Option("--total-tokens", help="Tokens that all questions may take; sets the price of a token."),
    ] = None,
    total_dollars: Annotated[
        float | None,
        typer.Option("--total-dollars", help="Dollars that all questions may cost, by the policy's prices."),
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="local (threads) or ray.")] = "local",
    workers: Annotated[int, typer.Option("--workers", help="Of ray: processes that open the index.")] = 2,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Questions under way at a time.")] = 4,
    retries: Annotated[int, typer.Option("--retries", help="Repetitions of a call that failed.")] = 5,
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first N questions.")] = None,
    json_output: Json = False,
) -> None:
    """Answer many questions under a policy. Run it again to resume, and to try again what failed.

    Replies are kept beside the ledger where the generator identifies its model (gguf:, openai:), so that what
    was paid for is never asked for again.
    """
    from mio_rag.batch.ask import ask_many, check_settings, read_questions
    from mio_rag.cli.terminal import progress_bar
    from mio_rag.generation import check_generator
    from mio_rag.policy import read_policy
    from mio_rag.policy_files import resolve
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output, lambda: f"what is answered is kept in '{out}': run the same to resume")

    def check_limit() -> None:
        if limit is not None and limit < 1:
            raise InputError(f"--limit={limit} must be >= 1")

    def checked() -> Policy:
        held = read_policy(policy)
        resolve(held)
        return held

    found, asked, *_ = collect(
        checked,
        lambda: read_questions(questions),
        lambda: check_index(index),
        lambda: check_generator(generator),
        lambda: check_settings(total_tokens, total_dollars, engine, workers, concurrency, retries),
        check_limit,
    )
    asked = asked[:limit]
    with progress_bar("answering", len(asked)) as advance:
        done = ask_many(
            asked,
            index,
            generator,
            found,
            out,
            total_tokens=total_tokens,
            total_dollars=total_dollars,
            engine=cast("Engine", engine),
            workers=workers,
            concurrency=concurrency,
            retries=retries,
            progress=lambda more, all_: advance(more),
        )
    if json_output:
        output.json(done.to_dict())
    else:
        left = f", {done.left} not asked: {_why_left(done)}" if done.left else ""
        again = f", {done.failed} failed (run the same to try again)" if done.failed else ""
        unread = f", {done.unread} without a passage worth its price (not asked)" if done.unread else ""
        before = f"; {done.done_before} were answered before" if done.done_before else ""
        cost = f"${done.spent:.4f}" if done.unit == "dollars" else f"{done.spent:,.0f} tokens"
        lost = (
            ""
            if not done.lost
            else f", and {_amount(done)} counted in full for calls that never told what they took"
        )
        rest = f"{again}{unread}{left}{before}"
        output.console.print(
            f"{done.answered} of {done.questions} answered{rest}\n{cost}{lost} -> {out / 'answers.jsonl'}",
            soft_wrap=True,
        )
    if not done.answered:
        raise typer.Exit(1)


def _amount(done: AskedSummary) -> str:
    """What calls of an interrupted run may have taken."""
    return f"${done.lost:.4f}" if done.unit == "dollars" else f"{done.lost:,.0f} tokens"


def _why_left(done: AskedSummary) -> str:
    """Why questions were left: a total that is spent, or one of which less is left than one may cost."""
    left = 0.0 if done.total is None else done.total - done.spent - done.lost
    if done.needs is None or left <= 0:
        return "the total is spent"
    if done.unit == "dollars":
        rest, most = f"${left:.6f} of the total is", f"cost up to ${done.needs:.6f}"
    else:
        rest, most = f"{left:,.0f} tokens of the total are", f"take up to {done.needs:,.0f}"
    if done.lower is None:
        return f"{rest} left, and one question may {most} with what is worth reading: raise the total"
    reading = ", even if it reads next to nothing" if done.lower == "limits.max_tokens" else ""
    return f"{rest} left, and one question may {most}{reading}: raise the total, or lower {done.lower}"


# -- allocate --------------------------------------------------------------------------------------------

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
    from mio_rag.policy import read_policy
    from mio_rag.policy_files import allocating, resolve

    check_beside(policy, context, _BESIDE)
    found = read_policy(policy)
    _, base = collect(lambda: resolve(found), lambda: make_selector(program, solving))
    return allocating(found, base, total_tokens)


def _worth(done: AllocationSummary) -> str:
    """What was reached, and what is proven of it."""
    text = f"value {done.value:.6g} with {done.tokens_used} of {done.total_tokens} tokens"
    if done.bound is None:
        return f"{text}; the solver proved no bound"
    gap = "" if done.gap is None else f" (gap {done.gap:.3%})"
    return f"{text}; no allocation can exceed {done.bound:.6g}{gap}; price of a token {done.token_price:.4g}"
