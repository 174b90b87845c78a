"""Every study parses, names what it backs, and runs in its quick form where it has one."""

import argparse
import json
import re
from pathlib import Path

import pytest

from benchmarks import runner, side_by_side
from benchmarks.runner import RESULTS, Measured, Study, main, studies
from mio_rag.errors import InputError, SolverError

ROOT = Path(__file__).parents[2]
README = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
SECTIONS = {
    re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
    for title in re.findall(r"^#+ (.*)$", README, re.MULTILINE)
}
#: Those of at most about two seconds.
QUICK = ("conformance", "fuzz", "judges", "strategies-log", "trust")


@pytest.mark.parametrize("name", sorted(studies()))
def test_a_study_names_its_section_its_results_and_what_measures(name: str) -> None:
    study = studies()[name]
    assert study.section in SECTIONS
    assert f"`{name}" in README or f"benchmarks {name}" in README
    assert callable(study.function())
    study.parser().format_help()
    given = [f"--{k.replace('_', '-')}=1" for k, said in study.settings.items() if said.get("required")]
    settings = study.given([text.replace("part=1", "part=costs") for text in given])
    for key, said in study.settings.items():
        if "default" in said:
            assert str(getattr(settings, key)) == str(said["default"])


def test_published_results_have_a_study() -> None:
    """A file of results begins with the name of its study, or of the file that a study writes."""
    stems = {Path(study.results).stem for study in studies().values() if study.results} | set(studies())
    stems |= {"hotpotqa"}  # of `mio-rag evaluate`
    files = {path.stem for path in (ROOT / RESULTS).iterdir()}
    assert [stem for stem in files if not any(stem == s or stem.startswith(f"{s}-") for s in stems)] == []


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_run_writes_a_whole_report(name: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "report.json"
    assert main(["run", name, "--quick", "--out", str(out)]) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["versions"]["numpy"]
    if name not in ("trust", "fuzz"):  # write their files themselves, since they resume
        assert report["benchmark"] == name
        assert report["command"] == f"python -m benchmarks {name} --quick --out report.json"
        assert capsys.readouterr().out.strip()


_FEW = {"n": 1, "to": "a"}


def test_quick_settings_give_way_to_what_is_said() -> None:
    study = Study(
        "x", "", "", "", "x.json", {"n": {"default": 9}, "to": {"required": True}}, {"n": 1, "to": "a"}
    )
    assert study.given(["--to", "b"]).n == 9
    assert (study.given(["--quick"]).n, study.given(["--quick"]).to) == (1, "a")
    assert study.given(["--quick", "--n", "3"]).n == 3


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Measured({"a": 1}, "table"), 0),
        (Measured({"a": 1}, wrong=2), 1),
        (3, 3),
        (InputError(["too small"]), 2),
        (SolverError("contradiction"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_status_tells_what_came_of_it(outcome, status: int, tmp_path: Path, monkeypatch) -> None:
    def measure(given: argparse.Namespace) -> Measured | int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    study = Study("x", "", "", "", "x.json", {"seed": {"default": 7}})
    monkeypatch.setattr(Study, "function", lambda self: measure)
    monkeypatch.setattr(runner, "studies", lambda: {"x": study})
    out = tmp_path / "x.json"
    assert main(["x", "--out", str(out)]) == status
    assert out.is_file() == isinstance(outcome, Measured)
    if out.is_file():
        assert json.loads(out.read_text(encoding="utf-8"))["seed"] == 7


def test_a_picture_lies_beside_the_report(tmp_path: Path, monkeypatch) -> None:
    study = Study("x", "", "", "", "x.json")
    found = Measured({}, draw=lambda path: path.write_text("drawn") and None)
    given = argparse.Namespace(out=tmp_path / "x.json", command_line="")
    runner.write(study, given, found)
    assert (tmp_path / "x.png").read_text() == "drawn"


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


def test_a_name_that_is_unknown_lists_those_that_are_known(capsys) -> None:
    assert main(["nothing"]) == 2
    assert "conformance" in capsys.readouterr().err
    assert main(["list"]) == 0
    assert "conformance" in capsys.readouterr().out


def test_side_by_side_tells_medians_and_ratios_of_rounds() -> None:
    def one(this: float) -> dict[str, dict[str, float]]:
        return {
            "base": dict.fromkeys(side_by_side.MEASURES, 10.0),
            "this": dict.fromkeys(side_by_side.MEASURES, this),
        }

    told = side_by_side.summarize([one(4), one(5), one(20)])["ask_ms"]
    assert told == {"base": 10, "this": 5, "ratio": 0.5, "least": 0.4, "largest": 2}
    with pytest.raises(InputError, match="another checkout"):
        side_by_side.measure(argparse.Namespace(base=Path("/nowhere")))
