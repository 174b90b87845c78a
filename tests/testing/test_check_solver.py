"""A suite is worth what it catches: every kind of false claim, by a solver that is otherwise right."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveOptions, SolveResult, Status, solve
from mio_rag.solvers.result import conclude, relative_gap
from mio_rag.testing import check_solver, disagreement, known_cases, random_program
from mio_rag.testing.solvers import malformed

Solver = Callable[[SelectionProgram, SolveOptions], SolveResult]
_answers: dict[str, SolveResult] = {}


def honest(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Solve a program once for all liars, which differ only in what they report."""
    if options != SolveOptions():
        return solve(program, "branch_and_bound", options)
    key = json.dumps(program.to_dict())
    if key not in _answers:
        _answers[key] = solve(program, "branch_and_bound", options)
    return _answers[key]


def deaf_to_rows(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    found = honest(replace(program, rows=()), options)
    return replace(found, objective=None if found.x is None else program.objective(found.x))


def deaf_to_fixed(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    return honest(replace(program, fixed=None), options)


def bounded_by_itself(status: Status) -> Solver:
    """A heuristic whose bound is what it found."""

    def liar(program: SelectionProgram, options: SolveOptions) -> SolveResult:
        found = solve(program, "greedy", options)
        if found.objective is None:
            return found
        return replace(found, status=status, bound=found.objective, gap=0.0)

    return liar


def lazy(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    return solve(program, "local_search", options)


def despairing(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    if program.rows and program.n > 2:
        return conclude(program, options, "despairing", x=None, bound=None, proven_infeasible=True)
    return honest(program, options)


def coarse(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Round small values to nothing."""
    found = honest(replace(program, linear=np.round(program.linear, 6)), options)
    if found.x is None or found.objective is None:
        return found
    objective = program.objective(found.x)
    gap = relative_gap(objective, objective, program.value_scale)
    return replace(found, objective=objective, bound=objective, gap=gap, status=Status.OPTIMAL)


def timeless(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    return replace(honest(program, options), limit=None)


def single(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    if options.threads > 1:
        raise RuntimeError("another number of threads than the first run had")
    return honest(program, options)


def meddling(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    found = honest(program, options)
    object.__setattr__(program, "budget", program.budget + 1)
    return found


def choosy(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    raise InputError("not this one")


LIES: dict[str, tuple[Solver, str]] = {
    "deaf_to_rows": (deaf_to_rows, "minimum count"),
    "deaf_to_fixed": (deaf_to_fixed, "fixed in"),
    "boastful": (bounded_by_itself(Status.OPTIMAL), "random program"),
    "lazy": (lazy, "optimum not proven"),
    "despairing": (despairing, "infeasibility of a program that admits a selection"),
    "coarse": (coarse, "values of a hundred millionth"),
    "timeless": (timeless, "limit=None instead of 'time'"),
    "single": (single, "threads=2, seed=1: raised RuntimeError: another number of threads"),
    "meddling": (meddling, "the program was changed"),
    "choosy": (choosy, "refused: not this one"),
}


NOTHING = SelectionProgram([1.0], [[0.0]], [1], -1)


@pytest.mark.parametrize("lie", LIES)
def test_a_false_claim_is_caught_and_listed_with_its_program(lie: str) -> None:
    liar, complaint = LIES[lie]
    with pytest.raises(AssertionError, match=f"solver '{lie}' fails") as found:
        check_solver(liar, name=lie, exact=True, programs=30, may_refuse=True)
    first, *lines = str(found.value).splitlines()
    assert complaint in str(found.value)
    failed = int(first.split(" fails ")[1].split()[0])
    assert [line.split(".")[0] for line in lines[::2]] == [str(k + 1) for k in range(failed)]
    for line in lines[1::2]:  # as JSON without what is default
        program, data = SelectionProgram.from_json(line), json.loads(line)
        assert ("rows" in data, "pairwise" in data) == (bool(program.rows), bool(program.pairwise.any()))
        assert ("fixed" in data) == bool((program.fixed >= 0).any())
        assert lie != "deaf_to_fixed" or "fixed" in data
    if lie == "deaf_to_fixed":
        answered = CliRunner().invoke(app, ["lab", "solve", "-", "--json"], input=lines[1])
        expected = solve(SelectionProgram.from_json(lines[1])).objective
        assert json.loads(answered.stdout)["objective"] == expected


def test_a_heuristic_is_asked_for_less_and_not_believed_more() -> None:
    check_solver(lazy, name="lazy", exact=False, programs=30)
    for status in (Status.FEASIBLE, Status.OPTIMAL):
        with pytest.raises(AssertionError, match="below the optimum"):
            check_solver(bounded_by_itself(status), name="lie", exact=False, programs=30)


PROGRAM = SelectionProgram([3.0, 2.0], np.zeros((2, 2)), [1, 1], 1)


def claim(x, bound, infeasible=False):
    return conclude(PROGRAM, SolveOptions(), "liar", x=x, bound=bound, proven_infeasible=infeasible)


@pytest.mark.parametrize(
    ("program", "claimed", "exact", "complaint"),
    [
        (PROGRAM, claim([0, 1], 2.0), False, "below the optimum"),
        (PROGRAM, claim([0, 1], 4.0), True, "objective 2.0 below the optimum"),
        (PROGRAM, claim([1, 0], 3.1), True, "not proven"),
        (PROGRAM, claim(None, None), True, "below the optimum"),
        (PROGRAM, claim(None, None, infeasible=True), False, "admits a selection"),
        (PROGRAM, claim([1, 1], 5.0), False, "error"),
        (PROGRAM, claim([1, 0], 3.0), True, "None"),
        (PROGRAM, claim([0, 1], 3.5), False, "None"),
        (NOTHING, claim(None, None), False, "None"),
        (NOTHING, claim(None, None), True, "not proven"),
        (NOTHING, claim([1, 0], 3.0), True, "admits none"),
    ],
)
def test_claims_are_compared_with_the_truth(program, claimed, exact: bool, complaint: str) -> None:
    assert complaint in str(disagreement(program, solve(program, "exhaustive"), claimed, exact))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, "None"),
        ({"objective": 2.5}, "objective 2.5, and the selection's is 3.0"),
        ({"bound": None}, "optimal without a bound"),
        ({"bound": 2.0}, "below its own objective"),
        ({"gap": 0.5}, "gap 0.5"),
        ({"gap": None}, "gap None"),
        ({"status": Status.INFEASIBLE}, "with a selection"),
        ({"x": None}, "without a selection"),
        ({"x": None, "status": Status.NO_SOLUTION}, "objective 3.0 without a selection"),
        ({"x": np.array([1.0, 0.5])}, "not 2 of 0 and 1"),
        ({"x": np.array([1])}, "not 2 of 0 and 1"),
        ({"nodes": float("nan")}, "no plain data"),
    ],
)
def test_a_result_that_contradicts_itself_is_caught(changes: dict[str, object], complaint: str) -> None:
    assert complaint in str(malformed(PROGRAM, replace(claim([1, 0], 3.0), **changes)))
    assert "a tuple instead of a SolveResult" in str(malformed(PROGRAM, (1, 0)))


def test_programs_are_reproducible_and_varied_and_answers_by_hand_those_of_enumeration() -> None:
    def draw():
        rng = np.random.default_rng(3)
        return [random_program(rng, 8) for _ in range(300)]

    first = draw()
    assert [p.to_dict() for p in first] == [p.to_dict() for p in draw()]
    assert {0, 1, 8} <= {p.n for p in first}
    assert any(p.budget < 0 for p in first)
    assert any(len(p.rows) > 2 for p in first)
    assert any(p.n and (p.costs == 0).any() for p in first)
    assert any((p.fixed >= 0).any() for p in first)
    assert any((p.costs % 1 != 0).any() for p in first)
    cases = known_cases()
    assert len({case.name for case in cases}) == len(cases) > 50
    for case in cases:
        truth = solve(case.program, "exhaustive")
        if case.optimum is not None:
            assert abs(truth.objective - case.optimum) <= 1e-12 * abs(case.optimum), case.name
        assert case.selected in (None, truth.selected), case.name
