from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from benchmarks import __main__ as main
from benchmarks.trust import checks, command
from benchmarks.trust.draw import SHARED_TWISTS, TWISTS, draw
from benchmarks.trust.oracle import enumerate_all
from benchmarks.trust.peers import contradiction, large_program
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveOptions, branch_and_bound, relaxation, solve
from mio_rag.solvers.result import conclude
from mio_rag.testing.programs import SCALES

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
    ],
)
def test_a_false_certificate_is_noticed(lie, words: str) -> None:
    assert words in str(checks.complaint(PROGRAM, enumerate_all(PROGRAM), lie, OPTIONS, True))


def test_a_true_certificate_passes() -> None:
    truth = enumerate_all(PROGRAM)
    assert checks.complaint(PROGRAM, truth, claim([1, 0], 3.0), OPTIONS, True) is None
    assert checks.complaint(PROGRAM, truth, claim([0, 1], 3.5, limit="time"), OPTIONS, False) is None


def test_the_oracle_agrees_with_the_other_enumeration() -> None:
    doubtful = 0
    for seed in range(300):
        program, _ = draw(np.random.default_rng(seed), 10)
        truth, other = enumerate_all(program), solve(program, "exhaustive")
        doubtful += truth.doubtful
        if truth.doubtful:
            continue
        assert truth.feasible == (other.objective is not None)
        if other.objective is not None:
            assert other.objective == pytest.approx(truth.least, abs=1e-13 * truth.size)
    assert doubtful < 15


def test_the_oracle_pays_once_for_what_items_share() -> None:
    doubtful = left = 0
    for seed in range(300):
        program, _ = draw(np.random.default_rng(seed), 9, shared=True)
        left += program.segments is not None
        truth, other = enumerate_all(program), solve(program, "exhaustive")
        doubtful += truth.doubtful
        if truth.doubtful:
            continue
        assert truth.feasible == (other.objective is not None)
        if other.objective is not None:
            assert other.objective == pytest.approx(truth.least, abs=1e-13 * truth.size)
    assert doubtful < 40  # budgets of exactly what some items cost, of any size
    assert left > 250


def test_a_selection_at_the_edge_of_the_tolerance_is_doubtful() -> None:
    truth = enumerate_all(SelectionProgram([1.0, 2.0], np.zeros((2, 2)), [7.5, 12], 19.5 - 1e-6))
    assert (truth.least, truth.most, truth.doubtful) == (2.0, 3.0, True)
    clear = enumerate_all(SelectionProgram([1.0, 2.0], np.zeros((2, 2)), [7.5, 12], 19.5 - 0.9e-6))
    assert (clear.least, clear.most, clear.size) == (3.0, 3.0, 3.0)


def test_every_twist_is_drawn_and_programs_repeat() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        program, names = draw(np.random.default_rng(seed), 12)
        again, _ = draw(np.random.default_rng(seed), 12)
        assert program.to_dict() == again.to_dict()
        seen.update(names)
    assert set(seen) == {*TWISTS, *(f"values at {scale:g}" for scale in SCALES)}
    assert large_program(np.random.default_rng(0)).n >= 25


def test_every_twist_of_segments_is_drawn() -> None:
    seen: Counter[str] = Counter()
    for seed in range(200):
        seen.update(draw(np.random.default_rng(seed), 8, shared=True)[1])
    assert set(seen) >= {*TWISTS, *SHARED_TWISTS}
    large = large_program(np.random.default_rng(0), shared=True)
    assert large.n >= 25
    assert large.segments is not None


def test_solvers_that_contradict_each_other_are_noticed() -> None:
    high, low = claim([1, 0], 3.0), claim([0, 1], 2.0)
    assert contradiction(high, high) is None
    assert "bounds by 2" in str(contradiction(high, low))
    assert "bounds by 2" in str(contradiction(low, high))
    assert "infeasibility" in str(contradiction(high, claim(None, None, infeasible=True)))


def test_settings_are_given_back() -> None:
    before = (
        branch_and_bound._QUICK_WORK,
        relaxation._EFFORTS,
        branch_and_bound._start,
        branch_and_bound._round,
    )
    settings = ExitStack()
    settings.enter_context(checks.forced_stages(0, 0.0, (1,)))
    settings.enter_context(checks.weak_starts())
    assert (branch_and_bound._QUICK_WORK, relaxation._EFFORTS) == (0, (1,))
    with pytest.raises(KeyError), settings:
        raise KeyError
    after = (
        branch_and_bound._QUICK_WORK,
        relaxation._EFFORTS,
        branch_and_bound._start,
        branch_and_bound._round,
    )
    assert after == before


def test_an_interrupted_run_resumes_to_the_same_report(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "_SAVE_EVERY", 5)
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    assert main.main(["trust", "--programs", "12", "--seed", "3", "--out", str(whole)]) == 0
    real = command.check_program

    def interrupted(seed, k, *rest):
        if k == 8:
            raise KeyboardInterrupt
        return real(seed, k, *rest)

    monkeypatch.setattr(command, "check_program", interrupted)
    assert main.main(["trust", "--programs", "12", "--seed", "3", "--out", str(parts)]) == 130
    assert json.loads((tmp_path / "parts.partial.json").read_text())["programs"] == 5
    monkeypatch.setattr(command, "check_program", real)
    assert main.main(["trust", "--programs", "12", "--seed", "3", "--out", str(parts), "--resume"]) == 0
    first, second = json.loads(whole.read_text()), json.loads(parts.read_text())
    for report in (first, second):  # what a clock decides may differ
        report["counts"] = {name: n for name, n in report["counts"].items() if "time limit" not in name}
    assert first == second
    assert first["programs"] == 12
    assert sorted(p.name for p in tmp_path.iterdir()) == ["parts.json", "whole.json"]
    assert "0 wrong" in capsys.readouterr().err


def test_the_command_fails_on_a_wrong_certificate(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checks, "complaint", lambda *_: "wrong")
    out = tmp_path / "report.json"
    assert main.main(["trust", "--programs", "1", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["wrong"]
    assert main.main(["trust", "--programs", "0", "--out", str(out)]) == 2


def test_a_run_with_segments_is_not_resumed_without(tmp_path, capsys) -> None:
    out = tmp_path / "report.json"
    asked = ["trust", "--programs", "3", "--seed", "2", "--out", str(out)]
    assert main.main([*asked, "--segments"]) == 0
    report = json.loads(out.read_text())
    assert report["segments"] is True
    assert report["command"].endswith("--segments")
    assert report["counts"]["programs: with segments"] > 0
    (tmp_path / "report.partial.json").write_text(out.read_text())
    assert main.main([*asked, "--resume"]) == 0
    assert "starting anew" in capsys.readouterr().err
    assert json.loads(out.read_text())["segments"] is False
