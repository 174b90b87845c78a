from __future__ import annotations

import json

from benchmarks import __main__ as command
from benchmarks import conformance


def test_the_command_writes_its_report(tmp_path, capsys) -> None:
    out = tmp_path / "deep" / "report.json"
    assert command.main(["conformance", "--programs", "5", "--seed", "1", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["programs"] == 5
    assert report["disagreements"] == []
    assert sum(report["truth"].values()) == 5
    assert sorted(p.name for p in out.parent.iterdir()) == ["report.json", "report.txt"]
    assert "0 disagreements" in capsys.readouterr().out


def test_the_command_fails_on_a_disagreement(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(conformance, "disagreement", lambda *_: "wrong")
    out = tmp_path / "report.json"
    assert command.main(["conformance", "--programs", "1", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["disagreements"]
