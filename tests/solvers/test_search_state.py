"""The state of the search, recomputed from nothing: what its arrays hold must be what they are said to be."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.trust.checks import weak_starts
from mio_rag.formulations import LinearConstraint, Segments, SelectionProgram, nominal_program
from mio_rag.solvers import SolveOptions, branch_and_bound, kernel
from mio_rag.solvers.branch_and_bound import Search
from mio_rag.solvers.kernel import is_positive_definite
from mio_rag.solvers.presolve import presolve
from mio_rag.solvers.relaxation import Incumbent, Root, first_matrix, relax_root

EXACT = SolveOptions(time_limit_seconds=None)


def _program(seed: int, rows: bool, links: bool) -> SelectionProgram:
    rng = np.random.default_rng(seed)
    n = 60
    vectors = rng.normal(size=(n, 64)) + 0.6
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    nominal = nominal_program(
        rng.uniform(0.2, 0.7, n), vectors @ vectors.T, rng.integers(15, 160, n), 900, redundancy_weight=0.3
    )
    pairwise = np.array(nominal.pairwise)
    for i, j in rng.integers(0, n, (20 if links else 0, 2)):
        if i != j:
            pairwise[i, j] = pairwise[j, i] = pairwise[i, j] - 0.15
    given = (LinearConstraint(rng.integers(-2, 4, n).astype(float), upper=6.0),) if rows else ()
    return SelectionProgram(nominal.linear, pairwise, nominal.costs, nominal.budget, given)


def _with_segments(program: SelectionProgram) -> SelectionProgram:
    """Most of the costs move to what neighbours and groups of ten share, at a price."""
    n = program.n
    needs = [[i // 2, n + i // 3, 2 * n + i // 10] for i in range(n)]
    costs = np.random.default_rng(n).integers(5, 60, 3 * n).astype(np.float64)
    return replace(program, costs=program.costs // 4, segments=Segments(costs, needs, 3e-4 * costs))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("rows", "links"), [(False, False), (True, False), (False, True), (True, True)])
def test_every_open_node_is_what_it_says(rows: bool, links: bool, shared: bool) -> None:
    lowered = paid = 0
    for seed in range(3):
        program = _program(seed, rows, links)
        program = _with_segments(program) if shared else program
        problem = presolve(program)
        assert problem is not None
        assert (problem.sharing is not None) == shared
        optimum = branch_and_bound.solve(program, EXACT).objective
        best = branch_and_bound._start(program, problem, np.zeros(0), math.inf, 0)
        none, point = np.zeros(problem.w.size), np.zeros(problem.m)
        root = Root(problem, first_matrix(problem.A), none, point, math.inf, -math.inf)
        root = relax_root(root, best, 1e-9, EXACT)
        search = Search(program, root, best, 1e-9, 0.0)
        for limit in (1, 2, 3, 5, 8, 13, 40, 41, 100, 300, 301, 302, 700):
            search.run(math.inf, limit)
            assert problem.base + search.bound * problem.scale >= optimum - 1e-9
            paid += _recompute(search, root)
        lowered += int((search.tree.delta > 0).sum())
    assert rows or links or shared or lowered > 0  # somewhere, part of the diagonal was taken off
    assert (paid > 0) == shared


def _recompute(search: Search, root: Root) -> int:
    """Compare the open nodes with their definition; return how many segments are paid for in them."""
    s, G, problem, sharing = search.tree, root.G, root.problem, root.problem.sharing
    shift, depth, seen = problem.W.T @ root.lam, int(search.numbers[kernel.DEPTH]), 0
    # The shares of the tree that are over and those that are open make the whole.
    assert search.numbers[kernel.DONE] + s.weight[: depth + 1].sum() == pytest.approx(1, abs=1e-12)
    for d in range(depth + 1):
        m, taken = s.size[d], s.chosen[d, : s.length[d]]
        ids, x = s.ids[d, :m], s.X[d, :m]
        own = G[np.ix_(ids, ids)] - s.delta[d] * np.eye(m)
        assert np.intersect1d(ids, taken).size == 0
        assert np.allclose(s.GX[d, :m], own @ x, atol=1e-10)
        if m:
            assert np.linalg.eigvalsh(own)[0] >= -1e-12 * m
        chosen = np.zeros(problem.m, dtype=np.int8)
        chosen[taken] = 1
        cost = problem.c @ chosen if sharing is None else sharing.cost_of(chosen)
        assert s.room[d] == pytest.approx(problem.room - cost, abs=1e-9)
        value = problem.value(chosen)
        assert s.base[d] == pytest.approx(value, abs=1e-10)
        assert s.lag[d] == pytest.approx(root.lam @ problem.w + value - shift[taken].sum(), abs=1e-10)
        gains = problem.data.p[ids] - shift[ids] - problem.A[np.ix_(ids, taken)].sum(axis=1)
        assert np.allclose(s.P[d, :m], gains, atol=1e-10)
        for r in range(problem.w.size):
            assert s.activity[d, r] == pytest.approx(problem.W[r, taken].sum(), abs=1e-9)
        if sharing is not None:
            assert np.array_equal(s.paid[d], sharing.needs[taken].any(axis=0))
            seen += int(s.paid[d].sum())
            items, segments = sharing.users
            borne, still_open = np.zeros(sharing.cost.size), np.isin(items, ids)
            np.add.at(borne, segments[still_open], s.share[d][still_open])
            assert borne[~s.paid[d]].max(initial=0.0) <= 1.0
    return seen


def test_the_factorization_agrees_with_eigenvalues() -> None:
    rng = np.random.default_rng(1)
    answers = set()
    for _ in range(400):
        n = int(rng.integers(1, 30))
        half = rng.normal(size=(n, int(rng.integers(1, 2 * n + 1))))
        G = half @ half.T / n
        m = int(rng.integers(1, n + 1))
        ids = rng.permutation(n)[:m]
        delta = float(rng.choice([0.0, 0.5, 1.5]) * rng.random() * np.diag(G).min())
        least = np.linalg.eigvalsh(G[np.ix_(ids, ids)])[0] - delta
        said = is_positive_definite(G, ids, m, delta, np.empty((n, n)), np.empty(n))
        assert said or least < 1e-8
        assert not said or least > -1e-13
        answers.add(said)
    assert answers == {True, False}


@pytest.mark.parametrize(("n", "weight", "budget"), [(44, 0.3, 800), (40, 1.0, 600)])
def test_searches_from_good_and_bad_incumbents_agree(n: int, weight: float, budget: int) -> None:
    """A good start hides a wrong bound; a bad one makes the search prove everything itself."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        vectors = rng.normal(size=(n, 64)) + 0.6
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        costs = rng.integers(15, 160, n)
        program = nominal_program(
            rng.uniform(0.2, 0.7, n), vectors @ vectors.T, costs, budget, redundancy_weight=weight
        )
        good = branch_and_bound.solve(program, EXACT)
        with weak_starts():
            bad = branch_and_bound.solve(program, EXACT)
            stopped = [branch_and_bound.solve(program, EXACT, max_nodes=k).bound for k in (1, 10, 60)]
        assert good.is_optimal
        assert bad.is_optimal
        assert good.objective == pytest.approx(bad.objective, abs=2e-6)
        assert min(b for b in stopped if b is not None) >= max(good.objective, bad.objective) - 1e-9


def test_an_incumbent_above_everything_prunes_everything_and_keeps_the_bound() -> None:
    """What is pruned stays in the bound, also where nothing below the incumbent is left."""
    program = _program(0, False, False)
    problem = presolve(program)
    assert problem is not None
    optimum = branch_and_bound.solve(program, EXACT).objective
    assert optimum is not None
    floor = (optimum - problem.base) / problem.scale
    start = Root(problem, first_matrix(problem.A), np.zeros(0), np.zeros(problem.m), math.inf, -math.inf)
    for share in (0.5, 0.8, 0.95):
        weak = Incumbent(share * floor, np.zeros(program.n, dtype=np.int8))
        for gap in (0.02, 0.3):
            root = relax_root(start, weak, 1e-9, SolveOptions(relative_gap=gap))
            search = Search(program, root, Incumbent(weak.value, weak.x), 1e-9, gap)
            search.run(math.inf, math.inf)
            assert search.bound >= floor - 1e-12


@pytest.mark.parametrize(("rows", "links"), [(False, False), (True, True)])
def test_an_incumbent_just_below_the_optimum_does_not_prune_it(rows: bool, links: bool) -> None:
    """Nodes with the optimum in them are then within a hair of being pruned, whatever the means."""
    for seed in range(6):
        program = _program(seed, rows, links)
        problem = presolve(program)
        assert problem is not None
        optimum = branch_and_bound.solve(program, EXACT).objective
        assert optimum is not None
        floor = (optimum - problem.base) / problem.scale
        nothing, rowless = np.zeros(problem.m), np.zeros(problem.w.size)
        start = Root(problem, first_matrix(problem.A), rowless, nothing, math.inf, -math.inf)
        for below in (1e-6, 1e-4, 1e-3, 3e-3, 0.01, 0.03):
            near = Incumbent(floor * (1 - below), np.zeros(program.n, dtype=np.int8))
            root = relax_root(start, near, 1e-9, EXACT)
            search = Search(program, root, near, 1e-9, 0.0)
            assert search.run(math.inf, math.inf) is None
            assert near.value == pytest.approx(floor, abs=1e-8)
            assert search.bound >= floor - 1e-10
