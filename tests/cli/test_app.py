"""The command line as a program sees it: problems all at once, defaults, usage errors, the version."""

from pathlib import Path

import pytest

from tests.cli.running import cli, here, refused


def test_every_problem_of_a_call_at_once(tmp_path: Path) -> None:
    done = cli(
        "ask", tmp_path / "absent", " ", "--budget-tokens", 0, "--pool", 0, "--retrieval", "sparse",
        "--max-tokens", 0, "--redundancy", -1, "--radius", 1, "--norm", "l7", "--solver", "gurobi9",
        "--time-limit", 0, "--generator", "oracle", "--json",
    )  # fmt: skip
    problems = refused(done)
    expected = [
        "no such folder", "question is empty", "--budget-tokens=0", "pool=0", "'sparse'", "--max-tokens=0",
        "redundancy_weight must be >= 0", "norm must be l2", "'gurobi9'", "time_limit_seconds=0", "'oracle'",
    ]  # fmt: skip
    for part in expected:
        assert sum(part in problem for problem in problems) == 1, part
    assert len(problems) == 11


@pytest.mark.parametrize(("command", "seconds"), [("select", "10.0"), ("evaluate", "2.0")])
def test_shared_options_have_the_defaults_of_their_command(command: str, seconds: str) -> None:
    told = " ".join(here(command, "--help-all").stdout.split())
    assert f"then the certified gap is reported. [default: {seconds}]" in told
    assert ("--must-include" in told) == (command == "select")


def test_usage_errors_and_version() -> None:
    done = cli("select", "--no-such-option")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert cli("--version").stdout.startswith("mio-rag 0.")


def test_debug_shows_where(tmp_path: Path) -> None:
    done = cli("--debug", "select", tmp_path / "absent", "what?")
    assert "Traceback" in done.stderr
    assert "IndexFormatError" in done.stderr
    assert done.returncode != 0
