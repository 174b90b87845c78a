"""HiGHS through its array interface: `passModel` builds a dense 100-item program in milliseconds."""

from __future__ import annotations

import time
from typing import Any

import highspy
import numpy as np

from mio_rag.errors import InputError
from mio_rag.formulations.linearize import Linearization, MilpArrays, linearize
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.by_rows import segments_by_rows
from mio_rag.solvers.capabilities import refusal
from mio_rag.solvers.result import SolveOptions, SolveResult, conclude
from mio_rag.solvers.scaling import scaled

__all__ = ["solve"]


def _model(arrays: MilpArrays) -> Any:
    """The arrays for HiGHS."""
    lp = highspy.HighsLp()
    columns, rows = arrays.objective.size, arrays.row_lower.size
    lp.num_col_, lp.num_row_ = columns, rows
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = arrays.objective
    lp.col_lower_, lp.col_upper_ = arrays.col_lower, arrays.col_upper
    lp.row_lower_, lp.row_upper_ = arrays.row_lower, arrays.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = arrays.matrix.indptr.astype(np.int32)
    lp.a_matrix_.index_ = arrays.matrix.indices.astype(np.int32)
    lp.a_matrix_.value_ = arrays.matrix.data.astype(np.float64)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[int(flag)] for flag in arrays.integral]
    return lp


@segments_by_rows
def solve(program: SelectionProgram, options: SolveOptions, form: Linearization = "mccormick") -> SolveResult:
    """Solve the linearized program to the stated gap.

    Parameters
    ----------
    form : {"mccormick", "glover"}
        Which linearization, see `mio_rag.formulations.linearize`.

    Raises
    ------
    InputError
        If the installed HiGHS is of a version that cannot be used.
    """
    start = time.perf_counter()
    name = "highs" if form == "mccormick" else f"highs-{form}"
    given = scaled(program)
    highs = highspy.Highs()
    version = str(highs.version())
    problem = refusal("highspy", version)
    if problem is not None:
        raise InputError(f"HiGHS cannot be used: {problem}")
    highs.setOptionValue("output_flag", False)
    # The defaults stop at a relative gap of 1e-4, which would be a wrong optimum called optimal.
    highs.setOptionValue("mip_rel_gap", options.relative_gap)
    highs.setOptionValue("mip_abs_gap", given.absolute_gap / 2)
    # By default every helper may be off by 1e-6, and thousands of them add up to a wrong objective.
    highs.setOptionValue("mip_feasibility_tolerance", 1e-9)
    highs.setOptionValue("dual_feasibility_tolerance", given.dual_tolerance)
    highs.setOptionValue("small_matrix_value", 1e-12)  # entries below it would be taken for zero
    highs.setOptionValue("threads", options.threads)
    highs.setOptionValue("random_seed", options.seed)
    if given.contradiction:
        return conclude(
            program, options, name, x=None, bound=None, proven_infeasible=True, version=version, nodes=0
        )
    arrays = linearize(given.program, form)
    if arrays.objective.size == 0:  # HiGHS calls a model without columns "empty" whatever its rows say
        return _without_items(program, options, name, version)
    if options.time_limit_seconds is not None:
        spent = time.perf_counter() - start
        highs.setOptionValue("time_limit", max(1e-3, options.time_limit_seconds - spent))
    # HiGHS keeps the workers of a thread's first run and refuses any other number of them later on.
    highspy.Highs.resetGlobalScheduler(True)
    passed = highs.passModel(_model(arrays))
    ran = highs.run() if passed != highspy.HighsStatus.kError else passed
    status = highs.getModelStatus()
    info = highs.getInfo()
    kinds = highspy.HighsModelStatus
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = arrays.recover(np.asarray(highs.getSolution().col_value)) if found else None
    common: dict[str, Any] = {
        "limit": "time" if status == kinds.kTimeLimit else None,
        "wall_seconds": time.perf_counter() - start,
        "nodes": max(0, int(info.mip_node_count)),
        "version": version,
    }
    # With every column bounded, "unbounded or infeasible" means infeasible.
    infeasible = status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible)
    if ran == highspy.HighsStatus.kError or not (infeasible or status in (kinds.kOptimal, kinds.kTimeLimit)):
        message = f"HiGHS stopped with {highs.modelStatusToString(status)}"
        return conclude(program, options, name, x=x, bound=None, broken=True, message=message, **common)
    return given.concluded(
        options,
        name,
        x=x,
        bound=None if infeasible else float(info.mip_dual_bound),
        proven_infeasible=infeasible,
        **common,
    )


def _without_items(program: SelectionProgram, options: SolveOptions, name: str, version: str) -> SolveResult:
    empty = np.zeros(0, dtype=np.int8)
    feasible = not program.violations(empty)
    return conclude(
        program,
        options,
        name,
        x=empty if feasible else None,
        bound=0.0 if feasible else None,
        proven_infeasible=not feasible,
        version=version,
        nodes=0,
    )
