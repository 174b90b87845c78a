"""Solve many programs: in order, in threads or processes; a program that fails does not stop the others.

A dead worker breaks a whole pool of processes. What it had not finished is then solved again, each program in
a process of its own; one that crashes again is reported, and a new pool continues with the rest.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from itertools import islice
from typing import Literal, get_args

from mio_rag.errors import InputError, MioRagError, SolverError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.capabilities import one_blas_thread
from mio_rag.solvers.registry import check_name, solve
from mio_rag.solvers.result import SolveOptions, SolveResult, Status

Executor = Literal["threads", "processes"]
_Task = tuple[int, SelectionProgram]
_OptionsOf = Callable[[int], SolveOptions | None]  # for a program, by its number
_AHEAD = 2  # programs queued for each worker: enough that none waits


def solve_reported(program: SelectionProgram, solver: str, options: SolveOptions | None) -> SolveResult:
    """`solve`, with whatever it raises as the message of a result of status ERROR."""
    try:
        return solve(program, solver, options)
    except MioRagError as error:
        return SolveResult(Status.ERROR, solver, message=str(error))
    except Exception as error:  # a fault in a back end fails its own program, not the batch
        return SolveResult(Status.ERROR, solver, message=f"{type(error).__name__}: {error}")


def solve_many(
    programs: Sequence[SelectionProgram],
    solver: str = "auto",
    options: SolveOptions | None = None,
    *,
    workers: int = 1,
    executor: Executor = "threads",
    progress: Callable[[int], None] | None = None,
) -> list[SolveResult]:
    """Solve programs side by side, in threads or processes; results come in the order of the programs.

    A program that the solver refuses, or breaks on, has status ERROR and the reason as its message.

    solver, options: as in `solve`; the time limit holds for each program.
    workers: threads or processes, >= 1.
    executor: threads start at once and share memory; the kernel and HiGHS release the interpreter's lock
        while they search. Processes take a second each to start; a solver that takes its process down costs
        one program. They are spawned: a script that uses them needs the usual ``if __name__ == "__main__":``.
    progress: called with 1 as each program is finished.
    Raises `InputError` for bad settings, `SolverError` if worker processes cannot be started at all.
    """
    found: dict[int, SolveResult] = {}
    tasks = enumerate(programs)
    for k, result in solve_as_completed(tasks, solver, options, workers=workers, executor=executor):
        found[k] = result
        if progress is not None:
            progress(1)
    return [found[k] for k in range(len(programs))]


def solve_as_completed(
    tasks: Iterable[tuple[int, SelectionProgram]],
    solver: str = "auto",
    options: SolveOptions | Callable[[int], SolveOptions] | None = None,
    *,
    workers: int = 1,
    executor: Executor = "threads",
) -> Iterator[tuple[int, SolveResult]]:
    """Yield (number, result) of numbered programs as they are finished; otherwise as `solve_many`.

    `tasks` are consumed a few ahead of the workers, by the caller's own thread. `options` may be a function
    of a program's number, asked when the program is handed out.
    """
    if problems := batch_problems(workers, executor):
        raise InputError(problems)
    check_name(solver)
    of: _OptionsOf = options if callable(options) else lambda _: options
    if executor == "processes":
        return _in_processes(iter(tasks), solver, of, workers)
    if workers == 1:
        return ((k, solve_reported(program, solver, of(k))) for k, program in tasks)
    return _in_threads(iter(tasks), solver, of, workers)


def batch_problems(workers: int, executor: str) -> list[str]:
    """What is wrong with these settings of a batch, in words."""
    problems = []
    if isinstance(workers, bool) or workers < 1 or workers != int(workers):
        problems.append(f"workers={workers!r} must be a whole number >= 1")
    if executor not in get_args(Executor):
        problems.append(f"executor={executor!r} is unknown: choose threads or processes")
    return problems


def _in_threads(
    tasks: Iterator[_Task], solver: str, options: _OptionsOf, workers: int
) -> Iterator[tuple[int, SolveResult]]:
    # Some BLAS libraries take a limit from the main thread only, so it is set here and not by each worker.
    with one_blas_thread(), ThreadPoolExecutor(max_workers=workers) as pool:
        running: dict[Future[SolveResult], int] = {}
        try:
            while True:
                for k, program in islice(tasks, _AHEAD * workers - len(running)):
                    running[pool.submit(solve_reported, program, solver, options(k))] = k
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:  # on an interrupt, or if the caller stops reading, wait only for programs being solved
            for future in running:
                future.cancel()


def _in_processes(
    tasks: Iterator[_Task], solver: str, options: _OptionsOf, workers: int
) -> Iterator[tuple[int, SolveResult]]:
    first = next(tasks, None)
    if first is None:
        return
    if solver in ("auto", "branch_and_bound"):
        from mio_rag.solvers.branch_and_bound import warmup

        warmup()  # compiled once here, rather than by every new worker at the same time
    waiting = [first]
    while waiting:
        running: dict[Future[SolveResult], _Task] = {}
        with _pool(workers) as pool:
            try:
                while True:
                    waiting += islice(tasks, _AHEAD * workers - len(running) - len(waiting))
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
            died = "the process that solved this program died (out of memory, or a crash of the solver)"
            return SolveResult(Status.ERROR, solver, message=died)


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
