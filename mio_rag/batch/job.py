"""A batch of Parquet rows: files, row groups, settings, identity, and the columns of a row's result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from mio_rag.allocation.workload import Decided, PricedQuestion
from mio_rag.batch.rows import MOST_BUDGET, Row, columns_of
from mio_rag.context import RegexCounter, block_tokens, in_prompt_order, merged
from mio_rag.errors import DataError, InputError, require
from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector
from mio_rag.settings import Settings
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import SolveResult
from mio_rag.storage import sha256_of

Engine = Literal["local", "ray"]
_Count = Annotated[int, Field(ge=1, le=MOST_BUDGET)]

FORMAT = 3
_BUFFER = 1 << 20


@dataclass(frozen=True)
class Group:
    """One row group of one file: what one worker takes at a time. Numbers and rows count over all files."""

    number: int
    file: str
    row_group: int
    first_row: int
    rows: int
    bytes: int


class BatchSettings(Settings):
    """Settings of `select_batch` and `allocate_batch`, checked before anything is made."""

    engine: Engine = "local"
    workers: Annotated[int, Field(ge=0, le=MOST_BUDGET)] = 1
    shard_rows: _Count = 5000
    budget_tokens: _Count = 1
    total_tokens: _Count = 1
    floor: Annotated[int, Field(ge=0, le=MOST_BUDGET)] = 0
    ceiling: _Count | None = None
    sample: _Count = 2000

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.ceiling is not None and self.floor > self.ceiling:
            raise ValueError(
                f"floor={self.floor} is above ceiling={self.ceiling}: lower the floor or raise the ceiling"
            )
        return self


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs; plain data, sent to each.

    names: column in the file, for each of ours that has another name there.
    kinds: what each column that is read holds.
    shard_rows: most rows of an output file.
    prices: of an allocation: the prices of a token at which every row is solved, highest first;
        `budget_tokens` is then a ceiling.
    floor: of an allocation: fewest tokens of a row.
    told: further settings that identify the run.
    """

    out: Path
    selector: Selector
    budget_tokens: int
    names: Mapping[str, str]
    kinds: Mapping[str, str]
    shard_rows: int
    prices: tuple[float, ...] = ()
    floor: int = 0
    told: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_merged(self) -> bool:
        """Whether texts of one source that overlap or touch are merged: the file says where they lie."""
        return "starts" in self.kinds

    @property
    def schema(self) -> dict[str, Any]:
        """Columns of a shard, and their types; a table of types is a list of such tables."""
        read = {"read": "list<string>"} if self.is_merged else {}
        return {**OPTIONS, "options": {**OPTION, **read}} if self.prices else {**COLUMNS, **read}


@dataclass(frozen=True)
class BatchSummary:
    """The result of a batch.

    rejected, done_before: not answered, with reasons in ``rejected.jsonl``; finished when the run began.
    statuses: answered rows by the status of their certificate.
    seconds, rows_per_second: wall time of this run; rows a second while it was selecting.
    worker_seconds: CPU time of the workers on row groups.
    peak_worker_mb: largest resident size of a worker; None where the system does not report it.
    """

    out: Path
    engine: str
    workers: int
    rows: int
    rejected: int
    done_before: int
    statuses: Mapping[str, int]
    seconds: float
    rows_per_second: float
    worker_seconds: float
    peak_worker_mb: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**dataclasses.asdict(self), "out": str(self.out), "statuses": dict(self.statuses)}


def input_files(source: Path) -> list[Path]:
    """Return the one Parquet file, or those of a folder by name, without hidden (unfinished) ones."""
    if not source.exists():
        raise InputError(f"'{source}' does not exist: give a Parquet file, or a folder of them")
    listed = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    files = [path for path in listed if not path.name.startswith((".", "_")) or path == source]
    if not files:
        raise InputError(f"'{source}' holds no .parquet files")
    return files


def open_parquet(path: str | Path) -> Any:
    """Open a Parquet file, to be read a little at a time; `DataError` if it is damaged, or none."""
    arrow: Any = require("pyarrow", "batch", "batches")
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    try:
        return parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:  # names of columns are text, too
        raise DataError(f"'{path}' cannot be read as Parquet: {error}") from error


def groups_of(
    files: list[Path], selector: Selector, names: Mapping[str, str], *, weighted: bool = False
) -> tuple[list[Group], dict[str, str]]:
    """Return the row groups of all files, and the columns to read with their kinds.

    Raises `InputError` if a column is missing or of the wrong type, or the files differ in their columns.
    """
    groups: list[Group] = []
    first = 0
    kinds: dict[str, str] = {}
    for path in files:
        with open_parquet(path) as file:
            try:
                here = columns_of(file.schema_arrow, selector, names, weighted=weighted)
            except InputError as error:
                raise InputError([f"'{path.name}': {p}" for p in error.problems]) from error
            if kinds and here.keys() != kinds.keys():
                other = sorted(here.keys() ^ kinds.keys())
                raise InputError(f"'{path.name}' and '{files[0].name}' differ in {', '.join(other)}")
            kinds = here
            for k in range(file.num_row_groups):
                part = file.metadata.row_group(k)
                size = max(part.total_byte_size, 1)
                groups.append(Group(len(groups), str(path), k, first, part.num_rows, size))
                first += part.num_rows
    if first == 0:
        raise InputError(f"the candidates hold no rows ({', '.join(path.name for path in files[:3])})")
    return groups, kinds


def identity(
    files: list[Path], job: Job, known: Mapping[str, Any] | None, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Describe what decides which rows may stand in one folder: content of the input, settings, version.

    known: the identity of an earlier run. A file with the name, size and time of change recorded there is not
        read again.
    progress: called with the bytes of each file.
    """
    from mio_rag.defaults import __version__

    before = {part["name"]: part for part in (known or {}).get("input", [])}
    described = []
    for path in files:
        stat = path.stat()
        part = {"name": path.name, "size": stat.st_size, "changed_ns": stat.st_mtime_ns}
        old = before.get(path.name, {})
        same = all(old.get(key) == value for key, value in part.items())
        described.append({**part, "sha256": old["sha256"] if same else sha256_of(path)})
        progress(stat.st_size)
    made_of = {
        "format": FORMAT,
        "version": __version__,
        "budget_tokens": job.budget_tokens,
        "shard_rows": job.shard_rows,
        "columns": {name: job.names.get(name, name) for name in job.kinds},
        "settings": job.selector.to_dict(),
        **job.told,
    }
    content = [{"name": part["name"], "sha256": part["sha256"]} for part in described]
    digest = hashlib.sha256(json.dumps([made_of, content], sort_keys=True).encode()).hexdigest()
    return {**made_of, "input": described, "sha256": digest}


# Results of rows ------------------------------------------------------------------------------------------

_PROOF = {
    "objective": "double", "bound": "double", "gap": "double", "status": "string", "limit": "string",
    "message": "string",
}  # fmt: skip

_CHOSEN = {"selected_ids": "list<string>", "selected": "list<int32>", "tokens_used": "int64"}

#: Columns of a shard. Where texts are merged, `read` has them as they are to be read, in prompt order.
COLUMNS = {
    "row": "int64", "query_id": "string", **_CHOSEN, "budget_tokens": "int64", **_PROOF,
    "relevance_source": "string",
}  # fmt: skip

#: Columns of a shard of the options of an allocation. `relaxed`: the proven bound on value less price times
#: tokens, at each price of the job; `shortest`: tokens of the shortest passage; `options` follow.
OPTIONS = {
    "row": "int64", "query_id": "string", "budget_tokens": "int64", "weight": "double",
    "relaxed": "list<double>", "shortest": "int64", "status": "string",
}  # fmt: skip

#: An option of a row, of which those with fewest tokens come first. `charged`: what it takes of the total.
OPTION = {**_CHOSEN, "value": "double", "token_price": "double", **_PROOF, "charged": "int64"}

#: Counts merged texts.
COUNTER = RegexCounter()


def _proof(result: SolveResult) -> dict[str, Any]:
    return {
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status.value,
        "limit": result.limit,
        "message": result.message or None,
    }


def answer(job: Job, row: Row) -> dict[str, Any]:
    """Select for a row; `MioRagError` if it is invalid, or cannot be answered."""
    pool = row.pool
    if not isinstance(pool, Candidates):
        raise pool
    budget_tokens = job.budget_tokens if row.budget is None else row.budget
    merge = job.is_merged
    choice = job.selector.choose(pool, budget_tokens, COUNTER if merge else None)
    chosen, source = list(choice.chosen), choice.formulation.source
    return {
        "selected_ids": [pool.ids[i] for i in chosen],
        "selected": chosen,
        # Of the decision itself, as `SolveResult.objective` is (`solvers.result.conclude`).
        "tokens_used": choice.used if merge else int(pool.tokens[chosen].sum()) if chosen else 0,
        "budget_tokens": budget_tokens,
        **_proof(choice.result),
        "relevance_source": None if source is None else source.kind,
        **({"read": [block.passage.text for block in merged(pool, chosen)]} if merge else {}),
    }


def question_of(job: Job, row: Row) -> PricedQuestion:
    """Make the question of a row; `InputError` if it is invalid, or its own budget is below the floor."""
    if not isinstance(row.pool, Candidates):
        raise row.pool
    ceiling = job.budget_tokens if row.budget is None else row.budget
    if ceiling < max(1, job.floor):
        raise InputError(f"budget_tokens={ceiling} must be >= {max(1, job.floor)}, the least of a question")
    if job.is_merged:  # parts may count more than the passages that they are of
        return PricedQuestion(job.selector, row.pool, row.weight, job.floor, ceiling, COUNTER)
    most = min(ceiling, int(row.pool.tokens.sum()))
    return PricedQuestion(job.selector, row.pool, row.weight, job.floor, most)


def options(job: Job, row: Row) -> dict[str, Any]:
    """Return the distinct selections of a row over the prices of a job, fewest tokens first.

    Raises `MioRagError` for a row that is invalid, or cannot be solved.
    """
    question = question_of(job, row)
    for price in (*sorted({max(job.prices), min(job.prices)}), *job.prices):  # outer ones may prove others
        if question.known(price) is None:
            question.learn(price, solve(question.program(price), job.selector.solver, job.selector.options))
    probes = [probe for price in job.prices if (probe := question.known(price)) is not None]
    decisions = [probe.decided for probe in probes]
    if len(probes) == 1:
        decisions += question.neighbours(probes[0])
    distinct: dict[int, dict[str, Any]] = {}
    for decided in decisions:
        made = _option(question, decided, job.is_merged)
        held = distinct.get(made["charged"])
        if held is None or made["value"] > held["value"]:
            distinct[made["charged"]] = made
    kept = [distinct[charged] for charged in sorted(distinct)]
    return {
        "budget_tokens": question.ceiling,
        "weight": question.weight,
        "shortest": int(question.candidates.tokens.min()),
        "relaxed": [probe.bound for probe in probes],
        "status": kept[0]["status"],
        "options": kept,
    }


def _option(question: PricedQuestion, decided: Decided, merge: bool) -> dict[str, Any]:
    """The option of a decision; where its block exceeds the ceiling, the best one within."""
    pool, order = question.candidates, question.selector.prompt_order
    # Behind the passages stand items that buy broken rows.
    picked = [] if decided.x is None else np.flatnonzero(decided.x[: len(pool)]).tolist()
    chosen = in_prompt_order(pool, picked, order)
    used = block_tokens(pool, chosen, COUNTER, merge) if merge else decided.tokens
    if used > question.ceiling:
        choice = question.choice(replace(decided, tokens=question.ceiling))
        decided = question.decided(decided.price, choice.allowed, choice.result)
        chosen, used = tuple(choice.chosen), choice.used
    return {
        "selected_ids": [pool.ids[i] for i in chosen],
        "selected": list(chosen),
        "tokens_used": used,
        "value": decided.value / question.weight,
        "token_price": decided.price / question.weight,
        **_proof(decided.result),
        "charged": max(used, decided.tokens),
        **({"read": [block.passage.text for block in merged(pool, chosen)]} if merge else {}),
    }
