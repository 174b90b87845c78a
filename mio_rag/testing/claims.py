"""Is what a solver claims true? Its result against the truth, which enumeration found."""

from __future__ import annotations

import json
import math

import numpy as np

from mio_rag.formulations import SelectionProgram
from mio_rag.solvers.result import SolveOptions, SolveResult, Status, relative_gap

__all__ = ["disagreement", "malformed"]


def disagreement(
    program: SelectionProgram, truth: SolveResult, claim: SolveResult, exact: bool
) -> str | None:
    """What is wrong with a solver's claim, given the truth; None when it holds.

    Parameters
    ----------
    truth : SolveResult
        What enumeration found.
    exact : bool
        Whether the solver promises the optimum with a proof. Without, a selection may be worse than the best;
        but it must be feasible, the bound must hold, and nothing may be called optimal or infeasible that is
        not.
    """
    if claim.status is Status.ERROR:
        return f"error: {claim.message}"
    if truth.objective is None:
        if claim.x is not None:
            return "a selection for a program that admits none"
        return "infeasibility not proven" if exact and claim.status is not Status.INFEASIBLE else None
    if claim.status is Status.INFEASIBLE:
        return "infeasibility of a program that admits a selection"
    tolerance = SolveOptions().tolerance(truth.objective, program.value_scale)
    if claim.bound is not None and claim.bound < truth.objective - tolerance:
        return f"bound {claim.bound:.9g} below the optimum {truth.objective:.9g}"
    if claim.x is not None and program.violations(claim.x):
        return f"an infeasible selection: {program.violations(claim.x)[0]}"
    if claim.objective is not None and claim.objective > truth.objective + tolerance:
        return f"objective {claim.objective:.9g} above the optimum {truth.objective:.9g}"
    short = claim.objective is None or claim.objective < truth.objective - tolerance
    if short and (exact or claim.status is Status.OPTIMAL):
        return f"objective {claim.objective} below the optimum {truth.objective:.9g}"
    return f"optimum not proven: {claim.certificate()}" if exact and not claim.is_optimal else None


def malformed(program: SelectionProgram, claim: SolveResult) -> str | None:
    """Where a result contradicts itself, whatever the truth is; None where it does not.

    `mio_rag.solvers.result.conclude` makes results that do not.
    """
    if not isinstance(claim, SolveResult):
        return f"a {type(claim).__name__} instead of a SolveResult"
    try:
        json.dumps(claim.to_dict(), allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"no plain data: {error}"
    if claim.x is None:
        if claim.status in (Status.OPTIMAL, Status.FEASIBLE):
            return f"status {claim.status.value} without a selection"
        return None if claim.objective is None else f"objective {claim.objective} without a selection"
    x = np.asarray(claim.x)
    if x.shape != (program.n,) or not np.isin(x, (0, 1)).all():
        return f"x of shape {x.shape} with values {np.unique(x)[:5].tolist()}, not {program.n} of 0 and 1"
    if claim.status in (Status.INFEASIBLE, Status.NO_SOLUTION):
        return f"status {claim.status.value} beside a selection"
    if claim.objective != program.objective(x):
        return f"objective {claim.objective}, and the selection's is {program.objective(x)}"
    if claim.bound is None:
        return "optimal without a bound" if claim.is_optimal else None
    if claim.bound < claim.objective and claim.status is not Status.ERROR:
        return f"bound {claim.bound:.9g} below its own objective {claim.objective:.9g}"
    gap = relative_gap(claim.objective, claim.bound, program.value_scale)
    if claim.gap is None or not math.isclose(claim.gap, gap, rel_tol=1e-9, abs_tol=1e-12):
        return f"gap {claim.gap}, and bound and objective make {gap}"
    return None
