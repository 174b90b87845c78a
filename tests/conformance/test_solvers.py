"""The suite that ships with the package, over every solver; and what only some of them can be asked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram
from mio_rag.solvers import Status, solve, solvers
from mio_rag.testing import check_solver, known_cases, random_program
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
        programs=25 if info.name == "pyomo" else 100,
        max_free=info.max_free,
        may_refuse=info.name == "cpsat",  # refuses what it would round
        segments=True,
    )


@pytest.mark.parametrize("solver", [info.name for info in solvers() if not info.exact])
def test_heuristics_find_a_selection_where_there_is_one(solver: str) -> None:
    for case in known_cases():
        if solve(case.program, "exhaustive").x is not None:
            assert solve(case.program, solver).status in (Status.OPTIMAL, Status.FEASIBLE), case.name


def test_enumeration_itself_against_a_plain_loop() -> None:
    """The oracle needs an oracle."""
    for seed in range(40):
        given = random_program(np.random.default_rng([11, seed]), 7)
        best = -math.inf
        for code in range(1 << given.n):
            x = [(code >> k) & 1 for k in range(given.n)]
            if given.violations(x):
                continue
            value = sum(given.linear[i] for i in range(given.n) if x[i])
            for i in range(given.n):
                for j in range(i):
                    value -= given.pairwise[i, j] * x[i] * x[j]
            best = max(best, value)
        found = solve(given, "exhaustive").objective
        assert (found is None) == (best == -math.inf)
        assert found is None or found == pytest.approx(best, abs=1e-9)


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
