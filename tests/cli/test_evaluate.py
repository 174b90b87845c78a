"""``mio-rag evaluate`` and ``demo``: interrupted, cut short by a full disk, resumed: the same rows."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mio_rag.corpora import load
from mio_rag.corpora.dataset import Dataset
from mio_rag.session.trace import read_traces
from tests.cli.running import ROOT, full_disk, here, only_object, refused


def script(folder: Path, demo: Dataset) -> str:
    path = folder / "script.json"
    path.write_text(json.dumps({q.id: q.answers[0] for q in demo.questions if q.answers}))
    return f"scripted:{path}"


def evaluation(index: Path, out: Path, model: str) -> list[str]:
    return [
        "evaluate", str(index), "--questions", "demo", "--out", str(out), "--model", model, "--limit", "12",
        "--methods", "topk,exact", "--budget", "150", "--set", "search.pool=12", "--json",
    ]  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = pq.read_table(folder / "ledger.parquet").to_pylist()
    return [
        {k: v for k, v in row.items() if not k.endswith("_seconds") and k != "peak_memory_mb"}
        for row in table
    ]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


SLOW = """
import time
from mio_rag.cli.app import main
from mio_rag.generation import ScriptedGenerator
lookup = ScriptedGenerator._lookup
def slow(self, prompt):
    time.sleep(0.3)
    return lookup(self, prompt)
ScriptedGenerator._lookup = slow
main()
"""


def test_an_interrupted_evaluation_goes_on_with_resume(demo: Dataset, index: Path, tmp_path: Path) -> None:
    model = script(tmp_path, demo)
    told = only_object(here(*evaluation(index, tmp_path / "whole", model)))
    assert set(told) == {"out", "run", "summary", "comparisons"}
    assert {entry["method"] for entry in told["summary"]} == {"topk", "exact"}
    assert {entry["exact_match"]["mean"] for entry in told["summary"]} == {1.0}
    assert (tmp_path / "whole" / "report.html").stat().st_size > 1000

    ledger = tmp_path / "cut" / "rows.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *evaluation(index, tmp_path / "cut", model)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell's background job ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    wait_for(lambda: ledger.is_file() and ledger.stat().st_size > 0, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    kept = f"interrupted; what was finished is kept in '{tmp_path / 'cut'}': continue with --resume"
    assert (process.returncode, err) == (130, f"{kept}\n")
    assert json.loads(out) == {"error": {"kind": "Interrupted", "problems": [kept]}}
    assert 0 < len(ledger.read_text().splitlines()) < 24
    assert not (tmp_path / "cut" / "ledger.parquet").exists()

    assert "--resume" in refused(here(*evaluation(index, tmp_path / "cut", model)))[0]
    resumed = here(*evaluation(index, tmp_path / "cut", model), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def test_a_full_disk_stops_an_evaluation_that_can_go_on_later(
    demo: Dataset, index: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, demo)
    with full_disk(30_000):
        problems = refused(here(*evaluation(index, tmp_path / "run", model)))
    assert "could not be written" in problems[0]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["rows.jsonl", "run.json"]
    done = here(*evaluation(index, tmp_path / "run", model), "--resume")
    assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path / "run")) == 24


def test_methods_and_policies_side_by_side(rivers_data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[price]\ntoken = 0.001\n")
    names = ["topk", "mio", "mdp", "always-reason", "fixed-3", "mdp@evidence", "workflow:plain", "tier:hard",
             "random-tier", "strategies:raw", "policy:frugal", f"policy:{mine}"]  # fmt: skip
    asked = [
        "evaluate", rivers_data, "--embedder", "tfidf", "--limit", 2, "--model", "extract", "--budget", 60,
        "--out", tmp_path / "run", "--methods",
        ",".join(name.removeprefix("policy:") for name in names),
    ]  # fmt: skip
    data = only_object(here(*asked, "--json"))
    assert data["run"]["methods"] == names
    assert data["run"]["baseline"] == "topk"
    assert data["run"]["settings"]["control"]["limits"]["steps"] == 10
    summary = {entry["method"]: entry for entry in data["summary"]}
    assert all(entry["failed"] == 0 for entry in summary.values())
    assert summary["always-reason"]["retrieval_calls"]["mean"] == 0
    assert summary["fixed-3"]["steps"]["mean"] == 3
    traces = {(t.question_id, t.policy): t for t in read_traces(tmp_path / "run")}
    assert len(traces) == 2 * (len(names) - 2)
    for row in pq.read_table(tmp_path / "run" / "ledger.parquet").to_pylist():
        if (trace := traces.get((row["question_id"], row["method"]))) is not None:
            assert row["lm_calls"] == sum(c.lm_calls for c in trace.calls)
            assert row["prompt_tokens"] == sum(c.prompt_tokens for c in trace.calls)
    assert only_object(here("policy", "replay", tmp_path / "run", "--json"))["differing"] == []
    before = (tmp_path / "run" / "traces.jsonl").read_text()
    again = only_object(here(*asked, "--resume", "--json"))
    assert again["summary"] == data["summary"]
    assert (tmp_path / "run" / "traces.jsonl").read_text() == before
    other = refused(here(*asked, "--resume", "--set", "limits.max_steps=2"))
    assert "had another control" in other[0]
    mine.write_text("[price]\ntoken = 0.002\n")
    assert here(*asked, "--resume").returncode == 2  # another content under the same name


def quiz(folder: Path) -> Path:
    """Multiple choice in the layout of question sets without a corpus."""
    data = folder / "quiz"
    data.mkdir()
    options = ["Arno", "Tiber", "Po", "Bread"]
    asked = [
        {"id": f"m{k}", "question": f"Which is number {k}?", "answers": [options[k % 4]], "gold_ids": [],
         "choices": options, "type": "easy"}
        for k in range(6)
    ]  # fmt: skip
    (data / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (folder / "quiz.json").write_text(json.dumps({row["id"]: "Tiber" for row in asked}))
    return data


def test_closed_book_and_with_another_corpus(tmp_path: Path, rivers_at: Path) -> None:
    asked = ("evaluate", "--questions", quiz(tmp_path), "--methods", "mdp,fixed-0", "--model",
             f"scripted:{tmp_path}/quiz.json", "--out")  # fmt: skip
    found = only_object(here(*asked, tmp_path / "one", "--json"))
    right = sum(k % 4 == 1 for k in range(6)) / 6
    assert all(entry["accuracy"]["mean"] == pytest.approx(right) for entry in found["summary"])
    assert found["run"]["embedder"] is None
    assert len({t.choices for t in read_traces(tmp_path / "one")}) > 1  # shuffled, each question by itself
    other = only_object(here(*asked, tmp_path / "two", "--seed", 5, "--json"))
    kept = only_object(here(*asked, tmp_path / "three", "--keep-choices", "--json"))
    assert len({entry["run"]["data_sha256"] for entry in (found, other, kept)}) == 3
    done = here("evaluate", rivers_at, "--questions", tmp_path / "quiz", "--methods", "topk,fixed-1",
                "--model",
                f"scripted:{tmp_path}/quiz.json", "--out", tmp_path / "four", "--json")  # fmt: skip
    run = only_object(done)["run"]
    assert (run["passages"], run["dataset"]) == (6, "quiz")


def test_demo(demo: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(demo, questions=demo.questions[:10])
    monkeypatch.setattr(load, "_load_layout", lambda folder, name: few)
    done = here("demo", "--out", tmp_path / "demo", "--embedder", "tfidf", "--json")
    assert done.returncode == 0, done.stderr
    assert {(e["method"], e["budget_tokens"]) for e in only_object(done)["summary"]} == {
        (m, b) for m in ("mio", "fused", "mmr") for b in (256, 512)
    }
    assert (tmp_path / "demo" / "report.html").is_file()
    more = only_object(here("demo", "--out", tmp_path / "demo", "--embedder", "tfidf", "--json"))
    assert more["out"] == str(tmp_path / "demo-2")
