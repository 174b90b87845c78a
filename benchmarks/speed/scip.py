"""SCIP on the Fortet/McCormick arrays, through PySCIPOpt; a peer of this benchmark, not a back end."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyscipopt

from mio_rag.formulations import SelectionProgram
from mio_rag.formulations.linearize import linearize
from mio_rag.solvers import SolveOptions, SolveResult
from mio_rag.solvers.result import absolute_tolerance, conclude


def solve(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Solve with one thread; building the model counts, as it does for every solver."""
    start = time.perf_counter()
    arrays = linearize(program, "mccormick")
    model = pyscipopt.Model()
    model.hideOutput()
    columns = [
        model.addVar(vtype="B" if whole else "C", lb=float(low), ub=float(high), obj=float(value))
        for whole, low, high, value in zip(
            arrays.integral, arrays.col_lower, arrays.col_upper, arrays.objective, strict=True
        )
    ]
    model.setMaximize()
    matrix = arrays.matrix
    for r in range(matrix.shape[0]):
        part = slice(int(matrix.indptr[r]), int(matrix.indptr[r + 1]))
        row = pyscipopt.quicksum(
            float(a) * columns[int(j)] for a, j in zip(matrix.data[part], matrix.indices[part], strict=True)
        )
        low, high = float(arrays.row_lower[r]), float(arrays.row_upper[r])
        if np.isfinite(high):
            model.addCons(row <= high)
        if np.isfinite(low):
            model.addCons(row >= low)
    model.setParam("limits/gap", options.relative_gap)
    model.setParam("limits/absgap", absolute_tolerance(program.value_scale) / 2)
    model.setParam("numerics/feastol", 1e-9)
    model.setParam("randomization/randomseedshift", options.seed)
    if options.time_limit_seconds is not None:
        left = options.time_limit_seconds - (time.perf_counter() - start)
        model.setParam("limits/time", max(1e-3, left))
    model.optimize()
    status = str(model.getStatus())
    found = model.getNSols() > 0
    x = None
    if found:
        best = model.getBestSol()
        x = arrays.recover(np.array([best[v] for v in columns[: program.n]]))
    claims: dict[str, Any] = {
        "x": x,
        "bound": float(model.getDualbound()) if abs(model.getDualbound()) < model.infinity() else None,
        "proven_infeasible": status == "infeasible",
        "broken": status not in ("optimal", "timelimit", "gaplimit", "infeasible"),
        "limit": "time" if status == "timelimit" else None,
        "nodes": int(model.getNTotalNodes()),
    }
    return conclude(
        program,
        options,
        "scip",
        wall_seconds=time.perf_counter() - start,
        version=f"scip {model.version()}",
        **claims,
    )
