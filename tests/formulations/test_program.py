"""Programs and their segments: what they refuse, what they count, plain data, the form in rows."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import (
    LinearConstraint,
    Segments,
    SelectionProgram,
    with_token_price,
)
from mio_rag.testing.programs import random_program, random_shared_program

GOOD = {"linear": [1.0, 2.0], "pairwise": [[0, 1], [1, 0]], "costs": [1, 1], "budget": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear": [1.0, math.nan]}, r"linear\[1\] is nan: every entry must be finite"),
        ({"linear": ["1", "2"]}, "linear is not an array of numbers"),
        ({"linear": [True, False]}, "linear is not an array of numbers"),
        ({"linear": [[1.0, 2.0]]}, r"linear has shape \(1, 2\), expected \(2,\)"),
        ({"costs": [1]}, r"costs has shape \(1,\), expected \(2,\)"),
        ({"costs": [1, -2]}, r"costs\[1\] is -2: costs must be >= 0"),
        ({"pairwise": [[0, 1], [1]]}, "pairwise is not an array of numbers"),
        ({"pairwise": [[0, 1], [math.nan, 0]]}, r"pairwise\[1, 0\] is nan"),
        (
            {"pairwise": [[0, 1], [3, 0]]},
            r"not symmetric: entry \(0, 1\) is 1, \(1, 0\) is 3, .* P \+ P.T where .* \(P \+ P.T\) / 2 where",
        ),
        ({"pairwise": [[0, 1], [0, 0]]}, r"not symmetric: .* has each pair once, so use P \+ P.T$"),
        ({"pairwise": [[0, 1], [1, 4]]}, r"pairwise\[1, 1\] is 4, expected 0: .* set the diagonal to 0"),
        ({"budget": math.nan}, "budget is nan"),
        ({"budget": "2"}, "budget is '2', expected a number"),
        (
            {"rows": [LinearConstraint([1], upper=1, name="short")]},
            "row 'short' has 1 coefficients, expected 2",
        ),
        ({"rows": ["at most two"]}, "rows holds a str, expected LinearConstraint"),
        ({"fixed": [1]}, "fixed has 1 entries, expected 2"),
        ({"fixed": [1, 2]}, "fixed may hold only 0"),
    ],
)
def test_each_defect_has_its_message(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        SelectionProgram(**{**GOOD, **changes})
    assert len(caught.value.problems) == 1
    if "budget" not in changes:  # all that is wrong is reported at once
        with pytest.raises(InputError) as caught:
            SelectionProgram(**{**GOOD, **changes, "budget": "much"})
        assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        (math.nan, 1, "a bound is NaN"),
        (-math.inf, math.inf, "neither a lower nor an upper bound"),
        (2, 1, "lower=2 is above upper=1"),
        (math.inf, math.inf, "admits no value"),
        ("1", 2, "lower is '1', expected a number"),
    ],
)
def test_rows_check_their_bounds(lower: float, upper: float, message: str) -> None:
    with pytest.raises(InputError, match=f"row 'mine'.*{message}"):
        LinearConstraint([1.0], lower, upper, "mine")


def test_objective_cost_and_violation_by_hand() -> None:
    program = SelectionProgram([5, 3, -1], [[0, 2, 1], [2, 0, -4], [1, -4, 0]], [1, 2, 3], 6)
    assert program.objective([1, 1, 1]) == 5 + 3 - 1 - (2 + 1 - 4)
    assert program.objective([0, 1, 1]) == 3 - 1 + 4
    assert program.cost([1, 0, 1]) == 4
    row = LinearConstraint([1.0], lower=-2, upper=1_000_000)
    expected = [(0, 0), (1_000_000 + 1e-7, 0), (1_000_001, 1), (-5, 3)]
    assert [(activity, row.violation(activity)) for activity, _ in expected] == expected


def test_violations_name_everything_that_breaks() -> None:
    row = LinearConstraint([1, 1], upper=1, name="one at most")
    program = SelectionProgram([1, 1], np.zeros((2, 2)), [3, 3], 5, (row,), [0, -1])
    broken = program.violations([1, 1])
    assert broken == [
        "cost 6 exceeds the budget of 5",
        "row 'one at most': 2 is outside [-inf, 1]",
        "item 0 is fixed to 0",
    ]
    assert program.violations([0, 1]) == []


def test_arrays_are_copied_unless_nobody_else_can_write_to_them() -> None:
    linear, pairwise, costs = np.ones(2), np.zeros((2, 2)), np.ones(2)
    whole = np.ones(4)
    whole.flags.writeable = False
    program = SelectionProgram(linear, pairwise, costs, 3)
    view = SelectionProgram(whole[:2], pairwise, costs, 3)
    linear[0], pairwise[0, 1], costs[0] = 9.0, 9.0, 9.0
    whole.flags.writeable = True
    whole[0] = 9.0
    for made in (program, view):
        assert made.linear.tolist() == [1, 1]
        assert made.pairwise.tolist() == [[0, 0], [0, 0]]
        assert made.costs.tolist() == [1, 1]
    assert replace(program, budget=2).pairwise is program.pairwise
    columns = np.asfortranarray([[0.0, 1.0], [1.0, 0.0]])
    columns.flags.writeable = False
    fixed: Any
    for fixed in ([0, 1], (None, 1), np.array([0, 1], dtype=np.int8), np.array([-1.0, 1.0])):
        made = SelectionProgram(np.ones(2), columns, np.ones(2), 3, fixed=fixed)
        assert made.pairwise.flags.c_contiguous
        assert made.fixed.tolist()[1] == 1


def test_programs_survive_json() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        program = random_shared_program(rng, 7) if seed % 3 == 0 else random_program(rng, 6)
        back = SelectionProgram.from_json(json.dumps(program.to_dict(), allow_nan=False))
        assert back.to_dict() == program.to_dict()
        rows = [[(r.lower, r.upper, r.name) for r in one.rows] for one in (back, program)]
        assert rows[0] == rows[1]
        x = rng.integers(0, 2, program.n)
        assert (back.objective(x), back.cost(x)) == (program.objective(x), program.cost(x))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "a program is a JSON object, not list"),
        ({"linear": [1]}, "key 'costs' is missing.*key 'budget' is missing"),
        ({**GOOD, "colour": 1}, "unknown key 'colour'"),
        ({**GOOD, "rows": {"a": 1}}, "rows is not a list"),
        ({**GOOD, "rows": [3]}, r"rows\[0\] is not an object"),
        ({**GOOD, "rows": [{"coefficients": [1, 1]}]}, "neither a lower nor an upper"),
        ({**GOOD, "rows": [{"coefficients": [1, 1], "max": 2, "upper": 1}]}, r"rows\[0\]: unknown key 'max'"),
        (
            {**GOOD, "rows": [{"coefficients": ["a", 1], "upper": 2}], "budget": "x"},
            "not an array.*budget is",
        ),
    ],
)
def test_from_dict_says_what_is_wrong(data: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SelectionProgram.from_dict(data)


def windows(budget: float = 90, **more) -> SelectionProgram:
    """Three windows of 60 tokens, each half of which its neighbour repeats."""
    shared = Segments([30, 30, 30, 30], [[0, 1], [1, 2], [2, 3]], **more)
    return SelectionProgram([3, 2, 2], np.zeros((3, 3)), np.zeros(3), budget, segments=shared)


def decisions(n: int):
    return itertools.product((0, 1), repeat=n)


def test_what_two_windows_share_costs_once() -> None:
    given = windows()
    assert given.cost([1, 0, 0]) == 60
    assert given.cost([1, 1, 0]) == 90
    assert given.cost([1, 0, 1]) == 120
    assert given.cost([1, 1, 1]) == 120
    assert given.alone.tolist() == [60, 60, 60]
    assert given.violations([1, 1, 0]) == []
    assert given.violations([1, 0, 1]) == ["cost 120 exceeds the budget of 90"]


def test_a_price_of_a_token_is_a_price_of_what_is_read() -> None:
    given = windows(prices=[0.1, 0, 0, 0])
    priced = with_token_price(SelectionProgram.from_dict({**given.to_dict(), "costs": [1, 2, 3]}), 0.01)
    for x in decisions(3):
        assert priced.cost(x) == given.cost(x) + np.dot(x, [1, 2, 3])
        assert priced.objective(x) == pytest.approx(given.objective(x) - 0.01 * priced.cost(x))
    with pytest.raises(InputError, match="price of a token is -1"):
        with_token_price(given, -1)


@pytest.mark.parametrize(
    ("costs", "needs", "prices", "what"),
    [
        ([1, -2], [[0]], (), r"cost of segment 1 is -2"),
        ([1], [[0]], [-0.5], r"price of segment 0 is -0.5"),
        ([1, 2], [[0, 2]], (), r"needs\[0\] holds 2, and there are segments 0 to 1"),
        ([1, 2], [[0.5]], (), r"needs\[0\] holds 0.5, expected the index"),
        ([1, 2], ["01"], (), r"needs\[0\] is '01', expected a list"),
        ([1, 2], 7, (), r"needs is neither"),
        ([1, 2], np.zeros((3, 4), dtype=bool), (), r"needs has shape \(3, 4\), expected \(items, 2\)"),
        ([1, float("nan")], [[0]], (), r"segment costs\[1\] is nan"),
        ([1, 2], [[0]], [1], r"segment prices has shape \(1,\), expected \(2,\)"),
    ],
)
def test_bad_segments_are_refused_in_words(costs, needs, prices, what: str) -> None:
    with pytest.raises(InputError, match=what):
        Segments(costs, needs, prices)


@pytest.mark.parametrize(
    ("segments", "what"),
    [
        ({"costs": [1], "needs": [[0], [0]]}, "needed by 2 items, and the program has 3"),
        ({"costs": [1]}, "'needs' is missing"),
        ({"costs": [1], "needs": [], "nedes": 1}, "unknown key 'nedes'"),
        ([1, 2], "segments is not an object"),
    ],
)
def test_a_program_says_what_is_wrong_with_its_segments(segments, what: str) -> None:
    with pytest.raises(InputError, match=what):
        SelectionProgram.from_dict({**windows().to_dict(), "segments": segments})


def test_the_scale_of_values_leaves_out_what_does_not_fit_with_its_segments() -> None:
    shared = Segments([50, 5], [[0], [1]])
    given = SelectionProgram([8, 1], np.zeros((2, 2)), [1, 1], 20, segments=shared)
    assert given.value_scale == 1
    pairs = np.array([[0, -4.0], [-4.0, 0]])
    both = Segments([12], [[0], [0]])
    assert SelectionProgram([1, 1], pairs, [3, 3], 20, segments=both).value_scale == 4  # 18 tokens together
    assert SelectionProgram([1, 1], pairs, [5, 5], 20, segments=both).value_scale == 1  # 22
