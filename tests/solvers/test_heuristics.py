from __future__ import annotations

import numpy as np
import pytest

from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import solve
from mio_rag.testing.programs import random_program

PAIRWISE = np.zeros((4, 4))
PAIRWISE[0, 1] = PAIRWISE[1, 0] = 0.8  # 0 and 1 overlap
PROGRAM = SelectionProgram([1.0, 0.9, 0.5, -0.1], PAIRWISE, [4, 4, 1, 1], 8)


@pytest.mark.parametrize(
    ("method", "selected"),
    [
        ("topk", (0, 1)),  # by value: 0, 1, and nothing else fits
        ("density", (0, 2)),  # 2 at 0.5 per token, then 0; 1 no longer fits, 3 is worth nothing
        ("greedy", (0, 2)),  # 0, then 2: 1 gains only 0.1 beside 0, and no longer fits
        ("mmr", (0, 2, 3)),  # 0 (1.0), 2 (0.5), 1 (0.1) no longer fits, 3 (-0.1) does
        ("local_search", (0, 2)),
    ],
)
def test_orders_by_hand(method: str, selected: tuple[int, ...]) -> None:
    assert solve(PROGRAM, method).selected == selected


def test_local_search_swaps_where_greedy_is_stuck() -> None:
    """Value 1.0 and value per token both prefer item 0, which blocks 1 and 2."""
    program = SelectionProgram([1.0, 0.9, 0.9], np.zeros((3, 3)), [6, 5.9, 5.9], 11.8)
    assert solve(program, "greedy").objective == pytest.approx(1.0)
    assert solve(program, "local_search").objective == pytest.approx(
        1.0
    )  # no single swap helps: two must move
    pairs = np.zeros((3, 3))
    pairs[1, 2] = pairs[2, 1] = -3.0
    linked = SelectionProgram([1.0, 0.9, -0.5], pairs, [1, 1, 1], 2)
    assert solve(linked, "greedy").selected == (0, 1)
    assert solve(linked, "local_search").selected == (1, 2)


def test_local_search_is_never_below_greedy_and_ends_in_a_local_optimum() -> None:
    better = 0
    for seed in range(200):
        program = random_program(np.random.default_rng([17, seed]), 10)
        greedy, search = solve(program, "greedy"), solve(program, "local_search")
        if greedy.x is None or search.x is None:
            assert greedy.x is None
            assert search.x is None
            continue
        assert search.objective >= greedy.objective - 1e-9
        better += search.objective > greedy.objective + 1e-9
        for i in program.free:
            for j in (None, *program.free):
                moved = search.x.copy()
                moved[i] = 1 - moved[i]
                if j is not None and search.x[i] != search.x[j]:
                    moved[j] = 1 - moved[j]
                if not program.violations(moved):
                    assert program.objective(moved) <= search.objective + 1e-8, seed
    assert better > 3
