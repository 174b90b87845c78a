"""Solve one program of a batch; any error becomes its result, so that the batch continues."""

from __future__ import annotations

from collections.abc import Callable

from mio_rag.errors import MioRagError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.registry import solve
from mio_rag.solvers.result import SolveOptions, SolveResult, Status

__all__ = ["AHEAD", "OptionsOf", "solve_reported"]

#: The options for a program, by its number.
OptionsOf = Callable[[int], SolveOptions | None]

#: Programs queued for each worker: enough that none waits, few enough to build them as they are
#: needed.
AHEAD = 2


def solve_reported(program: SelectionProgram, solver: str, options: SolveOptions | None) -> SolveResult:
    """`solve`, with whatever it raises as the message of a result of status ERROR."""
    try:
        return solve(program, solver, options)
    except MioRagError as error:
        return SolveResult(Status.ERROR, solver, message=str(error))
    except Exception as error:  # a fault in a back end fails its own program, not the batch
        return SolveResult(Status.ERROR, solver, message=f"{type(error).__name__}: {error}")
