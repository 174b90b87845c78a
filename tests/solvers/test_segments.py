"""Programs with segments: every back end, presolve, shares of their cost, and what must not change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize

from mio_rag.errors import InputError
from mio_rag.formulations import (
    LinearConstraint,
    Segments,
    SelectionProgram,
    precedence_program,
    with_token_price,
)
from mio_rag.frontier.paths import budget_path
from mio_rag.solvers import SolveOptions, Status, bounds, branch_and_bound, solve
from mio_rag.solvers.paths import find_conflict
from mio_rag.solvers.presolve import presolve
from mio_rag.solvers.relaxation import Incumbent, Root, first_matrix, relax_root
from mio_rag.solvers.result import upper_bound
from mio_rag.testing.programs import random_shared_program

EXACT = SolveOptions(time_limit_seconds=None)


def shared(seed: int, n_max: int = 9) -> SelectionProgram:
    return random_shared_program(np.random.default_rng([31, seed]), n_max)


def halves(budget: float) -> SelectionProgram:
    """Windows of 60 tokens that overlap by half: the middle one pays only beside its neighbours."""
    shared = Segments([30, 30, 30, 30], [[0, 1], [1, 2], [2, 3]])
    return SelectionProgram([3, 1, 2.5], np.zeros((3, 3)), np.zeros(3), budget, segments=shared)


def windows(n: int, budget: float, seed: int = 0, pairs: bool = True) -> SelectionProgram:
    """Windows of three parts, of which neighbours repeat one, in documents of ten with a title."""
    rng = np.random.default_rng(seed)
    needs = [[2 * i, 2 * i + 1, 2 * i + 2, 2 * n + 1 + i // 10] for i in range(n)]
    costs = rng.integers(20, 40, 2 * n + 1 + -(-n // 10)).astype(np.float64)
    value = rng.random(n) ** 4
    vectors = rng.normal(size=(n, 6)) + 1.0
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pairwise = 0.3 * np.sqrt(np.outer(value, value)) * (vectors @ vectors.T) * pairs
    np.fill_diagonal(pairwise, 0.0)
    return SelectionProgram(value, pairwise, np.full(n, 2.0), budget, segments=Segments(costs, needs))


def decisions(rng: np.random.Generator, m: int, count: int = 40):
    return [(rng.random(m) < rng.random()).astype(np.int8) for _ in range(count)]


def test_the_simple_bound_holds_and_charges_for_segments() -> None:
    parts = Segments([10.0], [[0], [0]])
    pair = SelectionProgram([1, 1], np.zeros((2, 2)), [1, 1], 9, segments=parts)
    assert upper_bound(pair) == 0  # two that share a segment cannot both be had for less than it costs
    assert upper_bound(replace(pair, budget=12)) == 2
    assert upper_bound(replace(pair, budget=12, segments=replace(parts, prices=[0.5]))) == pytest.approx(1.5)


@pytest.mark.parametrize("solver", ["branch_and_bound", "highs", "cpsat"])
def test_a_conflict_counts_what_is_shared_once(solver: str) -> None:
    given = replace(halves(80), rows=(LinearConstraint([1, 1, 1], lower=2, name="at least 2 passages"),))
    assert solve(given, solver).status is Status.INFEASIBLE
    conflict = find_conflict(given, ["a", "b", "c"], solver)
    assert conflict is not None
    assert conflict.parts == ("at most 80 tokens", "at least 2 passages")
    assert conflict.smallest_budget == 90


def test_the_staircase_of_budgets_counts_what_is_shared_once() -> None:
    steps = budget_path(halves(150)).steps
    assert [(s.tokens, s.value) for s in steps] == [(0, 0), (60, 3), (90, 4), (120, 6.5)]
    with pytest.raises(InputError, match="whole numbers"):
        budget_path(replace(halves(150), segments=Segments([30.5], [[0], [0], []])))


def test_presolve_keeps_value_and_cost_of_every_decision() -> None:
    rng, seen = np.random.default_rng(0), 0
    for seed in range(200):
        given = shared(seed)
        problem = presolve(given)
        if problem is None:
            continue
        seen += problem.sharing is not None
        for x in decisions(rng, problem.m, 10):
            full = (given.fixed == 1).astype(np.int8)
            full[problem.items[x > 0]] = 1
            assert problem.base + problem.scale * problem.value(x) == pytest.approx(
                given.objective(full), abs=1e-9
            )
            broken = [text for text in given.violations(full) if "cost" in text]
            cost = problem.c @ x if problem.sharing is None else problem.sharing.cost_of(x)
            assert (cost > problem.room) == bool(broken), seed
    assert seen > 60


def test_shares_never_overstate_a_cost_nor_understate_a_value() -> None:
    rng = np.random.default_rng(1)
    for seed in range(150):
        problem = presolve(shared(seed))
        if problem is None or problem.sharing is None:
            continue
        sharing = problem.sharing
        raw = rng.random(sharing.users[0].size)
        kept = sharing.keep(np.flatnonzero(rng.random(problem.m) < 0.7))
        for one in (sharing, problem.with_shares(raw).sharing.keep(np.arange(problem.m)), kept):
            assert one.share.sum(axis=0).max(initial=0.0) <= 1.0
            assert not one.share[~one.needs].any()
            p, c = one.shared_out()
            for x in decisions(rng, p.size, 10):
                assert c @ x <= one.cost_of(x) * (1 + 1e-12)
                assert p @ x >= one.value_of(x) - 1e-12


def test_without_anything_shared_it_is_the_program_with_costs_of_its_own() -> None:
    base = windows(30, 400)
    plain = replace(base, costs=base.costs + 70, segments=None)
    own = replace(base, segments=Segments(np.full(30, 70.0), np.eye(30, dtype=bool)))
    paid = Segments(np.array([50.0]), np.ones((30, 1), dtype=bool))  # by what is fixed to be in
    fixed = np.full(30, -1)
    fixed[3] = 1
    held = replace(plain, fixed=fixed, segments=paid, budget=450)
    one, other = (solve(p, "branch_and_bound", EXACT) for p in (plain, own))
    assert (one.objective, one.bound, one.nodes, one.selected) == (
        other.objective,
        other.bound,
        other.nodes,
        other.selected,
    )
    assert solve(held, "branch_and_bound", EXACT).selected == (
        solve(replace(plain, fixed=fixed), "branch_and_bound", EXACT).selected
    )


def test_with_the_best_shares_the_relaxation_is_that_of_the_rows() -> None:
    """Strong duality: without pairs, the bound is that of the linear program with a row for each need."""
    for seed in range(12):
        given = with_token_price(windows(24, 350, seed, pairs=False), 0.0005 * (seed % 3))
        problem = presolve(given)
        assert problem is not None
        assert problem.sharing is not None
        rows = precedence_program(given)
        found = scipy.optimize.linprog(
            -rows.linear,
            A_ub=np.vstack([rows.costs, *(row.coefficients for row in rows.rows)]),
            b_ub=[rows.budget, *([0.0] * len(rows.rows))],
            bounds=(0, 1),
        )
        best = solve(given, "branch_and_bound", EXACT)
        assert best.x is not None
        incumbent = Incumbent(problem.value(best.x[problem.items]), best.x)
        root = Root(problem, 0 * problem.A, np.zeros(0), np.zeros(problem.m), np.inf, -np.inf)
        bound = problem.scale * relax_root(root, incumbent, 1e-9, EXACT).bound
        equal = problem.scale * _bound_of_equal_shares(problem)
        gap, loose = bound - best.objective, -found.fun - best.objective
        assert bound >= best.objective - 1e-9
        assert gap <= max(1.2 * loose, loose + 0.02 * (equal - best.objective)) + 1e-6


def _bound_of_equal_shares(problem) -> float:
    share = problem.sharing.share[problem.sharing.users].copy()
    x = np.zeros(problem.m)
    return _spread(problem, 0 * problem.A, share, x, 1)


def _spread(problem, G, share, x, rounds: int, goal: float = 0.0) -> float:
    sharing = problem.sharing
    return bounds.spread(
        sharing.p, G, sharing.c, problem.room, 0.0, problem.needs, share, x, -np.inf, goal, rounds, 300
    )


def test_no_shares_make_a_bound_below_the_optimum() -> None:
    branch_and_bound.warmup()
    rng = np.random.default_rng(3)
    for seed in range(120):
        given = replace(shared(seed), rows=())
        problem, truth = presolve(given), solve(given, "exhaustive")
        if problem is None or problem.sharing is None or truth.objective is None:
            continue
        share = rng.random(problem.sharing.users[0].size) * float(rng.choice([0.0, 1.0, 100.0]))
        x = rng.random(problem.m) * (rng.random() < 0.5)
        rounds = int(rng.integers(1, 12))
        bound = _spread(problem, first_matrix(problem.A), share, x, rounds, float(rng.normal()))
        assert problem.base + problem.scale * bound >= truth.objective - 1e-7 * problem.scale, seed


@pytest.mark.parametrize("method", ["greedy", "local_search", "density"])
def test_heuristics_know_that_a_neighbour_is_cheap(method: str) -> None:
    """Beside window 0, window 1 costs half of what the better window 2 does."""
    halves = Segments([30, 30, 30, 30, 30], [[0, 1], [1, 2], [3, 4]])
    given = SelectionProgram([9, 4, 5], np.zeros((3, 3)), np.zeros(3), 90, segments=halves)
    assert solve(given, method).selected == (0, 1)
