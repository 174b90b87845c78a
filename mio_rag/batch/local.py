"""Row groups over a pool of processes on this machine.

Workers read their own row groups and write their own shards; only counts are exchanged between processes. A
worker that dies breaks the pool. The unfinished row groups are then continued one by one, each in its own
process, and a row that kills such a process twice is rejected. Workers end when their parent process ends.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mio_rag.batch.job import Group, Job
from mio_rag.batch.work import GroupReport, run_group
from mio_rag.errors import InputError, SolverError

__all__ = ["run_local"]

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
