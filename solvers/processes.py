"""Programs in worker processes: one that crashes its process fails alone; the batch continues.

A dead worker breaks a whole pool of `concurrent.futures`, which does not tell what the worker was solving. So
every program that the broken pool had not finished is solved again in its own process. A program that crashes
again is reported, and a new pool continues with the rest.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from itertools import islice

from mio_rag.errors import SolverError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.blas import one_blas_thread
from mio_rag.solvers.reported import AHEAD, OptionsOf, solve_reported
from mio_rag.solvers.result import SolveOptions, SolveResult, Status

__all__ = ["solve_in_processes"]

_Task = tuple[int, SelectionProgram]
_Running = dict[Future[SolveResult], _Task]


def solve_in_processes(
    tasks: Iterator[_Task], solver: str, options: OptionsOf, workers: int
) -> Iterator[tuple[int, SolveResult]]:
    """(number, result) of numbered programs, in the order of finishing; see `batch.solve_as_completed`.

    Raises
    ------
    SolverError
        If worker processes cannot be started at all.
    """
    first = next(tasks, None)
    if first is None:
        return
    if solver in ("auto", "branch_and_bound"):
        from mio_rag.solvers.branch_and_bound import warmup

        warmup()  # compiled once here, rather than by every new worker at the same time
    waiting = [first]
    while waiting:
        running: _Running = {}
        with _pool(workers) as pool:
            try:
                while True:
                    waiting += islice(tasks, AHEAD * workers - len(running) - len(waiting))
                    while waiting:
                        k, program = waiting[0]
                        future = pool.submit(solve_reported, program, solver, options(k))
                        running[future] = waiting.pop(0)
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        result = future.result()  # raises where the pool broke
                        yield running.pop(future)[0], result
            except BrokenProcessPool:
                pass
            finally:
                for future in running:
                    future.cancel()
        for future, (k, program) in running.items():
            survived = future.done() and not future.cancelled() and future.exception() is None
            yield k, future.result() if survived else _alone(program, solver, options(k))
        waiting += islice(tasks, 1)


def _alone(program: SelectionProgram, solver: str, options: SolveOptions | None) -> SolveResult:
    with _pool(1) as pool:
        try:
            return pool.submit(solve_reported, program, solver, options).result()
        except BrokenProcessPool:
            return SolveResult(
                Status.ERROR,
                solver,
                message="the process that solved this program died (out of memory, or a crash of the solver)",
            )


def _pool(workers: int) -> ProcessPoolExecutor:
    """Spawned workers, of which at least one has shown that it can start.

    Spawned, since a fork of a process with BLAS or solver threads can hang.
    """
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_limit_blas)
    try:
        pool.submit(int).result()
    except BrokenProcessPool as error:
        pool.shutdown()
        raise SolverError(
            "worker processes cannot be started: call from a script file whose main part stands under "
            "'if __name__ == \"__main__\":', or use executor='threads'"
        ) from error
    return pool


_forever = ExitStack()


def _limit_blas() -> None:
    _forever.enter_context(one_blas_thread())  # for as long as the worker lives
