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
    for seed in range(30):
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
    assert checked > 60


def test_glover_takes_u_over_the_whole_budget_and_keeps_items_that_fit_up_to_rounding() -> None:
    """Over B - c_i, U would be 0 here, and item 1 would pay for a partner that is not selected."""
    program = SelectionProgram([1.0, 10.0], [[0, 5], [5, 0]], [4, 4], 4)
    assert best_helpers(linearize(program, "glover"), (0, 1)) == pytest.approx(10.0)
    for costs in ([0.1, 0.2], [0.1 + 0.2, 0.0], [0.0, 0.1 + 0.2]):
        program = SelectionProgram([-1.0, -1.0], [[0, -5], [-5, 0]], costs, 0.3)
        assert best_helpers(linearize(program, "glover"), (1, 1)) == pytest.approx(3.0)


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
