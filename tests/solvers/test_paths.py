"""Sweeps give the results of single solves; conflicts are minimal and smallest budgets exact."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.trust.checks import forced_stages
from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram, nominal_program, passage_count
from mio_rag.solvers import SolveOptions, Status, branch_and_bound, relaxation, solve, solve_path
from mio_rag.solvers.branch_and_bound import WarmStart
from mio_rag.solvers.paths import find_conflict
from mio_rag.testing.programs import random_program

EXACT = SolveOptions(time_limit_seconds=None)


def _pool(n: int) -> Callable[[float, int], SelectionProgram]:
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(n, 100)) + 0.4
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance, costs = rng.uniform(0.2, 0.7, n), rng.integers(20, 160, n)
    gram = vectors @ vectors.T
    return lambda weight, budget: nominal_program(relevance, gram, costs, budget, redundancy_weight=weight)


def test_a_path_equals_single_solves_and_searches_less() -> None:
    program = _pool(100)
    path = [program(weight, budget) for weight in (0.6, 0.7, 0.8) for budget in (800, 850, 900)]
    alone = [branch_and_bound.solve(p, EXACT) for p in path]
    warm = list(solve_path(path, options=EXACT))
    for ours, single in zip(warm, alone, strict=True):
        assert ours.is_optimal
        assert ours.objective == pytest.approx(single.objective, abs=2e-6)
    assert sum(r.nodes or 0 for r in warm) < sum(r.nodes or 0 for r in alone)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_a_warm_start_from_any_other_program_is_harmless(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with forced_stages(1, relaxation._NARROW_GAP, relaxation._EFFORTS):
        warm = WarmStart()
        n = 10
        for _ in range(4):
            program = random_program(rng, n)
            while program.n != n:
                program = random_program(rng, n)
            truth = solve(program, "exhaustive")
            result = branch_and_bound.solve(program, EXACT, warm=warm)
            assert result.status is truth.status
            if truth.objective is not None:
                assert result.objective == pytest.approx(truth.objective, abs=2e-6, rel=2e-9)
                assert result.bound is not None
                assert result.bound >= truth.objective - 1e-9 * max(1.0, abs(truth.objective))


def test_any_solver_walks_a_path_and_pools_are_not_mixed() -> None:
    program = _pool(8)
    results = list(solve_path([program(0.1, 200), program(0.1, 300)], "exhaustive"))
    assert [r.solver for r in results] == ["exhaustive", "exhaustive"]
    with pytest.raises(InputError, match="program 1 has 9 items, those before it 8"):
        list(solve_path([program(0.1, 200), _pool(9)(0.1, 200)]))
    with pytest.raises(InputError, match="unknown"):
        list(solve_path([], "nonsense"))


def names(n: int) -> list[str]:
    return [f"p{k}" for k in range(n)]


def test_the_culprits_alone_are_named() -> None:
    rows = [
        LinearConstraint([1, 1, 1, 0], upper=3, name="harmless"),
        *passage_count(4, minimum=3),
        LinearConstraint([0, 0, 0, 1], upper=1, name="also harmless"),
    ]
    program = SelectionProgram([1.0] * 4, np.zeros((4, 4)), [5, 6, 7, 8], 17, tuple(rows))
    found = find_conflict(program, names(4))
    assert found.parts == ("at most 17 tokens", "at least 3 passages")
    assert "find_conflict" in solve(program).certificate()
    assert find_conflict(program) == found
    assert found.minimal
    assert found.smallest_budget == 18
    assert found.explain().endswith("a budget of 18 tokens would do")
    rows = [*passage_count(2, minimum=2), LinearConstraint([1, 0], upper=0, name="not the first")]
    program = SelectionProgram([1.0, 1.0], np.zeros((2, 2)), [5, 5], 1, tuple(rows))
    found = find_conflict(program, names(2))
    assert found.parts == ("at least 2 passages", "not the first")  # no budget would mend it
    assert found.smallest_budget is None
    assert find_conflict(SelectionProgram([1.0], [[0]], [1], 1), ["a"]) is None
    below = find_conflict(SelectionProgram([1.0], [[0.0]], [0], -1), ["a"])
    assert "a budget of 0 tokens would do" in below.explain()  # not -0


def test_random_conflicts_are_minimal_and_budgets_smallest() -> None:
    seen = 0
    for seed in range(200):
        program = random_program(np.random.default_rng([23, seed]), 8)
        if solve(program, "exhaustive").status is not Status.INFEASIBLE:
            continue
        seen += 1
        found = find_conflict(program, names(program.n))
        assert found.minimal
        labels = {f"at most {program.budget:.10g} tokens": "budget"}
        kept = set(found.parts)

        def reduced(without: str | None, program=program, labels=labels, kept=kept) -> SelectionProgram:
            fixed = [
                int(v) if v >= 0 and (w := f"'p{k}' {'in' if v else 'out'}") in kept and w != without else -1
                for k, v in enumerate(program.fixed)
            ]
            budget = next(iter(labels))
            return replace(
                program,
                rows=tuple(r for r in program.rows if r.name in kept and r.name != without),
                budget=program.budget if budget in kept and budget != without else 1e9,
                fixed=fixed,
            )

        assert solve(reduced(None), "exhaustive").status is Status.INFEASIBLE
        for part in found.parts:
            if sum(row.name == part for row in program.rows) > 1:
                continue  # rows of the same name cannot be told apart here
            assert solve(reduced(part), "exhaustive").status is not Status.INFEASIBLE
        if found.smallest_budget is not None:
            enough = solve(replace(program, budget=found.smallest_budget + 1e-9), "exhaustive")
            assert enough.status is not Status.INFEASIBLE
            less = solve(replace(program, budget=found.smallest_budget - 0.01), "exhaustive")
            assert less.status is Status.INFEASIBLE
    assert seen > 5
