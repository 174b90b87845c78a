"""Run a batch: find what is finished, make the shards that are missing, count the results.

A shard is written whole and then renamed, its rejected rows before it. One that has its name is finished;
everything else is made again. Its content depends on input and settings alone, so that both engines, and a
rerun, write the same bytes (as long as no time limit cuts a program short).
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import multiprocessing
import os
import shutil
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.batch.job import (
    BatchSettings,
    BatchSummary,
    Engine,
    Group,
    Job,
    answer,
    groups_of,
    identity,
    input_files,
    open_parquet,
    options,
)
from mio_rag.batch.rows import Row, read_rows
from mio_rag.errors import DataError, InputError, MioRagError, MissingExtraError, SolverError, require
from mio_rag.selection.selector import Selector
from mio_rag.session.budget import peak_memory_mb
from mio_rag.solvers.registry import check_name
from mio_rag.storage import is_vacant, locked, replaced, sweep, write_atomically

#: Called with what is in progress, how much of it there is, and how much more has been done.
Progress = Callable[[str, int, int], None]

DIED = "the process that solved this row died (out of memory, or a crash of the solver)"

_BATCH_BYTES = 16 << 20  # of the file, decoded at a time
_RELEASE_ROWS = 20_000
_POLL_SECONDS = 0.25
_DEATHS = 2  # crashes of a separate process, before a row is rejected
_NOWHERE = -1

_finished: Any = None  # rows, shared by the workers


@dataclass(frozen=True)
class GroupReport:
    """What a worker did with a row group."""

    rows: int
    cpu_seconds: float
    peak_mb: float | None


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


def write_shard(path: Path, schema: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], state: Any) -> None:
    """Write rows with the types of a schema, and the state as metadata."""
    arrow: Any = require("pyarrow", "batch", "batches")
    parquet: Any = require("pyarrow.parquet", "batch", "batches")

    def typed(kind: Any) -> Any:
        if isinstance(kind, dict):
            return arrow.list_(arrow.struct([(name, typed(inner)) for name, inner in kind.items()]))
        if kind.startswith("list<"):
            return arrow.list_(typed(kind[5:-1]))
        return arrow.type_for_alias(kind)

    fields = [(name, typed(kind)) for name, kind in schema.items()]
    table = arrow.Table.from_pylist(rows, arrow.schema(fields, {"mio_rag": json.dumps(state)}))
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

    began, done = time.process_time(), 0
    shards = [s for s in shards_of(job, [group]) if shard_state(job, *s[:2]) is None]
    batches, position = batches_of(job, group), 0
    held: Any = None
    with one_blas_thread():
        for _, start, count in shards:
            made: list[dict[str, Any]] = []
            refused: list[dict[str, Any]] = []
            row = start
            while row < start + count:
                while held is None or position + held.num_rows <= row:
                    position += 0 if held is None else held.num_rows
                    held = next(batches)
                part = held.slice(row - position, min(start + count, position + held.num_rows) - row)
                for number, given in enumerate(read_rows(part, job.kinds, job.names), group.first_row + row):
                    if at is not None:
                        at(number)
                    found, problems = ({}, [DIED]) if number in skip else _solved(job, given)
                    named = {"row": number, "query_id": given.label}
                    if problems:
                        refused.append({**named, "reasons": problems})
                    else:
                        made.append({**named, **found})
                row += part.num_rows
                if progress is not None:
                    progress(part.num_rows)
            path, side = shard_paths(job, group, start)
            side.unlink(missing_ok=True)  # of a run that was killed between the two
            if refused:
                lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in refused)
                with replaced(side) as partial:
                    partial.write_text(lines, encoding="utf-8", errors="replace")
            statuses = dict(sorted(Counter(one["status"] for one in made).items()))
            state = {"rows": count, "rejected": len(refused), "statuses": statuses}
            write_shard(path, job.schema, made, state)
            done += count
    return GroupReport(done, time.process_time() - began, peak_memory_mb())


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


# On a Ray cluster, where input and output lie where every node sees them ----------------------------------


@contextmanager
def joined(workers: int) -> Iterator[Any]:
    """Join the cluster of RAY_ADDRESS, or the one that was joined before; else start one and end it.

    workers: cores that a cluster of our own needs for them.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = require("ray", "ray", "engine='ray'")
    started = not ray.is_initialized()
    if started:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
        if "RAY_ADDRESS" not in os.environ:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # for this machine alone
            settings |= {"num_cpus": workers + 1, "include_dashboard": False}  # one for the actor of a ledger
        ray.init(**settings)
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def run_ray(
    job: Job, groups: Sequence[Group], workers: int, progress: Callable[[int], None]
) -> Iterator[GroupReport]:
    """Yield the report of each row group, in the order of finishing; `progress` gets the rows finished.

    Raises `SolverError` if the cluster or a task failed; a worker that dies is replaced three times.
    """
    with joined(workers) as ray:
        task, shared = ray.remote(num_cpus=1, max_retries=3)(run_group), ray.put(job)
        waiting: list[Group] = list(groups)
        running: list[Any] = []
        try:
            while waiting or running:
                while waiting and len(running) < max(1, workers):
                    running.append(task.remote(shared, waiting.pop(0)))
                done, running = ray.wait(running)
                for report in ray.get(done):
                    progress(report.rows)
                    yield report
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, MioRagError):
                raise cause from None
            why = f"{type(error).__name__}: {last_line(error)}"
            raise SolverError(f"Ray could not finish ({why}); finished shards are kept") from error


def last_line(error: Exception) -> str:
    """Return the last line of an error, for a message."""
    return next(iter(reversed(str(error).strip().splitlines())), "no reason given")


# The whole batch ------------------------------------------------------------------------------------------


def claim(job: Job, files: list[Path], tell: Progress) -> None:
    """Make the folder of a run, or check that it holds the same one: same input, same settings.

    Raises `InputError` where it holds another run, or something else.
    """
    record = job.out / "manifest.json"
    size = sum(path.stat().st_size for path in files)
    before = None
    if record.is_file():
        try:
            before = json.loads(record.read_text(encoding="utf-8"))
            before["sha256"], before["input"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"'{record}' cannot be read ({error}): choose a new folder") from error
    elif not is_vacant(job.out):
        raise InputError(f"'{job.out}' is not empty and holds no batch: choose a new folder")
    now = json.loads(json.dumps(identity(files, job, before, lambda done: tell("reading", size, done))))
    if before is not None and before["sha256"] != now["sha256"]:
        contents = [[(part["name"], part["sha256"]) for part in run["input"]] for run in (before, now)]
        changed = ["input"] if contents[0] != contents[1] else []
        old, new = ({**run, **(run.get("settings") or {})} for run in (before, now))
        apart = ("input", "settings", "sha256")
        changed += [key for key in new if key not in apart and old.get(key) != new[key]]
        raise InputError(
            f"the batch in '{job.out}' had another {', '.join(changed)}: its rows cannot be mixed with "
            "these; use the same input and settings, or a new folder"
        )
    write_atomically(record, json.dumps(now, indent=1))
    prepare(job.out)


def prepare(folder: Path) -> None:
    """Make the folders of a batch, and remove what killed runs left there."""
    try:
        for name in ("selections", "rejected", "work"):
            (folder / name).mkdir(exist_ok=True)
            sweep(folder / name)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be written: {error}") from error


def run(job: Job, groups: Sequence[Group], engine: Engine, workers: int, tell: Progress) -> BatchSummary:
    """Make the shards that are missing; count all of them, each row once.

    Raises `SolverError` if a shard is missing or holds other rows than it should.
    """
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    total, began = groups[-1].first_row + groups[-1].rows, time.perf_counter()
    shards = list(shards_of(job, groups))
    left = {group.number for group, start, _ in shards if shard_state(job, group, start) is None}
    before = sum(count for group, start, count in shards if shard_state(job, group, start) is not None)
    tell("selecting", total, before)
    missing = [group for group in groups if group.number in left]
    reports = list(_engine(job, missing, engine, workers, lambda rows: tell("selecting", total, rows)))
    seconds = time.perf_counter() - began
    rejected, statuses = 0, Counter[str]()
    for group, start, count in shards:
        state, (path, _) = shard_state(job, group, start), shard_paths(job, group, start)
        held = parquet.read_metadata(path).num_rows if state else 0
        if state is None or state["rows"] != count or held + state["rejected"] != count:
            raise SolverError(f"shard '{path.name}' does not hold its {count} rows: delete it and run again")
        rejected += state["rejected"]
        statuses.update(state["statuses"])
    peaks = [report.peak_mb for report in reports]
    return BatchSummary(
        job.out,
        engine,
        workers,
        rows=total,
        rejected=rejected,
        done_before=before,
        statuses=dict(sorted(statuses.items())),
        seconds=seconds,
        rows_per_second=(total - before) / seconds,
        worker_seconds=sum(report.cpu_seconds for report in reports),
        peak_worker_mb=None if None in peaks else max((p for p in peaks if p is not None), default=0.0),
    )


def _engine(
    job: Job, groups: list[Group], engine: Engine, workers: int, progress: Callable[[int], None]
) -> Iterable[GroupReport]:
    """The reports of row groups, as they are finished."""
    if not groups:
        return ()
    if engine == "ray":
        return run_ray(job, groups, workers, progress)
    if job.selector.solver in ("auto", "branch_and_bound"):
        from mio_rag.solvers.branch_and_bound import warmup

        warmup()  # compiled once here, rather than by every new worker at the same time
    if workers:
        return run_local(job, groups, workers, progress)
    return (run_group(job, group, progress=progress) for group in groups)


def gather(job: Job, groups: Sequence[Group], out: Path) -> None:
    """Write all rejected rows to one file, in the order of the input."""
    with replaced(out / "rejected.jsonl") as partial, partial.open("wb") as whole:
        for group, start, _ in shards_of(job, groups):
            _, side = shard_paths(job, group, start)
            if side.is_file():
                whole.write(side.read_bytes())


def select_batch(
    candidates: str | Path,
    out: str | Path,
    budget_tokens: int,
    selector: Selector | None = None,
    *,
    engine: Engine = "local",
    workers: int = 1,
    columns: Mapping[str, str] | None = None,
    shard_rows: int = 5000,
    progress: Progress | None = None,
) -> BatchSummary:
    """Choose passages for every row of Parquet files; resume an interrupted run.

    candidates: a Parquet file, or a folder of them, with the columns of `mio_rag.batch.rows`. A worker takes
        a row group at a time: write row groups of some hundred or thousand rows.
    out: folder of the output. ``selections/``: shards, a row for each that was answered (row, query_id,
        selected_ids in prompt order, selected positions, tokens_used, budget_tokens, objective, bound, gap,
        status, limit, message); ``rejected.jsonl``: row, query_id and reasons of the others;
        ``summary.json``; ``manifest.json``: hashes of input and settings. Each row comes out exactly once.
    budget_tokens: for rows without a budget of their own.
    selector: lists of ids in it (must include, conflicts) hold for every row.
    engine: "local", processes on this machine, or "ray". Both write the same files.
    workers: processes. 0 (local engine): this one, which a solver that crashes then ends.
    columns: ours to theirs, where the files have another name: ``{"relevance": "score"}``.
    shard_rows: most rows of an output shard, >= 1: a kill costs less than one shard a worker.
    progress: called with ("reading" or "selecting", total, done): bytes of the input that were hashed, then
        rows.

    Deterministic as long as no program meets its time limit. Raises `InputError` for a schema that does not
    fit, or an output folder that holds another run or something else; `SolverError` if worker processes
    cannot be started.
    """
    began, chosen = time.perf_counter(), selector or Selector()
    BatchSettings(engine=engine, workers=workers, shard_rows=shard_rows, budget_tokens=budget_tokens)
    check_name(chosen.solver)
    names, folder = dict(columns or {}), Path(out)
    files = input_files(Path(candidates))
    groups, kinds = groups_of(files, chosen, names)
    job = Job(folder.resolve(), chosen.whole(), int(budget_tokens), names, kinds, int(shard_rows))
    tell = progress or (lambda kind, total, done: None)
    with locked(folder):
        claim(job, files, tell)
        ran = run(job, groups, engine, workers, tell)
        gather(job, groups, job.out)
        shutil.rmtree(folder / "work")
        summary = dataclasses.replace(ran, out=folder, seconds=time.perf_counter() - began)
        write_atomically(folder / "summary.json", json.dumps(summary.to_dict(), indent=1))
    return summary
