"""What a batch is made of: files, row groups, settings; and what identifies it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mio_rag.batch.schema import columns_read, kinds_of
from mio_rag.errors import DataError, InputError, require
from mio_rag.selection.selector import Selector

__all__ = ["BatchSummary", "Engine", "Group", "Job", "groups_of", "identity", "input_files", "open_parquet"]

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
