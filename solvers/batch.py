"""Many programs at once: results in order; a failing program is reported and does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Literal, get_args

from mio_rag.errors import InputError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.blas import one_blas_thread
from mio_rag.solvers.registry import check_name
from mio_rag.solvers.reported import AHEAD, OptionsOf, solve_reported
from mio_rag.solvers.result import SolveOptions, SolveResult

__all__ = ["Executor", "batch_problems", "solve_as_completed", "solve_many"]

Executor = Literal["threads", "processes"]


def solve_many(
    programs: Sequence[SelectionProgram],
    solver: str = "auto",
    options: SolveOptions | None = None,
    *,
    workers: int = 1,
    executor: Executor = "threads",
    progress: Callable[[int], None] | None = None,
) -> list[SolveResult]:
    """Solve programs side by side, in threads or processes.

    Parameters
    ----------
    solver, options
        As in `solve`; the time limit holds for each program.
    workers : int
        Threads or processes, >= 1. More than there are cores only adds waiting, which counts against the time
        limits.
    executor : {"threads", "processes"}
        Threads start at once and share memory; the kernel and HiGHS release the interpreter's lock while they
        search. Processes take about a second each to start; nothing is shared, and a solver that takes its
        process down costs one program. They are spawned: a script that asks for them needs the usual
        ``if __name__ == "__main__":``.
    progress : callable, optional
        Called with 1 as each program is finished.

    Returns
    -------
    list of SolveResult
        In the order of the programs. A program that the solver refuses, or breaks on, has status ERROR and
        the reason as its message.

    Raises
    ------
    InputError
        For an unknown solver or executor, or fewer than one worker: what would fail for every program.
    SolverError
        If worker processes cannot be started at all.
    """
    found: dict[int, SolveResult] = {}
    for k, result in solve_as_completed(
        enumerate(programs), solver, options, workers=workers, executor=executor
    ):
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
    """As `solve_many`, for numbered programs that may be built as they are needed; in the order of finishing.

    Parameters
    ----------
    tasks : iterable of (number, program)
        Consumed a few ahead of the workers, by the caller's own thread.
    options : SolveOptions, or a function of a program's number
        As in `solve`; of a function, what it says when the program is handed out.

    Yields
    ------
    (number, SolveResult)
    """
    problems = batch_problems(workers, executor)
    if problems:
        raise InputError(problems)
    check_name(solver)
    of: OptionsOf = options if callable(options) else lambda _: options
    if executor == "processes":
        from mio_rag.solvers.processes import solve_in_processes

        return solve_in_processes(iter(tasks), solver, of, workers)
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
    tasks: Iterator[tuple[int, SelectionProgram]], solver: str, options: OptionsOf, workers: int
) -> Iterator[tuple[int, SolveResult]]:
    # Some BLAS libraries take a limit from the main thread only, so it is set here and not by each worker.
    with one_blas_thread(), ThreadPoolExecutor(max_workers=workers) as pool:
        running: dict[Future[SolveResult], int] = {}
        try:
            while True:
                for k, program in islice(tasks, AHEAD * workers - len(running)):
                    running[pool.submit(solve_reported, program, solver, options(k))] = k
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:  # on an interrupt, or if the caller stops reading, wait only for programs being solved
            for future in running:
                future.cancel()
