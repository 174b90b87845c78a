"""`mio-rag frontier query` and `mio-rag frontier data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.cli.show import _alike

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"


def run(*arguments: object, code: int = 0) -> tuple[Any, str]:
    """The JSON object of a command (or its text), and what it said on stderr."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr
    return (json.loads(result.stdout) if "--json" in arguments and not code else result.stdout), result.stderr


def test_query_as_json_agrees_with_select(index: Path, tmp_path: Path) -> None:
    options = ["--pool", 15, "--budget-tokens", 150]
    picture = tmp_path / "q.png"
    found, _ = run("frontier", "query", index, QUESTION, *options, "--plot", picture, "--json")
    alone, _ = run("select", index, QUESTION, *options, "--units", "passages", "--json")
    step = next(s for s in found["budget"]["steps"] if s["tokens"] <= 150 <= s["until"])
    assert step["value"] == pytest.approx(alone["objective"], abs=1e-6)
    assert found["budget"]["certified"]
    assert found["penalty"]["certified"]
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_query_as_text(index: Path) -> None:
    text, _ = run("frontier", "query", index, QUESTION, "--pool", 12, "--budget-tokens", 120)
    assert "every step proven" in text
    assert "+100 tokens above 120 buy" in text
    assert "frontier" in text
    grid = text[text.index("lambda_1") :].splitlines()[1:-1]
    assert len({line for line in grid if line.strip()}) == len([line for line in grid if line.strip()])


def test_settings_that_choose_the_same_are_one_line() -> None:
    figures = {"relevance": 0.5, "redundancy": 0.1, "guaranteed": 0.4, "frontier": True, "certified": True}
    rows = [
        {"redundancy_weight": w, "radius": r, "tokens": 10, "selected": [1, 0] if w < 0.4 else [1], **figures}
        for w in (0.0, 0.1, 0.4)
        for r in (0.0, 0.05)
    ]
    rows[3]["selected"] = [1]  # of (.1, .05)
    told = [dict(weights) for weights in _alike(rows).values()]
    assert told == [{0.0: (0.0, 0.05), 0.1: (0.0,)}, {0.1: (0.05,), 0.4: (0.0, 0.05)}]


def test_prices_are_told_beside_the_settings(index: Path, tmp_path: Path) -> None:
    asked = ("frontier", "data", "demo", "--index", index, "--limit", 3, "--budget-tokens", "100,200")
    asked += ("--weights", 0, "--radii", 0, "--penalties", 0.05, "--token-prices", "0.001,0.0002")
    told, _ = run(*asked, "--out", tmp_path / "a", "--json")
    assert [point["token_price"] for point in told["price"]["prices"]] == [0.0002, 0.001]
    text, _ = run(*asked, "--out", tmp_path / "b")
    rows = [line.split() for line in text[text.index("one price of a token") :].splitlines()]
    for point in told["price"]["prices"]:
        mean = f"{point['tokens']['mean']:.0f}"
        assert any(row[:2] == [f"{point['token_price']:g}", mean] for row in rows)


def test_query_reports_every_problem(index: Path) -> None:
    _, error = run("frontier", "query", index, QUESTION, "--weights", "a", "--budget-tokens", 0, code=2)
    assert "--weights='a' must be numbers separated by commas" in error
    assert "--budget-tokens=0 must be >= 1" in error


def test_data_goes_on_with_resume(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = [
        "--index",
        index,
        "--budget-tokens",
        "100,200",
        "--weights",
        "0.1",
        "--penalties",
        "auto",
        "--pool",
        10,
        "--draws",
        1,
    ]
    base = ["frontier", "data", "demo", "--out", out, *options]
    first, _ = run(*base, "--limit", 4, "--json")
    assert [p["n"] for p in first["points"]] == [4] * 4
    _, error = run(*base, code=2)
    assert "--resume" in error
    text, _ = run(*base, "--limit", 6, "--resume")
    assert "4 settings" in text
    assert "page:" in text
    data = json.loads((out / "frontier.json").read_text())
    assert [p["n"] for p in data["points"]] == [6] * 4
    assert data["operating_point"]["held_out"]["n"] == 6


def test_data_reports_bad_lists(tmp_path: Path) -> None:
    base = ["frontier", "data", "demo", "--embedder", "tfidf", "--out", tmp_path / "out"]
    _, error = run(*base, "--budget-tokens", "1.5", code=2)
    assert "--budget-tokens='1.5' must be whole numbers" in error
    _, error = run(*base, "--budget-tokens", "0", "--radii", "-1", code=2)
    assert "budget_tokens=0 must be >= 1" in error
    assert "radii holds -1" in error
    assert not (tmp_path / "out").exists()
