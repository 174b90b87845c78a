"""The exact kernel: equal to enumeration, and certified wherever it is stopped."""

import math
import time

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
    improved,
    nearly_shifted,
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


@pytest.mark.parametrize("gap", [0.02, 0.1, 0.3])
def test_a_loose_gap_keeps_the_bound_above_the_optimum_of_large_programs(gap: float) -> None:
    for seed in range(8):
        program = _gram_program(seed, 45, 0.3, 800)
        exact = branch_and_bound.solve(program, EXACT).objective
        loose = branch_and_bound.solve(program, SolveOptions(relative_gap=gap))
        assert exact is not None
        assert loose.bound is not None
        assert loose.bound >= exact - 1e-9


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


@pytest.mark.parametrize("m", [300, 301])
@pytest.mark.parametrize("kind", ["similar", "random", "alone", "concave", "two values"])
def test_large_matrices_are_shifted_by_little_more_than_needed(m: int, kind: str) -> None:
    rng = np.random.default_rng(m)
    vectors = rng.normal(size=(m, 40)) + 0.5
    M = {
        "similar": vectors @ vectors.T / 40,
        "random": rng.normal(size=(m, m)),
        "alone": np.zeros((m, m)),
        "concave": 2 * np.eye(m) - np.ones((m, m)) / (2 * m),
        "two values": np.ones((m, m)),
    }[kind]
    M = M + M.T
    if kind != "concave":
        np.fill_diagonal(M, 0.0)
    if kind == "alone":
        M[3, 7] = M[7, 3] = 0.5
    least, raised = np.linalg.eigvalsh(M)[0], nearly_shifted(M)
    assert np.linalg.eigvalsh(raised)[0] >= 0
    assert np.array_equal(raised - np.diag(np.diagonal(raised)), M - np.diag(np.diagonal(M)))
    shift = np.diagonal(raised - M)
    assert np.allclose(shift, shift[0])
    assert max(0.0, -least) <= shift[0] <= max(0.0, -1.011 * least) + 1e-8


def _splitting(problem: Problem) -> Splitting:
    return Splitting.of(problem, np.full(problem.m, 0.25), first_matrix(problem.A))


def test_a_start_near_the_relaxation_saves_steps() -> None:
    ahead = 0
    for seed in range(6):
        problem = presolve(_gram_program(seed, 40, 0.5, 700))
        assert problem is not None
        G = first_matrix(problem.A)
        root = Root(problem, G, np.zeros(0), np.zeros(problem.m), math.inf, -math.inf)
        x = relax_root(root, Incumbent(-math.inf, None), 1e-9, EXACT).x
        bounds = []
        for start in (Splitting.of(problem, x, G), Splitting.of(problem, 0 * x, 0 * G)):
            matrix = relaxation_matrix(problem, np.zeros(0), 8, math.inf, start)
            assert matrix is not None
            bounds.append(_root_bound(problem, matrix))
        ahead += bounds[0] < bounds[1]
    assert ahead >= 5


def test_a_relaxation_matrix_is_resumed_where_it_stopped_and_for_fewer_items() -> None:
    problem = presolve(_gram_program(1, 40, 0.3, 700))
    assert problem is not None
    nothing = np.zeros(0)
    straight = relaxation_matrix(problem, nothing, 30, math.inf, _splitting(problem))
    state = _splitting(problem)
    relaxation_matrix(problem, nothing, 12, math.inf, state)
    resumed = relaxation_matrix(problem, nothing, 18, math.inf, state)
    assert straight is not None
    assert resumed is not None
    assert np.allclose(resumed, straight, atol=1e-9)
    k = np.arange(0, problem.m, 2)
    part = problem.keep(k)
    matrix = relaxation_matrix(part, nothing, 2, math.inf, state.keep(k))
    from_nothing = Splitting.of(part, np.zeros(part.m), np.zeros((part.m, part.m)))
    cold = relaxation_matrix(part, nothing, 2, math.inf, from_nothing)
    assert matrix is not None
    assert cold is not None
    assert np.linalg.eigvalsh(matrix)[0] >= -1e-14
    assert np.all((part.A - matrix)[~np.eye(part.m, dtype=bool)] >= 0)
    assert _root_bound(part, matrix) < _root_bound(part, cold)


def test_a_relaxation_matrix_is_not_begun_without_time() -> None:
    problem = presolve(_gram_program(0, 40, 0.3, 700))
    assert problem is not None
    assert relaxation_matrix(problem, np.zeros(0), 30, time.perf_counter(), _splitting(problem)) is None


@pytest.mark.parametrize(("weight", "incumbent"), [(0.05, True), (1.0, False)])  # a diagonal; a whole matrix
def test_no_better_matrix_is_begun_without_time(weight: float, incumbent: bool) -> None:
    program = _gram_program(0, 40, weight, 700)
    problem = presolve(program)
    assert problem is not None
    value = branch_and_bound.solve(program, EXACT).objective if incumbent else None
    best = Incumbent(-math.inf, None)
    if value is not None:
        best = Incumbent((value - problem.base) / problem.scale - 1e-3, np.zeros(program.n, dtype=np.int8))
    start = Root(problem, first_matrix(problem.A), np.zeros(0), np.zeros(problem.m), math.inf, -math.inf)
    root = relax_root(start, best, 1e-9, EXACT)
    assert improved(root, best, 1e-9, EXACT, 0, math.inf)[0] is not None
    assert improved(root, best, 1e-9, EXACT, 0, time.perf_counter() + 1e-3)[0] is None


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
