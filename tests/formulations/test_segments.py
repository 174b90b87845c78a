"""Segments: read once, paid once, in plain data and as rows."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import (
    LinearConstraint,
    Segments,
    SelectionProgram,
    precedence_program,
    with_token_price,
)
from mio_rag.formulations.rows import SoftRow, with_constant, with_soft_rows
from mio_rag.testing.programs import random_shared_program


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


def test_the_form_in_rows_has_the_same_best_value_for_every_choice_of_items() -> None:
    for seed in range(40):
        given = random_shared_program(np.random.default_rng([3, seed]), 5)
        rows = precedence_program(given)
        if given.segments is None:
            assert rows is given
            continue
        m = given.segments.m
        if m > 8:
            continue
        assert rows.n == given.n + m
        for x in decisions(given.n):
            paid = np.append(x, given.segments.paid(x)).astype(int)
            assert rows.objective(paid) == pytest.approx(given.objective(x))
            assert rows.cost(paid) == pytest.approx(given.cost(x))
            assert len(rows.violations(paid)) == len(given.violations(x))
            for y in decisions(m):
                whole = [*x, *y]
                if not any("needs" in text for text in rows.violations(whole)):
                    assert rows.objective(whole) <= given.objective(x) + 1e-12
                    assert rows.cost(whole) >= given.cost(x) - 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_there_and_back_in_json(seed: int) -> None:
    given = random_shared_program(np.random.default_rng(seed), 7)
    back = SelectionProgram.from_json(json.dumps(given.to_dict(), allow_nan=False))
    assert back.to_dict() == given.to_dict()
    x = np.random.default_rng(seed).integers(0, 2, given.n)
    assert (back.objective(x), back.cost(x)) == (given.objective(x), given.cost(x))


def test_a_program_without_segments_says_nothing_of_them() -> None:
    plain = SelectionProgram([1.0], [[0.0]], [1.0], 1)
    assert "segments" not in plain.to_dict()
    assert plain.alone is plain.costs
    assert plain.all_costs is plain.costs
    none = SelectionProgram([1.0], [[0.0]], [1.0], 1, segments=Segments([], [[]]))
    assert none.segments is None


@pytest.mark.parametrize(
    ("costs", "needs", "prices", "what"),
    [
        ([1, -2], [[0]], (), r"cost of segment 1 is -2"),
        ([1], [[0]], [-0.5], r"price of segment 0 is -0.5"),
        ([1, 2], [[0, 2]], (), r"needs\[0\] holds 2, and there are segments 0 to 1"),
        ([1, 2], [[-1]], (), r"needs\[0\] holds -1"),
        ([1, 2], [[0.5]], (), r"needs\[0\] holds 0.5, expected the index"),
        ([1, 2], [[True, False]], (), r"needs\[0\] holds True, expected the index"),
        ([1, 2], [0, 1], (), r"needs\[0\] is 0, expected a list"),
        ([1, 2], ["01"], (), r"needs\[0\] is '01', expected a list"),
        ([1, 2], 7, (), r"needs is neither"),
        ([1, 2], np.zeros((3, 4), dtype=bool), (), r"needs has shape \(3, 4\), expected \(items, 2\)"),
        ([1, float("nan")], [[0]], (), r"segment costs\[1\] is nan"),
        (["a"], [[0]], (), r"segment costs is not an array of numbers"),
        ([1, 2], [[0]], [1], r"segment prices has shape \(1,\), expected \(2,\)"),
    ],
)
def test_bad_segments_are_refused_in_words(costs, needs, prices, what: str) -> None:
    with pytest.raises(InputError, match=what):
        Segments(costs, needs, prices)


def test_a_program_says_what_is_wrong_with_its_segments() -> None:
    data = windows().to_dict()
    with pytest.raises(InputError, match="needed by 2 items, and the program has 3"):
        SelectionProgram.from_dict({**data, "segments": {"costs": [1], "needs": [[0], [0]]}})
    with pytest.raises(InputError, match="'needs' is missing"):
        SelectionProgram.from_dict({**data, "segments": {"costs": [1]}})
    with pytest.raises(InputError, match="unknown key 'nedes'"):
        SelectionProgram.from_dict({**data, "segments": {"costs": [1], "needs": [], "nedes": 1}})
    with pytest.raises(InputError, match="segments is not an object"):
        SelectionProgram.from_dict({**data, "segments": [1, 2]})
    with pytest.raises(InputError, match="segments is a list"):
        SelectionProgram([1], [[0]], [1], 1, segments=[1])  # type: ignore[arg-type]


def test_items_added_for_prices_need_nothing() -> None:
    given = windows(prices=[0.5, 0, 0, 0])
    soft = with_soft_rows(given, [SoftRow(LinearConstraint([1, 1, 1], lower=2, name="two"), 0.25)])
    assert soft.n > 3
    assert soft.segments is not None
    x = [1, *[0] * (soft.n - 1)]
    assert (soft.cost(x), soft.objective(x)) == (60, 2.5)
    held = with_constant(given, 7.0)
    assert held.objective([1, 0, 0, 1]) == 9.5
    assert held.cost([1, 0, 0, 1]) == 60


def test_the_scale_of_values_leaves_out_what_does_not_fit_with_its_segments() -> None:
    shared = Segments([50, 5], [[0], [1]])
    given = SelectionProgram([8, 1], np.zeros((2, 2)), [1, 1], 20, segments=shared)
    assert given.value_scale == 1
    pairs = np.array([[0, -4.0], [-4.0, 0]])
    both = Segments([12], [[0], [0]])
    assert SelectionProgram([1, 1], pairs, [3, 3], 20, segments=both).value_scale == 4  # 18 tokens together
    assert SelectionProgram([1, 1], pairs, [5, 5], 20, segments=both).value_scale == 1  # 22


def test_costs_with_fractions_have_the_tolerance_of_all_costs() -> None:
    shared = Segments([0.1, 0.2], [[0], [1]])
    given = SelectionProgram([1, 1], np.zeros((2, 2)), [0, 0], 0.3, segments=shared)
    assert given.violations([1, 1]) == []
    assert not given.has_whole_costs
    assert windows().has_whole_costs
