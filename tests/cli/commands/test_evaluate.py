"""``mio-rag evaluate``: interrupted, cut short by a full disk, resumed: the same rows."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet

from mio_rag.corpora.dataset import Dataset
from tests.cli.running import ROOT, full_disk, here, only_object, refused


def script(folder: Path, demo: Dataset) -> str:
    path = folder / "script.json"
    path.write_text(json.dumps({q.id: q.answers[0] for q in demo.questions if q.answers}))
    return f"scripted:{path}"


def evaluation(index: Path, out: Path, generator: str) -> list[str]:
    return [
        "evaluate", "demo", "--index", str(index), "--out", str(out), "--generator", generator,
        "--limit", "12",
        "--methods", "topk,exact", "--budget-tokens", "150", "--pool", "12", "--json",
    ]  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / "ledger.parquet").to_pylist()
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


def test_evaluate_lists_its_problems_too(index: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = here(
        "evaluate", tmp_path / "absent", "--out", tmp_path, "--index", index, "--embedder", "tfidf",
        "--methods", "topk,oracle", "--solver", "gurobi9", "--budget-tokens", "a,b",
        "--generator", "gguf:absent.gguf",
    )  # fmt: skip
    said = refused(done)
    for part in (
        "not a folder",
        "holds no run",
        "exclude each other",
        "'oracle'",
        "'gurobi9'",
        "'a,b'",
        "absent.gguf",
    ):
        assert sum(part in problem for problem in said) == 1, part
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_a_closed_book_run_is_told_to_say_works(tmp_path: Path) -> None:
    (tmp_path / "fin_H.json").write_text('["Hard?", ["1. yes", "2. no"], "1"]\n')
    asked = ["evaluate", f"oran-bench:{tmp_path / 'fin_H.json'}", "--closed-book", "--out", tmp_path / "run"]
    (said,) = refused(here(*asked))
    works = said.partition("(")[2].removesuffix(")").split()
    assert works[:2] == ["--methods", "none"]
    (said,) = refused(here(*asked, *works[:2]))
    assert "no controller is named" in said
    assert f"for instance {' '.join(works[2:])}" in said
    assert not (tmp_path / "run").exists()
    assert only_object(here(*asked, *works, "--json"))["summary"]


def test_everything_about_pools_is_listed_at_once(index: Path, tmp_path: Path) -> None:
    evaluated = ["evaluate", "demo", "--index", index, "--out", tmp_path / "run"]
    said = refused(
        here(*evaluated, "--pool", 0, "--retrieval", "sparse", "--link-hops", 9, "--rerank", "oracle")
    )
    for part in ("pool=0", "'sparse'", "link_hops=9", "'oracle'"):
        assert sum(part in problem for problem in said) == 1, part
    assert len(said) == 4


def test_an_interrupted_evaluation_goes_on_with_resume(demo: Dataset, index: Path, tmp_path: Path) -> None:
    generator = script(tmp_path, demo)
    whole = here(*evaluation(index, tmp_path / "whole", generator))
    assert whole.returncode == 0, whole.stderr
    told = only_object(whole)
    assert set(told) == {"out", "run", "summary", "comparisons"}
    assert {entry["method"] for entry in told["summary"]} == {"topk", "exact"}
    assert {entry["exact_match"]["mean"] for entry in told["summary"]} == {1.0}
    assert (tmp_path / "whole" / "report.html").stat().st_size > 1000

    ledger = tmp_path / "cut" / "rows.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *evaluation(index, tmp_path / "cut", generator)],
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

    assert "--resume" in refused(here(*evaluation(index, tmp_path / "cut", generator)))[0]
    resumed = here(*evaluation(index, tmp_path / "cut", generator), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def test_a_full_disk_stops_an_evaluation_that_can_go_on_later(
    demo: Dataset, index: Path, tmp_path: Path
) -> None:
    generator = script(tmp_path, demo)
    with full_disk(30_000):
        problems = refused(here(*evaluation(index, tmp_path / "run", generator)))
    assert "could not be written" in problems[0]
    written = (tmp_path / "run" / "rows.jsonl").read_bytes()
    assert 0 < len(written) <= 30_000
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["rows.jsonl", "run.json"]
    done = here(*evaluation(index, tmp_path / "run", generator), "--resume")
    assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path / "run")) == 24
