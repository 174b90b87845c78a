"""``mio-rag plan`` and ``ask --workflow``."""

import json
from pathlib import Path

import pytest

from mio_rag.control.planner.named import NAMED
from tests.cli.running import here

QUESTION = "Which metal melts at the higher temperature, rhenium or tungsten?"


def test_show_lists_prints_and_draws(tmp_path: Path) -> None:
    listed = here("plan", "show")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in NAMED)
    picture = tmp_path / "plan.svg"
    shown = here("plan", "show", "decompose-serial", "--picture", picture)
    assert "summarise: summarise [each -> answer] = the answer" in shown.stdout
    assert "<svg" in picture.read_text()[:2000]
    told = json.loads(here("plan", "show", "plain", "--json").stdout)
    assert told == NAMED["plain"].to_dict()


def test_show_names_every_mistake(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"nodes": {"a": {"do": "fly"}, "answer": {"do": "select"}}}))
    done = here("plan", "show", path)
    assert done.returncode == 2
    assert "is to do 'fly', which is unknown" in done.stderr
    assert "needs a pool" in done.stderr
    assert "gives passages: name one that gives an answer" in done.stderr
    assert here("plan", "show", "plain", "--picture", tmp_path / "x.txt").returncode == 2
    assert here("plan", "show", "--picture", tmp_path / "x.png").returncode == 2


def test_ask_follows_a_workflow(index: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    done = here("ask", index, QUESTION, "--workflow", "plain", "--trace", trace)
    assert done.returncode == 0, done.stderr
    assert "workflow plain" in done.stdout
    assert json.loads(trace.read_text())["kind"] == "workflow"
    told = json.loads(here("ask", index, QUESTION, "--workflow", "plain", "--json").stdout)
    assert [step["action"] for step in told["trace"]["steps"]] == ["retrieve", "select", "answer"]
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"nodes": {"answer": {"do": "answer", "model": "other"}}}))
    refused = here("ask", index, QUESTION, "--workflow", own)
    assert refused.returncode == 2
    assert "asks model 'other'" in refused.stderr
    unpriced = here("ask", index, QUESTION, "--workflow", own, "--model", "other=extractive")
    assert "model 'other' has no price" in unpriced.stderr
    price = ("--model-price", "other=1,2")
    given = here("ask", index, QUESTION, "--workflow", own, "--model", "other=extractive", *price)
    assert given.returncode == 0, given.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workflow", "plane"), "workflow 'plane' is unknown: choose no-retrieval"),
        (("--workflow", "plain", "--controller", "mdp"), "exclude each other"),
        (("--model", "a=extractive"), "no effect without --workflow"),
        (("--workflow", "plain", "--model", "a"), "--model a: give NAME=VALUE"),
        (("--workflow", "plain", "--model-price", "a=1"), "must be two numbers"),
        (("--workflow", "plain", "--model", "a=nonsense"), "'nonsense' is not known"),
    ],
)
def test_bad_options_are_refused(index: Path, arguments: tuple[str, ...], said: str) -> None:
    done = here("ask", index, QUESTION, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_outcomes_are_a_table_and_go_on(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "table"
    common = ("--data", "demo", "--index", index, "--workflows", "no-retrieval,plain,search-parts")
    done = here("plan", "outcomes", out, *common, "--limit", 2)
    assert done.returncode == 0, done.stderr
    rows = (out / "rows.jsonl").read_text().splitlines()
    assert len(rows) == 6
    again = here("plan", "outcomes", out, *common, "--limit", 3, "--json")
    assert json.loads(again.stdout)["questions"] == 3
    assert (out / "rows.jsonl").read_text().splitlines()[:6] == rows
    (out / "rows.jsonl").write_text("\n".join([*rows, rows[0][:50]]))  # killed while it wrote
    assert here("plan", "outcomes", out, *common, "--limit", 2).returncode == 0
    other = here("plan", "outcomes", out, *common, "--limit", 2, "--budget-tokens", 100)
    assert other.returncode == 2
    assert "another budget_tokens" in other.stderr
