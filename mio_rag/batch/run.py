"""Run a batch: find what is finished already, run the engine, count the results."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from mio_rag.batch.job import BatchSummary, Engine, Job, groups_of, input_files
from mio_rag.batch.schema import MOST_BUDGET
from mio_rag.batch.stages import Progress, claim, counted, gather, open_groups, prepare, run
from mio_rag.errors import InputError
from mio_rag.files import locked, write_atomically
from mio_rag.formulations.rows import count_problem
from mio_rag.selection.selector import Selector
from mio_rag.solvers.registry import check_name

__all__ = ["select_batch"]


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
        A Parquet file, or a folder of them, with the columns of `mio_rag.batch.schema`. A worker takes a row
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
