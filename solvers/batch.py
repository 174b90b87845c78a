"""Many programs at once: results in order, one bad program reported and not fatal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from mio_rag.errors import InputError, MioRagError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.blas import one_blas_thread
from mio_rag.solvers.registry import check_name, solve
from mio_rag.solvers.result import SolveOptions, SolveResult, Status

__all__ = ["solve_many"]


def solve_many(
    programs: Sequence[SelectionProgram],
    solver: str = "auto",
    options: SolveOptions | None = None,
    *,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[SolveResult]:
    """Solve programs side by side in threads; the kernel and HiGHS release the interpreter's lock.

    Parameters
    ----------
    solver, options
        As in `solve`; the time limit holds for each program.
    workers : int
        Threads, >= 1. More than there are cores only adds waiting, which counts against the time limits.
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
        For an unknown solver or fewer than one worker: what would fail for every program.
    """
    if workers < 1 or workers != int(workers):
        raise InputError(f"workers={workers!r} must be a whole number >= 1")
    check_name(solver)

    def one(program: SelectionProgram) -> SolveResult:
        try:
            result = solve(program, solver, options)
        except MioRagError as error:
            result = SolveResult(Status.ERROR, solver, message=str(error))
        if progress is not None:
            progress(1)
        return result

    if workers == 1 or len(programs) < 2:
        return [one(program) for program in programs]
    # Some BLAS libraries take a limit from the main thread only, so it is set here and not by each worker.
    with one_blas_thread(), ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(one, programs))
