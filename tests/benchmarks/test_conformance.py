from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import conformance
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveOptions, solve
from mio_rag.solvers.result import conclude
from mio_rag.testing.programs import random_program

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
    assert complaint in str(conformance.disagreement(PROGRAM, TRUTH, lie, exact))


def test_true_claims_pass() -> None:
    assert conformance.disagreement(PROGRAM, TRUTH, claim([1, 0], 3.0), True) is None
    assert conformance.disagreement(PROGRAM, TRUTH, claim([0, 1], 3.5), False) is None


def test_a_claim_on_an_infeasible_program() -> None:
    nothing = SelectionProgram([1.0], [[0.0]], [1], -1)
    truth = solve(nothing, "exhaustive")
    assert conformance.disagreement(nothing, truth, claim(None, None), False) is None
    assert "not proven" in str(conformance.disagreement(nothing, truth, claim(None, None), True))
    assert "admits none" in str(conformance.disagreement(nothing, truth, claim([1, 0], 3.0), True))


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


def test_the_command_writes_its_report(tmp_path, capsys) -> None:
    out = tmp_path / "deep" / "report.json"
    assert command.main(["conformance", "--programs", "5", "--seed", "1", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["programs"] == 5
    assert report["disagreements"] == []
    assert sum(report["truth"].values()) == 5
    assert [p.name for p in out.parent.iterdir()] == ["report.json"]
    assert "0 disagreements" in capsys.readouterr().err


def test_the_command_fails_on_a_disagreement(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(conformance, "disagreement", lambda *_: "wrong")
    out = tmp_path / "report.json"
    assert command.main(["conformance", "--programs", "1", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["disagreements"]
