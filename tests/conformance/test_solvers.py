"""The suite that ships with the package, over every solver; and what only some of them can be asked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mio_rag import select
from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram
from mio_rag.formulations.numbers import LARGEST_NUMBER
from mio_rag.solvers import SolveOptions, Status, solve, solvers
from mio_rag.testing import check_solver, known_cases
from mio_rag.testing.programs import knapsack


def of(linear, costs, budget, rows=(), fixed=None) -> SelectionProgram:
    """A program without pairs."""
    return SelectionProgram(linear, np.zeros((len(linear), len(linear))), costs, budget, tuple(rows), fixed)


@pytest.mark.parametrize("info", solvers(), ids=lambda info: info.name)
def test_every_solver_passes_the_suite(info) -> None:
    check_solver(
        lambda program, options: solve(program, info.name, options),
        name=info.name,
        exact=info.exact,
        programs=25 if info.name == "pyomo" else 60,
        max_free=info.max_free,
        may_refuse=info.name == "cpsat",  # refuses what it would round
        segments=True,
    )


@pytest.mark.parametrize("solver", [info.name for info in solvers() if not info.exact])
def test_heuristics_find_a_selection_where_there_is_one(solver: str) -> None:
    for case in known_cases():
        if solve(case.program, "exhaustive").x is not None:
            assert solve(case.program, solver).status in (Status.OPTIMAL, Status.FEASIBLE), case.name


def test_more_than_twenty_free_items_are_not_enumerated() -> None:
    given = of([1.0] * 22, [1] * 22, 5, fixed=[-1] * 21 + [0])
    with pytest.raises(InputError, match=r"at most 20 free items, this program has 21.*highs"):
        solve(given, "exhaustive")
    assert solve(of([1.0] * 22, [1] * 22, 5, fixed=[-1] * 5 + [0] * 17), "exhaustive").objective == 5


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (of([1.0], [0.1234567], 1), "costs"),
        (of([1.0], [1], 1, rows=[LinearConstraint([1e-7 + 0.5], upper=3, name="fine")]), "row 'fine'"),
        (of([1.0], [1e19], 2e19), "too large"),
    ],
)
def test_cpsat_refuses_what_it_would_round(given: SelectionProgram, what: str) -> None:
    with pytest.raises(InputError, match=f"{what}.*solver='highs'"):
        solve(given, "cpsat")


def test_an_unknown_solver_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        solve(knapsack(), "cplex")
    assert all(info.name in str(caught.value) for info in solvers())
    with pytest.raises(InputError, match="solver='highs'"):
        solve(knapsack(), "pyomo:nonsense")


# Numbers of any size

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
        result = solve(edge, name, SolveOptions(time_limit_seconds=1))
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
