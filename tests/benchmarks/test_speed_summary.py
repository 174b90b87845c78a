"""Ratios that are lower bounds, gaps at a time, contradictions, groups: from rows made by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speed.summary import (
    GROUPS,
    Ratio,
    by_program,
    contradictions,
    gap_at,
    in_group,
    median_ratio,
    ratio,
    seconds_to_proof,
)


def stage(limit, seconds, status="feasible", objective=1.0, bound=1.5, gap=0.5, nodes=7, message=""):
    return {
        "limit": limit, "seconds": seconds, "status": status, "objective": objective, "bound": bound,
        "gap": gap, "nodes": nodes, "message": message,
    }  # fmt: skip


def proof(limit, seconds):
    return stage(limit, seconds, "optimal", 1.0, 1.0, 0.0)


def row(solver, *stages, program="p", role="peer", cell="dense/n20/l0.1/r0/b1024"):
    role = "ours" if solver == "branch_and_bound" else role
    return {
        "solver": solver, "stages": list(stages), "program": program, "role": role, "cell": cell,
        "question": "set/q", "wrong": [], "limit": stages[-1]["limit"],
    }  # fmt: skip


OURS = row("branch_and_bound", proof(0.1, 0.002))
SLOW = row("highs", stage(0.1, 0.11, gap=0.9), stage(1.0, 1.02, gap=0.5), stage(5.0, 5.2, gap=0.2))


LATE = row("cpsat-2", stage(5.0, 5.01))
PROOF = row("cpsat-1", stage(0.1, 0.1), proof(1.0, 0.5))
BROKEN = row("highs", stage(0.1, 0.001, "error", None, None, None))
LIAR = {**row("cpsat-1", proof(0.1, 0.001)), "wrong": ["infeasible selection"]}


def test_times_and_gaps_of_a_row() -> None:
    assert seconds_to_proof(OURS) == 0.002
    assert math.isinf(seconds_to_proof(SLOW))
    assert [gap_at(SLOW, t) for t in (0.1, 1.0, math.inf)] == [0.9, 0.5, 0.2]
    assert [gap_at(OURS, t) for t in (0.1, 1.0)] == [0, 0]
    assert math.isinf(gap_at(row("highs", stage(0.1, 0.1, "no_solution", None, None, None)), 1.0))


@pytest.mark.parametrize(
    ("some", "expected"),
    [
        ((OURS, SLOW, PROOF), Ratio(250.0, False)),  # the best rival
        ((OURS, PROOF, row("unranked", proof(0.1, 0.01))), Ratio(250.0, False)),
        ((OURS, row("unranked", proof(0.1, 0.01))), None),
        ((OURS, SLOW, LATE), Ratio(5.01 / 0.002, True)),  # a timeout makes a lower bound
        ((OURS, BROKEN), None),
        ((OURS, LIAR, row("highs-glover", proof(1.0, 0.2))), Ratio(100.0, False)),
        ((row("branch_and_bound", stage(5.0, 5.0)), row("highs", proof(5.0, 2.0))), Ratio(0.0, True)),
    ],
)
def test_the_ratio_to_the_best_rival(some, expected: Ratio | None) -> None:
    found = ratio({r["solver"]: r for r in some})
    assert (found is None) == (expected is None)
    if found is not None:
        assert (found.value, found.at_least) == (pytest.approx(expected.value), expected.at_least)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=1, max_size=9))
def test_a_median_of_lower_bounds_is_one(pairs) -> None:
    """Each program has a true ratio, and a limit up to which it is seen."""
    true = float(np.median([t for t, _ in pairs]))
    found = median_ratio([Ratio(min(t, seen), seen < t) for t, seen in pairs])
    assert found.value <= true * (1 + 1e-12)
    if not found.at_least:
        assert found.value == pytest.approx(true)


def test_the_median_is_exact_where_the_bounds_lie_above_it() -> None:
    assert median_ratio([Ratio(1, False), Ratio(2, False), Ratio(9, True)]) == Ratio(2, False)
    assert median_ratio([Ratio(1, False), Ratio(2, True), Ratio(9, False)]) == Ratio(2, True)
    assert median_ratio([]) is None


def test_contradictions() -> None:
    better = row("local_search", stage(5.0, 0.01, objective=1.2, bound=3.0), role="heuristic")
    (found,) = contradictions(by_program([OURS, better, SLOW]))
    assert "branch_and_bound claims the bound 1, local_search found 1.2" in found
    assert contradictions(by_program([OURS, SLOW])) == []
    assert contradictions(by_program([OURS, {**better, "program": "q"}])) == []
    none = row("highs", stage(5.0, 0.1, "infeasible", None, None, None))
    lied = {**row("cpsat-1", stage(5.0, 0.1, objective=9.0, bound=9.0)), "wrong": ["infeasible selection"]}
    found = contradictions(by_program([OURS, none, lied]))
    assert len(found) == 2  # the objective of the infeasible selection refutes nobody
    assert any("highs claims infeasibility" in text for text in found)
    top = row("local_search", stage(5.0, 0.01, objective=1.0, bound=3.0), role="heuristic")
    near = stage(5.0, 0.1, objective=None, bound=1.0 - 5e-6)  # within the tolerance of peers, beyond ours
    assert contradictions(by_program([top, row("highs", near)])) == []
    assert len(contradictions(by_program([top, row("branch_and_bound", near)]))) == 1


def test_groups_are_made_of_their_cells() -> None:
    assert in_group(OURS, GROUPS["n=20, lambda <= .3"])
    assert in_group(OURS, GROUPS["all cells"])
    assert not in_group(OURS, GROUPS["n=50, lambda <= .1"])
