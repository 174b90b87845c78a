"""Check a solver's claims.

Is what a solver claims true? Its result against the truth, which enumeration found.

The suite for solvers of selection programs: `check_solver`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram
from mio_rag.solvers import registry
from mio_rag.solvers.result import SolveOptions, SolveResult, Status, relative_gap
from mio_rag.testing.programs import (
    SCALES,
    Case,
    at_scale,
    hard_program,
    knapsack,
    known_cases,
    random_program,
    random_shared_program,
)


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


_ORACLE = "exhaustive"  # held against a plain loop by mio-rag's own tests


class SolveFunction(Protocol):
    """A solver: a program and options go in, a result comes out."""

    def __call__(self, program: SelectionProgram, options: SolveOptions, /) -> SolveResult:
        """Solve a program; infeasibility and limits are statuses of the result."""
        ...


def check_solver(
    solve: SolveFunction,
    *,
    name: str,
    exact: bool,
    programs: int = 300,
    seed: int = 0,
    max_free: int | None = None,
    may_refuse: bool = False,
    segments: bool = False,
) -> None:
    """Hold a solver against programs whose answers are known, and against enumeration on random ones.

    In a test of a back end::

        from mio_rag.testing import check_solver

        def test_conformance():
            check_solver(my_backend.solve, name="mine", exact=True)

    Checked are known answers (ties, duplicates, fixed items, rows, decimals that just fit), infeasible
    programs, random ones with rows of all kinds, the same at eleven scales from 1e-10 to 1e10 for values,
    costs and rows each, penalties and other numbers far larger than what is decided about, time limits,
    relative gaps, threads and seeds. Every result must be what it says
    (`mio_rag.solvers.result.conclude` sees to that), and the program must be left as it was. Speed is not
    checked. It takes seconds where a program of nine items takes milliseconds.

    Parameters
    ----------
    solve : callable
        ``solve(program, options) -> SolveResult``.
    name : str
        What the solver is called in the report.
    exact : bool
        Whether it promises the optimum and its proof, given time. A heuristic may find less; but what it
        finds must be feasible, its bound must hold, and it may call nothing optimal or infeasible that is
        not.
    programs : int
        How many random programs at scale 1, >= 0; at other scales there are a fifth as many and at least 66.
    seed : int
        >= 0; the same one draws the same programs.
    max_free : int, optional
        The largest number of items that are not fixed, where the solver has one, >= 12; larger programs are
        left out.
    may_refuse : bool
        Whether it may raise `InputError` where the numbers have many digits or are very large or small: for a
        solver that would have to round them. Never where they are plain.

    Raises
    ------
    AssertionError
        Listing every case that failed, with its program as JSON without what is default: ``mio-rag solve``
        takes it, and so does `SelectionProgram.from_json`.
    InputError
        For a parameter out of range.
    """
    asked = {"programs": programs, "seed": seed}
    problems = [f"{label}={value} must be >= 0" for label, value in asked.items() if value < 0]
    if max_free is not None and max_free < 12:
        problems.append(f"max_free={max_free} must be >= 12: the random programs have up to nine items")
    if problems:
        raise InputError(problems)
    checked, failed = 0, []
    for trial in _trials(exact, programs, seed, segments):
        if max_free is not None and trial.program.free.size > max_free:
            continue
        checked += 1
        wrong = _complaint(solve, trial, may_refuse)
        if wrong is not None:
            failed.append(f"{trial.what}: {wrong}\n  {_shown(trial.program)}")
    if failed:
        listed = "\n".join(f"{k}. {text}" for k, text in enumerate(failed, start=1))
        raise AssertionError(f"solver '{name}' fails {len(failed)} of {checked} cases:\n{listed}")


@dataclass(frozen=True, eq=False)
class _Trial:
    """One call of the solver, and who judges what comes back."""

    what: str
    program: SelectionProgram
    judge: Callable[[SolveResult], str | None]
    options: SolveOptions
    plain: bool = True
    text: str | None = None  # of the program as it was drawn

    @property
    def written(self) -> str:
        """The program as JSON, before it is solved."""
        return json.dumps(self.program.to_dict()) if self.text is None else self.text


def _shown(program: SelectionProgram) -> str:
    """The program as JSON, to be read and to be solved again: without what is default."""
    data = program.to_dict()
    data["rows"] = [{k: v for k, v in row.items() if v is not None} for row in data["rows"]]
    bare = {"pairwise": not program.pairwise.any(), "rows": not program.rows}
    bare["fixed"] = program.free.size == program.n
    return json.dumps({key: value for key, value in data.items() if not bare.get(key, False)})


def _complaint(solve: SolveFunction, trial: _Trial, may_refuse: bool) -> str | None:
    before = trial.written
    try:
        claim = solve(trial.program, trial.options)
    except InputError as error:
        return None if may_refuse and not trial.plain else f"refused: {error}"
    except Exception as error:  # whatever somebody's solver raises is its failure, not the suite's
        return f"raised {type(error).__name__}: {error}"
    if json.dumps(trial.program.to_dict()) != before:
        _drawn.cache_clear()
        _drawn_shared.cache_clear()  # the next solver gets it as it was drawn
        return "the program was changed"
    return malformed(trial.program, claim) or trial.judge(claim)


def _trials(exact: bool, programs: int, seed: int, segments: bool) -> Iterator[_Trial]:
    for case in known_cases():
        yield _known(case, exact)
    for drawn in _drawn(programs, seed) + (_drawn_shared(programs, seed) if segments else ()):
        yield drawn.trial(exact)
    yield from _options(exact)
    if exact:
        yield from _limits(seed)
        yield _gap(seed)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A random program, and what enumeration says of it."""

    what: str
    program: SelectionProgram
    truth: SolveResult
    plain: bool
    provable: bool = True

    def trial(self, exact: bool) -> _Trial:
        def judge(claim: SolveResult) -> str | None:
            return disagreement(self.program, self.truth, claim, exact and self.provable)

        return _Trial(self.what, self.program, judge, SolveOptions(), self.plain, self.text)

    @cached_property
    def text(self) -> str:
        """The program as JSON, as it was drawn: the same for every solver that gets it."""
        return json.dumps(self.program.to_dict())


@lru_cache(maxsize=2)  # whoever checks several solvers gives them the same programs
def _drawn(programs: int, seed: int) -> tuple[_Drawn, ...]:
    found = []

    def add(what: str, given: SelectionProgram, *, plain: bool, provable: bool = True) -> None:
        found.append(_Drawn(what, given, registry.solve(given, _ORACLE), plain, provable))

    for k in range(programs):
        add(f"random program {k}", random_program(np.random.default_rng([seed, 7, k]), 9), plain=True)
    for k in range(max(66, programs // 5)):
        rng = np.random.default_rng([seed, 19, k])
        given = at_scale(random_program(rng, 9), SCALES[k % len(SCALES)], *rng.choice(SCALES, 2))
        add(f"random program {k} at another scale", given, plain=False)
    for k in range(6):
        for penalty in (1e3, 1e5, 1e8, 1e11):
            given = _small_values(np.random.default_rng([seed, 31, k]), penalty)
            # Whether such values are told apart beside larger penalties is the back end's affair.
            what = f"penalties of {penalty:g} times the values, {k}"
            add(what, given, plain=False, provable=penalty < 1e4)
    return tuple(found)


@lru_cache(maxsize=2)
def _drawn_shared(programs: int, seed: int) -> tuple[_Drawn, ...]:
    found = []
    for k in range(max(66, programs // 5)):
        rng = np.random.default_rng([seed, 23, k])
        given, what = random_shared_program(rng, 9), f"program {k} with segments"
        found.append(_Drawn(what, given, registry.solve(given, _ORACLE), plain=True))
        if k % 2:
            given = at_scale(given, SCALES[k % len(SCALES)], *rng.choice(SCALES, 2))
            truth = registry.solve(given, _ORACLE)
            found.append(_Drawn(f"{what} at another scale", given, truth, plain=False))
    return tuple(found)


def _small_values(rng: np.random.Generator, penalty: float) -> SelectionProgram:
    """Values of a millionth and less beside penalties, and a row that choosing nothing breaks."""
    pairwise = np.triu(rng.random((6, 6)) * (rng.random((6, 6)) < 0.6), 1)
    row = LinearConstraint(rng.integers(-1, 2, 6).astype(float), lower=1.0)
    return SelectionProgram(
        1e-6 * rng.uniform(0.1, 1, 6) * 10.0 ** rng.uniform(-3, 0, 6),
        1e-6 * penalty * (pairwise + pairwise.T),
        rng.integers(1, 9, 6).astype(np.float64),
        15.0,
        (row,),
    )


def _known(case: Case, exact: bool) -> _Trial:
    given = case.program
    truth = registry.solve(given, _ORACLE)

    def judge(claim: SolveResult) -> str | None:
        owed = exact and case.demand == "proof"
        if case.demand in ("honesty", "bound"):
            wrong = _dishonesty(given, truth, claim, exact)
        elif case.demand == "selection":
            wrong = _no_best(case, claim) if exact else None
        else:
            wrong = disagreement(given, truth, claim, owed)
        if wrong is None and case.optimum is not None:
            wrong = _off(case.optimum, claim, owed)
        if wrong is None and owed and case.selected not in (None, claim.selected):
            wrong = f"items {claim.selected} selected, and only {case.selected} are optimal"
        if wrong is None and case.demand == "bound" and claim.x is None:
            wrong = f"no selection: {claim.certificate()}"
        return wrong

    return _Trial(f"known answer, {case.name}", given, judge, SolveOptions(), case.plain)


def _off(optimum: float, claim: SolveResult, exact: bool) -> str | None:
    """How a claim differs from an optimum that is known by hand."""
    rounding = 1e-9 * abs(optimum)
    if claim.bound is not None and claim.bound < optimum - rounding:
        return f"bound {claim.bound:.12g} below the optimum {optimum:.12g}"
    if claim.objective is not None and claim.objective > optimum + rounding:
        return f"objective {claim.objective:.12g} above the optimum {optimum:.12g}"
    if exact and (claim.objective is None or claim.objective < optimum - rounding):
        return f"objective {claim.objective} below the optimum {optimum:.12g}"
    return None


def _no_best(case: Case, claim: SolveResult) -> str | None:
    if claim.selected != case.selected:
        return f"items {claim.selected} selected, and only {case.selected} are optimal"
    return (
        None
        if claim.is_optimal or claim.message
        else f"neither proven nor said why not: {claim.certificate()}"
    )


def _dishonesty(given: SelectionProgram, truth: SolveResult, claim: SolveResult, exact: bool) -> str | None:
    """What is claimed of numbers too far apart to be resolved, and does not hold."""
    if claim.status is Status.ERROR:
        return f"error: {claim.message}"
    if truth.objective is None:
        return None if claim.x is None else "a selection for a program that admits none"
    if claim.status is Status.INFEASIBLE:
        return "infeasibility of a program that admits a selection"
    if claim.x is not None and given.violations(claim.x):
        return f"an infeasible selection: {given.violations(claim.x)[0]}"
    if claim.bound is not None and claim.bound < truth.objective - 1e-9 * abs(truth.objective):
        return f"bound {claim.bound:.12g} below the optimum {truth.objective:.12g}"
    if claim.is_optimal and not math.isclose(claim.objective or 0.0, truth.objective, rel_tol=1e-8):
        return f"objective {claim.objective} called optimal, and the optimum is {truth.objective:.12g}"
    if exact and claim.x is not None and not claim.is_optimal and claim.limit != "precision":
        return f"not proven, and limit={claim.limit!r} instead of 'precision': {claim.certificate()}"
    return None


def _options(exact: bool) -> Iterator[_Trial]:
    """Threads, seeds and limits that are never reached, one after another, on a program of ten items."""
    for threads, seed in ((1, 0), (2, 1), (1, 2)):
        options = SolveOptions(threads=threads, seed=seed)
        yield _of_309(f"threads={threads}, seed={seed}", options, exact)
    for seconds in (None, math.inf, 60.0):
        yield _of_309(f"time_limit_seconds={seconds}", SolveOptions(time_limit_seconds=seconds), exact)


def _of_309(what: str, options: SolveOptions, exact: bool) -> _Trial:
    given = knapsack()
    truth = registry.solve(given, _ORACLE)
    return _Trial(what, given, lambda claim: disagreement(given, truth, claim, exact), options)


def _limits(seed: int) -> Iterator[_Trial]:
    given = hard_program(np.random.default_rng([seed, 1]))
    known = registry.solve(given, "local_search").objective
    assert known is not None

    def judge(claim: SolveResult) -> str | None:
        if claim.status not in (Status.FEASIBLE, Status.NO_SOLUTION):
            return f"of a program that nothing proves in seconds: {claim.certificate()}"
        if claim.limit != "time":
            return f"limit={claim.limit!r} instead of 'time'"
        if claim.bound is None or claim.bound < known:
            return f"bound {claim.bound}, and there is a selection worth {known:.9g}"
        if claim.x is not None and given.violations(claim.x):
            return f"an infeasible selection: {given.violations(claim.x)[0]}"
        return None

    for seconds in (0.001, 0.5):
        options = SolveOptions(time_limit_seconds=seconds)
        yield _Trial(f"time_limit_seconds={seconds} on {given.n} dense items", given, judge, options)


def _gap(seed: int) -> _Trial:
    rng = np.random.default_rng([seed, 4])
    values, costs = rng.random(25), rng.integers(20, 90, 25)
    given = SelectionProgram(values, np.zeros((25, 25)), costs.astype(np.float64), 500)
    best = _best_value(values, costs, 500)

    def judge(claim: SolveResult) -> str | None:
        if claim.x is None or claim.objective is None or claim.bound is None:
            return f"no selection, or no bound: {claim.certificate()}"
        if given.violations(claim.x):
            return f"an infeasible selection: {given.violations(claim.x)[0]}"
        if not claim.objective - 1e-6 <= best <= claim.bound + 1e-6:
            return f"the optimum {best:.9g} is not between {claim.objective:.9g} and {claim.bound:.9g}"
        if claim.bound - claim.objective > 0.2 * abs(claim.objective) + 1e-6:
            return f"stopped at a gap of {claim.gap}, and 0.2 was asked for"
        return None

    return _Trial("relative_gap=0.2 on 25 items", given, judge, SolveOptions(relative_gap=0.2))


def _best_value(values: NDArray[np.float64], costs: NDArray[np.int64], budget: int) -> float:
    """The optimum of a knapsack with whole costs, by dynamic programming."""
    best = np.zeros(budget + 1)
    for value, cost in zip(values, costs.tolist(), strict=True):
        best[cost:] = np.maximum(best[cost:], best[:-cost] + value)
    return float(best[-1])
