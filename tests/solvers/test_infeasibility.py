"""Minimal conflicts: infeasible together, feasible without any one part; the smallest budget is exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mio_rag.formulations import LinearConstraint, SelectionProgram, passage_count
from mio_rag.solvers import Status, solve
from mio_rag.solvers.paths import find_conflict
from mio_rag.testing.programs import random_program


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
    assert found.minimal
    assert found.smallest_budget == 18
    assert found.explain().endswith("a budget of 18 tokens would do")


def test_what_no_budget_mends_is_said_without_the_budget() -> None:
    rows = [*passage_count(2, minimum=2), LinearConstraint([1, 0], upper=0, name="not the first")]
    program = SelectionProgram([1.0, 1.0], np.zeros((2, 2)), [5, 5], 1, tuple(rows))
    found = find_conflict(program, names(2))
    assert found.parts == ("at least 2 passages", "not the first")
    assert found.smallest_budget is None


def test_a_feasible_program_has_no_conflict() -> None:
    assert find_conflict(SelectionProgram([1.0], [[0]], [1], 1), ["a"]) is None


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


def test_a_budget_of_nothing_is_not_minus_nothing() -> None:
    conflict = find_conflict(SelectionProgram([1.0], [[0.0]], [0], -1), ["a"])
    assert conflict is not None
    assert "a budget of 0 tokens would do" in conflict.explain()
