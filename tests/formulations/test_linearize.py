from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from mio_rag.formulations import MilpArrays, SelectionProgram, linearize
from mio_rag.formulations.linearize import knapsack_bound
from mio_rag.testing.programs import random_program


def best_helpers(arrays: MilpArrays, x: tuple[int, ...]) -> float | None:
    """The linear program that is left once x is decided; None where it is infeasible."""
    column_lower, column_upper = arrays.col_lower.copy(), arrays.col_upper.copy()
    if np.any(np.array(x) < column_lower[: arrays.n]) or np.any(np.array(x) > column_upper[: arrays.n]):
        return None
    column_lower[: arrays.n] = column_upper[: arrays.n] = x
    matrix = arrays.matrix.toarray()
    below, above = np.isfinite(arrays.row_upper), np.isfinite(arrays.row_lower)
    result = linprog(
        -arrays.objective,
        A_ub=np.vstack([matrix[below], -matrix[above]]),
        b_ub=np.concatenate([arrays.row_upper[below], -arrays.row_lower[above]]) + 1e-9,
        bounds=np.stack([column_lower, column_upper], axis=1),
        method="highs",
    )
    return -float(result.fun) if result.status == 0 else None


@pytest.mark.parametrize("form", ["mccormick", "glover"])
def test_for_every_selection_the_best_helpers_give_the_quadratic_objective(form: str) -> None:
    checked = 0
    for seed in range(60):
        program = random_program(np.random.default_rng([5, seed]), 5)
        if program.n == 0:
            continue
        arrays = linearize(program, form)
        for x in itertools.product((0, 1), repeat=program.n):
            value = best_helpers(arrays, x)
            if program.violations(x):
                assert value is None
            else:
                assert value == pytest.approx(program.objective(x), abs=1e-6)
                checked += 1
    assert checked > 100


def test_sizes_and_kinds_of_columns() -> None:
    pairwise = np.zeros((4, 4))
    pairwise[0, 1] = pairwise[1, 0] = 2.0
    pairwise[0, 2] = pairwise[2, 0] = -1.0
    program = SelectionProgram([1.0] * 4, pairwise, [1] * 4, 3, fixed=[-1, 0, 1, -1])
    dense = linearize(program, "mccormick")
    assert dense.matrix.shape == (1 + 1 + 2, 4 + 2)
    small = linearize(program, "glover")
    assert small.matrix.shape == (1 + 2, 4 + 1)  # only item 0 has partners after it
    for arrays in (dense, small):
        assert arrays.integral.tolist() == [True] * 4 + [False] * (arrays.matrix.shape[1] - 4)
        assert arrays.col_lower[:4].tolist() == [0, 0, 1, 0]
        assert arrays.col_upper[:4].tolist() == [1, 0, 1, 1]


def test_glover_takes_u_over_the_whole_budget() -> None:
    """Over B - c_i it would be 0 here, and item 1 would pay for a partner that is not selected."""
    program = SelectionProgram([1.0, 10.0], [[0, 5], [5, 0]], [4, 4], 4)
    assert best_helpers(linearize(program, "glover"), (0, 1)) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("costs", "budget", "x", "value"),
    [
        ([0.1, 0.2], 0.3, (1, 1), 3.0),
        ([0.1 + 0.2, 0.0], 0.3, (1, 1), 3.0),
        ([0.0, 0.1 + 0.2], 0.3, (1, 1), 3.0),
    ],
)
def test_glover_keeps_items_that_fit_up_to_rounding(costs, budget, x, value) -> None:
    program = SelectionProgram([-1.0, -1.0], [[0, -5], [-5, 0]], costs, budget)
    assert best_helpers(linearize(program, "glover"), x) == pytest.approx(value)


@pytest.mark.parametrize(
    ("values", "costs", "budget", "bound"),
    [
        ([6, 10, 12], [1, 2, 3], 5, 6 + 10 + 12 * 2 / 3),
        ([6, 10, 12], [1, 2, 3], 6, 28),
        ([6, -1, 4], [1, 0, 0], 0, 4),
        ([9, 1], [5, 1], 4, 1),
        ([1, 1], [0, 0], -1, 0),
        ([], [], 3, 0),
    ],
)
def test_knapsack_bound_by_hand(values, costs, budget, bound) -> None:
    assert knapsack_bound(np.array(values, float), np.array(costs, float), budget) == pytest.approx(bound)
