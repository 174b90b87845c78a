"""The command line as a program sees it: exit codes, one JSON object, nothing half-written."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from rich.console import Console
from typer.testing import CliRunner

from mio_rag.ask import ask
from mio_rag.cli.app import app
from mio_rag.cli.commands.demo import run_demo
from mio_rag.corpora.load import Dataset
from mio_rag.errors import InputError
from mio_rag.files import locked
from mio_rag.generation import ExtractiveGenerator
from mio_rag.retrieval import CorpusIndex

ROOT = Path(__file__).parents[1]
Done = subprocess.CompletedProcess[str]


def cli(*arguments: object, stdin: str = "", **environment: str) -> Done:
    """``python -m mio_rag`` with arguments, as a program of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mio_rag", *map(str, arguments)],
        cwd=ROOT, input=stdin, capture_output=True, text=True, encoding="utf-8", check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def here(*arguments: object, stdin: str = "") -> Done:
    """The same command in this process, where everything is loaded already."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(arguments, result.exit_code, result.stdout, result.stderr)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def only_object(done: Done) -> dict[str, Any]:
    """The one JSON object on stdout."""
    assert done.stdout.count("\n") == 1, done.stdout
    value: dict[str, Any] = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def refused(done: Done, code: int = 2) -> list[str]:
    """The problems of a command that failed in the agreed way, with and without --json."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "error:" in done.stderr
    if not done.stdout:
        return [
            line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error:")
        ]
    problems: list[str] = only_object(done)["error"]["problems"]
    return problems


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, demo_index: CorpusIndex) -> Path:
    return demo_index.save(tmp_path_factory.mktemp("cli") / "index")


def test_index(demo: Dataset, tmp_path: Path) -> None:
    done = cli("index", "demo", "--out", tmp_path / "i", "--embedder", "tfidf", "--json")
    assert done.returncode == 0
    told = only_object(done)
    assert {k: told[k] for k in ("index", "passages", "embedder")} == {
        "index": str(tmp_path / "i"), "passages": 84, "embedder": "tfidf",
    }  # fmt: skip
    built = CorpusIndex.load(tmp_path / "i")
    assert built.passages == demo.passages
    assert told["dimensions"] == built.dimensions
    before = (tmp_path / "i" / "manifest.json").read_bytes()
    problems = refused(
        here("index", tmp_path / "absent", "--out", tmp_path / "i", "--embedder", "./absent", "--json")
    )
    assert len(problems) == 3
    assert "is not a folder" in problems[0]
    assert "embedder './absent' is no folder" in problems[1]
    assert "--overwrite" in problems[2]
    assert (tmp_path / "i" / "manifest.json").read_bytes() == before


def test_select(index: Path) -> None:
    question = "Which Pennsylvania settlement did the designer of the Brooklyn Bridge found? \u2192"
    done = cli(
        "select",
        index,
        question,
        "--budget-tokens",
        220,
        "--solver",
        "cpsat",
        "--json",
        PYTHONIOENCODING="ascii",
    )
    assert done.returncode == 0, done.stderr
    told = only_object(done)
    assert told["question"] == question
    assert told["status"] == "optimal"
    assert told["bound"] >= told["objective"] > 0
    assert told["gap"] <= 1e-5
    assert (told["solver"], told["budget_tokens"]) == ("cpsat", 220)
    assert told["wall_seconds"] > 0
    assert told["tokens_used"] <= 220
    chosen = [p for p in told["passages"] if p["selected"]]
    assert [p["id"] for p in chosen] == told["selected_ids"]
    assert len(told["passages"]) == 50
    for passage in told["passages"]:
        assert passage["reason"]
        assert passage["tokens"] >= 1
        assert isinstance(passage["relevance"], float)


def test_select_for_people(index: Path) -> None:
    done = here("select", index, "When was the Forth Bridge opened?", "--max-passages", 1)
    assert done.returncode == 0
    assert "1 passage," in done.stdout
    assert "proven bound" in done.stdout


def test_every_problem_of_a_call_at_once(tmp_path: Path) -> None:
    done = cli(
        "ask", tmp_path / "absent", " ", "--budget-tokens", 0, "--pool", 0, "--retrieval", "sparse",
        "--max-tokens", 0, "--redundancy", -1, "--radius", 1, "--norm", "l7", "--solver", "gurobi9",
        "--time-limit", 0, "--generator", "oracle", "--json",
    )  # fmt: skip
    problems = refused(done)
    expected = [
        "no such folder", "question is empty", "--budget-tokens=0", "pool=0", "'sparse'", "--max-tokens=0",
        "redundancy_weight=-1", "norm='l7'", "'gurobi9'", "time_limit_seconds=0", "'oracle'",
    ]  # fmt: skip
    for part in expected:
        assert sum(part in problem for problem in problems) == 1, part
    assert len(problems) == 11


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


@pytest.mark.parametrize(("command", "seconds"), [("select", "10.0"), ("evaluate", "2.0")])
def test_shared_options_have_the_defaults_of_their_command(command: str, seconds: str) -> None:
    told = " ".join(here(command, "--help").stdout.split())
    assert f"then the certified gap is reported. [default: {seconds}]" in told
    assert ("--must-include" in told) == (command == "select")


def test_usage_errors_and_version() -> None:
    done = cli("select", "--no-such-option")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert cli("--version").stdout.startswith("mio-rag 0.")


def test_ask_does_not_answer_from_an_infeasible_selection(index: Path) -> None:
    question = "When was the Forth Bridge opened?"
    problems = refused(here("ask", index, question, "--budget-tokens", 60, "--min-passages", 4, "--json"), 1)
    assert "at most 60 tokens; at least 4 passages" in problems[0]


def test_ask(index: Path) -> None:
    question = "In what year was the Forth Bridge opened to rail traffic?"
    done = here("ask", index, question, "--budget-tokens", 150, "--pool", 10, "--json")
    assert done.returncode == 0, done.stderr
    told = only_object(done)
    selection, answer = ask(
        CorpusIndex.load(index), question, ExtractiveGenerator(), budget_tokens=150, pool=10
    )
    assert (told["answer"], told["generator"]) == (answer.text, "extractive")
    assert told["selected_ids"] == list(selection.ids)
    assert told["tokens_used"] == selection.tokens_used <= 150
    assert told["prompt_tokens"] == answer.prompt_tokens > told["tokens_used"]
    assert told["status"] == "optimal"


def test_bytes_that_are_no_text(index: Path) -> None:
    problems = refused(here("select", index, "what \udcff is this?"))
    assert "UTF-8" in problems[0]


def test_debug_shows_where(tmp_path: Path) -> None:
    done = cli("--debug", "select", tmp_path / "absent", "what?")
    assert "Traceback" in done.stderr
    assert "IndexFormatError" in done.stderr
    assert done.returncode != 0


PROGRAM = {
    "linear": [5, 4, 3],
    "pairwise": [[0, 3, 0], [3, 0, 0], [0, 0, 0]],
    "costs": [2, 2, 2],
    "budget": 4,
}


def test_solve_from_stdin() -> None:
    told = only_object(cli("solve", "-", "--solver", "highs", "--json", stdin=json.dumps(PROGRAM)))
    assert (told["status"], told["selected"], told["tokens_used"]) == ("optimal", [0, 2], 4)
    assert told["objective"] == pytest.approx(8)
    assert told["bound"] == pytest.approx(8)
    assert told["gap"] == pytest.approx(0, abs=1e-6)
    assert told["conflict"] is None


def test_solve_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    path.write_text(json.dumps(PROGRAM | {"fixed": [1, 1, 1]}))
    done = here("solve", path, "--json")
    assert done.returncode == 0  # infeasibility is an answer
    told = only_object(done)
    assert (told["status"], told["selected"], told["objective"]) == ("infeasible", None, None)
    parts = ["at most 4 tokens", "'item 0' in", "'item 1' in", "'item 2' in"]
    assert told["conflict"] == {"parts": parts, "minimal": True, "smallest_budget": 6}
    assert "cannot hold together: at most 4 tokens; 'item 0' in;" in here("solve", path).stdout
    path.write_text("{broken")
    refused(here("solve", path, "--json"))
    assert "cannot be read" in refused(here("solve", tmp_path / "absent.json"))[0]


def test_a_solver_that_is_not_there() -> None:
    done = here("solve", "-", "--solver", "pyomo:nosuchsolver", "--json", stdin=json.dumps(PROGRAM))
    assert done.returncode in (1, 2)
    assert "nosuchsolver" in refused(done, done.returncode)[0]


def test_readers_that_are_not_there(index: Path, tmp_path: Path) -> None:
    problems = refused(here("ask", index, "What?", "--generator", f"gguf:{tmp_path / 'no.gguf'}", "--json"))
    assert "no.gguf" in problems[0]
    endpoint = "openai:http://127.0.0.1:9/v1#model?retries=0&timeout_seconds=2"
    problems = refused(here("ask", index, "What?", "--generator", endpoint, "--json"), 1)
    assert len(problems) == 1


def script(folder: Path, demo: Dataset) -> str:
    path = folder / "script.json"
    path.write_text(json.dumps({q.id: q.answers[0] for q in demo.questions}))
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
    kept = f"interrupted; what was finished is kept in '{tmp_path / 'cut'}': go on with --resume"
    assert (process.returncode, err) == (130, f"{kept}\n")
    assert json.loads(out) == {"error": {"kind": "Interrupted", "problems": [kept]}}
    assert 0 < len(ledger.read_text().splitlines()) < 24
    assert not (tmp_path / "cut" / "ledger.parquet").exists()

    assert "--resume" in refused(here(*evaluation(index, tmp_path / "cut", generator)))[0]
    resumed = cli(*evaluation(index, tmp_path / "cut", generator), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def test_a_full_disk_leaves_no_half_index(index: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "new", index):
        before = {p.name for p in path.parent.iterdir()}
        with full_disk(20_000):
            done = here("index", "demo", "--out", path, "--embedder", "tfidf", "--overwrite", "--json")
        problems = refused(done)
        assert "could not be written" in problems[0]
        assert {p.name for p in path.parent.iterdir()} == before
    assert len(CorpusIndex.load(index)) == 84


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


def test_demo(tmp_path: Path) -> None:
    done = here("demo", "--out", tmp_path / "demo", "--embedder", "tfidf", "--json")
    assert done.returncode == 0, done.stderr
    told = only_object(done)
    assert told["run"]["questions"] == 25
    assert {(e["method"], e["budget_tokens"]) for e in told["summary"]} == {
        (m, b) for m in ("topk", "mmr", "exact") for b in (128, 256)
    }
    assert all(entry["n"] == 25 for entry in told["summary"])
    assert "report:" in done.stderr
    # An earlier demo is replaced, whatever killed it, but not under the hands of one that is at work, and
    # nothing that somebody put beside it.
    for name in (".lock", f".report.{'0f' * 16}.partial.html"):
        (tmp_path / "demo" / name).touch()
    with locked(tmp_path / "demo"), pytest.raises(InputError, match="another run is at work"):
        run_demo(Console(quiet=True), tmp_path / "demo", "tfidf", "extractive")
    assert (tmp_path / "demo" / "report.html").is_file()
    (tmp_path / "demo" / ".lock").touch()
    run_demo(Console(quiet=True), tmp_path / "demo", "tfidf", "extractive")
    assert not list((tmp_path / "demo").glob(".*"))
    (tmp_path / "demo" / "notes.txt").write_text("keep me")
    with pytest.raises(InputError, match="holds no earlier demo"):
        run_demo(Console(quiet=True), tmp_path / "demo", "tfidf", "extractive")
    assert (tmp_path / "demo" / "notes.txt").read_text() == "keep me"
