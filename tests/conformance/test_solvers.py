"""One suite over every solver: known answers, random programs, limits, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.conformance import disagreement
from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram, passage_count
from mio_rag.solvers import SolveOptions, Status, solve, solvers
from mio_rag.solvers.bounds import upper_bound
from mio_rag.testing.programs import hard_program, random_program

EXACT = [info.name for info in solvers() if info.exact]
HEURISTIC = [info.name for info in solvers() if not info.exact]
BACK_ENDS = [name for name in EXACT if name != "exhaustive"]


def program(linear, costs, budget, pairs=(), rows=(), fixed=None) -> SelectionProgram:
    pairwise = np.zeros((len(linear), len(linear)))
    for i, j, weight in pairs:
        pairwise[i, j] = pairwise[j, i] = weight
    return SelectionProgram(linear, pairwise, costs, budget, tuple(rows), fixed)


KNAPSACK = program([92, 57, 49, 68, 60, 43, 67, 84, 87, 72], [23, 31, 29, 44, 53, 38, 63, 85, 89, 82], 165)

# name: (program, optimum, the only optimal selection or None where there are several)
KNOWN = {
    "no items": (program([], [], 5), 0.0, ()),
    "one item": (program([2.0], [3], 3), 2.0, (0,)),
    "one item too many": (program([2.0], [3], 2), 0.0, ()),
    "one harmful item": (program([-1.0], [1], 5), 0.0, ()),
    "all ties": (program([1.0] * 6, [1] * 6, 3), 3.0, None),
    "all zero": (program([0.0] * 3, [1] * 3, 3), 0.0, None),
    "exact duplicates": (program([1.0, 1.0, 0.6], [1] * 3, 3, [(0, 1, 1.0)]), 1.6, None),
    "zero budget": (program([1.0, 2.0, 5.0], [1, 0, 3], 0), 2.0, (1,)),
    "benefit of a pair": (program([-1.0, -1.0, 0.1], [1, 1, 1], 2, [(0, 1, -5.0)]), 3.0, (0, 1)),
    "benefit forgone": (program([-1.0, -1.0, 0.1], [1, 2, 1], 2, [(0, 1, -5.0)]), 0.1, (2,)),
    "top-k": (program([0.9, 0.1, 0.8, 0.3, 0.7], [7] * 5, 21), 2.4, (0, 2, 4)),
    "knapsack P01": (KNAPSACK, 309.0, (0, 1, 2, 3, 5)),
    "fixed in": (program([5.0, 4.0, -1.0], [1, 1, 1], 2, fixed=[-1, -1, 1]), 4.0, (0, 2)),
    "all fixed": (program([5.0, 4.0], [1, 1], 2, [(0, 1, 1.0)], fixed=[1, 1]), 8.0, (0, 1)),
    "minimum count": (
        program([-1.0, -3.0, -2.0], [1] * 3, 9, rows=passage_count(3, minimum=2)),
        -3.0,
        (0, 2),
    ),
    "only equality": (
        program([3.0, 2.0, 1.0], [1] * 3, 9, rows=[LinearConstraint([1, 1, -1], 0, 0)]),
        4.0,
        (0, 2),
    ),
    # 0.3 - 0.1 < 0.2 and 0.1 + 0.2 > 0.3 in floating point
    "decimals that just fit": (program([-1.0, -1.0], [0.1, 0.2], 0.3, [(0, 1, -5.0)]), 3.0, (0, 1)),
    "decimals that fit alone": (program([1.0, 10.0], [0.3, 0.1 + 0.2], 0.3, [(0, 1, 5.0)]), 10.0, (1,)),
    "one token over a million": (program([1.0, 1.0], [1, 1_000_000], 1_000_000), 1.0, None),
    "large decimals": (program([1.0, 1.0], [1e8 + 0.05, 1e8 + 0.05], 2e8 + 0.01), 1.0, None),
    "huge budget": (program([1.0, 1.0], [0.001, 0.002], 1e19), 2.0, (0, 1)),
    "large values": (program([1e9, 2e9, 1.5e9], [1, 1, 1], 2, [(1, 2, 1e8)]), 3.4e9, (1, 2)),
}

INFEASIBLE = {
    "negative budget": program([1.0], [0], -1),
    "negative budget, no items": program([], [], -1),
    "row without items": program([], [], 1, rows=[LinearConstraint([], lower=1)]),
    "row without coefficients": program([1.0], [1], 1, rows=[LinearConstraint([0], upper=-1)]),
    "contradictory rows": program(
        [1.0, 1.0], [1, 1], 5, rows=[*passage_count(2, minimum=2), LinearConstraint([1, 0], upper=0)]
    ),
    "fixed beyond the budget": program([1.0, 1.0], [3, 3], 5, fixed=[1, 1]),
    "count that the budget cannot pay": program([1.0] * 3, [2] * 3, 5, rows=passage_count(3, minimum=3)),
}


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("name", KNOWN)
def test_exact_back_ends_know_the_answer(name: str, solver: str) -> None:
    given, optimum, selected = KNOWN[name]
    result = solve(given, solver)
    assert result.status is Status.OPTIMAL, result.certificate()
    assert result.objective == pytest.approx(optimum, abs=1e-9)
    assert result.bound == pytest.approx(optimum, rel=1e-9, abs=1e-6)
    assert selected is None or result.selected == selected


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("name", INFEASIBLE)
def test_exact_back_ends_prove_infeasibility(name: str, solver: str) -> None:
    result = solve(INFEASIBLE[name], solver)
    assert result.status is Status.INFEASIBLE, result.certificate()
    assert result.x is None
    assert result.objective is None


@pytest.mark.parametrize("solver", HEURISTIC)
@pytest.mark.parametrize("name", KNOWN)
def test_heuristics_stay_below_a_valid_bound(name: str, solver: str) -> None:
    given, optimum, _ = KNOWN[name]
    result = solve(given, solver)
    assert result.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert result.objective <= optimum + 1e-9 <= result.bound + 1e-6 * max(1, optimum)
    assert given.violations(result.x) == []


@pytest.mark.parametrize("solver", HEURISTIC)
@pytest.mark.parametrize("name", INFEASIBLE)
def test_heuristics_select_nothing_where_nothing_is_feasible(name: str, solver: str) -> None:
    result = solve(INFEASIBLE[name], solver)
    assert result.status in (Status.INFEASIBLE, Status.NO_SOLUTION)
    assert result.x is None


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_programs(first: int) -> None:
    """Every back end and heuristic against enumeration, on 300 programs."""
    wrong = []
    for seed in range(first, first + 50):
        given = random_program(np.random.default_rng([7, seed]), 9)
        truth = solve(given, "exhaustive")
        if truth.x is not None:
            assert upper_bound(given) >= truth.objective - 1e-9
        for info in solvers():
            claim = solve(given, info.name)
            complaint = disagreement(given, truth, claim, info.exact)
            if complaint:
                wrong.append((seed, info.name, complaint))
            if claim.x is not None:
                assert claim.objective == given.objective(claim.x)
    assert wrong == []


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


@pytest.mark.parametrize("solver", BACK_ENDS)
@pytest.mark.parametrize("seconds", [0.001, 0.5])
def test_a_time_limit_leaves_a_valid_bound(solver: str, seconds: float) -> None:
    given = hard_program(np.random.default_rng(1))
    known = solve(given, "local_search").objective
    result = solve(given, solver, SolveOptions(time_limit_seconds=seconds))
    assert result.status in (Status.FEASIBLE, Status.NO_SOLUTION)
    assert result.limit == "time"
    assert result.bound >= known
    assert result.objective is None or result.gap == pytest.approx(
        (result.bound - result.objective) / abs(result.objective or 1e-9)
    )


def test_enumeration_stopped_early_has_a_valid_bound() -> None:
    rng = np.random.default_rng(2)
    raw = rng.normal(size=(20, 20))
    given = SelectionProgram(rng.random(20), np.triu(raw, 1) + np.triu(raw, 1).T, np.ones(20), 10)
    result = solve(given, "exhaustive", SolveOptions(time_limit_seconds=1e-9))
    assert result.status is Status.FEASIBLE
    assert result.limit == "time"
    assert result.bound >= solve(given, "highs-glover").objective


@pytest.mark.parametrize("solver", EXACT)
def test_seed_and_threads_are_accepted_in_any_order(solver: str) -> None:
    """HiGHS refuses another number of threads than its first run had, unless it is reset."""
    for threads, seed in ((1, 0), (2, 1), (1, 2)):
        result = solve(KNAPSACK, solver, SolveOptions(threads=threads, seed=seed))
        assert result.objective == 309.0


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("seconds", [None, math.inf, 60.0])
def test_generous_limits_are_accepted(solver: str, seconds: float | None) -> None:
    assert solve(KNAPSACK, solver, SolveOptions(time_limit_seconds=seconds)).is_optimal


@pytest.mark.parametrize("solver", BACK_ENDS)
def test_a_relative_gap_is_kept_and_reported(solver: str) -> None:
    rng = np.random.default_rng(4)
    given = SelectionProgram(rng.random(25), np.zeros((25, 25)), rng.integers(20, 90, 25), 500)
    exact = solve(given, solver).objective
    result = solve(given, solver, SolveOptions(relative_gap=0.2))
    assert result.objective <= exact + 1e-6 <= result.bound + 2e-6
    assert result.bound - result.objective <= 0.2 * abs(result.objective) + 1e-6


def test_more_than_twenty_free_items_are_not_enumerated() -> None:
    given = program([1.0] * 22, [1] * 22, 5, fixed=[-1] * 21 + [0])
    with pytest.raises(InputError, match=r"at most 20 free items, this program has 21.*highs"):
        solve(given, "exhaustive")
    assert solve(program([1.0] * 22, [1] * 22, 5, fixed=[-1] * 5 + [0] * 17), "exhaustive").objective == 5


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (program([1.0], [0.1234567], 1), "costs"),
        (program([1.0], [1], 1, rows=[LinearConstraint([1e-7 + 0.5], upper=3, name="fine")]), "row 'fine'"),
        (program([1.0], [1e19], 2e19), "too large"),
    ],
)
def test_cpsat_refuses_what_it_would_round(given: SelectionProgram, what: str) -> None:
    with pytest.raises(InputError, match=f"{what}.*solver='highs'"):
        solve(given, "cpsat")


def test_an_unknown_solver_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        solve(KNAPSACK, "cplex")
    assert all(info.name in str(caught.value) for info in solvers())
    with pytest.raises(InputError, match="solver='highs'"):
        solve(KNAPSACK, "pyomo:nonsense")
