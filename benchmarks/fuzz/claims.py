"""What a solver's result claims, recomputed: exactly from the selection, and against enumeration.

Sums over the selection are made of fractions, so that no rounding is the checker's own.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np

from benchmarks.fuzz.endings import Wrong, strict
from benchmarks.trust.checks import refuted
from benchmarks.trust.oracle import enumerate_all
from mio_rag.formulations import SelectionProgram
from mio_rag.formulations.numbers import feasibility_tolerance
from mio_rag.solvers import SolveOptions, SolveResult, Status

#: Items that are not fixed, at most, of a program that is enumerated.
MOST_FREE = 10

_ROUNDING = 1e-12  # of a sum in float64, relative to the sizes of its terms


def check_result(
    program: SelectionProgram, claim: SolveResult, options: SolveOptions, exact: bool = True
) -> None:
    """Raise `Wrong` for the first claim of a result that does not hold.

    exact: whether the solver owes a proof where no limit stopped it.
    """
    strict("to_dict() of a result", claim.to_dict())
    if claim.status is Status.ERROR:
        raise Wrong("the solver reports an error", claim.message)
    if claim.x is not None:
        _check_selection(program, claim)
    _check_numbers(program, claim, options)
    if not claim.certificate().strip():
        raise Wrong("a result without a certificate")
    if program.free.size <= MOST_FREE:
        with np.errstate(all="ignore"):
            _check_truth(program, claim, options, exact)


def _check_selection(program: SelectionProgram, claim: SolveResult) -> None:
    assert claim.x is not None
    assert program.fixed is not None
    if claim.x.shape != (program.n,) or not np.isin(claim.x, (0, 1)).all():
        raise Wrong("x is no 0/1 vector of the program's length", claim.x)
    chosen = [int(i) for i in np.flatnonzero(claim.x)]
    if np.any((program.fixed >= 0) & (claim.x != program.fixed)):
        raise Wrong("a fixed item is not where it was fixed", claim.x)
    shared = program.segments
    read = np.zeros(0, dtype=np.int64) if shared is None else np.flatnonzero(shared.needs[chosen].any(axis=0))
    once = [*chosen, *(program.n + int(s) for s in read)]
    limits = [("the budget", program.all_costs, program.budget, once)]
    for row in program.rows:
        limits.append(("a row", row.coefficients, row.upper, chosen))
        limits.append(("a row", -row.coefficients, -row.lower, chosen))
    for name, coefficients, upper, counted in limits:
        if not np.isfinite(upper):
            continue
        terms = [Fraction(float(coefficients[i])) for i in counted]
        slack = Fraction(float(feasibility_tolerance(coefficients, float(upper))))
        rounding = Fraction(_ROUNDING) * (sum(map(abs, terms), Fraction(0)) + abs(Fraction(upper)))
        if sum(terms, Fraction(0)) > Fraction(upper) + slack + rounding:
            raise Wrong(
                f"the selection breaks {name}", f"{_shown(sum(terms, Fraction(0)))} against {upper:.9g}"
            )
    if claim.objective is None:
        raise Wrong("a selection without an objective")
    linear = [Fraction(float(program.linear[i])) for i in chosen]
    if shared is not None:
        linear += [-Fraction(float(shared.prices[s])) for s in read]
    pairs = [Fraction(float(program.pairwise[i, j])) for i in chosen for j in chosen if i < j]
    worth = sum(linear, Fraction(0)) - sum(pairs, Fraction(0))
    rounding = Fraction(_ROUNDING) * (sum(map(abs, linear + pairs), Fraction(0)))
    if not np.isfinite(claim.objective) or abs(Fraction(claim.objective) - worth) > rounding:
        raise Wrong("the objective is not that of the selection", claim.objective)


def _shown(value: Fraction) -> str:
    """Some digits of a number that float64 may not hold."""
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.9g}"


def _check_numbers(program: SelectionProgram, claim: SolveResult, options: SolveOptions) -> None:
    if claim.status in (Status.OPTIMAL, Status.FEASIBLE) and claim.x is None:
        raise Wrong(f"{claim.status.value} without a selection")
    if claim.objective is None or claim.bound is None:
        return
    if claim.bound < claim.objective:
        raise Wrong("the bound lies below the objective", f"{claim.bound!r} < {claim.objective!r}")
    with np.errstate(all="ignore"):
        size = max(abs(claim.objective), 1e-9 * min(1.0, program.value_scale), 1e-300)
        gap = min((claim.bound - claim.objective) / size, sys.float_info.max)
    if claim.gap is None or not np.isclose(claim.gap, gap, rtol=1e-6, atol=1e-12):
        raise Wrong("the gap is not that of objective and bound", f"{claim.gap!r}, expected {gap!r}")
    if claim.is_optimal and claim.bound - claim.objective > options.tolerance(
        claim.objective, program.value_scale
    ):
        raise Wrong("called optimal with a gap above the tolerance", claim.certificate())


def _check_truth(program: SelectionProgram, claim: SolveResult, options: SolveOptions, exact: bool) -> None:
    truth = enumerate_all(program)
    found = refuted(program, truth, claim, options, _ROUNDING * truth.size)
    if found is not None:
        raise Wrong("a claim that enumeration refutes", found)
    proven = claim.is_optimal or claim.status is Status.INFEASIBLE
    if exact and claim.limit is None and not claim.message and not proven:
        raise Wrong("neither a limit nor a proof", claim.certificate())
