"""Enumeration of every selection: the oracle for small programs."""

from __future__ import annotations

import time

import numpy as np

from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.bounds import upper_bound
from mio_rag.solvers.result import SolveOptions, SolveResult, conclude

__all__ = ["MAX_FREE", "solve"]

#: Largest number of items that are not fixed (2^20 selections take about a second).
MAX_FREE = 20
_CHUNK = 1 << 14


def solve(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Try all selections of the free items; ties go to the one that comes first in binary order."""
    start = time.perf_counter()
    assert program.fixed is not None
    free, shared = program.free, program.segments
    fixed_in = (program.fixed == 1).astype(np.float64)
    total = 1 << free.size
    best_value, best_x = -np.inf, None
    seen = 0
    stopped = False
    for first in range(0, total, _CHUNK):
        codes = np.arange(first, min(first + _CHUNK, total))
        x = np.broadcast_to(fixed_in, (codes.size, program.n)).copy()
        x[:, free] = (codes[:, None] >> np.arange(free.size)) & 1
        paid = None if shared is None else (x @ shared.needs > 0).astype(np.float64)
        cost = x @ program.costs
        if paid is not None and shared is not None:
            cost = cost + paid @ shared.costs
        ok = cost <= program.most_cost
        for row in program.rows:
            activity = x @ row.coefficients
            ok &= activity <= row.most
            ok &= activity >= row.least
        x = x[ok]
        seen += codes.size
        if x.shape[0]:
            value = x @ program.linear - 0.5 * ((x @ program.pairwise) * x).sum(axis=1)
            if paid is not None and shared is not None:
                value = value - paid[ok] @ shared.prices
            k = int(np.argmax(value))
            if value[k] > best_value:
                best_value, best_x = float(value[k]), x[k]
        limit = options.time_limit_seconds
        if limit is not None and time.perf_counter() - start > limit and seen < total:
            stopped = True
            break
    bound = upper_bound(program) if stopped else (best_value if best_x is not None else None)
    return conclude(
        program,
        options,
        "exhaustive",
        x=best_x,
        bound=bound,
        proven_infeasible=best_x is None and not stopped,
        limit="time" if stopped else None,
        wall_seconds=time.perf_counter() - start,
        nodes=seen,
        version=f"numpy {np.__version__}",
    )
