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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.batch.job import Group, Job, open_parquet
from mio_rag.batch.rows import Row, read_rows
from mio_rag.candidates import Candidates
from mio_rag.errors import DataError, InputError, MioRagError, MissingExtraError, require
from mio_rag.files import replaced

__all__ = ["DIED", "GroupReport", "run_group", "shard_starts", "shard_state"]

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


def _paths(job: Job, group: Group, start: int) -> tuple[Path, Path]:
    name = f"part-{group.first_row + start:012d}"
    return job.out / "selections" / f"{name}.parquet", job.out / "rejected" / f"{name}.jsonl"


def shard_state(job: Job, group: Group, start: int) -> dict[str, Any] | None:
    """What the metadata of a finished shard say; None where it is not finished, or was damaged since."""
    arrow: Any = require("pyarrow", "batch", "batches")
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    path, _ = _paths(job, group, start)
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
    from mio_rag.solvers.blas import one_blas_thread

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
    batches = _batches(job, group)
    position, held = 0, next(batches)
    for start, count in shards:
        made, refused = _Answers(), []
        row = start
        while row < start + count:
            while position + held.num_rows <= row:
                position, held = position + held.num_rows, next(batches)
            part = held.slice(row - position, min(start + count, position + held.num_rows) - row)
            for label, pool, budget in read_rows(part, job.kinds, job.names):
                number = group.first_row + row
                if at is not None:
                    at(number)
                problems = [DIED] if number in skip else made.add(job, number, (label, pool, budget))
                if problems:
                    refused.append({"row": number, "query_id": label, "reasons": problems})
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


def _batches(job: Job, group: Group) -> Iterator[Any]:
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

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA}
        self.statuses: Counter[str] = Counter()

    def add(self, job: Job, number: int, row: Row) -> list[str]:
        """Answer a row; or say why not."""
        label, pool, own = row
        try:
            if not isinstance(pool, Candidates):
                raise pool
            answer = _answer(job, pool, job.budget_tokens if own is None else own)
        except InputError as error:
            return list(error.problems)
        except MissingExtraError:  # what no row could do without
            raise
        except MioRagError as error:
            return [str(error)]
        except Exception as error:  # a fault fails its own row, not the batch
            return [f"{type(error).__name__}: {error}"]
        for name, value in {"row": number, "query_id": label, **answer}.items():
            self.columns[name].append(value)
        self.statuses[answer["status"]] += 1
        return []


def _answer(job: Job, pool: Candidates, budget_tokens: int) -> dict[str, Any]:
    choice = job.selector.choose(pool, budget_tokens)
    result, chosen = choice.result, list(choice.chosen)
    return {
        "selected_ids": [pool.ids[i] for i in chosen],
        "selected": chosen,
        # Of the decision itself, as `SolveResult.objective` is (`solvers.result.conclude`).
        "tokens_used": int(pool.tokens[chosen].sum()) if chosen else 0,
        "budget_tokens": budget_tokens,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "status": result.status.value,
        "limit": result.limit,
        "message": result.message or None,
    }


_SCHEMA = {
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
}


def _arrow_type(arrow: Any, name: str) -> Any:
    plain = {"int64": arrow.int64(), "int32": arrow.int32(), "double": arrow.float64()}
    plain["string"] = arrow.string()
    inner = name.removeprefix("list<").removesuffix(">")
    return plain[name] if inner == name else arrow.list_(plain[inner])


def _write(
    job: Job,
    group: Group,
    start: int,
    made: _Answers,
    refused: list[dict[str, Any]],
    state: Mapping[str, Any],
) -> None:
    arrow: Any = require("pyarrow", "batch", "batches")
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    path, side = _paths(job, group, start)
    side.unlink(missing_ok=True)  # of a run that was killed between the two
    if refused:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in refused)
        with replaced(side) as partial:
            partial.write_text(lines, encoding="utf-8", errors="replace")
    schema = arrow.schema(
        [(name, _arrow_type(arrow, kind)) for name, kind in _SCHEMA.items()],
        metadata={"mio_rag": json.dumps(state)},
    )
    table = arrow.table(made.columns, schema=schema)
    with replaced(path) as partial:
        parquet.write_table(table, partial, compression="zstd")
