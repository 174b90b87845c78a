from __future__ import annotations

import math

import numpy as np
import pytest

from mio_rag.formulations import LinearConstraint, SelectionProgram, passage_count
from mio_rag.solvers import solve
from mio_rag.solvers.result import upper_bound
from mio_rag.testing.programs import random_program


def test_never_below_the_optimum_and_minus_infinity_only_for_infeasible_programs() -> None:
    refuted = 0
    for seed in range(500):
        program = random_program(np.random.default_rng([13, seed]), 9)
        bound, optimum = upper_bound(program), solve(program, "exhaustive").objective
        if optimum is not None:
            assert bound >= optimum - 1e-9, seed
        refuted += bound == -math.inf
    assert refuted > 15


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
def test_by_hand(program: SelectionProgram, expected: float) -> None:
    # The budget's tolerance may let the fractional item in by a millionth more.
    assert upper_bound(program) == pytest.approx(expected, abs=1e-5)
