"""False claims are noticed, true ones pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveOptions, Status, solve
from mio_rag.solvers.result import conclude
from mio_rag.testing import disagreement
from mio_rag.testing.solvers import malformed

PROGRAM = SelectionProgram([3.0, 2.0], np.zeros((2, 2)), [1, 1], 1)
TRUTH = solve(PROGRAM, "exhaustive")


def claim(x, bound, infeasible=False):
    return conclude(PROGRAM, SolveOptions(), "liar", x=x, bound=bound, proven_infeasible=infeasible)


@pytest.mark.parametrize(
    ("lie", "exact", "complaint"),
    [
        (claim([0, 1], 2.0), False, "below the optimum"),
        (claim([0, 1], 4.0), True, "objective 2.0 below the optimum"),
        (claim([1, 0], 3.1), True, "not proven"),
        (claim(None, None), True, "below the optimum"),
        (claim(None, None, infeasible=True), False, "admits a selection"),
        (claim([1, 1], 5.0), False, "error"),
    ],
)
def test_a_false_claim_is_noticed(lie, exact: bool, complaint: str) -> None:
    assert complaint in str(disagreement(PROGRAM, TRUTH, lie, exact))


def test_true_claims_pass() -> None:
    assert disagreement(PROGRAM, TRUTH, claim([1, 0], 3.0), True) is None
    assert disagreement(PROGRAM, TRUTH, claim([0, 1], 3.5), False) is None


def test_a_claim_on_an_infeasible_program() -> None:
    nothing = SelectionProgram([1.0], [[0.0]], [1], -1)
    truth = solve(nothing, "exhaustive")
    assert disagreement(nothing, truth, claim(None, None), False) is None
    assert "not proven" in str(disagreement(nothing, truth, claim(None, None), True))
    assert "admits none" in str(disagreement(nothing, truth, claim([1, 0], 3.0), True))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"objective": 2.5}, "objective 2.5, and the selection's is 3.0"),
        ({"objective": None}, "objective None"),
        ({"bound": None}, "optimal without a bound"),
        ({"bound": 2.0}, "below its own objective"),
        ({"gap": 0.5}, "gap 0.5"),
        ({"gap": None}, "gap None"),
        ({"status": Status.INFEASIBLE}, "beside a selection"),
        ({"x": None}, "without a selection"),
        ({"x": None, "status": Status.NO_SOLUTION}, "objective 3.0 without a selection"),
        ({"x": np.array([1.0, 0.5])}, "not 2 of 0 and 1"),
        ({"x": np.array([1])}, "not 2 of 0 and 1"),
        ({"nodes": float("nan")}, "no plain data"),
    ],
)
def test_a_result_that_contradicts_itself_is_noticed(changes: dict[str, object], complaint: str) -> None:
    whole = claim([1, 0], 3.0)
    assert malformed(PROGRAM, whole) is None
    assert complaint in str(malformed(PROGRAM, replace(whole, **changes)))


def test_something_else_than_a_result_is_noticed() -> None:
    assert "a tuple instead of a SolveResult" in str(malformed(PROGRAM, (1, 0)))
