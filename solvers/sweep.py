"""Sweeps: programs of one pool, each starting from what the one before it has found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from mio_rag.errors import InputError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.registry import check_name, resolve, solve
from mio_rag.solvers.result import SolveOptions, SolveResult
from mio_rag.solvers.warm import WarmStart

__all__ = ["path_solver", "solve_path"]


def solve_path(
    programs: Iterable[SelectionProgram],
    solver: str = "auto",
    options: SolveOptions | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> Iterator[SolveResult]:
    """Solve programs of one pool one after another, for instance along lambda_1, the radius or the budget.

    The kernel starts each from the selection and the relaxation matrix of the one before; other solvers
    start anew. Certificates are those of `solve`: only the time differs.

    Parameters
    ----------
    programs : iterable of SelectionProgram
        All with the same number of items, which mean the same passages. Built as they are needed.
    solver, options
        As in `solve`; the time limit holds for each program.
    progress : callable, optional
        Called with 1 after each program.

    Yields
    ------
    SolveResult
        In the order of the programs.

    Raises
    ------
    InputError
        For an unknown solver, or programs of different sizes.
    """
    run = path_solver(solver, options or SolveOptions())
    n: int | None = None
    for k, program in enumerate(programs):
        if n is not None and program.n != n:
            raise InputError(
                f"program {k} has {program.n} items, those before it {n}: a path is over one pool of passages"
            )
        n = program.n
        yield run(program)
        if progress is not None:
            progress(1)


class PathSolver(Protocol):
    """`solve` for one program after another of the same pool."""

    def __call__(self, program: SelectionProgram, spent: float = 0.0) -> SolveResult:
        """The result; `spent` seconds of the time limit are gone."""


def path_solver(solver: str, options: SolveOptions) -> PathSolver:
    """`solve` with a memory: the kernel starts each program of a pool from what the one before left.

    Raises
    ------
    InputError
        For an unknown solver.
    """
    check_name(solver)
    warm = WarmStart()
    size = -1

    def run(program: SelectionProgram, spent: float = 0.0) -> SolveResult:
        nonlocal warm, size
        left = options.after(spent)
        if resolve(program, solver) != "branch_and_bound":
            return solve(program, solver, left)
        from mio_rag.solvers import branch_and_bound

        if program.n != size:
            warm, size = WarmStart(), program.n
        return branch_and_bound.solve(program, left, warm=warm)

    return run
