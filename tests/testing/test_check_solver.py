"""A suite is worth what it catches: every kind of lie, told by a solver that is otherwise right."""

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
from mio_rag.testing import check_solver

Lie = Callable[[SelectionProgram, SolveOptions], SolveResult]


_answers: dict[str, SolveResult] = {}


def honest(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Solves a program, by its content, once for all liars: only what they make of the answer differs."""
    if options != SolveOptions():
        return solve(program, "branch_and_bound", options)
    key = json.dumps(program.to_dict())
    if key not in _answers:
        _answers[key] = solve(program, "branch_and_bound", options)
    return _answers[key]


def deaf_to_rows(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    told = honest(replace(program, rows=()), options)
    return replace(told, objective=None if told.x is None else program.objective(told.x))


def deaf_to_fixed(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    return honest(replace(program, fixed=None), options)


def boastful(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Calls the first selection optimal."""
    found = solve(program, "greedy", options)
    if found.objective is None:
        return found
    return replace(found, status=Status.OPTIMAL, bound=found.objective, gap=0.0)


def low(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """A heuristic whose bound is what it found."""
    found = solve(program, "greedy", options)
    if found.objective is None:
        return found
    return replace(found, status=Status.FEASIBLE, bound=found.objective, gap=0.0)


def lazy(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Never proves anything."""
    return solve(program, "local_search", options)


def despairing(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    if program.rows and program.n > 2:
        return conclude(program, options, "despairing", x=None, bound=None, proven_infeasible=True)
    return honest(program, options)


def coarse(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Takes what is small for nothing, as solvers do that round."""
    rounded = replace(program, linear=np.round(program.linear, 6))
    found = honest(rounded, options)
    if found.x is None or found.objective is None:
        return found
    objective = program.objective(found.x)
    gap = relative_gap(objective, objective, program.value_scale)
    return replace(found, objective=objective, bound=objective, gap=gap, status=Status.OPTIMAL)


def timeless(program: SelectionProgram, options: SolveOptions) -> SolveResult:
    """Stops early, and says nothing of it."""
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


LIES: dict[str, tuple[Lie, str]] = {
    "deaf_to_rows": (deaf_to_rows, "minimum count"),
    "deaf_to_fixed": (deaf_to_fixed, "fixed in"),
    "boastful": (boastful, "random program"),
    "lazy": (lazy, "optimum not proven"),
    "despairing": (despairing, "infeasibility of a program that admits a selection"),
    "coarse": (coarse, "values of a hundred millionth"),
    "timeless": (timeless, "limit=None instead of 'time'"),
    "single": (single, "threads=2, seed=1: raised RuntimeError: another number of threads"),
    "meddling": (meddling, "the program was changed"),
    "choosy": (choosy, "refused: not this one"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_caught(lie: str) -> None:
    told, complaint = LIES[lie]
    with pytest.raises(AssertionError, match=f"solver '{lie}' fails") as found:
        check_solver(told, name=lie, exact=True, programs=30, may_refuse=True)
    assert complaint in str(found.value)


def test_a_heuristic_is_asked_for_less_and_not_believed_more() -> None:
    check_solver(lazy, name="lazy", exact=False, programs=30)
    for lie in (low, boastful):
        with pytest.raises(AssertionError, match="below the optimum"):
            check_solver(lie, name="lie", exact=False, programs=30)


def test_every_failed_case_is_listed_with_its_program() -> None:
    with pytest.raises(AssertionError) as found:
        check_solver(deaf_to_fixed, name="deaf", exact=True, programs=30)
    first, *lines = str(found.value).splitlines()
    failed = int(first.split(" fails ")[1].split()[0])
    assert len(lines) == 2 * failed > 10
    assert [line.split(".")[0] for line in lines[::2]] == [str(k + 1) for k in range(failed)]
    for line in lines[1::2]:
        program = SelectionProgram.from_json(line)
        assert (program.fixed >= 0).any()


def test_the_programs_shown_say_nothing_that_is_default_and_can_be_solved_as_they_are() -> None:
    given: dict[str, SelectionProgram] = {}

    def refusing(program: SelectionProgram, options: SolveOptions) -> SolveResult:
        given.setdefault(json.dumps(program.to_dict()), program)
        raise InputError("no")

    with pytest.raises(AssertionError) as found:
        check_solver(refusing, name="refusing", exact=True, programs=30, max_free=12)
    shown = str(found.value).splitlines()[2::2]
    assert {json.dumps(SelectionProgram.from_json(line).to_dict()) for line in shown} == set(given)
    for line in shown:
        program, data = SelectionProgram.from_json(line), json.loads(line)
        assert ("rows" in data, "pairwise" in data) == (bool(program.rows), bool(program.pairwise.any()))
        assert ("fixed" in data) == bool((program.fixed >= 0).any())
        assert all(None not in row.values() for row in data.get("rows", ()))
    for line in shown[:3] + shown[60:63]:
        answered = CliRunner().invoke(app, ["solve", "-", "--json"], input=line)
        expected = solve(SelectionProgram.from_json(line))
        assert json.loads(answered.stdout)["objective"] == expected.objective


def test_refusals_are_allowed_for_odd_numbers_alone() -> None:
    def rounding(program: SelectionProgram, options: SolveOptions) -> SolveResult:
        if (program.costs > 1e9).any():
            raise InputError("too large")
        return honest(program, options)

    check_solver(rounding, name="rounding", exact=False, programs=30, may_refuse=True, max_free=12)
    with pytest.raises(AssertionError, match="at another scale: refused: too large"):
        check_solver(rounding, name="rounding", exact=True, programs=30)


def test_draws_go_by_the_seed_and_large_programs_can_be_left_out() -> None:
    def drawn(**options: int) -> list[str]:
        asked: list[str] = []

        def record(program: SelectionProgram, options: SolveOptions) -> SolveResult:
            asked.append(json.dumps(program.to_dict()))
            return solve(program, "topk", options)

        check_solver(record, name="record", exact=False, **options)
        return asked

    assert drawn(programs=5, seed=3) == drawn(programs=5, seed=3)
    assert drawn(programs=5, seed=3) != drawn(programs=5, seed=4)
    with pytest.raises(InputError, match=r"programs=-1 must be >= 0; seed=-2 .*max_free=3"):
        check_solver(honest, name="none", exact=True, programs=-1, seed=-2, max_free=3)
