"""Work in several processes."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

#: Bytes of files, about a second of work: from here on they are read side by side.
MUCH = 2_000_000
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def cores() -> int:
    """How many processes can work side by side; 1 within one of them."""
    if parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(
    work: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    order: Sequence[int],
    workers: int,
    broken: Callable[[_Job], _Result],
) -> Iterator[tuple[int, _Result]]:
    """Yield the number and the result of each job as it is done.

    order: of the jobs, by number.
    broken: the result of a job that ended its process.
    """
    left = list(order)
    while left:
        done: list[int] = []
        try:
            with ProcessPoolExecutor(workers, _Context(), _settle) as pool:
                futures: dict[Future[_Result], int] = {pool.submit(work, jobs[k]): k for k in left}
                for future in as_completed(futures):
                    result = future.result()
                    done.append(futures[future])
                    yield futures[future], result
        except BrokenProcessPool:
            if workers == 1:  # the first that is not done is the one that broke it
                k = next(k for k in left if k not in done)
                done.append(k)
                yield k, broken(jobs[k])
            workers = 1
        left = [k for k in left if k not in set(done)]


def _settle() -> None:
    """Look for garbage rarely, and not in the end: readers make many small objects and hardly a cycle."""
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)


class _Process(SpawnProcess):
    """A process that does not run the user's program once more, which may have no guard against that."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        main = sys.modules["__main__"]
        with _HIDING:
            hidden: dict[str, Any] = {
                name: main.__dict__.pop(name) for name in ("__spec__", "__file__") if name in main.__dict__
            }
            main.__dict__["__spec__"] = None
            try:
                return SpawnProcess._Popen(process_obj)
            finally:
                main.__dict__.update(hidden)


class _Context(SpawnContext):
    Process = _Process


_HIDING = threading.Lock()
