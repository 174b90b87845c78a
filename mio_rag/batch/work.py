"""One row group -> its shards. Each is written whole and then renamed, its rejected rows before it.

A shard that stands under its name is finished; everything else is made again. Nothing in a shard depends on
when or where it was made, so that both engines, and a rerun, write the same bytes (as long as no time limit
cuts a program short).
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.batch.job import (
    COLUMNS,
    OPTIONS,
    OPTIONS_READ,
    READ,
    Group,
    Job,
    answer,
    is_merged,
    open_parquet,
    options,
)
from mio_rag.batch.rows import Row, read_rows
from mio_rag.errors import DataError, InputError, MioRagError, MissingExtraError, SolverError, require
from mio_rag.storage import replaced

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


_POLL_SECONDS = 0.25
_DEATHS = 2  # crashes of a separate process, before a row is rejected
_NOWHERE = -1

_shared: Any = None  # rows finished, in each worker


def run_local(
    job: Job, groups: Sequence[Group], workers: int, progress: Callable[[int], None]
) -> Iterator[GroupReport]:
    """The report of each row group, in the order of finishing.

    Parameters
    ----------
    progress : callable
        Called with the number of rows finished since the last call.

    Raises
    ------
    SolverError
        If worker processes cannot be started at all.
    """
    counter = multiprocessing.get_context("spawn").Value("q", 0)
    told = 0

    def tell() -> None:
        nonlocal told
        now = int(counter.value)
        if now > told:
            progress(now - told)
            told = now

    waiting = list(groups)
    while waiting:
        running: dict[Future[GroupReport], Group] = {}
        with _pool(workers, counter) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < workers + 1:
                        group = waiting.pop(0)
                        running[pool.submit(_work, job, group, frozenset())] = group
                    done = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).done
                    tell()
                    for future in done:
                        report = future.result()  # raises where the pool broke
                        del running[future]
                        yield report
            except BrokenProcessPool:
                pass
        for future, group in running.items():
            survived = future.done() and not future.cancelled() and future.exception() is None
            yield future.result() if survived else _alone(job, group, counter)
            tell()


def _alone(job: Job, group: Group, counter: Any) -> GroupReport:
    """A row group in processes of its own, until one of them lives to the end."""
    deaths: Counter[int] = Counter()
    while True:
        with _pool(1, counter) as pool:
            try:
                blamed = frozenset(row for row, count in deaths.items() if count >= _DEATHS)
                return pool.submit(_work, job, group, blamed).result()
            except BrokenProcessPool:
                pass
        row = _row_at(job, group)
        deaths[row] += 1
        if row == _NOWHERE and deaths[row] >= _DEATHS:
            raise SolverError(
                f"the process that read row group {group.row_group} of '{group.file}' died twice"
            )


def _marker(job: Job, group: Group) -> Path:
    return job.out / "work" / f"group-{group.number:08d}.at"


def _row_at(job: Job, group: Group) -> int:
    """The row that a dead process was at."""
    try:
        return int(struct.unpack("q", _marker(job, group).read_bytes())[0])
    except (OSError, struct.error):
        return _NOWHERE


def _work(job: Job, group: Group, skip: frozenset[int]) -> GroupReport:
    def progress(rows: int) -> None:
        with _shared.get_lock():
            _shared.value += rows

    with _marked(_marker(job, group)) as at:
        return run_group(job, group, skip, at, progress)


@contextmanager
def _marked(path: Path) -> Iterator[Callable[[int], None]]:
    """The current row of this process, in a mapped file that survives a crash; no system call per row."""
    try:
        path.write_bytes(struct.pack("q", _NOWHERE))
    except OSError as error:
        raise InputError(f"'{path}' could not be written: {error}") from error
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
        yield lambda row: struct.pack_into("q", memory, 0, row)
    path.unlink(missing_ok=True)


@contextmanager
def _pool(workers: int, counter: Any) -> Iterator[ProcessPoolExecutor]:
    """Spawned workers, of which at least one has shown that it can start; an interrupt ends them all."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_started, initargs=(counter,))
    try:
        try:
            pool.submit(int).result()
        except BrokenProcessPool as error:
            raise SolverError(
                "worker processes cannot be started: call from a script file whose main part stands under "
                "'if __name__ == \"__main__\":', or use workers=1"
            ) from error
        yield pool
    except BaseException:  # what is under way would be minutes; its finished shards are kept
        for process in list(getattr(pool, "_processes", None) or {}).copy():
            _end(process)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end(process: int) -> None:
    import signal

    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)


def _started(counter: Any) -> None:
    import signal

    global _shared
    _shared = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: Any) -> None:
    """End with the parent: a pool's queue would keep an orphan waiting for ever."""
    parent.join()
    os._exit(1)
