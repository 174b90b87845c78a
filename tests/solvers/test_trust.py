"""Certificates of the exact kernel under attack: programs that hypothesis shrinks, stages forced to begin."""

import warnings
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.trust.checks import check_all, check_path, complaint, forced_stages, weak_starts
from benchmarks.trust.oracle import enumerate_all
from mio_rag.formulations import LinearConstraint, SelectionProgram
from mio_rag.solvers import SolveOptions, Status, branch_and_bound, kernel, relaxation, solve_many
from mio_rag.solvers.branch_and_bound import WarmStart
from mio_rag.solvers.presolve import presolve
from mio_rag.solvers.relaxation import (
    Splitting,
    better_diagonal,
    core_matrix,
    dominated,
    first_matrix,
    relaxation_matrix,
)

SEEDS = st.integers(0, 2**16)
SIZES = st.sampled_from([1.0, 1e-6, 1e-3, 1e3, 1e6])
NUMBERS = st.one_of(st.integers(-6, 6).map(float), st.floats(-3, 3, width=16), st.sampled_from([0.1, 0.3]))
COSTS = st.one_of(st.integers(0, 9).map(float), st.sampled_from([0.1, 0.2, 0.3, 2.5, 1e-5, 1e5]))


@st.composite
def programs(draw: st.DrawFn, n_min: int = 0, n_max: int = 9, with_rows: bool = True) -> SelectionProgram:
    """Small numbers of mixed signs and sizes; a budget that some items meet exactly, or any."""
    n = draw(st.integers(n_min, n_max))
    pairwise = np.zeros((n, n))
    pairs = n * (n - 1) // 2
    pairwise[np.triu_indices(n, 1)] = draw(st.lists(NUMBERS, min_size=pairs, max_size=pairs))
    linear = np.array(draw(st.lists(NUMBERS, min_size=n, max_size=n)), dtype=np.float64)
    costs = np.array(draw(st.lists(COSTS, min_size=n, max_size=n)), dtype=np.float64)
    some = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=bool)
    budget = float(costs[some].sum()) + draw(st.sampled_from([0.0, 1e-6, -1e-6, 0.5, 5.0, 50.0]))
    rows = []
    for _ in range(draw(st.integers(0, 2)) if with_rows else 0):
        coefficients = np.array(draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n)), dtype=np.float64)
        at = float(draw(st.integers(-2, 4)))
        sides = draw(st.sampled_from([(-np.inf, at), (at, np.inf), (at, at), (at - 1, at)]))
        rows.append(LinearConstraint(draw(SIZES) * coefficients, *sides))
    fixed = draw(st.lists(st.sampled_from([-1, -1, -1, 0, 1]), min_size=n, max_size=n))
    size = draw(SIZES)
    return SelectionProgram(
        size * linear, size * draw(SIZES) * (pairwise + pairwise.T), costs, budget, tuple(rows), fixed
    )


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


def test_forced_stages_do_reach_better_matrices() -> None:
    counts: Counter[str] = Counter()
    rng = np.random.default_rng(0)
    with forced_stages(0, 0.0, (20, 60)):
        for _ in range(15):
            raw = np.triu(rng.normal(size=(12, 12)), 1)
            program = SelectionProgram(rng.random(12), raw + raw.T, rng.integers(1, 9, 12), 30)
            assert check_all(program, rng, counts) == []
    assert counts["reached a better matrix"] > 5, counts


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
    found, value, x = kernel.incumbent(problem.data, problem.needs, start, 8, rounds, nobody, seed)
    if not found:
        return
    _, again, _ = kernel.incumbent(problem.data, problem.needs, start, 8, rounds, x, seed + 1)
    assert again >= value - 1e-12  # from a known selection on, never worse
    slack = 1e-9 * (1 + np.abs(problem.W).sum())
    assert problem.c @ x <= problem.room * (1 + 1e-12)
    assert np.all(problem.W @ x <= problem.w + slack)
    assert value == pytest.approx(problem.value(x), abs=1e-9)
    for i in range(problem.m):
        for j in range(problem.m):
            moved = x.copy()
            moved[i], moved[j] = 1 - moved[i], (moved[j] if i == j else 1 - moved[j])
            swap = i == j or moved.sum() == x.sum()
            inside = np.all(problem.W @ moved <= problem.w - slack) and problem.c @ moved < problem.room
            if swap and inside:
                assert problem.value(moved) <= value + 1e-9


@settings(max_examples=200, deadline=None)
@given(
    items=st.lists(st.tuples(st.floats(-1, 5, width=32), st.floats(0, 9, width=32)), min_size=1, max_size=11),
    share=st.floats(0, 1.1),
    limit=st.sampled_from([1, 5, 20_000]),
)
def test_knapsack_search_equals_enumeration(
    items: list[tuple[float, float]], share: float, limit: int
) -> None:
    p, c = np.array(items, dtype=np.float64).T.copy()
    room = share * float(c.sum())
    done, x = kernel.knapsack_search(p, c, room, limit)
    codes = (np.arange(1 << p.size)[:, None] >> np.arange(p.size)) & 1
    margin = 1e-9
    within = codes[codes @ c <= room - margin]
    best = float((within @ p).max()) if within.size else 0.0
    assert c @ x <= room + margin
    assert limit < 20_000 or done
    if done:
        assert p @ x >= best - 1e-9


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


def test_threads_side_by_side_search_as_one_does() -> None:
    rng = np.random.default_rng(8)
    programs = []
    for _ in range(24):
        raw = np.triu(rng.normal(size=(16, 16)), 1)
        programs.append(SelectionProgram(rng.random(16), raw + raw.T, rng.integers(1, 9, 16), 40))
    options = SolveOptions(time_limit_seconds=None)
    with forced_stages(0, 0.03, (2, 4, 8)):
        alone = solve_many(programs, "branch_and_bound", options, workers=1)
        together = solve_many(programs, "branch_and_bound", options, workers=4)
    for one, other in zip(alone, together, strict=True):
        assert (one.nodes, one.objective, one.bound) == (other.nodes, other.objective, other.bound)
        assert one.selected == other.selected


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
