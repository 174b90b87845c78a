"""What a batch is made of: files, row groups, settings; and what identifies it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from mio_rag.allocation.workload import Decided, PricedQuestion, Probe
from mio_rag.batch.rows import Row, columns_read, kinds_of
from mio_rag.context import RegexCounter, block_tokens, in_prompt_order, merged
from mio_rag.errors import DataError, InputError, require
from mio_rag.pool import Candidates
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import solve

Engine = Literal["local", "ray"]

FORMAT = 2
_CHUNK = 1 << 23
_BUFFER = 1 << 20


@dataclass(frozen=True)
class Group:
    """One row group of one file: what one worker takes at a time.

    Parameters
    ----------
    number : int
        Over all files, from 0.
    first_row : int
        Of all rows of all files, from 0.
    """

    number: int
    file: str
    row_group: int
    first_row: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know; plain data, sent to every one.

    Parameters
    ----------
    names : mapping
        Column in the file, for each of ours that is called otherwise there.
    shard_rows : int
        Most rows of an output file.
    prices : tuple of float
        Where a total is shared: the prices of a token at which every row is solved, highest first; and
        `budget_tokens` is then a ceiling.
    floor : int
        Fewest tokens of a row, where a total is shared.
    told : mapping
        What else tells this run from others.
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


@dataclass(frozen=True)
class BatchSummary:
    """What a batch has come to.

    Parameters
    ----------
    rows, rejected, done_before : int
        Of the input; not answered, with reasons in ``rejected.jsonl``; found finished when the run began.
    statuses : mapping
        Answered rows by the status of their certificate.
    seconds, rows_per_second : float
        Wall time of this run; rows a second while it was selecting.
    worker_seconds : float
        CPU time of the workers on row groups.
    peak_worker_mb : float or None
        Largest resident size of a worker; None where the system does not say (Windows).
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
        """Plain data for JSON."""
        return {**dataclasses.asdict(self), "out": str(self.out), "statuses": dict(self.statuses)}


def input_files(source: Path) -> list[Path]:
    """The Parquet files of a folder by name (hidden ones are somebody's unfinished work), or the one file.

    Raises
    ------
    InputError
        If there are none.
    """
    listed = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    files = [path for path in listed if not path.name.startswith((".", "_")) or path == source]
    if not source.exists():
        raise InputError(f"'{source}' does not exist: give a Parquet file, or a folder of them")
    if not files:
        raise InputError(f"'{source}' holds no .parquet files")
    return files


def open_parquet(path: str | Path) -> Any:
    """The file, read a little at a time.

    Raises
    ------
    DataError
        If it cannot be read, or is no Parquet.
    """
    arrow: Any = require("pyarrow", "batch", "batches")
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    try:
        return parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:  # names of columns are text, too
        raise DataError(f"'{path}' cannot be read as Parquet: {error}") from error


def groups_of(
    files: list[Path], selector: Selector, names: Mapping[str, str], *, weighted: bool = False
) -> tuple[list[Group], dict[str, str]]:
    """Row groups of all files, and the columns to read with what they hold; see `columns_read`.

    Raises
    ------
    InputError
        If a column is missing or of the wrong type, or the files differ in their columns.
    """
    groups: list[Group] = []
    first = 0
    columns: tuple[str, ...] = ()
    kinds: dict[str, str] = {}
    for path in files:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            try:
                here = columns_read(schema, selector, names, weighted=weighted)
                held = kinds_of(schema, here, names)
            except InputError as error:
                raise InputError([f"'{path.name}': {p}" for p in error.problems]) from error
            if columns and here != columns:
                other = sorted(set(here) ^ set(columns))
                raise InputError(f"'{path.name}' and '{files[0].name}' differ in {', '.join(other)}")
            columns, kinds = here, held
            for k in range(file.num_row_groups):
                part = file.metadata.row_group(k)
                groups.append(
                    Group(len(groups), str(path), k, first, part.num_rows, max(part.total_byte_size, 1))
                )
                first += part.num_rows
    if first == 0:
        raise InputError(f"the candidates hold no rows ({', '.join(path.name for path in files[:3])})")
    return groups, kinds


def identity(
    files: list[Path],
    job: Job,
    known: Mapping[str, Any] | None,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """What decides which rows may stand in one folder: content of the input, settings, and version.

    Parameters
    ----------
    known : mapping, optional
        The identity of an earlier run. A file whose name, size and time of change are those recorded there
        is not read again.
    progress : callable
        Called with the number of bytes just read.
    """
    from mio_rag import __version__

    before = {part["name"]: part for part in (known or {}).get("input", [])}
    described = []
    for path in files:
        stat = path.stat()
        part = {"name": path.name, "size": stat.st_size, "changed_ns": stat.st_mtime_ns}
        old = before.get(path.name, {})
        same = all(old.get(key) == value for key, value in part.items())
        described.append({**part, "sha256": old["sha256"] if same else _sha256(path, progress)})
        if same:
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


def _sha256(path: Path, progress: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress(len(chunk))
    return digest.hexdigest()


#: Columns of a shard.
COLUMNS = {
    "row": "int64",
    "query_id": "string",
    "selected_ids": "list<string>",
    "selected": "list<int32>",
    "tokens_used": "int64",
    "budget_tokens": "int64",
    "objective": "double",
    "bound": "double",
    "gap": "double",
    "status": "string",
    "limit": "string",
    "message": "string",
    "relevance_source": "string",
}

#: The column of a shard where texts are merged: as they are to be read, in prompt order.
READ = {"read": "list<string>"}

#: Of texts that are merged.
COUNTER = RegexCounter()


def is_merged(job: Job) -> bool:
    """Whether texts of one source that overlap or touch are read as one: the file says where they lie."""
    return "starts" in job.kinds


def answer(job: Job, row: Row) -> dict[str, Any]:
    """What the selector chooses for a row.

    Raises
    ------
    MioRagError
        For a row that is none, or cannot be answered.
    """
    pool = row.pool
    if not isinstance(pool, Candidates):
        raise pool
    budget_tokens = job.budget_tokens if row.budget is None else row.budget
    merge = is_merged(job)
    choice = job.selector.choose(pool, budget_tokens, COUNTER if merge else None)
    result, chosen = choice.result, list(choice.chosen)
    read = {"read": [block.passage.text for block in merged(pool, chosen)]} if merge else {}
    return {
        "selected_ids": [pool.ids[i] for i in chosen],
        "selected": chosen,
        # Of the decision itself, as `SolveResult.objective` is (`solvers.result.conclude`).
        "tokens_used": choice.used if merge else int(pool.tokens[chosen].sum()) if chosen else 0,
        "budget_tokens": budget_tokens,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status.value,
        "limit": result.limit,
        "message": result.message or None,
        "relevance_source": None if (source := choice.formulation.source) is None else source.kind,
        **read,
    }


T = TypeVar("T")

#: Columns of an option that are lists themselves: most of what options have in common.
LISTED = ("selected_ids", "selected")

#: Columns of an option; in a shard they are lists, with fewest tokens first.
OPTION = {
    "selected_ids": "list<string>",
    "selected": "list<int32>",
    "tokens_used": "int64",
    "value": "double",
    "token_price": "double",
    "objective": "double",
    "bound": "double",
    "gap": "double",
    "status": "string",
    "limit": "string",
    "message": "string",
}

#: Columns of a shard. `relaxed`: the proven bound on value less price times tokens, at each price of the job;
#: `shortest`: tokens of the shortest passage; `any_selected`, `any_selected_ids`: passages that any option
#: reads, by their places in which `option_places` says what each reads; `option_charged`: what each takes of
#: the total.
OPTIONS = {
    "row": "int64",
    "query_id": "string",
    "budget_tokens": "int64",
    "weight": "double",
    "relaxed": "list<double>",
    "shortest": "int64",
    "status": "string",
    "any_selected": "list<int32>",
    "any_selected_ids": "list<string>",
    "option_places": "list<list<int32>>",
    "option_charged": "list<int64>",
    **{f"option_{name}": f"list<{kind}>" for name, kind in OPTION.items() if name not in LISTED},
}

#: Further columns where texts are merged: those that any option reads, and by their places what each reads.
OPTIONS_READ = {"any_read": "list<string>", "option_read_places": "list<list<int32>>"}


class _Option(NamedTuple):
    """A decision, its passages in prompt order, and their tokens as they are read."""

    decided: Decided
    chosen: tuple[int, ...]
    used: int

    @property
    def charged(self) -> int:
        return max(self.used, self.decided.tokens)


def question_of(job: Job, row: Row) -> PricedQuestion:
    """The question of a row.

    Raises
    ------
    InputError
        For a row that is none, or whose own budget is no ceiling.
    """
    if not isinstance(row.pool, Candidates):
        raise row.pool
    ceiling = job.budget_tokens if row.budget is None else row.budget
    if ceiling < max(1, job.floor):
        raise InputError(f"budget_tokens={ceiling} must be >= {max(1, job.floor)}, the least of a question")
    if is_merged(job):  # parts may count more than the passages that they are of
        return PricedQuestion(job.selector, row.pool, row.weight, job.floor, ceiling, COUNTER)
    most = min(ceiling, int(row.pool.tokens.sum()))
    return PricedQuestion(job.selector, row.pool, row.weight, job.floor, most)


def options(job: Job, row: Row) -> dict[str, Any]:
    """The distinct selections of a row over the prices of a job, fewest tokens first.

    Raises
    ------
    MioRagError
        For a row that is none, or cannot be solved.
    """
    question = question_of(job, row)
    probes = _probes(job, question)
    decisions = [probe.decided for probe in probes]
    if len(probes) == 1:
        decisions += [one for one in question.neighbours(probes[0]) if one is not None]
    merge = is_merged(job)
    distinct: dict[int, _Option] = {}
    for decided in decisions:
        option = _option(question, decided, merge)
        held = distinct.get(option.charged)
        if held is None or option.decided.value > held.decided.value:
            distinct[option.charged] = option
    kept = [distinct[charged] for charged in sorted(distinct)]
    pool = question.candidates
    places, of_options = _places([option.chosen for option in kept])
    told = [_columns(question, option) for option in kept]
    return {
        "budget_tokens": question.ceiling,
        "weight": question.weight,
        "shortest": int(row.pool.tokens.min()) if isinstance(row.pool, Candidates) else 0,
        "relaxed": [probe.bound for probe in probes],
        "status": told[0]["status"],
        "any_selected": places,
        "any_selected_ids": [pool.ids[i] for i in places],
        "option_places": of_options,
        "option_charged": [option.charged for option in kept],
        **{f"option_{name}": [option[name] for option in told] for name in OPTION if name not in LISTED},
        **(_read(pool, kept) if merge else {}),
    }


def _option(question: PricedQuestion, decided: Decided, merge: bool) -> _Option:
    """What a decision reads, and where its block is beyond the ceiling, the best one within."""
    pool, order = question.candidates, question.selector.prompt_order
    chosen = in_prompt_order(pool, _passages(decided, len(pool)), order)
    if not merge:
        return _Option(decided, chosen, decided.tokens)
    used = block_tokens(pool, chosen, COUNTER, merge)
    if used <= question.ceiling:
        return _Option(decided, chosen, used)
    choice = question.choice(replace(decided, tokens=question.ceiling))
    again = question.decided(decided.price, choice.allowed, choice.result)
    return _Option(again, tuple(choice.chosen), choice.used)


def _places(lists: Sequence[Sequence[T]]) -> tuple[list[T], list[list[int]]]:
    """Everything that lists hold, each once, and the lists again as places in that."""
    places: dict[T, int] = {}
    for own in lists:
        for one in own:
            places.setdefault(one, len(places))
    return list(places), [[places[one] for one in own] for own in lists]


def _read(pool: Candidates, kept: Sequence[_Option]) -> dict[str, Any]:
    texts = [[block.passage.text for block in merged(pool, option.chosen)] for option in kept]
    held, places = _places(texts)
    return {"any_read": held, "option_read_places": places}


def _passages(decided: Decided, count: int) -> list[int]:
    """The chosen ones: behind them stand items that buy broken rows."""
    return [] if decided.x is None else np.flatnonzero(decided.x[:count]).tolist()


def _probes(job: Job, question: PricedQuestion) -> list[Probe]:
    """What is known at each price of the job; outer prices first, since they may prove those between."""
    outer = sorted({max(job.prices), min(job.prices)})
    for price in (*outer, *job.prices):
        if question.known(price) is None:
            question.learn(price, solve(question.program(price), job.selector.solver, job.selector.options))
    return [probe for price in job.prices if (probe := question.known(price)) is not None]


def _columns(question: PricedQuestion, option: _Option) -> dict[str, Any]:
    decided, result = option.decided, option.decided.result
    return {
        "tokens_used": option.used,
        "value": decided.value / question.weight,
        "token_price": decided.price / question.weight,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status.value,
        "limit": result.limit,
        "message": result.message or None,
    }
