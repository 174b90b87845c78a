"""Run a batch: find what is finished, run the engine, count the results."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from mio_rag.batch.job import BatchSummary, Engine, Group, Job, groups_of, identity, input_files
from mio_rag.batch.rows import MOST_BUDGET
from mio_rag.batch.work import run_group, run_local, shard_paths, shard_state, shards_of
from mio_rag.errors import DataError, InputError, SolverError, require
from mio_rag.formulations.rows import count_problem
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import check_name
from mio_rag.storage import is_vacant, locked, replaced, sweep, write_atomically

#: Called with what is in progress, how much of it there is, and how much more has been done.
Progress = Callable[[str, int, int], None]


def setting_problems(engine: str, **counts: tuple[int | None, int]) -> list[str]:
    """Return the problems of an engine and of counts, each with its least value; None is not given."""
    problems: list[str] = []
    for name, (value, least) in counts.items():
        if value is None:
            continue
        problem = count_problem(name, value)
        if problem is None and value < least:
            problem = f"{name}={value!r} must be >= {least}"
        if problem is None and value > MOST_BUDGET:
            problem = f"{name}={value} must be at most {MOST_BUDGET:.0e}"
        problems += [problem] if problem else []
    if engine not in get_args(Engine):
        problems.append(f"engine={engine!r} is unknown: choose local or ray")
    return problems


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
        raise InputError(
            f"the batch in '{job.out}' had another {', '.join(_differences(before, now))}: its rows cannot "
            "be mixed with these; use the same input and settings, or a new folder"
        )
    write_atomically(record, json.dumps(now, indent=1))
    prepare(job.out)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    contents = [[(part["name"], part["sha256"]) for part in run["input"]] for run in (before, now)]
    changed = ["input"] if contents[0] != contents[1] else []
    changed += [
        key for key in now if key not in ("input", "settings", "sha256") and before.get(key) != now[key]
    ]
    old, new = before.get("settings") or {}, now["settings"]
    return changed + [key for key in new if old.get(key) != new[key]]


def prepare(folder: Path) -> None:
    """Make the folders of a batch, and remove what killed runs left there."""
    try:
        for name in ("selections", "rejected", "work"):
            (folder / name).mkdir(exist_ok=True)
            sweep(folder / name)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be written: {error}") from error


class Ran(NamedTuple):
    """What a run did: rows finished before, rejected rows, statuses, wall and CPU seconds, peak memory."""

    before: int
    rejected: int
    statuses: dict[str, int]
    seconds: float
    cpu_seconds: float
    peak_mb: float | None


def run(job: Job, groups: Sequence[Group], engine: Engine, workers: int, tell: Progress) -> Ran:
    """Make the shards that are missing; count all of them, each row once.

    Raises `SolverError` if a shard is missing or holds other rows than it should.
    """
    parquet: Any = require("pyarrow.parquet", "batch", "batches")
    total, began = groups[-1].first_row + groups[-1].rows, time.perf_counter()
    shards = list(shards_of(job, groups))
    done = [shard_state(job, group, start) is not None for group, start, _ in shards]
    before = sum(count for (*_, count), finished in zip(shards, done, strict=True) if finished)
    left = {group.number for (group, *_), finished in zip(shards, done, strict=True) if not finished}
    tell("selecting", total, before)
    reports = list(_engine(job, [g for g in groups if g.number in left], engine, workers, tell, total))
    seconds = time.perf_counter() - began
    rejected, statuses = 0, Counter[str]()
    for group, start, count in shards:
        state, (path, _) = shard_state(job, group, start), shard_paths(job, group, start)
        held = parquet.read_metadata(path).num_rows if state else 0
        if state is None or state["rows"] != count or held + state["rejected"] != count:
            raise SolverError(f"shard '{path.name}' does not hold its {count} rows: delete it and run again")
        rejected += state["rejected"]
        statuses.update(state["statuses"])
    cpu = sum(report.cpu_seconds for report in reports)
    peaks = [report.peak_mb for report in reports]
    peak = None if None in peaks else max((p for p in peaks if p is not None), default=0.0)
    return Ran(before, rejected, dict(sorted(statuses.items())), seconds, cpu, peak)


def _engine(job: Job, groups: list[Group], engine: Engine, workers: int, tell: Progress, total: int) -> Any:
    """The reports of row groups, as they are finished."""

    def progress(rows: int) -> None:
        tell("selecting", total, rows)

    if not groups:
        return ()
    if engine == "ray":
        from mio_rag.batch.on_ray import run_ray

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
    if problems := setting_problems(
        engine, budget_tokens=(budget_tokens, 1), workers=(workers, 0), shard_rows=(shard_rows, 1)
    ):
        raise InputError(problems)
    check_name(chosen.solver)
    names, folder = dict(columns or {}), Path(out)
    files = input_files(Path(candidates))
    groups, kinds = groups_of(files, chosen, names)
    job = Job(folder.resolve(), chosen.whole(), int(budget_tokens), names, kinds, int(shard_rows))
    tell = progress or (lambda kind, total, done: None)
    with locked(folder):
        claim(job, files, tell)
        total = groups[-1].first_row + groups[-1].rows
        ran = run(job, groups, engine, workers, tell)
        gather(job, groups, job.out)
        shutil.rmtree(folder / "work")
        summary = BatchSummary(
            folder,
            engine,
            workers,
            total,
            ran.rejected,
            ran.before,
            ran.statuses,
            seconds=time.perf_counter() - began,
            rows_per_second=(total - ran.before) / ran.seconds,
            worker_seconds=ran.cpu_seconds,
            peak_worker_mb=ran.peak_mb,
        )
        write_atomically(folder / "summary.json", json.dumps(summary.to_dict(), indent=1))
    return summary
