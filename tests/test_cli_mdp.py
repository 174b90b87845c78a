"""The commands ``mio-rag mdp``, and the controllers behind ``ask`` and ``evaluate``."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mio_rag.cli import app

runner = CliRunner()


def run(*arguments: str | Path, code: int = 0) -> Any:
    """The JSON object that a command prints."""
    result = runner.invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("options", "threshold"),
    [
        (["linear"], 0.158),
        (["log"], 0.141),
        (["exp", "--k", "1"], 0.196),
        (["exp", "--k", "3"], 0.257),
        (["exp", "--k", "8"], 0.665),
    ],
)
def test_solve_tells_the_published_thresholds(options: list[str], threshold: float) -> None:
    segments = run("mdp", "solve", "--horizon", "inf", "--grid", "1001", "--quality", *options)["segments"]
    assert len(segments) == 1
    assert [s["action"] for s in segments[0]] == ["reason", "retrieve"]
    assert segments[0][1]["from"] == pytest.approx(threshold, abs=1.0001e-3)
    assert segments[0][1]["to"] == 1


@pytest.mark.parametrize(("gamma", "last"), [("1", 0.02), ("0.98", 0.04)])
def test_solve_with_a_stop(gamma: str, last: float) -> None:
    data = run("mdp", "solve", "--horizon", "10", "--gamma", gamma)
    assert len(data["segments"]) == 10
    for step in data["segments"]:
        assert step[0] == {"from": 0.0, "to": last, "action": "stop"}


def test_solve_reads_a_file_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text("retrieve_cost = 0.1\ndiscount = 0.9\ngrid = 101\nhorizon = 3\n")
    data = run("mdp", "solve", "--config", file, "--gamma", "0.5", "--plot", tmp_path / "p.png")
    model = data["model"]
    assert (model["retrieve_cost"], model["discount"], model["grid"], model["horizon"]) == (0.1, 0.5, 101, 3)
    assert (tmp_path / "p.png").stat().st_size > 10_000
    assert len(data["segments"]) == 3


def test_solve_speaks_to_people() -> None:
    result = runner.invoke(app, ["mdp", "solve"])
    assert result.exit_code == 0
    assert "stop 0" in result.output
    assert "exact tie" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--horizon", "soon"], "--horizon='soon' must be a whole number"),
        (["--horizon", "inf", "--gamma", "1"], "has no finite value"),
        (["--quality", "good"], "choose linear, log or exp"),
        (["--grid", "1"], "grid=1"),
        (["--config", "nowhere.toml"], "no readable TOML file"),
    ],
)
def test_solve_refuses_nonsense(options: list[str], message: str) -> None:
    error = run("mdp", "solve", *options, code=2)["error"]
    assert message in " ".join(error["problems"])
