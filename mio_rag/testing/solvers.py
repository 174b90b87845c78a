"""The suite for solvers of selection programs: `check_solver`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

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

SolveFunction = Callable[[SelectionProgram, SolveOptions], SolveResult]
_Judge = Callable[[SolveResult], str | None]


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
    """Check a solver on programs with known answers, and against enumeration on random ones.

    Checked are known answers (ties, duplicates, fixed items, rows, decimals that just fit), infeasible
    programs, random ones with rows of all kinds, the same at eleven scales from 1e-10 to 1e10, numbers far
    larger than what is decided about, time limits, relative gaps, threads and seeds. Every result must be
    consistent (`mio_rag.solvers.result.conclude` sees to that), and the program must stay unchanged.

    solve: ``solve(program, options) -> SolveResult``.
    exact: it promises the optimum and its proof, given time. A heuristic may find less; but what it finds
        must be feasible, its bound must hold, and it may call nothing optimal or infeasible that is not.
    programs: random programs at scale 1, >= 0; at other scales a fifth as many, and at least 66.
    seed: >= 0; the same one draws the same programs.
    max_free: the largest number of items that are not fixed, where the solver has one, >= 12.
    may_refuse: it may raise `InputError` where numbers have many digits or are very large or small.
    segments: it takes programs with shared segments.

    Raises `AssertionError` with every case that failed, and its program as JSON for ``mio-rag lab solve``.
    """
    asked = {"programs": programs, "seed": seed}
    problems = [f"{label}={value} must be >= 0" for label, value in asked.items() if value < 0]
    if max_free is not None and max_free < 12:
        problems.append(f"max_free={max_free} must be >= 12: the random programs have up to nine items")
    if problems:
        raise InputError(problems)
    checked, failed = 0, list[str]()
    for trial in _trials(exact, programs, seed, segments):
        if max_free is not None and trial.program.free.size > max_free:
            continue
        checked += 1
        if (wrong := _complaint(solve, trial, may_refuse)) is not None:
            failed.append(f"{len(failed) + 1}. {trial.what}: {wrong}\n  {_shown(trial.program)}")
    if failed:
        raise AssertionError(f"solver '{name}' fails {len(failed)} of {checked} cases:\n" + "\n".join(failed))


def disagreement(
    program: SelectionProgram, truth: SolveResult, claim: SolveResult, exact: bool
) -> str | None:
    """Return what is wrong with a solver's claim, given the truth of enumeration; None when it holds.

    Unless the solver is `exact`, a selection may be worse than the best; but it must be feasible, the bound
    must hold, and nothing may be called optimal or infeasible that is not.
    """
    best = truth.objective
    tolerance = 0.0 if best is None else SolveOptions().tolerance(best, program.value_scale)
    wrong = _untrue(program, best, claim, tolerance)
    if wrong is not None:
        return wrong
    if best is None:
        return "infeasibility not proven" if exact and claim.status is not Status.INFEASIBLE else None
    short = claim.objective is None or claim.objective < best - tolerance
    if short and (exact or claim.status is Status.OPTIMAL):
        return f"objective {claim.objective} below the optimum {best:.12g}"
    return f"optimum not proven: {claim.certificate()}" if exact and not claim.is_optimal else None


def _untrue(
    program: SelectionProgram, best: float | None, claim: SolveResult, tolerance: float
) -> str | None:
    """What no solver may claim; `best` is the optimum, None where nothing is feasible."""
    if claim.status is Status.ERROR:
        return f"error: {claim.message}"
    if best is None:
        return None if claim.x is None else "a selection for a program that admits none"
    if claim.status is Status.INFEASIBLE:
        return "infeasibility of a program that admits a selection"
    if claim.bound is not None and claim.bound < best - tolerance:
        return f"bound {claim.bound:.12g} below the optimum {best:.12g}"
    if claim.x is not None and (broken := program.violations(claim.x)):
        return f"an infeasible selection: {broken[0]}"
    if claim.objective is not None and claim.objective > best + tolerance:
        return f"objective {claim.objective:.12g} above the optimum {best:.12g}"
    return None


def malformed(program: SelectionProgram, claim: SolveResult) -> str | None:
    """Where a result contradicts itself, whatever the truth is; None where it does not."""
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
        return f"status {claim.status.value} with a selection"
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


@dataclass(frozen=True, eq=False)
class _Trial:
    """One call of a solver, and the judge of its result."""

    what: str
    program: SelectionProgram
    judge: _Judge
    options: SolveOptions = SolveOptions()  # noqa: RUF009  # frozen
    plain: bool = True


def _shown(program: SelectionProgram) -> str:
    """The program as JSON, without what is default."""
    data = program.to_dict()
    data["rows"] = [{k: v for k, v in row.items() if v is not None} for row in data["rows"]]
    bare = {"pairwise": not program.pairwise.any(), "rows": not program.rows}
    bare["fixed"] = program.free.size == program.n
    return json.dumps({key: value for key, value in data.items() if not bare.get(key, False)})


def _complaint(solve: SolveFunction, trial: _Trial, may_refuse: bool) -> str | None:
    before = json.dumps(trial.program.to_dict())
    try:
        claim = solve(trial.program, trial.options)
    except InputError as error:
        return None if may_refuse and not trial.plain else f"refused: {error}"
    except Exception as error:  # whatever a solver raises is its failure, not the suite's
        return f"raised {type(error).__name__}: {error}"
    if json.dumps(trial.program.to_dict()) != before:
        _drawn.cache_clear()  # the next solver gets it as it was drawn
        return "the program was changed"
    return malformed(trial.program, claim) or trial.judge(claim)


def _true(program: SelectionProgram) -> SolveResult:
    """The truth by enumeration, which mio-rag's own tests compare with a plain loop."""
    return registry.solve(program, "exhaustive")


def _trials(exact: bool, programs: int, seed: int, segments: bool) -> Iterator[_Trial]:
    def against(given: SelectionProgram, truth: SolveResult, owed: bool = exact) -> _Judge:
        return lambda claim: disagreement(given, truth, claim, owed)

    for case in known_cases():
        yield _Trial(f"known answer, {case.name}", case.program, _known(case, exact), plain=case.plain)
    for what, given, truth, plain, provable in _drawn(programs, seed, segments):
        yield _Trial(what, given, against(given, truth, exact and provable), plain=plain)
    given = knapsack()
    judge = against(given, _true(given))
    for threads, number in ((1, 0), (2, 1), (1, 2)):
        options = SolveOptions(threads=threads, seed=number)
        yield _Trial(f"threads={threads}, seed={number}", given, judge, options)
    for seconds in (None, math.inf, 60.0):
        yield _Trial(f"time_limit_seconds={seconds}", given, judge, SolveOptions(time_limit_seconds=seconds))
    if exact:
        yield from _limits(seed)
        yield _gap(seed)


@lru_cache(maxsize=4)  # a caller who checks several solvers gives them the same programs
def _drawn(
    programs: int, seed: int, segments: bool
) -> tuple[tuple[str, SelectionProgram, SolveResult, bool, bool], ...]:
    """Random programs: (what, program, its answer by enumeration, plain, provable)."""
    found = []

    def add(what: str, given: SelectionProgram, *, plain: bool = False, provable: bool = True) -> None:
        found.append((what, given, _true(given), plain, provable))

    for k in range(programs):
        add(f"random program {k}", random_program(np.random.default_rng([seed, 7, k]), 9), plain=True)
    scaled = range(max(66, programs // 5))
    for k in scaled:
        rng = np.random.default_rng([seed, 19, k])
        given = at_scale(random_program(rng, 9), SCALES[k % len(SCALES)], *rng.choice(SCALES, 2))
        add(f"random program {k} at another scale", given)
    for k in range(6):
        for penalty in (1e3, 1e5, 1e8, 1e11):
            given = _small_values(np.random.default_rng([seed, 31, k]), penalty)
            # Back ends may or may not resolve such values next to larger penalties.
            add(f"penalties of {penalty:g} times the values, {k}", given, provable=penalty < 1e4)
    for k in scaled if segments else ():
        rng = np.random.default_rng([seed, 23, k])
        given, what = random_shared_program(rng, 9), f"program {k} with segments"
        add(what, given, plain=True)
        if k % 2:
            given = at_scale(given, SCALES[k % len(SCALES)], *rng.choice(SCALES, 2))
            add(f"{what} at another scale", given)
    return tuple(found)


def _small_values(rng: np.random.Generator, penalty: float) -> SelectionProgram:
    """Values of a millionth and less, far larger penalties, and a row that choosing nothing breaks."""
    pairwise = np.triu(rng.random((6, 6)) * (rng.random((6, 6)) < 0.6), 1)
    row = LinearConstraint(rng.integers(-1, 2, 6).astype(float), lower=1.0)
    linear = 1e-6 * rng.uniform(0.1, 1, 6) * 10.0 ** rng.uniform(-3, 0, 6)
    pairwise = 1e-6 * penalty * (pairwise + pairwise.T)
    return SelectionProgram(linear, pairwise, rng.integers(1, 9, 6).astype(np.float64), 15.0, (row,))


def _known(case: Case, exact: bool) -> _Judge:
    given, owed = case.program, exact and case.demand == "proof"
    truth = _true(given)

    def judge(claim: SolveResult) -> str | None:
        other = f"items {claim.selected} selected, and only {case.selected} are optimal"
        wrong = None
        if case.demand in ("honesty", "bound"):
            wrong = _dishonesty(given, truth, claim, exact)
        elif case.demand == "proof":
            wrong = disagreement(given, truth, claim, owed)
        elif exact and claim.selected != case.selected:
            wrong = other
        elif exact and not (claim.is_optimal or claim.message):
            wrong = f"neither proven nor explained: {claim.certificate()}"
        if wrong is None and case.optimum is not None:
            wrong = _untrue(given, case.optimum, claim, rounding := 1e-9 * abs(case.optimum))
            if owed and (claim.objective is None or claim.objective < case.optimum - rounding):
                wrong = f"objective {claim.objective} below the optimum {case.optimum:.12g}"
        if wrong is None and owed and case.selected not in (None, claim.selected):
            wrong = other
        if wrong is None and case.demand == "bound" and claim.x is None:
            wrong = f"no selection: {claim.certificate()}"
        return wrong

    return judge


def _dishonesty(given: SelectionProgram, truth: SolveResult, claim: SolveResult, exact: bool) -> str | None:
    """A false claim about numbers that are too far apart to be resolved."""
    best = truth.objective
    wrong = _untrue(given, best, replace(claim, objective=None), 1e-9 * abs(best or 0.0))
    if wrong is not None or best is None:
        return wrong
    if claim.is_optimal and not math.isclose(claim.objective or 0.0, best, rel_tol=1e-8):
        return f"objective {claim.objective} called optimal, and the optimum is {best:.12g}"
    if exact and claim.x is not None and not claim.is_optimal and claim.limit != "precision":
        return f"not proven, and limit={claim.limit!r} instead of 'precision': {claim.certificate()}"
    return None


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
        broken = [] if claim.x is None else given.violations(claim.x)
        return f"an infeasible selection: {broken[0]}" if broken else None

    for seconds in (0.001, 0.5):
        options = SolveOptions(time_limit_seconds=seconds)
        yield _Trial(f"time_limit_seconds={seconds} on {given.n} dense items", given, judge, options)


def _gap(seed: int) -> _Trial:
    rng = np.random.default_rng([seed, 4])
    values, costs = rng.random(25), rng.integers(20, 90, 25)
    given = SelectionProgram(values, np.zeros((25, 25)), costs.astype(np.float64), 500)
    table = np.zeros(501)  # the best value of every budget, by dynamic programming
    for value, cost in zip(values, costs.tolist(), strict=True):
        table[cost:] = np.maximum(table[cost:], table[:-cost] + value)
    best = float(table[-1])

    def judge(claim: SolveResult) -> str | None:
        if claim.x is None or claim.objective is None or claim.bound is None:
            return f"no selection, or no bound: {claim.certificate()}"
        wrong = _untrue(given, best, claim, 1e-6)
        if wrong is None and claim.bound - claim.objective > 0.2 * abs(claim.objective) + 1e-6:
            wrong = f"stopped at a gap of {claim.gap}, and 0.2 was asked for"
        return wrong

    return _Trial("relative_gap=0.2 on 25 items", given, judge, SolveOptions(relative_gap=0.2))
