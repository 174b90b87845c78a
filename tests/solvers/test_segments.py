"""Programs with segments: every back end, and what is built on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, Segments, SelectionProgram
from mio_rag.frontier.paths import budget_path
from mio_rag.solvers import SolveOptions, Status, solve, solvers
from mio_rag.solvers.paths import find_conflict
from mio_rag.solvers.result import upper_bound
from mio_rag.testing.programs import random_shared_program
from mio_rag.testing.solvers import disagreement

EXACT = [info for info in solvers() if info.exact and info.name != "exhaustive"]


def halves(budget: float) -> SelectionProgram:
    """Windows of 60 tokens that overlap by half: the middle one pays only beside its neighbours."""
    shared = Segments([30, 30, 30, 30], [[0, 1], [1, 2], [2, 3]])
    return SelectionProgram([3, 1, 2.5], np.zeros((3, 3)), np.zeros(3), budget, segments=shared)


@pytest.mark.parametrize("info", solvers(), ids=lambda info: info.name)
def test_no_solver_is_refuted_by_enumeration(info) -> None:
    for seed in range(8 if info.name == "pyomo" else 30):
        given = random_shared_program(np.random.default_rng([22, seed]), 8)
        try:
            claim = solve(given, info.name)
        except InputError:
            assert info.name == "cpsat"
            continue
        assert disagreement(given, solve(given, "exhaustive"), claim, info.exact) is None, seed


def test_the_simple_bound_holds() -> None:
    for seed in range(300):
        given = random_shared_program(np.random.default_rng([23, seed]), 8)
        truth = solve(given, "exhaustive")
        assert truth.objective is None or upper_bound(given) >= truth.objective - 1e-9


def test_the_simple_bound_charges_for_segments() -> None:
    """Two that share a segment cannot both be had for less than what it costs."""
    shared = Segments([10.0], [[0], [0]])
    given = SelectionProgram([1, 1], np.zeros((2, 2)), [1, 1], 9, segments=shared)
    assert upper_bound(given) == 0
    assert upper_bound(replace(given, budget=12)) == 2
    priced = replace(given, budget=12, segments=replace(shared, prices=[0.5]))
    assert upper_bound(priced) == pytest.approx(1.5)


@pytest.mark.parametrize("solver", ["branch_and_bound", "highs", "cpsat"])
def test_a_conflict_counts_what_is_shared_once(solver: str) -> None:
    given = replace(halves(80), rows=(LinearConstraint([1, 1, 1], lower=2, name="at least 2 passages"),))
    assert solve(given, solver).status is Status.INFEASIBLE
    conflict = find_conflict(given, ["a", "b", "c"], solver)
    assert conflict is not None
    assert conflict.parts == ("at most 80 tokens", "at least 2 passages")
    assert conflict.smallest_budget == 90


def test_the_staircase_of_budgets_counts_what_is_shared_once() -> None:
    steps = budget_path(halves(150)).steps
    assert [(s.tokens, s.value) for s in steps] == [(0, 0), (60, 3), (90, 4), (120, 6.5)]
    with pytest.raises(InputError, match="whole numbers"):
        budget_path(replace(halves(150), segments=Segments([30.5], [[0], [0], []])))


@pytest.mark.parametrize("solver", [info.name for info in EXACT])
def test_a_time_limit_leaves_a_valid_bound(solver: str) -> None:
    rng = np.random.default_rng(5)
    raw = np.triu(rng.normal(size=(60, 60)), 1)
    needs = [[i // 2, 30 + i // 3] for i in range(60)]
    shared = Segments(rng.integers(5, 40, 50).astype(float), needs)
    given = SelectionProgram(
        3 * rng.random(60), raw + raw.T, rng.integers(1, 20, 60).astype(float), 500, segments=shared
    )
    known = solve(given, "local_search").objective
    result = solve(given, solver, SolveOptions(time_limit_seconds=0.05))
    assert result.status in (Status.FEASIBLE, Status.NO_SOLUTION)
    assert result.limit == "time"
    assert result.bound is not None
    assert result.bound >= known
