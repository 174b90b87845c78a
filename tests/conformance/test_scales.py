"""Every solver on numbers of any size: what is proven, and what counts as feasible, is relative to them."""

import json

import numpy as np
import pytest

from mio_rag import select
from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram
from mio_rag.formulations.numbers import LARGEST_NUMBER
from mio_rag.solvers import SolveOptions, Status, solve, solvers
from mio_rag.solvers.backends import scaled
from mio_rag.testing import known_cases, random_program

EXACT = [info.name for info in solvers() if info.exact]
NOTHING = np.zeros((3, 3))
#: Cases that CP-SAT, which calculates in whole numbers, would have to round.
ROUNDED = {
    "values times 1e-300, costs times 1e-300, 1",
    "limits beyond all",
    "values times 1e-300, costs times 1e-300, 0",
    "values times 1e-200, costs times 1e+200, 0",
    "many digits 0",
    "values times 1e-200, costs times 1e+200, 1",
    "a row beyond all",
    "costs next to nothing",
}


def test_whole_numbers_are_exact_and_fractions_have_a_tolerance_of_their_own_size() -> None:
    whole = SelectionProgram([1, 1], np.zeros((2, 2)), [5, 6], 11 - 1e-7)
    assert whole.violations([1, 1]) != []
    assert (
        SelectionProgram([1], np.zeros((1, 1)), [29], 0.29 * 100).violations([1]) == []
    )  # 28.999999999999996
    for size in (1e-9, 1e-3, 1.0, 1e3):
        sums = SelectionProgram([1, 1], np.zeros((2, 2)), [0.1 * size, 0.2 * size], 0.3 * size)
        assert sums.violations([1, 1]) == []
        just_too_much = SelectionProgram([1], np.zeros((1, 1)), [0.3001 * size], 0.3 * size)
        assert just_too_much.violations([1]) != []


@pytest.mark.parametrize("seed", range(20))
def test_a_scaled_program_has_the_same_best_selection(seed: int) -> None:
    rng = np.random.default_rng([23, seed])
    program = random_program(rng, 9)
    if program.n > 1:  # a pair that must not be, as people write it
        pairwise = program.pairwise.copy()
        pairwise[0, 1] = pairwise[1, 0] = 1e9
        program = SelectionProgram(
            1e-6 * program.linear, pairwise, program.costs, program.budget, program.rows, program.fixed
        )
    here, there = solve(program, "exhaustive"), scaled(program)
    if there.contradiction:
        assert here.status is Status.INFEASIBLE
        return
    found = solve(there.program, "exhaustive")
    assert (found.x is None) == (here.x is None)
    if found.x is not None:
        assert program.objective(found.x) == pytest.approx(here.objective, rel=1e-9, abs=1e-12)


@pytest.mark.filterwarnings("error")
def test_numbers_that_would_overflow_are_refused() -> None:
    huge = [1e308] * 3
    with pytest.raises(InputError, match=r"linear\[0\] is 1e\+308: at most 1e\+303"):
        SelectionProgram(huge, NOTHING, [1, 1, 1], 2)
    with pytest.raises(InputError, match=r"budget is 1e\+308"):
        SelectionProgram([1, 1, 1], NOTHING, [1, 1, 1], 1e308)
    with pytest.raises(InputError, match=r"upper=1e\+308"):
        LinearConstraint([1, 1, 1], upper=1e308)
    with pytest.raises(InputError, match=r"1e\+308"):
        select("q", ["a", "b", "c"], scores=huge, budget_tokens=100, relevance_model="given")
    assert select("q", ["a", "b"], scores=[1e308, -1e308], budget_tokens=1).ids == ("0",)  # as probabilities
    edge = SelectionProgram([LARGEST_NUMBER] * 3, NOTHING, [1, 1, 1], 2)
    for name in EXACT:
        result = solve(edge, name, SolveOptions(time_limit_seconds=5))
        assert result.objective == 2 * LARGEST_NUMBER
        json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", EXACT)
def test_numbers_of_any_size_are_taken_without_a_warning(name: str) -> None:
    for case in known_cases():
        if name == "cpsat" and case.name in ROUNDED:
            with pytest.raises(InputError, match="use solver='highs'"):
                solve(case.program, name)
            continue
        result = solve(case.program, name)
        assert result.x is not None or result.status in (Status.INFEASIBLE, Status.NO_SOLUTION), case.name


def test_dust_beside_ordinary_values_leaves_the_proof() -> None:
    rng = np.random.default_rng(0)
    pairs = np.triu(rng.random((12, 12)) / 10, 1)
    pairs[2, 5] = 1e-18
    given = SelectionProgram(
        np.append(rng.random(10), [1e-17, -3e-16]), pairs + pairs.T, rng.integers(20, 90, 12), 300
    )
    best = solve(given, "exhaustive").objective
    for solver in EXACT:
        result = solve(given, solver)
        assert result.is_optimal
        assert result.objective == pytest.approx(best, abs=1e-9)
