"""One row group -> its shards. Each is written whole and then renamed, its rejected rows before it.

A shard that stands under its name is finished; everything else is made again. Nothing in a shard depends on
when or where it was made, so that both engines, and a rerun, write the same bytes (as long as no time limit
cuts a program short).
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.batch.answers import COLUMNS, READ, answer, is_merged
from mio_rag.batch.job import Group, Job, open_parquet
from mio_rag.batch.options import OPTIONS, options
from mio_rag.batch.options import READ as OPTIONS_READ
from mio_rag.batch.rows import Row, read_rows
from mio_rag.errors import DataError, InputError, MioRagError, MissingExtraError, require
from mio_rag.files import replaced

__all__ = [
    "DIED",
    "GroupReport",
    "batches_of",
    "run_group",
    "shard_paths",
    "shard_starts",
    "shard_state",
    "table_of",
]

DIED = "the process that solved this row died (out of memory, or a crash of the solver)"

_BATCH_BYTES = 16 << 20  # of the file, decoded at a time
_RELEASE_ROWS = 20_000


@dataclass
class GroupReport:
    """What a worker did with a row group."""

    number: int
    rows: int = 0
    rejected: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    peak_mb: float | None = None


def shard_starts(job: Job, group: Group) -> list[tuple[int, int]]:
    """First row and number of rows, within the group, of each of its shards."""
    size = job.shard_rows
    return [(start, min(size, group.rows - start)) for start in range(0, group.rows, size)]


def shard_paths(job: Job, group: Group, start: int) -> tuple[Path, Path]:
    """The shard of these rows, and the file of those that were rejected."""
    name = f"part-{group.first_row + start:012d}"
    return job.out / "selections" / f"{name}.parquet", job.out / "rejected" / f"{name}.jsonl"


def shard_state(job: Job, group: Group, start: int) -> dict[str, Any] | None:
    """What the metadata of a finished shard say; None where it is not finished, or was damaged since."""
    arrow: Any = require("pyarrow", "batch", "batches")
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    path, _ = shard_paths(job, group, start)
    if not path.is_file():
        return None
    try:
        held: dict[str, Any] = json.loads((parquet.read_schema(path).metadata or {})[b"mio_rag"])
    except (OSError, arrow.ArrowException, LookupError, ValueError):
        return None
    return held


def run_group(
    job: Job,
    group: Group,
    skip: Collection[int] = (),
    at: Callable[[int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> GroupReport:
    """Answer the rows of a group that no shard holds yet.

    Parameters
    ----------
    skip : collection of int
        Rows, of all rows, that killed a process: they are rejected unseen.
    at : callable, optional
        Told the number of each row before it is begun.
    progress : callable, optional
        Told the number of rows just finished.
    """
    from mio_rag.solvers.capabilities import one_blas_thread

    began = time.process_time()
    report = GroupReport(group.number)
    open_shards = [part for part in shard_starts(job, group) if shard_state(job, group, part[0]) is None]
    if open_shards:
        with one_blas_thread():
            _fill(job, group, open_shards, report, frozenset(skip), at, progress)
    report.cpu_seconds = time.process_time() - began
    report.peak_mb = _peak_mb()
    return report


def _peak_mb(status: Path = Path("/proc/self/status")) -> float | None:
    """The largest resident size of this process; None where the system does not say (Windows).

    On Linux from /proc: `getrusage` remembers what the parent's was when this process was forked off.
    """
    with suppress(OSError):
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _fill(
    job: Job,
    group: Group,
    shards: list[tuple[int, int]],
    report: GroupReport,
    skip: frozenset[int],
    at: Callable[[int], None] | None,
    progress: Callable[[int], None] | None,
) -> None:
    batches = batches_of(job, group)
    position, held = 0, next(batches)
    for start, count in shards:
        made, refused = _Answers(job), []
        row = start
        while row < start + count:
            while position + held.num_rows <= row:
                position, held = position + held.num_rows, next(batches)
            part = held.slice(row - position, min(start + count, position + held.num_rows) - row)
            for given in read_rows(part, job.kinds, job.names):
                number = group.first_row + row
                if at is not None:
                    at(number)
                problems = [DIED] if number in skip else made.add(job, number, given)
                if problems:
                    refused.append({"row": number, "query_id": given.label, "reasons": problems})
                row += 1
            if progress is not None:
                progress(part.num_rows)
        state = {
            "first_row": group.first_row + start,
            "rows": count,
            "rejected": len(refused),
            "statuses": dict(sorted(made.statuses.items())),
        }
        _write(job, group, start, made, refused, state)
        report.rows += count
        report.rejected += len(refused)
        report.statuses += made.statuses


def batches_of(job: Job, group: Group) -> Iterator[Any]:
    """The rows of a group, a few megabytes at a time."""
    arrow: Any = require("pyarrow", "batch", "batches")
    rows = int(np.clip(_BATCH_BYTES * group.rows // group.bytes, 1, 1024))
    done = 0
    columns = [job.names.get(name, name) for name in job.kinds]
    with open_parquet(group.file) as file:
        parts = file.iter_batches(rows, row_groups=[group.row_group], columns=columns, use_threads=False)
        while True:
            try:
                batch = next(parts, None)
            except (OSError, arrow.ArrowException) as error:
                raise DataError(
                    f"row group {group.row_group} of '{group.file}' cannot be read: {error}"
                ) from error
            if batch is None:
                return
            yield batch
            done += batch.num_rows
            if done >= _RELEASE_ROWS:
                done = 0
                arrow.default_memory_pool().release_unused()


class _Answers:
    """The answered rows of a shard, column by column."""

    def __init__(self, job: Job) -> None:
        columns, read = (OPTIONS, OPTIONS_READ) if job.prices else (COLUMNS, READ)
        self.schema = {**columns, **read} if is_merged(job) else columns
        self._answer = options if job.prices else answer
        self.columns: dict[str, list[Any]] = {name: [] for name in self.schema}
        self.statuses: Counter[str] = Counter()

    def add(self, job: Job, number: int, row: Row) -> list[str]:
        """Answer a row; or say why not."""
        try:
            answered = self._answer(job, row)
        except InputError as error:
            return list(error.problems)
        except MissingExtraError:  # what no row could do without
            raise
        except MioRagError as error:
            return [str(error)]
        except Exception as error:  # a fault fails its own row, not the batch
            return [f"{type(error).__name__}: {error}"]
        for name, value in {"row": number, "query_id": row.label, **answered}.items():
            self.columns[name].append(value)
        self.statuses[answered["status"]] += 1
        return []


def table_of(
    columns: Mapping[str, Sequence[Any]], schema: Mapping[str, str], metadata: Mapping[str, str]
) -> Any:
    """Columns as a table of Arrow, with the types that their names say."""
    arrow: Any = require("pyarrow", "batch", "batches")
    typed = arrow.schema([(name, _arrow_type(arrow, kind)) for name, kind in schema.items()], dict(metadata))
    return arrow.table(dict(columns), schema=typed)


def _arrow_type(arrow: Any, name: str) -> Any:
    plain = {"int64": arrow.int64(), "int32": arrow.int32(), "double": arrow.float64()}
    plain["string"] = arrow.string()
    if name.startswith("list<"):
        return arrow.list_(_arrow_type(arrow, name[len("list<") : -1]))
    return plain[name]


def _write(
    job: Job,
    group: Group,
    start: int,
    made: _Answers,
    refused: list[dict[str, Any]],
    state: Mapping[str, Any],
) -> None:
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    path, side = shard_paths(job, group, start)
    side.unlink(missing_ok=True)  # of a run that was killed between the two
    if refused:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in refused)
        with replaced(side) as partial:
            partial.write_text(lines, encoding="utf-8", errors="replace")
    table = table_of(made.columns, made.schema, {"mio_rag": json.dumps(state)})
    with replaced(path) as partial:
        parquet.write_table(table, partial, compression="zstd")
