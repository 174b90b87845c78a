"""Row groups to shards, in processes of this machine.

A shard is written whole and then renamed, its rejected rows before it. One that has its name is finished;
everything else is made again. Its content depends on input and settings alone, so that both engines, and a
rerun, write the same bytes (as long as no time limit cuts a program short).
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import signal
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

from mio_rag.batch.job import Group, Job, answer, open_parquet, options
from mio_rag.batch.rows import Row, read_rows
from mio_rag.errors import DataError, InputError, MioRagError, MissingExtraError, SolverError, require
from mio_rag.storage import replaced

DIED = "the process that solved this row died (out of memory, or a crash of the solver)"

_BATCH_BYTES = 16 << 20  # of the file, decoded at a time
_RELEASE_ROWS = 20_000
_POLL_SECONDS = 0.25
_DEATHS = 2  # crashes of a separate process, before a row is rejected
_NOWHERE = -1

_finished: Any = None  # rows, shared by the workers


@dataclass
class GroupReport:
    """What a worker did with a row group."""

    number: int
    rows: int = 0
    rejected: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    peak_mb: float | None = None


def shards_of(job: Job, groups: Sequence[Group]) -> Iterator[tuple[Group, int, int]]:
    """Yield every shard in the order of the input: its group, first row within it, and number of rows."""
    for group in groups:
        for start in range(0, group.rows, job.shard_rows):
            yield group, start, min(job.shard_rows, group.rows - start)


def shard_paths(job: Job, group: Group, start: int) -> tuple[Path, Path]:
    """Return the shard of these rows, and the file of those that were rejected."""
    name = f"part-{group.first_row + start:012d}"
    return job.out / "selections" / f"{name}.parquet", job.out / "rejected" / f"{name}.jsonl"


def shard_state(job: Job, group: Group, start: int) -> dict[str, Any] | None:
    """Return the metadata of a finished shard; None where it is not finished, or was damaged since."""
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


def write_shard(path: Path, schema: Mapping[str, str], columns: Mapping[str, Any], state: Any) -> None:
    """Write columns with the types of a schema, and the state as metadata."""
    arrow: Any = require("pyarrow", "batch", "batches")
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    plain = {"int64": arrow.int64(), "int32": arrow.int32(), "double": arrow.float64()}
    plain["string"] = arrow.string()

    def typed(name: str) -> Any:
        inner = name.removeprefix("list<")
        return plain[name] if inner == name else arrow.list_(typed(inner[:-1]))

    fields = [(name, typed(kind)) for name, kind in schema.items()]
    table = arrow.table(dict(columns), schema=arrow.schema(fields, {"mio_rag": json.dumps(state)}))
    with replaced(path) as partial:
        parquet.write_table(table, partial, compression="zstd")


def run_group(
    job: Job,
    group: Group,
    skip: Collection[int] = (),
    at: Callable[[int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> GroupReport:
    """Answer the rows of a group that no shard holds yet.

    skip: rows, of all rows, that killed a process: they are rejected unseen.
    at: called with the number of each row before it is begun.
    progress: called with the number of rows just finished.
    """
    from mio_rag.solvers.capabilities import one_blas_thread

    began, report = time.process_time(), GroupReport(group.number)
    shards = [
        (start, count)
        for _, start, count in shards_of(job, [group])
        if shard_state(job, group, start) is None
    ]
    batches, position = batches_of(job, group), 0
    held: Any = None
    with one_blas_thread():
        for start, count in shards:
            columns: dict[str, list[Any]] = {name: [] for name in job.schema}
            statuses, refused, row = Counter[str](), [], start
            while row < start + count:
                while held is None or position + held.num_rows <= row:
                    position += 0 if held is None else held.num_rows
                    held = next(batches)
                part = held.slice(row - position, min(start + count, position + held.num_rows) - row)
                for given in read_rows(part, job.kinds, job.names):
                    number = group.first_row + row
                    if at is not None:
                        at(number)
                    found, problems = ({}, [DIED]) if number in skip else _solved(job, given)
                    if problems:
                        refused.append({"row": number, "query_id": given.label, "reasons": problems})
                    else:
                        for name, value in {"row": number, "query_id": given.label, **found}.items():
                            columns[name].append(value)
                        statuses[found["status"]] += 1
                    row += 1
                if progress is not None:
                    progress(part.num_rows)
            path, side = shard_paths(job, group, start)
            side.unlink(missing_ok=True)  # of a run that was killed between the two
            if refused:
                lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in refused)
                with replaced(side) as partial:
                    partial.write_text(lines, encoding="utf-8", errors="replace")
            state = {
                "first_row": group.first_row + start,
                "rows": count,
                "rejected": len(refused),
                "statuses": dict(sorted(statuses.items())),
            }
            write_shard(path, job.schema, columns, state)
            report.rows += count
            report.rejected += len(refused)
            report.statuses += statuses
    report.cpu_seconds = time.process_time() - began
    report.peak_mb = _peak_mb()
    return report


def _solved(job: Job, row: Row) -> tuple[dict[str, Any], list[str]]:
    """The columns of a row's result, or the reasons why there is none."""
    try:
        return (options if job.prices else answer)(job, row), []
    except InputError as error:
        return {}, list(error.problems)
    except MissingExtraError:  # which every row needs
        raise
    except MioRagError as error:
        return {}, [str(error)]
    except Exception as error:  # a fault fails its own row, not the batch
        return {}, [f"{type(error).__name__}: {error}"]


def _peak_mb(status: Path = Path("/proc/self/status")) -> float | None:
    """The largest resident size of this process; None where the system does not report it (Windows).

    On Linux from /proc: `getrusage` includes the parent's before the fork.
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


def batches_of(job: Job, group: Group) -> Iterator[Any]:
    """Yield the rows of a group, a few megabytes at a time."""
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


# Processes of this machine --------------------------------------------------------------------------------


def run_local(
    job: Job, groups: Sequence[Group], workers: int, progress: Callable[[int], None]
) -> Iterator[GroupReport]:
    """Yield the report of each row group, in the order of finishing; `progress` gets the rows finished.

    Raises `SolverError` if worker processes cannot be started at all.
    """
    counter = multiprocessing.get_context("spawn").Value("q", 0)
    reported = 0

    def report_rows() -> None:
        nonlocal reported
        now = int(counter.value)
        if now > reported:
            progress(now - reported)
            reported = now

    waiting = list(groups)
    while waiting:
        running: dict[Future[GroupReport], Group] = {}
        with _pool(workers, counter) as pool, suppress(BrokenProcessPool):
            while waiting or running:
                while waiting and len(running) < workers + 1:
                    group = waiting.pop(0)
                    running[pool.submit(_work, job, group, frozenset())] = group
                done = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).done
                report_rows()
                for future in done:
                    report = future.result()  # raises where the pool broke
                    del running[future]
                    yield report
        for future, group in running.items():
            survived = future.done() and not future.cancelled() and future.exception() is None
            yield future.result() if survived else _alone(job, group, counter)
            report_rows()


def _alone(job: Job, group: Group, counter: Any) -> GroupReport:
    """Run a row group in separate processes, until one of them survives."""
    deaths: Counter[int] = Counter()
    while True:
        with _pool(1, counter) as pool, suppress(BrokenProcessPool):
            blamed = frozenset(row for row, count in deaths.items() if count >= _DEATHS)
            return pool.submit(_work, job, group, blamed).result()
        row = _NOWHERE
        with suppress(OSError, struct.error):
            row = int(struct.unpack("q", _marker(job, group).read_bytes())[0])
        deaths[row] += 1
        if row == _NOWHERE and deaths[row] >= _DEATHS:
            raise SolverError(
                f"the process that read row group {group.row_group} of '{group.file}' died twice"
            )


def _marker(job: Job, group: Group) -> Path:
    """The file with the row that a process is at."""
    return job.out / "work" / f"group-{group.number:08d}.at"


def _work(job: Job, group: Group, skip: frozenset[int]) -> GroupReport:
    def progress(rows: int) -> None:
        with _finished.get_lock():
            _finished.value += rows

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
    """Spawned workers, of which at least one has started; an interrupt ends them all."""
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
    except BaseException:  # what is in progress would take minutes; its finished shards are kept
        for process in list(getattr(pool, "_processes", None) or {}).copy():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _started(counter: Any) -> None:
    global _finished
    _finished = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: Any) -> None:
    """End with the parent: a pool's queue would keep an orphan waiting for ever."""
    parent.join()
    os._exit(1)
