"""Run a batch: find what is finished already, run the engine, count the results."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from mio_rag.batch.job import BatchSummary, Engine, Group, Job, groups_of, identity, input_files
from mio_rag.batch.rows import MOST_BUDGET
from mio_rag.batch.work import GroupReport, run_group, shard_starts, shard_state
from mio_rag.errors import DataError, InputError, SolverError
from mio_rag.formulations.rows import count_problem
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import check_name
from mio_rag.storage import is_vacant, locked, replaced, sweep, write_atomically

#: Told what is under way, how much of it there is, and how much more has been done.
Progress = Callable[[str, int, int], None]


def claim(job: Job, files: list[Path], tell: Progress) -> None:
    """Make the folder this run's, or find that it is: same input, same settings.

    Raises
    ------
    InputError
        Where it is another run's, or holds something else.
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
        changed = _differences(before, now)
        raise InputError(
            f"the batch in '{job.out}' had another {', '.join(changed)}: its rows cannot be mixed with "
            "these; use the same input and settings, or a new folder"
        )
    write_atomically(record, json.dumps(now, indent=1))


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    contents = [[(part["name"], part["sha256"]) for part in run["input"]] for run in (before, now)]
    changed = ["input"] if contents[0] != contents[1] else []
    changed += [
        key for key in now if key not in ("input", "settings", "sha256") and before.get(key) != now[key]
    ]
    old, new = before.get("settings") or {}, now["settings"]
    return changed + [key for key in new if old.get(key) != new[key]]


def prepare(folder: Path) -> None:
    """Make the folders of a batch, without what killed runs left there."""
    try:
        for name in ("selections", "rejected", "work"):
            (folder / name).mkdir(exist_ok=True)
            sweep(folder / name)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be written: {error}") from error


def open_groups(job: Job, groups: list[Group]) -> tuple[list[Group], int]:
    """The groups with rows that no shard holds yet, and how many rows shards hold."""
    rest, before = [], 0
    for group in groups:
        parts = shard_starts(job, group)
        done = [count for start, count in parts if shard_state(job, group, start) is not None]
        before += sum(done)
        if len(done) < len(parts):
            rest.append(group)
    return rest, before


def run(
    job: Job, groups: list[Group], engine: Engine, workers: int, progress: Callable[[int], None]
) -> tuple[float, float | None]:
    """CPU seconds and the largest resident size of the workers."""
    if not groups:
        return 0.0, 0.0
    if job.selector.solver in ("auto", "branch_and_bound") and engine == "local":
        from mio_rag.solvers.branch_and_bound import warmup

        warmup()  # compiled once here, rather than by every new worker at the same time
    if engine == "ray":
        from mio_rag.batch.on_ray import run_ray as engine_run
    elif workers:
        from mio_rag.batch.work import run_local as engine_run
    else:
        engine_run = _here
    reports = list(engine_run(job, groups, workers, progress))
    peaks = [report.peak_mb for report in reports if report.peak_mb is not None]
    return sum(report.cpu_seconds for report in reports), max(peaks, default=None)


def _here(
    job: Job, groups: Sequence[Group], workers: int, progress: Callable[[int], None]
) -> Iterator[GroupReport]:
    """The report of each row group, answered in this process."""
    for group in groups:
        yield run_group(job, group, progress=progress)


def shards_of(job: Job, groups: Sequence[Group]) -> Iterator[tuple[Group, int, int]]:
    """Every shard in the order of the input: its group, first row within it, and number of rows."""
    for group in groups:
        for start, count in shard_starts(job, group):
            yield group, start, count


def counted(job: Job, groups: list[Group]) -> tuple[int, dict[str, int]]:
    """Rejected rows and statuses, from the shards themselves; every row must be in one.

    Raises
    ------
    SolverError
        If a shard is missing or holds other rows than it should.
    """
    import pyarrow.parquet as parquet

    rejected, statuses = 0, Counter[str]()
    for group in groups:
        for start, count in shard_starts(job, group):
            state = shard_state(job, group, start)
            name = f"part-{group.first_row + start:012d}.parquet"
            held = parquet.read_metadata(job.out / "selections" / name).num_rows if state else 0
            if state is None or state["rows"] != count or held + state["rejected"] != count:
                raise SolverError(f"shard '{name}' does not hold its {count} rows: delete it and run again")
            rejected += state["rejected"]
            statuses.update(state["statuses"])
    return rejected, dict(sorted(statuses.items()))


def gather(job: Job, groups: list[Group]) -> None:
    """All rejected rows in one file, in the order of the input."""

    with replaced(job.out / "rejected.jsonl") as partial, partial.open("wb") as whole:
        for group in groups:
            for start, _ in shard_starts(job, group):
                side = job.out / "rejected" / f"part-{group.first_row + start:012d}.jsonl"
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
    """Choose passages for every row of Parquet files; resumes an interrupted run.

    Parameters
    ----------
    candidates : path
        A Parquet file, or a folder of them, with the columns of `mio_rag.batch.rows`. A worker takes a row
        group at a time: write row groups of some hundred or thousand rows.
    out : path
        Folder of the output. ``selections/``: shards, a row for each that was answered (row, query_id,
        selected_ids in prompt order, selected positions, tokens_used, budget_tokens, objective, bound, gap,
        status, limit, message); ``rejected.jsonl``: row, query_id and reasons of the others;
        ``summary.json``; ``manifest.json``: hashes of input and settings. Each row comes out exactly
        once.
    budget_tokens : int
        For rows that bring none of their own.
    selector : Selector, optional
        Lists of ids in it (must include, conflicts) hold for every row.
    engine : {"local", "ray"}
        Processes on this machine, or Ray (`mio_rag.batch.on_ray`). Both write the same files.
    workers : int
        Processes. 0 (local engine): this one, which a solver that crashes then takes down.
    columns : mapping, optional
        Ours to theirs, where the files call a column otherwise: ``{"relevance": "score"}``.
    shard_rows : int
        Most rows of an output shard, >= 1: what a kill can cost is less than one shard a worker.
    progress : callable, optional
        Called with ("reading" or "selecting", total, done): bytes of the input that were hashed, then rows.

    Returns
    -------
    BatchSummary

    Raises
    ------
    InputError
        For a schema that does not fit, or an output folder that holds another run or something else.
    SolverError
        If worker processes cannot be started.

    Notes
    -----
    Deterministic as long as no program meets its time limit.
    """
    began = time.perf_counter()
    problems: list[str | None] = []
    for name, value, least in _counts(budget_tokens, workers, shard_rows):
        low = f"{name}={value!r} must be >= {least}"
        problems.append(count_problem(name, value) or (low if value < least else None))
    if not any(problems) and budget_tokens > MOST_BUDGET:
        problems.append(f"budget_tokens={budget_tokens} must be at most {MOST_BUDGET:.0e}")
    problems += (
        [f"engine={engine!r} is unknown: choose local or ray"] if engine not in get_args(Engine) else []
    )
    if any(problems):
        raise InputError([problem for problem in problems if problem])
    chosen = selector or Selector()
    check_name(chosen.solver)
    names, folder = dict(columns or {}), Path(out)
    files = input_files(Path(candidates))
    groups, kinds = groups_of(files, chosen, names)
    job = Job(folder.resolve(), chosen, int(budget_tokens), names, kinds, int(shard_rows))
    tell = progress or (lambda kind, total, done: None)
    with locked(folder):
        claim(job, files, tell)
        prepare(folder)
        total = groups[-1].first_row + groups[-1].rows
        todo, before = open_groups(job, groups)
        tell("selecting", total, before)
        started = time.perf_counter()
        cpu, peak = run(job, todo, engine, workers, lambda rows: tell("selecting", total, rows))
        taken = time.perf_counter() - started
        rejected, statuses = counted(job, groups)
        gather(job, groups)
        shutil.rmtree(folder / "work")
        seconds = time.perf_counter() - began
        summary = BatchSummary(
            folder,
            engine,
            workers,
            total,
            rejected,
            before,
            statuses,
            seconds,
            (total - before) / taken,
            cpu,
            peak,
        )
        text = json.dumps(summary.to_dict(), indent=1)
        write_atomically(folder / "summary.json", text)
    return summary


def _counts(budget_tokens: int, workers: int, shard_rows: int) -> list[tuple[str, int, int]]:
    return [("budget_tokens", budget_tokens, 1), ("workers", workers, 0), ("shard_rows", shard_rows, 1)]
