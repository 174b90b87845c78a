"""The exact kernel: right against enumeration and HiGHS, certified wherever it stops, its parts sound.

`check_all` solves a program to the end, to node, time and gap limits, and compares every certificate with the
truth. Some tests force later stages to begin early, or start from weak selections, which would otherwise hide
wrong bounds.
"""

import math
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.trust.checks import check_all, check_path, complaint, forced_stages, weak_starts
from benchmarks.trust.command import check_family, check_program
from benchmarks.trust.draw import draw
from benchmarks.trust.oracle import enumerate_all
from mio_rag.formulations import LinearConstraint, Segments, SelectionProgram
from mio_rag.solvers import (
    SolveOptions,
    Status,
    branch_and_bound,
    incumbents,
    kernel,
    relaxation,
    solve,
)
from mio_rag.solvers.backends import solve_exhaustive
from mio_rag.solvers.branch_and_bound import Search, WarmStart
from mio_rag.solvers.presolve import Problem, presolve
from mio_rag.solvers.relaxation import (
    Incumbent,
    Root,
    Splitting,
    better_diagonal,
    core_matrix,
    dominated,
    first_matrix,
    probed,
    relax_root,
    relaxation_matrix,
)

EXACT = SolveOptions(time_limit_seconds=None)
SEEDS = st.integers(0, 2**16)


def programs(n_min: int = 0, with_rows: bool = True) -> st.SearchStrategy[SelectionProgram]:
    """Programs of odd scales and edges, up to nine items; without segments and rows where asked."""

    def drawn(seed: int) -> SelectionProgram:
        program, _ = draw(np.random.default_rng(seed), 9, shared=with_rows and seed % 2 == 1)
        return program if with_rows else replace(program, rows=())

    return st.integers(0, 2**20).map(drawn).filter(lambda program: program.n >= n_min)


def similar(
    seed: int, n: int, weight: float, budget: int, *, rows: bool = False, links: int = 0, shared: bool = False
) -> SelectionProgram:
    """Passages of similar directions; links between some, rows of mixed signs, and costs that are shared."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 64)) + 0.6
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance, costs = rng.uniform(0.2, 0.7, n), rng.integers(15, 160, n)
    pairwise = weight * (vectors @ vectors.T)
    np.fill_diagonal(pairwise, 0.0)
    for i, j in rng.integers(0, n, (links, 2)):
        if i != j:
            pairwise[i, j] = pairwise[j, i] = pairwise[i, j] - 0.15
    given = (LinearConstraint(rng.integers(-2, 4, n).astype(float), upper=6.0),) if rows else ()
    program = SelectionProgram(relevance, pairwise, costs, budget, given)
    if not shared:
        return program
    needs = [[i // 2, n + i // 3, 2 * n + i // 10] for i in range(n)]
    parts = rng.integers(5, 60, 3 * n).astype(np.float64)
    return replace(program, costs=program.costs // 4, segments=Segments(parts, needs, 3e-4 * parts))


def root_of(problem: Problem | None, best: Incumbent, options: SolveOptions = EXACT, G=None) -> Root:
    """The relaxation of a problem with its first matrix, or another one."""
    assert problem is not None
    matrix = first_matrix(problem.A) if G is None else G
    start = Root(problem, matrix, np.zeros(problem.w.size), np.zeros(problem.m), math.inf, -math.inf)
    return relax_root(start, best, 1e-9, options)


@settings(max_examples=120, deadline=None)
@given(program=programs(), seed=SEEDS)
def test_every_certificate_holds(program: SelectionProgram, seed: int) -> None:
    assert check_all(program, np.random.default_rng(seed), Counter()) == []


@settings(max_examples=120, deadline=None)
@given(
    program=programs(n_min=4),
    seed=SEEDS,
    after_nodes=st.integers(0, 3),
    narrow_gap=st.sampled_from([0.0, 0.03, 1e9]),
    efforts=st.sampled_from([(1, 2), (3, 6, 12), (10, 20)]),
    weak=st.booleans(),
)
def test_every_certificate_holds_where_later_stages_are_forced(
    program: SelectionProgram,
    seed: int,
    after_nodes: int,
    narrow_gap: float,
    efforts: tuple[int, ...],
    weak: bool,
) -> None:
    rng = np.random.default_rng(seed)
    with forced_stages(after_nodes, narrow_gap, efforts), weak_starts() if weak else nullcontext():
        assert check_all(program, rng, Counter()) == []
        assert check_path(program, rng, Counter()) == []


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("k", range(12))
def test_every_certificate_of_random_programs_holds(k: int, shared: bool) -> None:
    assert check_program(5, k, Counter(), shared=shared) == []


@pytest.mark.parametrize("part", range(4))
def test_ten_thousand_small_programs_are_solved_to_their_optima(part: int) -> None:
    counts: Counter[str] = Counter()
    assert [one for k in range(305) for one in check_family(100 + part, k, counts)] == []
    assert counts["programs"] > 2500
    assert counts["optimal, but for the tolerance"] < 10
    assert counts["reached a better matrix"] > 50


@pytest.mark.parametrize(("seed", "k"), [(0, 3467), (1, 185), (1, 543)])
def test_parts_that_are_worth_nothing_but_for_what_they_share_get_a_matrix(seed: int, k: int) -> None:
    assert check_family(seed, k, Counter()) == []


def test_agrees_with_highs_beyond_the_reach_of_enumeration() -> None:
    for seed in range(4):
        program = similar(seed, 26, 0.15, 400, shared=seed == 3)
        ours = branch_and_bound.solve(program, EXACT)
        theirs = solve(program, "highs-glover", SolveOptions(time_limit_seconds=60))
        assert ours.is_optimal
        assert ours.objective <= theirs.bound + 1e-6
        assert theirs.objective <= ours.objective + 2e-6


@settings(max_examples=100, deadline=None)
@given(program=programs(n_min=1), rounds=st.integers(0, 12), point=st.booleans(), seed=SEEDS)
def test_incumbents_keep_the_rows_and_are_local_optima(
    program: SelectionProgram, rounds: int, point: bool, seed: int
) -> None:
    problem = presolve(program)
    if problem is None or problem.m == 0:
        return
    start = np.random.default_rng(seed).random(problem.m) if point else np.zeros(0)
    nobody = np.zeros(0, dtype=np.int8)
    found, value, x = incumbents.incumbent(problem.data, problem.needs, start, 8, rounds, nobody, seed)
    if not found:
        return
    _, again, _ = incumbents.incumbent(problem.data, problem.needs, start, 8, rounds, x, seed + 1)
    assert again >= value - 1e-12  # from a known selection on, never worse
    assert problem.feasible(x)
    assert value == pytest.approx(problem.value(x), abs=1e-9)
    for i in range(problem.m):
        for j in range(problem.m):
            moved = x.copy()
            moved[i], moved[j] = 1 - moved[i], (moved[j] if i == j else 1 - moved[j])
            swap = i == j or moved.sum() == x.sum()
            if swap and problem.feasible(moved):
                assert problem.value(moved) <= value + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    program=programs(n_min=3, with_rows=False),
    steps=st.integers(1, 12),
    links=st.sampled_from([0.0, 1e2, 1e6]),
    growth=st.sampled_from([0.0, 0.3, 1.0, 7.0]),
    uneven=st.one_of(st.none(), SEEDS),
)
def test_matrices_are_semidefinite_and_below_the_penalties(
    program: SelectionProgram, steps: int, links: float, growth: float, uneven: int | None
) -> None:
    pairwise = np.array(program.pairwise)
    pairwise[0, 1] = pairwise[1, 0] = pairwise[0, 1] - links
    free = SelectionProgram(program.linear, pairwise, program.costs, program.budget)
    each = np.ones(pairwise.shape) if uneven is None else np.random.default_rng(uneven).random(pairwise.shape)
    grown = growth * (each + each.T) * pairwise
    later = SelectionProgram(program.linear, grown, program.costs, program.budget + 1)
    problem, after = presolve(free), presolve(later)
    if problem is None or after is None or problem.m < 3 or not np.any(problem.A):
        return
    scale = float(np.abs(problem.A).max())
    if scale <= 1e-12:
        return
    start = Splitting.of(problem, np.full(problem.m, 0.5), first_matrix(problem.A))
    conic = relaxation_matrix(problem, np.zeros(0), steps, np.inf, start)
    point = np.where(np.arange(problem.m) % 2, 0.0, 0.4)
    core = core_matrix(problem, np.zeros(0), first_matrix(problem.A), point, steps, np.inf)
    warm = WarmStart()
    assert conic is not None
    warm.keep(problem, conic)
    made = [
        (problem.A, dominated(problem.A)),
        (problem.A, first_matrix(problem.A)),
        (problem.A, better_diagonal(first_matrix(problem.A), np.full(problem.m, 0.5), scale)),
        (problem.A, conic),
        (problem.A, core),
        (after.A, warm.matrix_for(after)),
    ]
    for A, G in made:
        if G is None:
            continue
        assert np.array_equal(G, G.T)
        assert np.linalg.eigvalsh(G)[0] >= -1e-14 * max(1.0, float(np.abs(G).max())) * len(G)
        assert np.all((G - A)[~np.eye(len(G), dtype=bool)] <= 0)


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e-150, 1e-20, 1e20, 1e150, 1e300])
@pytest.mark.parametrize("what", ["costs", "some costs", "row", "penalties"])
def test_numbers_of_any_size(size: float, what: str) -> None:
    rng = np.random.default_rng(3)
    raw = np.triu(rng.normal(size=(12, 12)), 1)
    pairwise, costs = raw + raw.T, rng.integers(1, 50, 12).astype(np.float64)
    rows: tuple[LinearConstraint, ...] = ()
    if what == "costs":
        costs = costs * size
    elif what == "some costs":
        costs[::2] *= size
    elif what == "row":
        coefficients = size * rng.normal(size=12)
        rows = (LinearConstraint(coefficients, upper=float(coefficients[:5].sum())),)
    else:
        pairwise = size * pairwise
    program = SelectionProgram(rng.random(12), pairwise, costs, float(costs.sum() / 2), rows)
    with warnings.catch_warnings(), forced_stages(0, 0.0, (2, 4)):
        warnings.filterwarnings("error", module=r"mio_rag\.solvers\.(presolve|relaxation|branch_and_bound)")
        assert check_all(program, rng, Counter()) == []
        assert check_path(program, rng, Counter()) == []


def test_a_relative_gap_above_one_is_met_where_incumbents_start_below_zero() -> None:
    for seed in (258, 545, 716, 785):  # stopped without a limit and without the gap
        rng = np.random.default_rng(seed)
        raw = np.triu(rng.normal(size=(14, 14)), 1)
        rows = (
            LinearConstraint(np.ones(14), lower=5),
            LinearConstraint(rng.normal(size=14).round(1), lower=1.0),
        )
        linear = rng.normal(size=14) - rng.choice([0.5, 1.0, 2.0])
        program = SelectionProgram(linear, raw + raw.T, rng.integers(1, 9, 14), 25, rows)
        for gap in (1.5, 3.0, 10.0):
            assert branch_and_bound.solve(program, SolveOptions(relative_gap=gap)).is_optimal


def test_a_loose_gap_bounds_what_earlier_stages_dropped() -> None:
    """A later stage's root bound is over what is left; forgetting that is wrong on three of these."""
    options = SolveOptions(time_limit_seconds=None, relative_gap=0.9)
    for seed in (*range(20), 63, 78):
        rng = np.random.default_rng(seed)
        raw = np.triu(rng.normal(size=(13, 13)) * rng.choice([0.3, 1]), 1)
        linear = rng.normal(size=13) + rng.choice([0.0, 0.5, 1.0])
        program = SelectionProgram(linear, raw + raw.T, rng.integers(1, 9, 13), 25)
        with (
            weak_starts(),
            forced_stages(int(rng.integers(0, 3)), float(rng.choice([0, 0.03, 1e9])), (2, 4, 8)),
        ):
            result = branch_and_bound.solve(program, options)
        assert complaint(program, enumerate_all(program), result, options, True) is None


def test_huge_multipliers_of_huge_rows_leave_the_digits_of_values() -> None:
    pairs = np.zeros((4, 4))
    pairs[0, 1], pairs[1, 2:] = 3.584e6, 1e12
    rows = [([1, 1, 0, 0], 2), ([1, 0, 1, 0], 1), ([0, 1, 0, 1], 1)]
    needed = tuple(LinearConstraint(1e8 * np.array(row), lower=1e8 * least) for row, least in rows)
    linear = [883e3, 589e3, -301e3, -181e3]
    result = branch_and_bound.solve(SelectionProgram(linear, pairs + pairs.T, [0] * 4, 1, needed), EXACT)
    assert (result.is_optimal, result.selected) == (True, (0, 1))
    pairs, cap = np.zeros((4, 4)), LinearConstraint([0, 0, 1e-6, 1e-6], upper=1e-6)
    pairs[0, 3], pairs[1, 3] = 1e9, -1e-7  # beside which bounds of 1e-5 are rounded
    mixed = LinearConstraint([6.3e-7, 2.3e-7, -1.34e-6, 1.88e-6], upper=-1.026e-6)
    linear, costs = [3.77e-6, 1e-6, 6.85e-6, 2.231e-5], [0, 0, 3e-6, 2e-6]
    result = branch_and_bound.solve(
        SelectionProgram(linear, pairs + pairs.T, costs, 6e-6, (cap, mixed)), EXACT
    )
    assert (result.status, result.selected) == (Status.FEASIBLE, (1, 2))
    assert "differ too much in size" in result.message


def test_sizes_that_float64_cannot_resolve_are_told_and_not_called_optimal() -> None:
    unresolved = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        raw = np.triu(1e-6 * rng.normal(size=(11, 11)), 1)
        raw[0, 1] = raw[2, 3] = raw[0, 4] = 1e9
        row = LinearConstraint(np.ones(11), lower=4.0)
        linear = 1e-4 * rng.normal(size=11)
        program = SelectionProgram(linear, raw + raw.T, rng.integers(1, 9, 11), 30, (row,))
        with weak_starts(), forced_stages(1, relaxation._NARROW_GAP, relaxation._EFFORTS):
            result = branch_and_bound.solve(program, SolveOptions())
        assert complaint(program, enumerate_all(program), result, SolveOptions(), True) is None
        if result.status is not Status.OPTIMAL:
            unresolved += 1
            assert result.status is Status.FEASIBLE
            assert "differ too much in size" in result.message
            assert result.message in result.certificate()
    assert unresolved > 0


def test_the_same_program_gives_the_same_search_for_any_seed_and_thread_count() -> None:
    program = similar(3, 45, 0.3, 700)
    results = [
        branch_and_bound.solve(program, SolveOptions(seed=seed, threads=threads))
        for seed, threads in ((0, 1), (5, 1), (0, 2))
    ]
    assert len({(r.nodes, r.selected, r.objective) for r in results}) == 1


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


# Probing: what it drops is hopeless, by enumeration.


def short_passages(seed: int, rows: bool, links: bool, n: int = 11) -> SelectionProgram:
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
    elif seed % 3 == 1 and n == 11:
        costs = rng.choice([35, 70, 105], n)  # they fill the budget exactly, and one leaves others no room
    return SelectionProgram(rng.uniform(0.0, 1.0, n), penalties, costs, 140, given)


def best_with(program: SelectionProgram, item: int) -> float:
    fixed = np.array(program.fixed)
    fixed[item] = 1
    result = solve_exhaustive(replace(program, fixed=fixed), EXACT)
    return -math.inf if result.objective is None else result.objective


@pytest.mark.parametrize(("rows", "links"), [(False, False), (True, False), (False, True), (True, True)])
def test_items_that_are_dropped_are_hopeless(rows: bool, links: bool) -> None:
    found = 0
    for seed in range(20):
        program = short_passages(seed, rows, links)
        optimum = solve_exhaustive(program, EXACT).objective
        problem = presolve(program)
        for short in (0.0, 0.05, 0.3):  # incumbents that are optimal, and weaker ones
            value = (optimum - problem.base) / problem.scale - short
            best = Incumbent(value, np.zeros(program.n, dtype=np.int8))
            root = root_of(problem, best)
            after = probed(root, value + 1e-9, math.inf, fewest=0)
            gone = np.setdiff1d(root.problem.items, after.problem.items)
            found += gone.size
            for item in gone:
                reach = (best_with(program, int(item)) - problem.base) / problem.scale
                assert reach <= value + 1e-7
                assert reach <= after.dropped + 1e-7  # the search's bound covers it
            k = np.flatnonzero(np.isin(root.problem.items, after.problem.items))
            assert np.array_equal(after.G, root.G[np.ix_(k, k)])
            assert np.array_equal(after.problem.A, root.problem.A[np.ix_(k, k)])
    assert found > 25  # beyond what reduced costs had dropped


# The state of the search, recomputed from nothing.


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("rows", "links"), [(False, False), (True, False), (False, True), (True, True)])
def test_every_open_node_is_what_it_says(rows: bool, links: bool, shared: bool) -> None:
    lowered = paid = 0
    for seed in range(3):
        program = similar(seed, 60, 0.3, 900, rows=rows, links=20 * links, shared=shared)
        problem = presolve(program)
        assert (problem.sharing is not None) == shared
        optimum = branch_and_bound.solve(program, EXACT).objective
        best = branch_and_bound._start(program, problem, np.zeros(0), math.inf, 0)
        root = root_of(problem, best)
        search = Search(program, root, best, 1e-9, 0.0)
        for limit in (1, 2, 3, 5, 8, 13, 40, 41, 100, 300, 301, 302, 700):
            search.run(math.inf, limit)
            assert problem.base + search.bound * problem.scale >= optimum - 1e-9
            paid += _recompute(search, root)
        lowered += int((search.tree.at[:, kernel.DELTA] > 0).sum())
    assert rows or links or shared or lowered > 0  # somewhere, part of the diagonal was taken off
    assert (paid > 0) == shared


def _recompute(search: Search, root: Root) -> int:
    """Compare the open nodes with their definition; return how many segments are paid for in them."""
    s, G, problem, sharing = search.tree, root.G, root.problem, root.problem.sharing
    shift, depth, seen = problem.W.T @ root.lam, int(search.numbers[kernel.DEPTH]), 0
    # The shares of the tree that are over and those that are open make the whole.
    left = s.at[: depth + 1, kernel.WEIGHT].sum()
    assert search.numbers[kernel.DONE] + left == pytest.approx(1, abs=1e-12)
    for d in range(depth + 1):
        m, taken = s.sizes[d, kernel.OPEN], s.chosen[d, : s.sizes[d, kernel.CHOSEN]]
        room, base, lag, _, delta, *_ = s.at[d]
        ids, x = s.ids[d, :m], s.X[d, :m]
        own = G[np.ix_(ids, ids)] - delta * np.eye(m)
        assert np.intersect1d(ids, taken).size == 0
        assert np.allclose(s.GX[d, :m], own @ x, atol=1e-10)
        if m:
            assert np.linalg.eigvalsh(own)[0] >= -1e-12 * m
        chosen = np.zeros(problem.m, dtype=np.int8)
        chosen[taken] = 1
        cost = problem.c @ chosen if sharing is None else sharing.cost_of(chosen)
        assert room == pytest.approx(problem.room - cost, abs=1e-9)
        value = problem.value(chosen)
        assert base == pytest.approx(value, abs=1e-10)
        assert lag == pytest.approx(root.lam @ problem.w + value - shift[taken].sum(), abs=1e-10)
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


@pytest.mark.parametrize(("rows", "links"), [(False, False), (True, True)])
def test_incumbents_that_are_too_good_or_just_below_the_optimum_leave_a_valid_bound(
    rows: bool, links: bool
) -> None:
    """What is pruned stays in the bound; nodes with the optimum are within a hair of being pruned."""
    for seed in range(6):
        program = similar(seed, 60, 0.3, 900, rows=rows, links=20 * links)
        problem = presolve(program)
        optimum = branch_and_bound.solve(program, EXACT).objective
        floor = (optimum - problem.base) / problem.scale
        for below in (1e-6, 1e-4, 1e-3, 3e-3, 0.01, 0.03):
            near = Incumbent(floor * (1 - below), np.zeros(program.n, dtype=np.int8))
            search = Search(program, root_of(problem, near), near, 1e-9, 0.0)
            assert search.run(math.inf, math.inf) is None
            assert near.value == pytest.approx(floor, abs=1e-8)
            assert search.bound >= floor - 1e-10
        for share, gap in ((0.5, 0.02), (0.8, 0.3), (0.95, 0.02), (0.95, 0.3)):
            weak = Incumbent(share * floor, np.zeros(program.n, dtype=np.int8))
            root = root_of(problem, weak, SolveOptions(relative_gap=gap))
            search = Search(program, root, Incumbent(weak.value, weak.x), 1e-9, gap)
            search.run(math.inf, math.inf)
            assert search.bound >= floor - 1e-12
