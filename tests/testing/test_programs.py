"""The programs that solvers are tried on."""

from __future__ import annotations

import numpy as np

from mio_rag.solvers import solve
from mio_rag.testing import known_cases, random_program


def test_programs_are_reproducible_and_varied() -> None:
    def draw():
        rng = np.random.default_rng(3)
        return [random_program(rng, 8) for _ in range(300)]

    first, second = draw(), draw()
    assert [p.to_dict() for p in first] == [p.to_dict() for p in second]
    assert {0, 1, 8} <= {p.n for p in first}
    assert any(p.budget < 0 for p in first)
    assert any(len(p.rows) > 2 for p in first)
    assert any(p.n and (p.costs == 0).any() for p in first)
    assert any((p.fixed >= 0).any() for p in first)
    assert any((p.costs % 1 != 0).any() for p in first)


def test_answers_by_hand_are_those_of_enumeration() -> None:
    cases = known_cases()
    assert len({case.name for case in cases}) == len(cases) > 50
    for case in cases:
        truth = solve(case.program, "exhaustive")
        if case.optimum is not None:
            assert truth.objective is not None
            assert abs(truth.objective - case.optimum) <= 1e-12 * abs(case.optimum), case.name
        if case.selected is not None:
            assert truth.selected == case.selected, case.name
