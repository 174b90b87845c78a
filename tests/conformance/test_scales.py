"""Every solver on numbers of any size: what is proven, and what counts as feasible, is relative to them."""

import json

import numpy as np
import pytest

from benchmarks.conformance import disagreement
from mio_rag import select
from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram
from mio_rag.formulations.program import LARGEST_NUMBER
from mio_rag.solvers import SolveOptions, Status, solve, solvers
from mio_rag.solvers.scaling import scaled
from mio_rag.testing.programs import SCALES, at_scale, random_program

EXACT = [info.name for info in solvers() if info.exact]
NOTHING = np.zeros((3, 3))


@pytest.mark.parametrize("info", solvers(), ids=lambda info: info.name)
def test_values_of_a_hundred_millionth_are_told_apart(info) -> None:
    program = SelectionProgram([3e-8, 2e-8, 2e-8], NOTHING, [3, 2, 2], 4)
    result = solve(program, info.name)
    if info.exact:
        assert result.selected == (1, 2)
        assert result.is_optimal
    assert result.bound >= 4e-8 * (1 - 1e-9)
    assert not result.is_optimal or result.objective == pytest.approx(4e-8)


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("as_row", [False, True])
def test_costs_below_a_millionth_count(solver: str, as_row: bool) -> None:
    small = [4e-7, 4e-7, 4e-7]
    rows = (LinearConstraint(small, upper=5e-7),) if as_row else ()
    program = SelectionProgram(
        [1, 1, 1], NOTHING, [1, 1, 1] if as_row else small, 9 if as_row else 5e-7, rows
    )
    result = solve(program, solver)
    assert result.objective == 1.0
    assert result.is_optimal
    assert program.violations([1, 1, 0]) != []


def test_whole_numbers_are_exact_and_fractions_have_a_tolerance_of_their_own_size() -> None:
    whole = SelectionProgram([1, 1], np.zeros((2, 2)), [5, 6], 11 - 1e-7)
    assert whole.violations([1, 1]) != []
    assert (
        SelectionProgram([1], np.zeros((1, 1)), [29], 0.29 * 100).violations([1]) == []
    )  # 28.999999999999996
    for size in (1e-9, 1e-3, 1.0, 1e3):
        sums = SelectionProgram([1, 1], np.zeros((2, 2)), [0.1 * size, 0.2 * size], 0.3 * size)
        assert sums.violations([1, 1]) == []
        just_too_much = SelectionProgram([1], np.zeros((1, 1)), [0.3001 * size], 0.3 * size)
        assert just_too_much.violations([1]) != []


@pytest.mark.parametrize("first", range(0, 66, 22))
def test_random_programs_at_eleven_scales(first: int) -> None:
    """Values, costs and rows each at a scale of their own, against enumeration."""
    assert len(SCALES) == 11
    wrong = []
    for seed in range(first, first + 22):
        rng = np.random.default_rng([19, seed])
        given = at_scale(random_program(rng, 9), SCALES[seed % 11], *rng.choice(SCALES, 2))
        truth = solve(given, "exhaustive")
        for info in solvers():
            try:
                claim = solve(given, info.name)
            except InputError:
                assert info.name == "cpsat"  # refuses what it would round
                continue
            complaint = disagreement(given, truth, claim, info.exact)
            if complaint:
                wrong.append((seed, info.name, complaint))
    assert wrong == []


@pytest.mark.parametrize("seed", range(20))
def test_a_scaled_program_has_the_same_best_selection(seed: int) -> None:
    rng = np.random.default_rng([23, seed])
    program = random_program(rng, 9)
    if program.n > 1:  # a pair that must not be, as people write it
        pairwise = program.pairwise.copy()
        pairwise[0, 1] = pairwise[1, 0] = 1e9
        program = SelectionProgram(
            1e-6 * program.linear, pairwise, program.costs, program.budget, program.rows, program.fixed
        )
    here, there = solve(program, "exhaustive"), scaled(program)
    if there.contradiction:
        assert here.status is Status.INFEASIBLE
        return
    found = solve(there.program, "exhaustive")
    assert (found.x is None) == (here.x is None)
    if found.x is not None:
        assert program.objective(found.x) == pytest.approx(here.objective, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize(
    ("program", "best"),
    [  # what cannot be chosen must not decide the scale of what can
        (SelectionProgram([1.0, 1.0], np.zeros((2, 2)), [0.5, 6.2e209], 0.749), (0,)),
        (SelectionProgram([1.0, 1.0], np.zeros((2, 2)), [1.0, 6.2e209], 0.0), ()),
        (SelectionProgram([0.5, 1.0], [[0.0, 5e198], [5e198, 0.0]], [0.0, 0.0], 0.0), (1,)),
        (SelectionProgram([1.0, -5e198], np.zeros((2, 2)), [1.0, 1.0], 2.0), (0,)),
        (SelectionProgram([1.0, 3e-8, 2e-8, 2e-8], np.zeros((4, 4)), [100, 3, 2, 2], 4), (2, 3)),
        (SelectionProgram([3e-8, 2e-8, 2e-8], [[0, -1, 0], [-1, 0, 0], [0, 0, 0]], [3, 2, 2], 4), (1, 2)),
        (SelectionProgram([5e220], [[0.0]], [6.8e-257], 1.0), (0,)),
    ],
)
def test_giants_hide_nothing(program: SelectionProgram, best: tuple[int, ...], solver: str) -> None:
    result = solve(program, solver)
    assert result.selected == best
    assert result.is_optimal or result.message


@pytest.mark.parametrize("solver", EXACT)
def test_a_budget_below_zero_is_infeasible_whatever_the_costs(solver: str) -> None:
    program = SelectionProgram([0.0], [[0.0]], [5e59], -1.0)
    assert solve(program, solver).status is Status.INFEASIBLE


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
        select("q", texts=["a", "b", "c"], scores=huge, budget_tokens=100, redundancy_weight=0)
    edge = SelectionProgram([LARGEST_NUMBER] * 3, NOTHING, [1, 1, 1], 2)
    for name in EXACT:
        result = solve(edge, name, SolveOptions(time_limit_seconds=5))
        assert result.objective == 2 * LARGEST_NUMBER
        json.dumps(result.to_dict(), allow_nan=False)


def test_an_unresolvable_mixture_is_not_called_optimal() -> None:
    """A benefit of 10^12 that is always there hides values of 10^-6: whoever proves less says so."""
    program = SelectionProgram([1e12, 3e-6, 4e-6], NOTHING, [0, 3, 4], 4)
    for name in EXACT:
        result = solve(program, name)
        assert result.bound >= program.objective(result.x)
        json.dumps(result.to_dict(), allow_nan=False)


def _far_apart() -> dict[str, SelectionProgram]:
    """Programs next to whose largest number a solver in floating point takes the others for zero."""
    none, some = np.zeros((3, 3)), np.array([[0, 0.4, 0.3], [0.4, 0, 0], [0.3, 0, 0]])
    one = LinearConstraint([1, 1, 0], lower=1, name="one of the first two")
    return {
        "values beside a huge one": SelectionProgram([0.0, 0.9, 6.4e7], some, [1, 1, 1], 3, [one]),
        "a huge value that is out": SelectionProgram([1e12, 7e20, 2e11], none, [1, 1, 1], 3, (), [-1, 0, 1]),
        "a gain of next to nothing": SelectionProgram([-0.6, 2e-47, -1], some / 20, [1, 1, 1], 3, [one]),
        "nothing gains": SelectionProgram([-3e104, -2e-286, 0], some * 1e27, [0, 0, 0], 0),
        "a row beyond all": SelectionProgram(
            [1, 2, 3], none, [1, 1, 1], 3, [LinearConstraint([0, 1e-90, 1], lower=1e-90)]
        ),
        "limits beyond all": SelectionProgram(
            [1, 2, 3],
            none,
            [1, 1, 1],
            3,
            [LinearConstraint([0, 0, -1e211], upper=1), LinearConstraint([0, 0, 1e-198], lower=1e187)],
        ),
        "values next to nothing": SelectionProgram([5e-324, 0, 0], none, [1, 1, 1], 3),
        "costs next to nothing": SelectionProgram([1, 1, 0], none, [1e145, 7e-201, 0], 2e250, [one]),
        "penalties beyond all": SelectionProgram([1.6, 1.8, 2.3], some * 1e23, [1, 1, 1], 3, [one]),
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize(("name", "given"), _far_apart().items())
def test_numbers_far_apart_are_proven_or_said_to_be_too_far_apart(
    name: str, given: SelectionProgram, solver: str
) -> None:
    truth = solve(given, "exhaustive")
    if solver == "cpsat" and name in ("a row beyond all", "limits beyond all", "costs next to nothing"):
        with pytest.raises(InputError, match="use solver='highs'"):
            solve(given, solver)
        return
    result = solve(given, solver)
    assert result.status is not Status.ERROR, result.message
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))
    if truth.objective is None:
        assert result.status in (Status.INFEASIBLE, Status.NO_SOLUTION)
        return
    assert result.status is not Status.INFEASIBLE
    if result.bound is not None:
        assert result.bound >= truth.objective - 1e-9 * abs(truth.objective)
    if result.is_optimal:
        assert result.objective == pytest.approx(truth.objective, rel=1e-8, abs=0)
    elif result.x is not None:
        assert result.limit == "precision"
        assert "stopped by the precision limit" in result.certificate()


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


@pytest.mark.parametrize("info", solvers(), ids=lambda info: info.name)
@pytest.mark.parametrize(
    ("values", "costs"), [(1e-200, 1e-200), (1e-300, 1e-300), (1e-200, 1e200), (1e200, 1e-200)]
)
@pytest.mark.parametrize(
    ("program", "best"),
    [
        (SelectionProgram([3, 2, 2], NOTHING, [3, 2, 2], 4), 4.0),
        (SelectionProgram([1, 1, 3, 3], np.zeros((4, 4)), [3, 3, 3, 3], 6), 6.0),
    ],
)
def test_bounds_hold_where_products_and_ratios_leave_the_range_of_floats(
    info, values: float, costs: float, program: SelectionProgram, best: float
) -> None:
    given = SelectionProgram(
        values * program.linear, program.pairwise, costs * program.costs, costs * program.budget
    )
    try:
        result = solve(given, info.name)
    except InputError:
        assert info.name == "cpsat"  # refuses what it would round
        return
    assert result.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert result.bound >= best * values * (1 - 1e-9)


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("penalty", [1e3, 1e5, 1e8, 1e11])
def test_penalties_do_not_hide_values_where_rows_ask_for_something(solver: str, penalty: float) -> None:
    """Neither in the solver's tolerances, nor where choosing nothing breaks a row."""
    for seed in range(6):
        rng = np.random.default_rng([31, seed])
        pairwise = np.triu(rng.random((6, 6)) * (rng.random((6, 6)) < 0.6), 1)
        row = LinearConstraint(rng.integers(-1, 2, 6).astype(float), lower=1.0)
        program = SelectionProgram(
            1e-6 * rng.uniform(0.1, 1, 6) * 10.0 ** rng.uniform(-3, 0, 6),
            1e-6 * penalty * (pairwise + pairwise.T),
            rng.integers(1, 9, 6),
            15.0,
            (row,),
        )
        truth, claim = solve(program, "exhaustive"), solve(program, solver)
        assert disagreement(program, truth, claim, exact=penalty < 1e4) is None


def _of(linear: list[float], costs: list[float], budget: float) -> SelectionProgram:
    return SelectionProgram(linear, np.zeros((len(linear), len(linear))), costs, budget)


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize(
    ("program", "best"),
    [  # costs of many digits, beside values that differ little or a budget that is met exactly
        (
            _of(
                [1.5456e-10, 1.05043e-7, 2.27215e-12, 7.94716e-11, 4.6855357e-6],
                [
                    8188402.522009669,
                    14487173.692786334,
                    8188402.522009669,
                    4619098.858569557,
                    14487173.692786334,
                ],
                24565207.566029005,
            ),
            (0, 4),
        ),
        (
            _of(
                [3.2e-4, 3.8e-4, 5.8e-5],
                [5174913993.137038, 7762370989.705557, 10349827986.274076],
                23287112969.11667,
            ),
            (0, 1, 2),
        ),
        # relative to large values too, a gain of a hundred millionth is one
        (_of([2.8e9, 71.0, 40.0], [1.0, 1.0, 1.0], 2.0), (0, 1)),
    ],
)
def test_many_digits(solver: str, program: SelectionProgram, best: tuple[int, ...]) -> None:
    try:
        assert solve(program, solver).selected == best
    except InputError:
        assert solver == "cpsat"  # refuses what it would round
