"""Results hold whatever a back end claims; options are checked; the simple bound holds."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram, passage_count
from mio_rag.solvers import SolveOptions, Status, solve
from mio_rag.solvers.result import conclude, upper_bound

PROGRAM = SelectionProgram([3.0, 2.0], [[0, 1], [1, 0]], [1, 1], 2)  # optimum 4 with both


def result(x, bound, options=None, program=PROGRAM, **claims):
    return conclude(program, options or SolveOptions(), "mine", x=x, bound=bound, **claims)


def test_the_objective_is_recomputed_and_a_tight_bound_is_a_proof() -> None:
    found = result([0.9999999, 1.0], 4.0)
    assert (found.status, found.objective, found.bound, found.gap) == (Status.OPTIMAL, 4.0, 4.0, 0.0)
    assert found.selected == (0, 1)
    assert found.certificate().startswith("optimal: objective 4, proven bound 4 (mine")


@pytest.mark.parametrize(
    ("bound", "gap", "status"),
    [
        (4 + 9e-7, 0.0, "optimal"),
        (4 + 2e-6, 0.0, "feasible"),
        (4.2, 0.04, "feasible"),
        (4.2, 0.06, "optimal"),
    ],
)
def test_optimal_means_within_the_stated_tolerance(bound: float, gap: float, status: str) -> None:
    found = result([1, 1], bound, SolveOptions(relative_gap=gap))
    assert found.status == status
    assert found.gap == pytest.approx((bound - 4) / 4)


def test_a_limit_is_named_only_where_it_left_a_gap() -> None:
    loose = SelectionProgram(
        [6.0, 10.0, 12.0], np.zeros((3, 3)), [2, 2.5, 4], 5
    )  # optimum 16, simple bound 17.5
    open_gap = result([1, 1, 0], 17.0, program=loose, limit="time")
    assert (open_gap.status, open_gap.bound, open_gap.limit) == (Status.FEASIBLE, 17.0, "time")
    assert result([1, 1, 0], 16.0, program=loose, limit="time").limit is None


def test_a_selection_that_breaks_something_is_an_error() -> None:
    tight = SelectionProgram([3.0, 2.0], np.zeros((2, 2)), [1, 1], 1)
    found = result([1, 1], 5.0, program=tight)
    assert found.status is Status.ERROR
    assert found.x is None
    assert "cost 2 exceeds the budget of 1" in found.message


def test_claims_that_contradict_each_other_are_an_error() -> None:
    below, none = result([1, 1], 3.9), result([1, 1], None, proven_infeasible=True)
    assert below.status is none.status is Status.ERROR
    assert "bound 3.9 below its own objective 4" in below.message
    assert "claims infeasibility" in none.message
    assert result([1, 1], 4 - 1e-7).bound == 4.0  # rounding is not


def test_no_selection() -> None:
    assert result(None, None, proven_infeasible=True).status is Status.INFEASIBLE
    nothing = result(None, 9.0)
    assert (nothing.status, nothing.bound, nothing.objective, nothing.gap) == (
        Status.NO_SOLUTION,
        9.0,
        None,
        None,
    )
    assert nothing.selected == ()
    assert nothing.certificate().endswith("none can exceed 9 (mine, 0.0 ms)")
    assert "%" not in result([0, 0], 9.0).certificate()  # a share of an objective of 0 says nothing
    broken = result(None, None, broken=True, message="it crashed")
    assert broken.status is Status.ERROR
    assert broken.certificate() == "error: it crashed (mine, 0.0 ms)"


@pytest.mark.parametrize("bound", [None, math.inf, math.nan])
def test_without_a_bound_nothing_is_proven(bound: float | None) -> None:
    found = result([1, 1], bound)
    assert (found.status, found.bound, found.gap) == (Status.FEASIBLE, None, None)


def test_a_limit_without_a_bound_gets_the_simple_one() -> None:
    assert result(None, None, limit="time").bound == pytest.approx(4.0)  # here it is exact
    assert result([1, 0], 100.0, limit="time").bound == pytest.approx(4.0)
    assert result([1, 0], 3.5, limit="time").bound == 3.5


@pytest.mark.parametrize(("bound", "shown"), [(3.0001, "(gap < 0.01%, "), (3.001, "(gap 0.03%, ")])
def test_an_open_gap_never_reads_as_zero(bound: float, shown: str) -> None:
    assert shown in result([1, 0], bound, limit="time").certificate()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_limit_seconds": 0}, "time_limit_seconds=0 must be > 0"),
        ({"time_limit_seconds": math.nan}, "time_limit_seconds=nan must be > 0"),
        ({"time_limit_seconds": "5"}, "time_limit_seconds is '5', expected a number"),
        ({"relative_gap": -0.1}, "relative_gap=-0.1 must be >= 0 and finite"),
        ({"relative_gap": None}, "relative_gap is None, expected a number"),
        ({"threads": 1.5}, "threads=1.5 must be a whole number >= 1"),
        ({"seed": -1}, "seed=-1 must be a whole number"),
        ({"seed": math.nan}, "seed=nan must be a whole number"),
    ],
)
def test_options_are_checked(settings, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        SolveOptions(**settings)


def test_options_report_every_problem_and_convert_numpy_numbers() -> None:
    with pytest.raises(InputError) as caught:
        SolveOptions(time_limit_seconds=-1, relative_gap="small", threads=0, seed=-1)
    assert len(caught.value.problems) == 4
    options = SolveOptions(np.float32(2), np.float64(0.1), np.int64(2), 3.0)
    assert options == SolveOptions(2.0, 0.1, 2, 3)
    assert [type(value) for value in vars(options).values()] == [float, float, int, int]


def test_other_than_options_is_refused() -> None:
    with pytest.raises(InputError, match="options is 5, expected SolveOptions"):
        solve(PROGRAM, options=5)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (SelectionProgram([], np.zeros((0, 0)), [], 3), 0.0),
        (SelectionProgram([], np.zeros((0, 0)), [], -3), -math.inf),
        (SelectionProgram([2.0, -1.0], np.zeros((2, 2)), [1, 1], 5), 2.0),
        (SelectionProgram([3.0, 2.0, 1.0], np.zeros((3, 3)), [1, 1, 1], 2), 5.0),  # top-k
        (SelectionProgram([6.0, 10.0, 12.0], np.zeros((3, 3)), [1, 2, 3], 5), 22.0),  # the two best of three
        (SelectionProgram([6.0, 10.0, 12.0], np.zeros((3, 3)), [2, 2.5, 4], 5), 17.5),  # Dantzig
        (SelectionProgram([1.0, 1.0], [[0, 0.5], [0.5, 0]], [1, 1], 2), 1.5),
        (SelectionProgram([1.0, 1.0], [[0, -2.0], [-2.0, 0]], [1, 1], 2), 4.0),
        (SelectionProgram([1.0, 1.0], [[0, 2.0], [2.0, 0]], [1, 1], 2, fixed=[1, 1]), 0.0),
        (SelectionProgram([1.0, 1.0], np.zeros((2, 2)), [4, 4], 7, fixed=[1, 1]), -math.inf),
        (SelectionProgram([-1.0, -2.0], np.zeros((2, 2)), [1, 1], 7, passage_count(2, minimum=2)), -3.0),
        (SelectionProgram([-1.0, -2.0], np.zeros((2, 2)), [1, 1], 1, passage_count(2, minimum=2)), -math.inf),
        (SelectionProgram([5.0, 2.0], np.zeros((2, 2)), [1, 1], 2, passage_count(2, maximum=1)), 5.0),
        (SelectionProgram([5.0, 2.0], np.zeros((2, 2)), [0, 0], 0, [LinearConstraint([1, 1], upper=0)]), 0.0),
        (SelectionProgram([5.0], [[0.0]], [0.1 + 0.2], 0.3), 5.0),  # fits up to rounding
    ],
)
def test_simple_bounds_by_hand(program: SelectionProgram, expected: float) -> None:
    # The budget's tolerance may let the fractional item in by a millionth more.
    assert upper_bound(program) == pytest.approx(expected, abs=1e-5)
