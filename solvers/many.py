"""Solve many programs, one after another or in threads; a program that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from mio_rag.errors import InputError, MioRagError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.capabilities import one_blas_thread
from mio_rag.solvers.registry import check_name, solve
from mio_rag.solvers.result import SolveOptions, SolveResult, Status

_Task = tuple[int, SelectionProgram]
_OptionsOf = Callable[[int], SolveOptions | None]  # for a program, by its number
_AHEAD = 2  # programs queued for each worker: enough that none waits


def _reported(program: SelectionProgram, solver: str, options: SolveOptions | None) -> SolveResult:
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
    progress: Callable[[int], None] | None = None,
) -> list[SolveResult]:
    """Solve programs side by side; results come in the order of the programs.

    A program that the solver refuses, or breaks on, has status ERROR and the reason as its message.

    solver, options: as in `solve`; the time limit holds for each program.
    workers: threads, >= 1; the kernel and HiGHS release the interpreter's lock while they search.
    progress: called with 1 as each program is finished.
    """
    found: dict[int, SolveResult] = {}
    for k, result in solve_as_completed(enumerate(programs), solver, options, workers=workers):
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
) -> Iterator[tuple[int, SolveResult]]:
    """Yield (number, result) of numbered programs as they are finished; otherwise as `solve_many`.

    `tasks` are consumed a few ahead of the workers, by the caller's own thread. `options` may be a function
    of a program's number, asked when the program is handed out.
    """
    if isinstance(workers, bool) or workers < 1 or workers != int(workers):
        raise InputError(f"workers={workers!r} must be a whole number >= 1")
    check_name(solver)
    of: _OptionsOf = options if callable(options) else lambda _: options
    if workers == 1:
        return ((k, _reported(program, solver, of(k))) for k, program in tasks)
    return _in_threads(iter(tasks), solver, of, workers)


def _in_threads(
    tasks: Iterator[_Task], solver: str, options: _OptionsOf, workers: int
) -> Iterator[tuple[int, SolveResult]]:
    from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

    # Some BLAS libraries take a limit from the main thread only, so it is set here and not by each worker.
    with one_blas_thread(), ThreadPoolExecutor(max_workers=workers) as pool:
        running: dict[Future[SolveResult], int] = {}
        try:
            while True:
                for k, program in islice(tasks, _AHEAD * workers - len(running)):
                    running[pool.submit(_reported, program, solver, options(k))] = k
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:  # on an interrupt, or if the caller stops reading, wait only for programs being solved
            for future in running:
                future.cancel()
