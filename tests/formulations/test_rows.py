"""Rows against what they say in words, on every selection of small pools; soft rows; fixed values."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import LinearConstraint, SelectionProgram, fixed_values, passage_count, source_caps
from mio_rag.formulations.rows import (
    SoftRow,
    change_rows,
    conflict_rows,
    coverage_rows,
    need_rows,
    share_rows,
    with_constant,
    with_soft_rows,
)
from mio_rag.solvers import solve

IDS = ["a", "b", "c", "d", "e", "f"]


def selections():
    for size in range(len(IDS) + 1):
        yield from combinations(range(len(IDS)), size)


def holds(rows, chosen) -> bool:
    return all(row.violation(float(row.coefficients[list(chosen)].sum())) == 0 for row in rows)


def test_shares() -> None:
    labels = ["x", "x", "x", "y", "y", ""]
    for share in (1 / 3, 0.5, 0.75, 1.0):
        rows = share_rows(labels, share)
        for chosen in selections():
            counts = [sum(labels[i] == s for i in chosen) for s in "xy"]
            assert holds(rows, chosen) == all(c <= share * len(chosen) + 1e-9 for c in counts)
    assert share_rows(labels, 0.5)[0].name == "at most 0.5 of all from source 'x'"


def test_coverage() -> None:
    labels = ["x", "x", "x", "y", "y", ""]
    for least in (1, 2, 3):
        for chosen in selections():
            x, y = (sum(labels[i] == s for i in chosen) for s in "xy")
            assert holds(coverage_rows(labels, least), chosen) == (x >= least and y >= min(least, 2))


def test_changes() -> None:
    previous = ["a", "b", "gone"]
    for most in range(7):
        rows = change_rows(IDS, previous, most)
        for chosen in selections():
            assert holds(rows, chosen) == (len({IDS[i] for i in chosen} ^ {"a", "b"}) <= most)
    assert change_rows(IDS, previous, 6) == []


def test_conflicts_are_the_pairs_however_they_are_grouped() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        pairs = [p for p in combinations(range(6), 2) if rng.random() < 0.5]
        rows = conflict_rows(IDS, pairs)
        for chosen in selections():
            assert holds(rows, chosen) == (not any(set(p) <= set(chosen) for p in pairs))
    assert len(conflict_rows(IDS, list(combinations(range(6), 2)))) == 1
    assert conflict_rows(IDS, [(0, 3)])[0].name == "not both of 'a', 'd'"


def test_needs() -> None:
    rows = need_rows(IDS, {"a": ["b"], "c": ["b", "d"], "e": ["gone"], "elsewhere": ["a"], "f": ["f"]})
    for chosen in selections():
        c = {IDS[i] for i in chosen}
        meant = ("a" not in c or "b" in c) and ("c" not in c or {"b", "d"} <= c) and "e" not in c
        assert holds(rows, chosen) == meant
    assert [row.name for row in rows][-1] == "'e' needs 'gone', which is not in the pool"


@pytest.mark.parametrize("solver", ["exhaustive", "branch_and_bound", "highs", "cpsat"])
def test_a_price_is_what_breaking_costs(solver: str) -> None:
    """The program with slack items has the optimum of: objective minus price times violation."""
    rng = np.random.default_rng(5)
    for _ in range(12):
        n = 6
        raw = np.triu(np.round(rng.normal(0, 0.3, (n, n)), 3), 1)
        program = SelectionProgram(
            np.round(rng.normal(0.4, 0.5, n), 3), raw + raw.T, rng.integers(1, 9, n), 20
        )
        soft = [
            SoftRow(LinearConstraint(rng.integers(0, 2, n), upper=1, name="few"), 0.2),
            SoftRow(LinearConstraint(rng.integers(-1, 2, n), lower=1, upper=2, name="some"), 0.35),
            SoftRow(LinearConstraint(np.ones(n), lower=5, name="many"), 0.05),
        ]
        truth = max(
            program.objective(x) - sum(part.price * part.broken(x) for part in soft)
            for chosen in selections()
            for x in [np.isin(np.arange(n), chosen).astype(np.int8)]
            if not program.violations(x)
        )
        extended = with_soft_rows(program, soft)
        result = solve(extended, solver)
        assert result.objective == pytest.approx(truth)
        paid = sum(part.price * part.broken(result.x) for part in soft)
        assert result.objective == pytest.approx(program.objective(result.x[:n]) - paid)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: share_rows(["x"], 0.0), r"max_source_share=0.0 must be in \(0, 1\]"),
        (lambda: SoftRow(LinearConstraint([1.0], upper=1, name="r"), -1), "price of 'r' is -1"),
        (lambda: SoftRow(LinearConstraint([1.0], upper=0.5, name="r"), 1), "'r' cannot be soft"),
    ],
)
def test_malformed_rows(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_constant_is_in_every_objective() -> None:
    program = SelectionProgram([1.0, 2.0], [[0, 0.5], [0.5, 0]], [1, 1], 2)
    moved = with_constant(program, -0.7)
    assert solve(moved).objective == pytest.approx(solve(program).objective - 0.7)
    assert with_constant(program, 0.0) is program


def test_passage_count() -> None:
    low, high = passage_count(5, 2, 3)
    assert (low.lower, low.upper, low.name) == (2, math.inf, "at least 2 passages")
    assert (high.lower, high.upper, high.name) == (-math.inf, 3, "at most 3 passages")
    assert low.coefficients.tolist() == [1] * 5
    assert passage_count(5) == []
    assert passage_count(5, 0, 5) == []  # neither side can bind
    assert [row.upper for row in passage_count(5, maximum=0)] == [0]


@pytest.mark.parametrize(
    ("minimum", "maximum", "message"),
    [
        (-1, None, "min_passages=-1 must be a whole number"),
        (None, 1.5, "max_passages=1.5 must be a whole number"),
        ("2", None, "min_passages='2' must be a whole number"),
        (3, 2, "min_passages=3 is above max_passages=2"),
        (6, None, "min_passages=6 is above the 5 candidates"),
    ],
)
def test_passage_count_refuses(minimum, maximum, message: str) -> None:
    with pytest.raises(InputError, match=message):
        passage_count(5, minimum, maximum)


def test_source_caps() -> None:
    sources = ["a", "b", "a", "", "", "a"]
    (row,) = source_caps(sources, 2)
    assert row.coefficients.tolist() == [1, 0, 1, 0, 0, 1]
    assert (row.upper, row.name) == (2, "at most 2 from source 'a'")
    assert len(source_caps(sources, 0)) == 2  # passages without a source are not capped
    assert [r.upper for r in source_caps(sources, {"b": 0, "elsewhere": 1})] == [0]
    with pytest.raises(InputError, match="max_per_source for 'a'=-1"):
        source_caps(sources, -1)


def test_fixed_values() -> None:
    assert fixed_values(["x", "y", "z"], ["z"], ["x", "unknown"]).tolist() == [0, -1, 1]
    with pytest.raises(InputError, match=r"(?s)'x' is in both.*'w', which is not among the 2 candidates"):
        fixed_values(["x", "y"], ["x", "w"], ["x"])
