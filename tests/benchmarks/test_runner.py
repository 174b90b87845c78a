"""Every study parses and names its section of the README; quick runs write whole reports."""

import argparse
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import runner, side_by_side
from benchmarks.compare import Row, at_cost, at_equal_cost, summarized
from benchmarks.pages import filled
from benchmarks.runner import RESULTS, Measured, Study, main, studies
from mio_rag.errors import InputError, SolverError

ROOT = Path(__file__).parents[2]
README = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
SECTIONS = {
    re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
    for title in re.findall(r"^#+ (.*)$", README, re.MULTILINE)
}
#: Those of at most about two seconds.
QUICK = ("conformance", "fuzz", "judges", "price", "trust")


@pytest.mark.parametrize("name", sorted(studies()))
def test_a_study_names_its_section_and_what_measures(name: str) -> None:
    study = studies()[name]
    assert study.section in SECTIONS
    assert f"`{name}`" in README or f"run {name}" in README
    assert callable(study.function())
    settings = study.given(["--quick"])
    for key, value in study.quick.items():
        assert str(getattr(settings, key)) == str(value)


def test_published_results_have_a_study() -> None:
    assert {path.stem for path in (ROOT / RESULTS).iterdir()} <= set(studies())


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_run_writes_a_whole_report(name: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "report.json"
    assert main(["run", name, "--quick", "--out", str(out)]) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["versions"]["numpy"]
    assert report["study"] == name
    assert report["command"] == f"python -m benchmarks run {name} --quick --out report.json"
    assert capsys.readouterr().out.strip() == out.with_suffix(".txt").read_text(encoding="utf-8").strip()


def test_a_wrong_claim_fails_the_command(tmp_path: Path, monkeypatch) -> None:
    from benchmarks import conformance
    from benchmarks.trust import checks

    monkeypatch.setattr(conformance, "disagreement", lambda *_: "wrong")
    monkeypatch.setattr(checks, "complaint", lambda *_: "wrong")
    for name in ("conformance", "trust"):
        assert main([name, "--quick", "--programs", "1", "--out", str(tmp_path / "x.json")]) == 1
        assert main([name, "--quick", "--programs", "0", "--out", str(tmp_path / "x.json")]) == 2


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Measured({"a": 1}, "table", draw=lambda path: path.write_text("drawn") and None), 0),
        (Measured({"a": 1}, wrong=2), 1),
        (InputError(["too small"]), 2),
        (SolverError("contradiction"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_status_follows_the_outcome(outcome, status: int, tmp_path: Path, monkeypatch) -> None:
    def measure(given: argparse.Namespace) -> Measured:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(Study, "function", lambda self: measure)
    out = tmp_path / "x.json"
    study = Study("x", "", "", "", settings={"seed": {"default": 7}}, quick={"seed": 3})
    assert runner.run(study, ["--work", str(tmp_path), "--out", str(out)]) == status
    assert out.is_file() == isinstance(outcome, Measured)
    if out.is_file():
        assert json.loads(out.read_text(encoding="utf-8"))["seed"] == 7
        assert (tmp_path / "x.png").is_file() == (outcome.draw is not None)
    assert study.given(["--quick"]).seed == 3
    assert study.given(["--quick", "--seed", "5"]).seed == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("about = 'a'\nsection = 'b'", "measure is missing"),
        ("about = 'a'\nsection = 'b'\nmeasure = 'm:f'\nstrange = 1", "strange is unknown"),
        ("about = 'a'\nsection = 'b'\nmeasure = 'm:f'\n[settings]\nn = {most = 3}", "settings.n.most"),
        ("about = 'a'\nsection = 'b'\nmeasure = 'm:f'\n[quick]\nn = 3", "quick.n"),
    ],
)
def test_a_file_that_is_no_study_is_refused(text: str, words: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "x.toml").write_text(text)
    monkeypatch.setattr(runner, "STUDIES", tmp_path)
    with pytest.raises(InputError, match=words):
        studies.__wrapped__()


def row(kind: str, tokens: float, quality: float) -> Row:
    columns = {"tokens": np.array([tokens, tokens]), "right": np.array([quality, quality])}
    return Row(f"{kind} {tokens:g}", kind, columns)


def test_contenders_are_compared_at_equal_cost() -> None:
    rows = [row("a", 100, 0.2), row("a", 300, 0.6), row("b", 200, 0.5), row("b", 400, 0.9)]
    assert at_cost(rows[:2], "tokens", 200)["right"].mean() == pytest.approx(0.4)
    assert at_cost(rows[:2], "tokens", 900)["right"].mean() == pytest.approx(0.6)
    assert at_cost(rows[2:], "tokens", 100) is None
    found = at_equal_cost(rows, "tokens", (200,), "right", ("a",))["200"]
    assert found["b"]["against"]["a"]["mean"] == pytest.approx(0.1)
    assert summarized(rows, ["x", "y"])["a 100"]["sets"]["x"]["right"] == pytest.approx(0.2)


def test_side_by_side_reports_medians_and_ratios_of_rounds() -> None:
    def one(this: float) -> dict[str, dict[str, float]]:
        names = side_by_side.MEASURES
        doors = [name for name in names if not name.startswith("folder")]
        return {"base": dict.fromkeys(doors, 10.0), "this": dict.fromkeys(names, this) | {"indexed_wall": 4}}

    found = side_by_side.summarize([one(4), one(5), one(20)])
    assert found["ask_ms"] == {"base": 10, "this": 5, "ratio": 0.5, "least": 0.4, "largest": 2, "met": True}
    assert not found["ask_16"]["met"]  # a rate
    folder = found["folder_wall"]  # the base lacks it: against an index of this checkout
    assert folder == {"base": None, "this": 5, "ratio": 1.25, "least": 1, "largest": 5, "met": False}
    assert "no such door" in side_by_side.table(found)
    given = argparse.Namespace(base="/nowhere", rounds=1, questions=1, seconds=1, requests=1, overload=1)
    with pytest.raises(InputError, match="another checkout"):
        side_by_side.measure(given)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "pages").glob("published-*.md")), ids=lambda p: p.stem
)
def test_pages_have_their_tables_from_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text
