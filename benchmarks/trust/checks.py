"""What must hold for every result of the exact kernel, wherever and however it was stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.trust.draw import path
from benchmarks.trust.oracle import Truth, enumerate_all
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import (
    SolveOptions,
    SolveResult,
    Status,
    branch_and_bound,
    kernel,
    relaxation,
    solve_path,
)
from mio_rag.solvers.branch_and_bound import WarmStart
from mio_rag.solvers.presolve import Problem
from mio_rag.solvers.relaxation import Incumbent

EXACT = SolveOptions(time_limit_seconds=None)

_ROUNDING = 1e-13  # of an objective or a bound, relative to the sizes of all terms
_RESOLUTION = 1e-13  # of a proof, times items, relative to the largest term


def refuted(
    program: SelectionProgram, truth: Truth, claim: SolveResult, options: SolveOptions, rounding: float
) -> str | None:
    """Return the claim that the truth refutes, if any; `rounding` is in units of the objective."""
    if claim.status is Status.INFEASIBLE:
        return "infeasibility of a program that admits a selection" if truth.feasible else None
    if claim.bound is not None and claim.bound < truth.least - rounding:
        return f"bound {claim.bound:.17g} below the optimum {truth.least:.17g}"
    if claim.objective is None:
        return None
    if claim.objective > truth.most + rounding:
        return f"objective {claim.objective:.17g} above the optimum {truth.most:.17g}"
    short = truth.least - claim.objective - options.tolerance(claim.objective, program.value_scale)
    if claim.is_optimal and short > rounding:
        return f"objective {claim.objective:.17g} called optimal, below the optimum {truth.least:.17g}"
    return None


def complaint(
    program: SelectionProgram, truth: Truth, claim: SolveResult, options: SolveOptions, finished: bool
) -> str | None:
    """Return what is wrong with a result, given the truth; None if all of it holds.

    finished: whether nothing stopped the search, so that it owes a proof.
    """
    rounding = _ROUNDING * truth.size
    if claim.status is Status.ERROR:
        return f"error: {claim.message}"
    found = refuted(program, truth, claim, options, rounding)
    if found is not None or claim.status is Status.INFEASIBLE:
        return found
    if claim.x is None:
        return f"no selection, no limit: {claim.certificate()}" if finished else None
    assert claim.objective is not None
    at, fixed = truth.place(claim.x), np.asarray(program.fixed)
    if not truth.possible[at] or np.any((fixed >= 0) & (fixed != claim.x)):
        return f"an infeasible selection: {claim.x.tolist()}"
    if abs(claim.objective - truth.value[at]) > rounding:
        return f"objective {claim.objective:.17g} of a selection worth {truth.value[at]:.17g}"
    if claim.limit is None and not claim.is_optimal:
        assert claim.bound is not None
        gap = claim.bound - claim.objective - options.tolerance(claim.objective, program.value_scale)
        if gap > _RESOLUTION * program.n * truth.largest or not claim.message:
            return f"neither a limit nor a proof: {claim.certificate()}"
    return None


@contextmanager
def forced_stages(after_nodes: int, narrow_gap: float, efforts: tuple[int, ...]) -> Iterator[None]:
    """Better matrices and probing from the first nodes on: small programs are over before they would begin.

    after_nodes: nodes before the first of them, at most, >= 0.
    narrow_gap: relative gap up to which another diagonal comes first: 0 for the conic matrices alone.
    efforts: steps of each conic matrix; a few steps leave rough ones, which must be as valid.
    """
    never = (0.0,) * len(efforts)
    waits = {"_LEFT_PER_PRICE": never, "_SPENT_PER_PRICE": never, "_FEWEST_TO_PROBE": 3}
    core = {"_CORE": 1.0, "_CORE_MORE": 1, "_FEWEST_FOR_CORE": 3, "_LARGEST_CORE": 0.9, "_WIDE_GAP": 1e9}
    narrow = {"_NARROW_GAP": narrow_gap, "_NARROW_GAP_WITHOUT_CORE": narrow_gap}
    with (
        _replaced(branch_and_bound, {"_QUICK_WORK": after_nodes * kernel.NODE}),
        _replaced(relaxation, {**waits, **core, **narrow, "_EFFORTS": efforts}),
    ):
        yield


@contextmanager
def weak_starts() -> Iterator[None]:
    """Random selections instead of local search: an optimal one would hide a bound that is wrong."""

    def start(program: SelectionProgram, problem: Problem, *_: object) -> Incumbent:
        rng = np.random.default_rng(problem.m)
        best = Incumbent(-np.inf, None)
        for share in rng.random(4):
            x = (rng.random(problem.m) < share).astype(np.int8)
            branch_and_bound._offer(program, problem, x, best)
        return best

    with _replaced(branch_and_bound, {"_start": start, "_round": lambda *_: None}):
        yield


@contextmanager
def _replaced(module: ModuleType, values: dict[str, Any]) -> Iterator[None]:
    """Other values for names of a module."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def check_all(
    program: SelectionProgram, rng: np.random.Generator, counts: Counter[str]
) -> list[tuple[str, str]]:
    """Solve in every way; returns (way, complaint) for each certificate that does not hold."""
    truth = enumerate_all(program)
    counts["truth: feasible" if truth.feasible else "truth: infeasible"] += 1
    counts["truth: decided by rounding"] += truth.doubtful
    wrong: list[tuple[str, str]] = []

    def check(way: str, claim: SolveResult, options: SolveOptions, finished: bool) -> None:
        counts[f"solves: {way}"] += 1
        counts[f"{claim.status.value}: {way}"] += 1
        found = complaint(program, truth, claim, options, finished)
        if found is not None:
            wrong.append((way, found))

    left = WarmStart()
    result = branch_and_bound.solve(program, EXACT, warm=left)
    counts["reached a better matrix"] += left.items.size > 0
    check("to the end", result, EXACT, True)
    before = np.inf
    for limit in np.sort(rng.integers(0, 2 + 2 * (result.nodes or 0), 3)):
        claim = branch_and_bound.solve(program, EXACT, max_nodes=int(limit))
        check("node limit", claim, EXACT, False)
        reach = claim.bound if claim.bound is not None else -np.inf
        slack = (
            EXACT.tolerance(claim.objective, program.value_scale)
            if claim.objective is not None and claim.is_optimal
            else 0.0
        )
        if reach > before + slack + _ROUNDING * truth.size:
            wrong.append(("node limit", f"bound {reach:.17g} at {limit} nodes, {before:.17g} with fewer"))
        before = reach if claim.bound is not None else before
    timed = SolveOptions(time_limit_seconds=10.0 ** rng.uniform(-5, -2.5))
    check("time limit", branch_and_bound.solve(program, timed), timed, False)
    loose = SolveOptions(
        time_limit_seconds=None, relative_gap=float(rng.choice([1e-3, 1e-2, 0.1, 0.5, 1.0, 3.0]))
    )
    check("relative gap", branch_and_bound.solve(program, loose), loose, True)
    both = branch_and_bound.solve(program, loose, max_nodes=int(rng.integers(0, 20)))
    check("relative gap, node limit", both, loose, False)
    return wrong


def check_path(
    program: SelectionProgram, rng: np.random.Generator, counts: Counter[str]
) -> list[tuple[str, str]]:
    """The same along a path of programs, each started from the one before."""
    wrong = []
    gap = float(rng.choice([0.0, 0.0, 0.05]))
    options = SolveOptions(time_limit_seconds=None, relative_gap=gap)
    programs = path(rng, program, 3)
    for given, claim in zip(programs, solve_path(programs, "branch_and_bound", options), strict=True):
        counts["solves: path"] += 1
        found = complaint(given, enumerate_all(given), claim, options, True)
        if found is not None:
            wrong.append(("path", found))
    return wrong
