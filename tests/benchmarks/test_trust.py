from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.runner import main
from benchmarks.trust import checks, command
from benchmarks.trust.command import contradiction
from benchmarks.trust.draw import VARIANTS, draw, family
from benchmarks.trust.oracle import enumerate_all, exactly
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveOptions, solve
from mio_rag.solvers.result import conclude

PROGRAM = SelectionProgram([3.0, 2.0], np.zeros((2, 2)), [1, 1], 1)
OPTIONS = SolveOptions()


def claim(x, bound, infeasible=False, limit=None):
    return conclude(PROGRAM, OPTIONS, "liar", x=x, bound=bound, proven_infeasible=infeasible, limit=limit)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (claim([0, 1], 2.5), "bound 2.5 below the optimum 3"),
        (claim([0, 1], 2.0), "bound 2 below"),
        (claim(None, None, infeasible=True), "infeasibility"),
        (claim([1, 1], 5.0), "error"),
        (claim([1, 0], 3.1), "neither a limit nor a proof"),
        (claim(None, 3.0), "no selection, no limit"),
        (claim([1, 0], 3.0), "None"),
    ],
)
def test_a_false_certificate_is_noticed(lie, words: str) -> None:
    assert words in str(checks.complaint(PROGRAM, enumerate_all(PROGRAM), lie, OPTIONS, True))


@pytest.mark.parametrize("shared", [False, True])
def test_the_oracle_is_exact_and_agrees_with_the_other_enumeration(shared: bool) -> None:
    doubtful = left = 0
    for seed in range(200):
        program, _ = draw(np.random.default_rng(seed), 8, shared)
        left += program.segments is not None
        truth = enumerate_all(program)
        doubtful += truth.doubtful
        if truth.free.size < 7:
            values, costs = exactly(program)
            assert (truth.value.tolist(), truth.cost.tolist()) == (
                [float(value) for value in values],
                [float(cost) for cost in costs],
            )
        if not truth.doubtful:
            other = solve(program, "exhaustive")
            assert truth.feasible == (other.objective is not None)
            if other.objective is not None:
                assert other.objective == pytest.approx(truth.least, abs=1e-13 * truth.size)
    assert doubtful < 30  # budgets of exactly what some items cost, of any size
    assert (left > 170) == shared


def test_variants_are_as_hard_to_decide_as_they_say() -> None:
    program = SelectionProgram([4.0, 3.0, 2.5], np.zeros((3, 3)), [3, 2, 2], 4)
    seen: dict[str, list] = {}
    for seed in range(20):
        for name, other, truth in family(np.random.default_rng(seed), program, 9):
            seen.setdefault(name, []).append((other, truth))
    assert set(seen) == {"as drawn", *VARIANTS}
    ties = [np.sort(truth.value[truth.sure])[-2:] for _, truth in seen["second as good as the best"]]
    assert min(best - second for second, best in ties) == 0.0
    assert any(0 < best - second < 1e-5 for second, best in ties)
    assert {truth.least for _, truth in seen["worth nothing"]} == {4.0}  # another is best then
    edges = [(other.budget, truth.cost[truth.sure].max()) for other, truth in seen["budget of the best"]]
    assert any(budget == cost == 7 for budget, cost in edges)
    assert any(cost < 7 and budget > 6.99 for budget, cost in edges)


def test_solvers_that_contradict_each_other_are_noticed() -> None:
    high, low = claim([1, 0], 3.0), claim([0, 1], 2.0)
    assert contradiction(high, high) is None
    assert "bounds by 2" in str(contradiction(high, low))
    assert "bounds by 2" in str(contradiction(low, high))
    assert "infeasibility" in str(contradiction(high, claim(None, None, infeasible=True)))


def test_an_interrupted_run_resumes_to_the_same_report(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(command, "_SAVE_EVERY", 5)

    def run(name: str, programs: int = 12, *more: str) -> int:
        asked = ["trust", "--programs", str(programs), "--seed", "3", *more]
        return main([*asked, "--work", str(tmp_path / name), "--out", str(tmp_path / f"{name}.json")])

    assert run("whole") == 0
    real = command.check_program

    def interrupted(seed, k, *rest, **named):
        if k == 8:
            raise KeyboardInterrupt
        return real(seed, k, *rest, **named)

    monkeypatch.setattr(command, "check_program", interrupted)
    assert run("parts") == 130
    assert json.loads((tmp_path / "parts" / "programs-3.json").read_text())["next"] == 5
    monkeypatch.setattr(command, "check_program", real)
    assert run("parts") == 0
    counts = []
    for name in ("whole", "parts"):  # what a clock decides may differ
        report = json.loads((tmp_path / f"{name}.json").read_text())
        counts.append({key: n for key, n in report["counts"].items() if "time limit" not in key})
        assert report["programs"] == 12
    assert counts[0] == counts[1]
    assert run("parts", 12, "--brief", "1") == 0
    assert json.loads((tmp_path / "parts.json").read_text())["programs"] >= 12
    assert run("parts", 3, "--segments", "1") == 0
    assert json.loads((tmp_path / "parts.json").read_text())["counts"]["programs: with segments"] > 0
