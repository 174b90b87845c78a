from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram
from mio_rag.testing.programs import random_program

GOOD = {"linear": [1.0, 2.0], "pairwise": [[0, 1], [1, 0]], "costs": [1, 1], "budget": 2}


def problems(**changes) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        SelectionProgram(**{**GOOD, **changes})
    return caught.value.problems


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear": [1.0, math.nan]}, r"linear\[1\] is nan: every entry must be finite"),
        ({"linear": [1.0, math.inf]}, r"linear\[1\] is inf"),
        ({"linear": ["1", "2"]}, "linear is not an array of numbers"),
        ({"linear": [True, False]}, "linear is not an array of numbers"),
        ({"linear": [None, 1.0]}, "linear is not an array of numbers"),
        ({"linear": [[1.0, 2.0]]}, r"linear has shape \(1, 2\), expected \(2,\)"),
        ({"costs": [1]}, r"costs has shape \(1,\), expected \(2,\)"),
        ({"costs": [1, -2]}, r"costs\[1\] is -2: costs must be >= 0"),
        ({"pairwise": [[0, 1], [1]]}, "pairwise is not an array of numbers"),
        ({"pairwise": [0, 1]}, r"pairwise has shape \(2,\), expected \(2, 2\)"),
        ({"pairwise": [[0, 1], [math.nan, 0]]}, r"pairwise\[1, 0\] is nan"),
        (
            {"pairwise": [[0, 1], [3, 0]]},
            r"not symmetric: entry \(0, 1\) is 1, \(1, 0\) is 3; use \(P \+ P.T\)",
        ),
        ({"pairwise": [[0, 1], [1, 4]]}, r"pairwise\[1, 1\] is 4, expected 0"),
        ({"budget": math.nan}, "budget is nan"),
        ({"budget": math.inf}, "budget is inf"),
        ({"budget": "2"}, "budget is '2', expected a number"),
        ({"budget": None}, "budget is None, expected a number"),
        (
            {"rows": [LinearConstraint([1], upper=1, name="short")]},
            "row 'short' has 1 coefficients, expected 2",
        ),
        ({"rows": ["at most two"]}, "rows holds a str, expected LinearConstraint"),
        ({"fixed": [1]}, "fixed has 1 entries, expected 2"),
        ({"fixed": [1, 2]}, "fixed may hold only 0"),
        ({"fixed": [1, "in"]}, "fixed may hold only 0"),
    ],
)
def test_each_defect_has_its_message(changes: dict, message: str) -> None:
    found = problems(**changes)
    assert len(found) == 1
    with pytest.raises(InputError, match=message):
        SelectionProgram(**{**GOOD, **changes})


def test_all_defects_are_reported_at_once() -> None:
    found = problems(linear=[1.0, math.nan], costs=[-1, 1], budget="much", pairwise=np.eye(2), fixed=[3, 0])
    assert len(found) == 5
    assert all(any(word in p for p in found) for word in ("linear", "costs", "budget", "pairwise", "fixed"))


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


def test_row_violation_is_absolute_beyond_the_tolerance() -> None:
    row = LinearConstraint([1.0], lower=-2, upper=1_000_000)
    assert row.violation(0) == 0
    assert row.violation(1_000_000 + 1e-7) == 0
    assert row.violation(1_000_001) == 1
    assert row.violation(-5) == 3


def test_objective_by_hand() -> None:
    program = SelectionProgram([5, 3, -1], [[0, 2, 1], [2, 0, -4], [1, -4, 0]], [1, 2, 3], 6)
    assert program.objective([1, 1, 1]) == 5 + 3 - 1 - (2 + 1 - 4)
    assert program.objective([0, 1, 1]) == 3 - 1 + 4
    assert program.cost([1, 0, 1]) == 4


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


def test_one_token_above_a_budget_of_millions_is_one_too_many() -> None:
    program = SelectionProgram([1, 1], np.zeros((2, 2)), [1, 8_000_000], 8_000_000)
    assert program.violations([1, 1])
    assert not program.violations([0, 1])


def test_nearly_symmetric_input_becomes_exactly_symmetric_and_read_only() -> None:
    program = SelectionProgram([1, 1], [[0, 1.0], [1.0 + 1e-12, 0]], [1, 1], 1)
    assert program.pairwise[0, 1] == program.pairwise[1, 0]
    with pytest.raises(ValueError, match="read-only"):
        program.pairwise[0, 1] = 3.0


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
    again = replace(program, budget=2)
    assert again.pairwise is program.pairwise
    assert again.costs is program.costs
    assert type(SelectionProgram(np.ma.ones(2), pairwise * 0, np.ones(2), 3).linear) is np.ndarray
    columns = np.asfortranarray([[0.0, 1.0], [1.0, 0.0]])
    columns.flags.writeable = False
    assert SelectionProgram(np.ones(2), columns, np.ones(2), 3).pairwise.flags.c_contiguous


@pytest.mark.parametrize("fixed", [[0, 1], (None, 1), np.array([0, 1], dtype=np.int8), np.array([-1.0, 1.0])])
def test_fixed_values_in_any_form(fixed: Any) -> None:
    program = SelectionProgram(np.ones(2), np.zeros((2, 2)), np.ones(2), 3, fixed=fixed)
    assert program.fixed is not None
    assert program.fixed.tolist()[1] == 1
    with pytest.raises(InputError, match="fixed may hold only"):
        SelectionProgram(np.ones(1), np.zeros((1, 1)), np.ones(1), 3, fixed=np.array([2], dtype=np.int8))


def test_programs_survive_json() -> None:
    infinite = 0
    for seed in range(60):
        program = random_program(np.random.default_rng(seed), 6)
        infinite += any(math.isinf(row.lower) or math.isinf(row.upper) for row in program.rows)
        text = json.dumps(program.to_dict(), allow_nan=False)
        back = SelectionProgram.from_json(text)
        assert back.to_dict() == program.to_dict()
        assert [(r.lower, r.upper, r.name) for r in back.rows] == [
            (r.lower, r.upper, r.name) for r in program.rows
        ]
        assert np.array_equal(back.fixed, program.fixed)
    assert infinite > 5


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
