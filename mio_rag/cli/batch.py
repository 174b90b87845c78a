"""Commands over many questions: batch select, batch answer, batch allocate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mio_rag.batch import AllocationSummary, BatchSummary, allocate_batch, select_batch
from mio_rag.batch.ask import AskedSummary, AskSettings, ask_many, read_questions
from mio_rag.cli import options as o
from mio_rag.cli.chosen import Chosen
from mio_rag.cli.terminal import batch_bars
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError
from mio_rag.formulations.numbers import plural
from mio_rag.generation import check_generator, reader_spec
from mio_rag.policy.files import Allocating, allocating, resolve
from mio_rag.sources import kind_of

batch_app = o.group("Many questions: select, answer, or share a total. Run the same command again to resume.")
Candidates = Annotated[Path, o.arg("Parquet file of candidates, or a folder of them.")]
_ROWS = "folder policy set engine workers column shard_rows json"


@o.command(f"{_ROWS} budget units", app=batch_app, name="select")
def batch_select(call: o.Call, candidates: Candidates) -> None:
    """Select passages for every row of a Parquet file.

    A row holds the candidates of a question: query_id, ids, relevance, tokens and embeddings (or similarity)
    as lists; see docs/pages/prices.md for all columns.
    """
    call.output.kept = lambda: kept(call.folder)
    chosen, names = call.check(lambda: o.pairs("--column", call.column), policy=lambda: _of_rows(call))
    with batch_bars() as shown:
        done = select_batch(
            candidates, call.folder, chosen.policy.limits.budget, chosen.selector, engine=call.engine,
            workers=call.workers, columns=names, shard_rows=call.shard_rows, progress=shown,
        )  # fmt: skip
    call.output.result(done.to_dict(), sentences(done))
    if done.rejected == done.rows:
        raise typer.Exit(1)


def _of_rows(call: o.Call) -> Chosen:
    """The policy of a batch that has its candidates; rows have no texts to cut into sentences."""
    chosen = call.chosen().whole()
    if searches := sorted(key for key in chosen.given if key.startswith("search.")):
        raise InputError(f"{', '.join(searches)}: a batch takes its candidates as they are: leave it out")
    if not chosen.is_plain:
        raise InputError(f"--policy {call.policy} decides more than a selection: use batch answer")
    assert chosen.selector
    return chosen


@o.command(
    "path folder policy set budget where model embedder engine workers limit json",
    app=batch_app, name="answer", workers=2,
)  # fmt: skip
def batch_answer(
    call: o.Call,
    questions: Annotated[
        str, o.arg("JSONL, CSV or Parquet file with id and question, or a question set.", "QUESTIONS")
    ],
    total_tokens: Annotated[
        int | None, "Tokens that all questions may take; sets the price of a token."
    ] = None,
    total_dollars: Annotated[
        float | None, "Dollars that all questions may cost, by the policy's prices."
    ] = None,
    concurrency: Annotated[int, "Questions in progress at a time."] = 4,
    retries: Annotated[int, "Repetitions of a call that failed."] = 5,
) -> None:
    """Answer many questions under a policy.

    Failed questions are tried again by the same command. Replies are kept next to the ledger where the model
    is identified (gguf:, openai:), so that nothing is paid for twice.
    """
    call.output.kept = lambda: f"answers are kept in '{call.folder}': run the same to resume"
    spec = reader_spec(call.model)
    chosen, asked, *_ = call.check(
        lambda: read_questions(questions),
        lambda: kind_of(call.path),
        lambda: check_generator(spec),
        lambda: AskSettings(
            total_tokens=total_tokens, total_dollars=total_dollars, engine=call.engine, workers=call.workers,
            concurrency=concurrency, retries=retries,
        ),
    )  # fmt: skip
    if chosen.controller is not None:
        raise InputError(f"--policy {call.policy} is no policy of a file: give a preset or a TOML file")
    resolve(chosen.policy)
    found, asked = call.open(), asked[: call.limit]
    in_memory = bool(call.where) or found.kind == "store"
    if in_memory and call.engine == "ray":
        raise InputError("--engine ray needs an index that every node reads: no store, and no --where")
    index = found.index if in_memory else found.folder
    with o.progress("answering", len(asked)) as advance:
        done = ask_many(
            asked, index, spec, chosen.policy, call.folder, total_tokens=total_tokens,
            total_dollars=total_dollars, engine=call.engine, workers=call.workers, concurrency=concurrency,
            retries=retries, progress=lambda more, all_: advance(more),
        )  # fmt: skip
    call.output.result(done.to_dict(), f"{_answered(done)} -> {call.folder / 'answers.jsonl'}")
    if done.left or not done.answered:
        raise typer.Exit(4 if done.left else 1)


def _answered(done: AskedSummary) -> str:
    """Say how many questions were answered, what that cost, and why others were not."""
    told = [f"{done.answered} of {done.questions} answered"]
    told += [f"{done.failed} failed (run the same to try again)"] if done.failed else []
    told += [f"{done.unread} without a passage worth its price (not asked)"] if done.unread else []
    told += [f"{done.left} not asked: {_why_left(done)}"] if done.left else []
    before = f"; {done.done_before} were answered before" if done.done_before else ""
    cost = _amount(done, done.spent)
    if done.lost:
        cost += f", and {_amount(done, done.lost)} counted in full for calls whose cost is not known"
    return f"{', '.join(told)}{before}\n{cost}"


def _amount(done: AskedSummary, value: float) -> str:
    return f"${value:.4f}" if done.unit == "dollars" else f"{value:,.0f} tokens"


def _why_left(done: AskedSummary) -> str:
    """Say why questions were left: a total that is spent, or less of it than one may cost."""
    left = 0.0 if done.total is None else done.total - done.spent - done.lost
    if done.needs is None or left <= 0:
        return "the total is spent"
    rest, most = f"{left:,.0f} tokens of the total are", f"take up to {done.needs:,.0f}"
    if done.unit == "dollars":
        rest, most = f"${left:.6f} of the total is", f"cost up to ${done.needs:.6f}"
    return f"{rest} left, and one question may {most}: raise the total, or lower the policy's limits"


@o.command(_ROWS, app=batch_app, name="allocate")
def batch_allocate(
    call: o.Call,
    candidates: Candidates,
    total_tokens: Annotated[
        int | None, "Tokens of all questions together. [default: the policy's total]"
    ] = None,
    weights: Annotated[str | None, "Column that says what each question counts."] = None,
    floor: Annotated[int, "Minimum tokens of a question."] = 0,
    ceiling: Annotated[
        int | None, "Maximum tokens of a question without a budget of its own. [no limit]"
    ] = None,
    sample: Annotated[int, "Questions on which the price of a token is estimated first."] = 2000,
) -> None:
    """Share a total of tokens among the rows of a Parquet file.

    Rows and outputs are those of batch select. Every question pays the same price for a token, so that tokens
    go where they add most; the result has a proof of how good it is.
    """
    call.output.kept = lambda: kept(call.folder)
    given, names = call.check(
        lambda: o.pairs("--column", call.column), policy=lambda: _total(call, total_tokens)
    )
    named = call.policy != DEFAULTS.policy
    with batch_bars() as shown:
        done = allocate_batch(
            candidates, call.folder, given.total_tokens, given.selector, weighted=weights is not None,
            floor=floor, ceiling=given.ceiling if named and ceiling is None else ceiling, sample=sample,
            engine=call.engine, workers=call.workers,
            columns=names if weights is None else {**names, "weight": weights}, shard_rows=call.shard_rows,
            progress=shown,
        )  # fmt: skip
    unused = list(given.unused) if named else []
    call.output.result(
        {**done.to_dict(), **({"unused": unused} if named else {})},
        *(f"policy: no effect of {line}" for line in unused),
        f"{_worth(done)}\n{sentences(done)}",
    )
    if done.rejected == done.rows:
        raise typer.Exit(1)


def _total(call: o.Call, total_tokens: int | None) -> Allocating:
    """A policy as that of an allocation, with everything that is wrong about it."""
    chosen = call.chosen().whole()
    resolve(chosen.policy)
    return allocating(chosen.policy, chosen.base, total_tokens)


def _worth(done: AllocationSummary) -> str:
    """What was reached, and what is proven of it."""
    text = f"value {done.value:.6g} with {done.tokens_used} of {done.total_tokens} tokens"
    if done.bound is None:
        return f"{text}; the solver proved no bound"
    gap = "" if done.gap is None else f" (gap {done.gap:.3%})"
    return f"{text}; no allocation can exceed {done.bound:.6g}{gap}; price of a token {done.token_price:.4g}"


def kept(out: Path) -> str:
    """What an interrupt leaves behind."""
    finished = sum(1 for _ in (out / "selections").glob("part-*.parquet"))
    told = f"finished shards ({finished}) are kept in '{out}': run the same command to resume"
    return told if finished else ""


def sentences(done: BatchSummary) -> str:
    """The outcome of a batch for people."""
    statuses = ", ".join(f"{count} {status}" for status, count in done.statuses.items()) or "none answered"
    text = f"{done.rows} rows: {statuses}, {done.rejected} rejected"
    if done.rejected:
        text += f" (reasons: {done.out / 'rejected.jsonl'})"
    if done.done_before:
        text += f"; {done.done_before} were finished before"
    if done.done_before >= done.rows:
        return f"{text}: nothing was left to do -> {done.out}"
    most = done.peak_worker_mb
    peak = "peak memory unknown here" if most is None else f"at most {most:.0f} MB each"
    units = {"second": 1, "minute": 60, "hour": 3600}
    per = done.rows_per_second
    unit = next((unit for unit, seconds in units.items() if per * seconds >= 1), "hour")
    return (
        f"{text}\n{per * units[unit]:.3g} rows per {unit}, {done.seconds:.0f} s, "
        f"{plural(done.workers, 'worker')}, {peak} -> {done.out}"
    )
