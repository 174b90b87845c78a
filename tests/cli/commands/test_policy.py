"""`mio-rag policy`, and the commands that take one."""

import json
from pathlib import Path

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.trace import read_traces
from tests.cli.running import here, refused


@pytest.fixture(scope="module")
def index(river_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "INDEX"
    river_index.save(folder)
    return folder


def test_show_says_who_decides_what(tmp_path: Path) -> None:
    listed = here("policy", "show")
    assert {"frugal", "balanced", "thorough"} <= set(listed.stdout.split())
    done = here("policy", "show", "balanced")
    assert done.returncode == 0, done.stderr
    assert "a passage of 100 tokens must add .05" in done.stdout
    told = json.loads(here("policy", "show", "balanced", "--json").stdout)
    assert [line["decision"] for line in told["decisions"]] == [
        "order", "search", "depth", "selection", "repeat",
    ]  # fmt: skip
    toml = here("policy", "show", "frugal", "--toml").stdout
    (tmp_path / "mine.toml").write_text(toml)
    mine = json.loads(here("policy", "show", tmp_path / "mine.toml", "--json").stdout)
    assert mine["sha256"] == json.loads(here("policy", "show", "frugal", "--json").stdout)["sha256"]


WRONG = ("price.token must be <= 1, got 9", "order.by must be", "limits.max_steps must be >= 0, got -1")


def test_check_tells_everything_at_once(tmp_path: Path, index: Path) -> None:
    assert here("policy", "check", "thorough", "--index", index).returncode == 0
    path = tmp_path / "wrong.toml"
    path.write_text('[price]\ntoken = 9\n[order]\nby = "nobody"\n[limits]\nsteps = -1\n')
    done = here("policy", "check", path)
    assert done.returncode == 2
    assert all(said in done.stderr for said in WRONG)
    assert here("policy", "show", "--toml").returncode == 2


def test_ask_tells_the_way(index: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    done = here("ask", index, "How long is the Tiber?", "--policy", "balanced", "--trace", trace)
    assert done.returncode == 0, done.stderr
    assert "1. searched for the question" in done.stdout
    assert "the evidence is complete with ." in done.stdout
    (read,) = read_traces(trace)
    assert read.explain().splitlines()[0] == "1. searched for the question"
    for other in (["--controller", "mdp"], ["--strategies", "raw"], ["--workflow", "plain"]):
        both = here("ask", index, "How long is the Tiber?", "--policy", "balanced", *other)
        assert both.returncode == 2, other


def test_what_a_policy_decides_is_not_decided_beside_it(index: Path) -> None:
    asked = (
        "ask",
        index,
        "How long is the Tiber?",
        "--policy",
        "balanced",
        "--budget-tokens",
        100,
        "--preset",
        "raw",
    )
    (problem,) = refused(here(*asked, "--json"))
    assert problem.startswith("--policy excludes --budget-tokens, --preset: its file decides that")


def test_what_is_wrong_with_the_file_is_told_beside_what_excludes_it(index: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[price]\ntoken = -1\n\n[limits]\nevidence_tokens = 0\n")
    asked = ("ask", index, "How long is the Tiber?", "--policy", broken, "--budget-tokens", 9)
    problems = refused(here(*asked, "--strategies", "raw", "--json"))
    assert [problem.split(":")[0] for problem in problems[:2]] == [
        "--policy excludes --strategies and --router",
        "--policy excludes --budget-tokens",
    ]
    assert "price.token must be >= 0, got -1" in problems[2]
    assert "limits.budget must be >= 1, got 0" in problems[3]


def test_evaluate_compares_policies(index: Path, rivers: Dataset, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    passages = [{"id": p.id, "title": p.title, "text": p.text, "source": p.source} for p in rivers.passages]
    asked = [
        {"id": q.id, "question": q.text, "answers": list(q.answers), "gold_ids": list(q.gold_ids)}
        for q in rivers.questions[:2]
    ]
    (data / "corpus.jsonl").write_text("\n".join(map(json.dumps, passages)))
    (data / "questions.jsonl").write_text("\n".join(map(json.dumps, asked)))
    mine = tmp_path / "mine.toml"
    mine.write_text("[price]\ntoken = 0.001\n")
    given = (
        "evaluate", data, "--index", index, "--methods", "fused", "--budget-tokens", "200",
        "--policies", f"frugal,{mine}", "--out", tmp_path / "run",
    )  # fmt: skip
    done = here(*given, "--json")
    assert done.returncode == 0, done.stderr
    names = {row["method"] for row in json.loads(done.stdout)["summary"]}
    assert names == {"fused", "policy:frugal", f"policy:{mine}"}
    mine.write_text("[price]\ntoken = 0.002\n")
    again = here(*given, "--resume")  # another content under the same name
    assert again.returncode == 2
    assert here("evaluate", data, "--policies", "nobody", "--out", tmp_path / "other").returncode == 2
