"""``mio-rag answer-batch``: a policy over many questions, each answered and charged once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mio_rag.cli.options.shared import GeneratorSpec, Json
from mio_rag.cli.output import open_output
from mio_rag.errors import InputError, collect

if TYPE_CHECKING:
    from mio_rag.batch import Engine
    from mio_rag.batch.asking.run import AskedSummary
    from mio_rag.control.composed.policy import Policy

__all__ = ["answer_batch"]


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
    from mio_rag.batch.asking.questions import read_questions
    from mio_rag.batch.asking.run import ask_many, check_settings
    from mio_rag.cli.progress import progress_bar
    from mio_rag.control.composed.read import read_policy
    from mio_rag.control.composed.states import read_states
    from mio_rag.generation import check_generator
    from mio_rag.retrieval.index import check_index

    output = open_output(json_output, lambda: f"what is answered is kept in '{out}': run the same to resume")

    def check_limit() -> None:
        if limit is not None and limit < 1:
            raise InputError(f"--limit={limit} must be >= 1")

    def checked() -> Policy:
        held = read_policy(policy)
        read_states(held)
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
    reading = ", even if it reads next to nothing" if done.lower == "limits.answer_tokens" else ""
    return f"{rest} left, and one question may {most}{reading}: raise the total, or lower {done.lower}"
