"""The exact kernel: equal to enumeration, and certified wherever it is stopped."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mio_rag.formulations import LinearConstraint, SelectionProgram, nominal_program
from mio_rag.solvers import SolveOptions, Status, branch_and_bound, solve
from mio_rag.solvers.presolve import Problem, presolve
from mio_rag.solvers.relaxation import (
    Incumbent,
    Root,
    Splitting,
    better_diagonal,
    core_matrix,
    core_size,
    first_matrix,
    relax_root,
    relaxation_matrix,
)
from mio_rag.testing.programs import random_program

EXACT = SolveOptions(time_limit_seconds=None)


def _gram_program(seed: int, n: int, weight: float, budget: int) -> SelectionProgram:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 64)) + 0.6
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance = np.sort(rng.uniform(0.2, 0.7, n))[::-1]
    costs = rng.integers(15, 160, n)
    return nominal_program(relevance, vectors @ vectors.T, costs, budget, redundancy_weight=weight)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), max_nodes=st.integers(0, 40))
def test_equals_enumeration_and_is_certified_at_every_interruption(seed: int, max_nodes: int) -> None:
    program = random_program(np.random.default_rng(seed), n_max=13)
    truth = solve(program, "exhaustive")
    result = branch_and_bound.solve(program, EXACT)
    assert result.status is truth.status
    if truth.objective is not None:
        assert result.objective == pytest.approx(truth.objective, abs=2e-6, rel=2e-9)
    stopped = branch_and_bound.solve(program, EXACT, max_nodes=max_nodes)
    assert stopped.status is not Status.ERROR
    if truth.status is Status.INFEASIBLE:
        assert stopped.x is None
        return
    assert stopped.status is not Status.INFEASIBLE
    assert truth.objective is not None
    if stopped.bound is not None:
        assert stopped.bound >= truth.objective - 1e-9 * max(1.0, abs(truth.objective))
    if stopped.x is not None:
        assert not program.violations(stopped.x)


@pytest.mark.parametrize(("n", "weight", "budget"), [(40, 0.1, 500), (40, 0.5, 800), (60, 1.0, 600)])
def test_the_bound_never_loosens_with_more_nodes(n: int, weight: float, budget: int) -> None:
    program = _gram_program(7, n, weight, budget)
    final = branch_and_bound.solve(program, EXACT)
    assert final.is_optimal
    assert final.objective is not None
    before = math.inf
    for nodes in (0, 1, 2, 5, 10, 20, 50, 100, 200, 400):
        stopped = branch_and_bound.solve(program, EXACT, max_nodes=nodes)
        assert stopped.bound is not None
        assert stopped.bound >= final.objective - 1e-9
        assert stopped.bound <= before + 1e-9
        before = stopped.bound


def test_agrees_with_highs_beyond_the_reach_of_enumeration() -> None:
    for seed in range(4):
        program = _gram_program(seed, 26, 0.15, 400)
        ours = branch_and_bound.solve(program, EXACT)
        theirs = solve(program, "highs-glover", SolveOptions(time_limit_seconds=60))
        assert ours.is_optimal
        assert theirs.bound is not None
        assert ours.objective is not None
        assert ours.objective <= theirs.bound + 1e-6
        assert theirs.objective is not None
        assert theirs.objective <= ours.objective + 2e-6


def test_the_same_program_gives_the_same_search_for_any_seed_and_thread_count() -> None:
    program = _gram_program(3, 45, 0.3, 700)
    results = [
        branch_and_bound.solve(program, SolveOptions(seed=seed, threads=threads))
        for seed, threads in ((0, 1), (5, 1), (0, 2))
    ]
    assert len({(r.nodes, r.selected, r.objective) for r in results}) == 1


def test_a_time_limit_yields_a_certified_gap_and_no_claim_of_optimality() -> None:
    program = _gram_program(11, 220, 0.3, 1500)
    result = branch_and_bound.solve(program, SolveOptions(time_limit_seconds=0.05))
    if result.status is Status.FEASIBLE:  # a fast machine may prove it
        assert result.limit == "time"
        assert result.bound is not None
        assert result.objective is not None
        assert result.bound > result.objective
    better = branch_and_bound.solve(program, SolveOptions(time_limit_seconds=1.0))
    assert better.objective is not None
    assert result.bound is not None
    assert better.objective <= result.bound + 1e-9


def test_a_relative_gap_is_honoured() -> None:
    program = _gram_program(2, 60, 0.5, 900)
    exact = branch_and_bound.solve(program, EXACT)
    loose = branch_and_bound.solve(program, SolveOptions(relative_gap=0.05))
    assert exact.objective is not None
    assert loose.objective is not None
    assert loose.status is Status.OPTIMAL
    assert loose.gap is not None
    assert loose.gap <= 0.05
    assert loose.objective >= exact.objective * (1 - 0.05) - 1e-9
    assert loose.nodes is not None
    assert exact.nodes is not None
    assert loose.nodes <= exact.nodes


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), gap=st.sampled_from([0.01, 0.1, 0.5, 2.0]))
def test_a_loose_gap_never_makes_the_bound_wrong(seed: int, gap: float) -> None:
    program = random_program(np.random.default_rng(seed), n_max=13)
    truth = solve(program, "exhaustive").objective
    result = branch_and_bound.solve(program, SolveOptions(relative_gap=gap))
    if truth is None:
        assert result.status is Status.INFEASIBLE
        return
    assert result.bound is not None
    assert result.bound >= truth - 1e-9 * max(1.0, abs(truth))


def _root_bound(problem: Problem, G: np.ndarray) -> float:
    nothing = Incumbent(-math.inf, None)
    start = Root(problem, G, np.zeros(0), np.zeros(problem.m), math.inf, -math.inf)
    return relax_root(start, nothing, 1e-9, EXACT).bound


@pytest.mark.parametrize(("weight", "links"), [(0.1, 0), (0.3, 0), (1.0, 0), (0.1, 25), (0.0, 25)])
def test_matrices_of_the_relaxation_are_valid_and_worth_their_price(weight: float, links: int) -> None:
    gaps: list[list[float]] = []
    for seed in range(5):
        program = _gram_program(seed, 40, weight, 700)
        rng = np.random.default_rng(seed)
        pairwise = program.pairwise.copy()
        for _ in range(links):
            i, j = rng.choice(40, 2, replace=False)
            pairwise[i, j] = pairwise[j, i] = pairwise[i, j] - 0.15
        program = SelectionProgram(program.linear, pairwise, program.costs, program.budget)
        problem = presolve(program)
        assert problem is not None
        optimum = branch_and_bound.solve(program, EXACT).objective
        assert optimum is not None
        floor = (optimum - problem.base) / problem.scale
        G = first_matrix(problem.A)
        start = Root(problem, G, np.zeros(0), np.zeros(problem.m), math.inf, -math.inf)
        first = relax_root(start, Incumbent(-math.inf, None), 1e-9, EXACT)
        matrices = [
            G,
            better_diagonal(G, first.x, float(np.abs(problem.A).max())),
            relaxation_matrix(problem, np.zeros(0), 30, math.inf, Splitting.of(problem, first.x, G)),
            core_matrix(problem, np.zeros(0), G, first.x, 30, math.inf),
        ]
        assert core_size(first.x) < problem.m
        row = []
        for M in matrices:
            assert M is not None
            assert np.linalg.eigvalsh(M)[0] >= -1e-14
            assert np.array_equal(M, M.T)
            assert np.all((problem.A - M)[~np.eye(problem.m, dtype=bool)] >= 0)
            bound = _root_bound(problem, M)
            assert bound >= floor - 1e-9
            row.append((bound - floor) / floor)
        gaps.append(row)
    uniform, diagonal, conic, core = np.median(gaps, axis=0)
    assert max(conic, core) < diagonal <= uniform
    if weight >= 0.3:
        assert conic < 0.6 * uniform  # pairs cannot be negative: the point of the doubly non-negative bound


def test_rows_that_demand_worthless_items_are_met() -> None:
    row = LinearConstraint(np.ones(20), lower=15, name="at least 15")
    program = SelectionProgram(
        np.full(20, -1.0), np.full((20, 20), 0.1) - 0.1 * np.eye(20), np.ones(20), 20, (row,)
    )
    result = branch_and_bound.solve(program, EXACT)
    assert result.is_optimal
    assert len(result.selected) == 15
    assert result.objective == pytest.approx(-15 - 0.1 * 15 * 14 / 2)


def test_the_linear_case_equals_a_published_knapsack() -> None:
    profits = [92, 57, 49, 68, 60, 43, 67, 84, 87, 72]
    weights = [23, 31, 29, 44, 53, 38, 63, 85, 89, 82]
    result = branch_and_bound.solve(SelectionProgram(profits, np.zeros((10, 10)), weights, 165), EXACT)
    assert (result.objective, result.selected) == (309, (0, 1, 2, 3, 5))


@pytest.mark.parametrize(
    ("size", "excess", "feasible"),
    [
        (1.0, 0.9e-6, True),  # within the tolerance of the budget
        (1.0, 1.1e-6, False),
        (1.0, 3.0, False),
        (1.0, -1.0, True),
        (1e-8, 0.9e-13, True),  # the tolerance shrinks with the budget
        (1e-8, 1.1e-12, False),
        (1e-8, 0.9e-6, False),
        (1e9, 9e-3, True),  # the tolerance grows with the budget
        (1e9, 3e9, False),
    ],
)
def test_rows_met_only_within_the_tolerance_are_not_called_contradictory(
    monkeypatch: pytest.MonkeyPatch, size: float, excess: float, feasible: bool
) -> None:
    """Without a start the rows alone are asked about: that answer must not be stricter than the rest."""
    monkeypatch.setattr(branch_and_bound, "_start", lambda *_: Incumbent(-math.inf, None))
    budget = max(0.0, 10.0 * size - excess)
    every = (LinearConstraint(np.ones(4), lower=4.0),)
    program = SelectionProgram(np.ones(4), 0.1 - 0.1 * np.eye(4), np.full(4, 2.5 * size), budget, every)
    expected = Status.OPTIMAL if feasible else Status.INFEASIBLE
    assert solve(program, "exhaustive").status is expected
    assert branch_and_bound.solve(program, EXACT).status is expected
