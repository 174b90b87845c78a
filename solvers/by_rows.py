"""Programs with segments for back ends that know rows only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from mio_rag.formulations.precedence import precedence_program
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.result import SolveOptions, SolveResult, Status, conclude

__all__ = ["segments_by_rows"]

_Solve = TypeVar("_Solve", bound=Callable[..., SolveResult])


def segments_by_rows(solve: _Solve) -> _Solve:
    """Let a back end solve a program with segments as `precedence_program` writes it.

    What it claims is concluded for the program as it was given: objective, cost and feasibility are those of
    its items, each segment paid once. Programs without segments go through untouched.
    """

    @wraps(solve)
    def solved(program: SelectionProgram, options: SolveOptions, *rest: Any, **more: Any) -> SolveResult:
        if program.segments is None:
            return solve(program, options, *rest, **more)
        assert program.fixed is not None
        # What never fits says nothing about the scale of values either.
        fits = (program.alone <= program.most_cost) | (program.fixed == 1)
        fitting = replace(program, fixed=np.where(fits, program.fixed, np.int8(0)))
        claim = solve(precedence_program(fitting), options, *rest, **more)
        failed = claim.status is Status.ERROR
        return conclude(
            program,
            options,
            claim.solver,
            x=None if failed or claim.x is None else claim.x[: program.n].astype(np.int8),
            bound=claim.bound,
            proven_infeasible=claim.status is Status.INFEASIBLE,
            broken=failed,
            limit=claim.limit,
            wall_seconds=claim.wall_seconds,
            nodes=claim.nodes,
            version=claim.version,
            message=claim.message,
        )

    return cast(_Solve, solved)
