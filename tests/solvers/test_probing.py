"""Probing: what is dropped must be hopeless, by enumeration; and it must drop more than reduced costs do."""

import math

import numpy as np
import pytest

from mio_rag.formulations import LinearConstraint, SelectionProgram
from mio_rag.solvers import SolveOptions, kernel
from mio_rag.solvers.backends import solve_exhaustive
from mio_rag.solvers.presolve import presolve
from mio_rag.solvers.relaxation import Incumbent, Root, first_matrix, probed, relax_root

EXACT = SolveOptions(time_limit_seconds=None)
N = 11


def _program(seed: int, rows: bool, links: bool, n: int = N) -> SelectionProgram:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 6)) + 0.5
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    penalties = rng.uniform(0.05, 0.4) * (vectors @ vectors.T)
    np.fill_diagonal(penalties, 0.0)
    for i, j in rng.integers(0, n, (n // 2 if links else 0, 2)):
        if i != j:
            penalties[i, j] = penalties[j, i] = penalties[i, j] - 0.2
    given = (LinearConstraint(rng.integers(-1, 4, n).astype(float), upper=4.0),) if rows else ()
    costs = rng.integers(10, 60, n)
    if seed % 3 == 0:
        costs[rng.random(n) < 0.4] = 0
        costs[0] = 140  # with it, these alone still fit
    elif seed % 3 == 1 and n == N:
        costs = rng.choice([35, 70, 105], n)  # they fill the budget exactly, and one leaves others no room
    return SelectionProgram(rng.uniform(0.0, 1.0, n), penalties, costs, 140, given)


def _root(program: SelectionProgram, best: Incumbent) -> Root:
    problem = presolve(program)
    assert problem is not None
    nothing, rows = np.zeros(problem.m), np.zeros(problem.w.size)
    start = Root(problem, first_matrix(problem.A), rows, nothing, math.inf, -math.inf)
    return relax_root(start, best, 1e-9, EXACT)


def _best_with(program: SelectionProgram, item: int) -> float:
    assert program.fixed is not None
    fixed = np.array(program.fixed)
    fixed[item] = 1
    result = solve_exhaustive(
        SelectionProgram(
            program.linear, program.pairwise, program.costs, program.budget, program.rows, fixed
        ),
        EXACT,
    )
    return -math.inf if result.objective is None else result.objective


@pytest.mark.parametrize(("rows", "links"), [(False, False), (True, False), (False, True), (True, True)])
def test_items_that_are_dropped_are_hopeless(rows: bool, links: bool) -> None:
    found = 0
    for seed in range(20):
        program = _program(seed, rows, links)
        optimum = solve_exhaustive(program, EXACT).objective
        assert optimum is not None
        problem = presolve(program)
        assert problem is not None
        for short in (0.0, 0.05, 0.3):  # incumbents that are optimal, and weaker ones
            value = (optimum - problem.base) / problem.scale - short
            best = Incumbent(value, np.zeros(program.n, dtype=np.int8))
            root = _root(program, best)
            after = probed(root, value + 1e-9, math.inf, fewest=0)
            gone = np.setdiff1d(root.problem.items, after.problem.items)
            found += gone.size
            for item in gone:
                reach = (_best_with(program, int(item)) - problem.base) / problem.scale
                assert reach <= value + 1e-7
                assert reach <= after.dropped + 1e-7  # the search's bound covers it
            k = np.flatnonzero(np.isin(root.problem.items, after.problem.items))
            assert np.array_equal(after.G, root.G[np.ix_(k, k)])
            assert np.array_equal(after.problem.A, root.problem.A[np.ix_(k, k)])
    assert found > 25  # beyond what reduced costs had dropped


def test_the_bound_of_a_probe_holds_wherever_it_stops() -> None:
    for seed in range(20):
        program = _program(seed, rows=False, links=seed % 2 == 0)
        root = _root(program, Incumbent(-math.inf, None))
        problem = root.problem
        q = problem.p + 0.5 * np.diagonal(root.G)
        for item in range(problem.m):
            reach = (_best_with(program, int(problem.items[item])) - problem.base) / problem.scale
            for steps in (0, 1, 3, 200):
                out = np.zeros(problem.m, dtype=np.int8)
                bound, stayed = kernel.probe(
                    problem.A,
                    root.G,
                    q,
                    problem.c,
                    problem.cr,
                    problem.room,
                    problem.extra,
                    0.0,
                    root.x,
                    root.G @ root.x,
                    np.array([item]),
                    steps,
                    math.inf,
                    out,
                )
                assert bound >= reach - 1e-9
                assert (stayed, int(out.sum())) == (0, 1)
