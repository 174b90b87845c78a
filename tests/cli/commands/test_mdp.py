"""The commands ``mio-rag mdp``, and the controllers behind ``ask`` and ``evaluate``."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from mio_rag.cli.app import app
from mio_rag.corpora.load import Dataset
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.trace import read_traces

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
    data = run("mdp", "solve", "--config", file, "--gamma", "0.5")
    model = data["model"]
    assert (model["retrieve_cost"], model["discount"], model["grid"], model["horizon"]) == (0.1, 0.5, 101, 3)
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
        (["--horizon", "99999999999999999999"], "is more than 50,000,000 decisions"),
        (["--k", "3"], "the quality is linear"),
        (["--config", "nowhere.toml"], "cannot be read"),
    ],
)
def test_solve_refuses_nonsense(options: list[str], message: str) -> None:
    error = run("mdp", "solve", *options, code=2)["error"]
    assert message in " ".join(error["problems"])


@pytest.fixture
def folder(tmp_path: Path, rivers: Dataset) -> Path:
    """The rivers as a data folder, with a scripted reader beside them."""
    data = tmp_path / "data"
    data.mkdir()
    corpus = [{"id": p.id, "text": p.text, "title": p.title, "source": p.source} for p in rivers.passages]
    questions = [
        {"id": q.id, "question": q.text, "answers": q.answers, "gold_ids": q.gold_ids}
        for q in rivers.questions
    ]
    for name, rows in (("corpus", corpus), ("questions", questions)):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = {q.id: q.answers[0] for q in rivers.questions} | {"How long is the Tiber?": "the Tiber"}
    (tmp_path / "says.json").write_text(json.dumps(answers))
    return tmp_path


def quiz(folder: Path) -> Path:
    """Multiple choice in the layout of question sets without a corpus."""
    data = folder / "quiz"
    data.mkdir()
    options = ["Arno", "Tiber", "Po", "Bread"]
    rows = [
        {"id": f"m{k}", "question": f"Which is number {k}?", "answers": [options[k % 4]], "gold_ids": [],
         "choices": options, "answer_index": k % 4, "type": "easy"}
        for k in range(6)
    ]  # fmt: skip
    (data / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "quiz.json").write_text(json.dumps({row["id"]: "Tiber" for row in rows}))
    return data


def test_ask_through_an_agent(folder: Path, river_index: CorpusIndex) -> None:
    river_index.save(folder / "index")
    trace = folder / "traces.jsonl"
    arguments = [
        "ask",
        folder / "index",
        "How long is the Tiber?",
        "--generator",
        f"scripted:{folder}/says.json",
    ]
    data = run(*arguments, "--controller", "mdp", "--trace", trace, "--budget-tokens", 60)
    assert data["answer"] == "the Tiber"
    assert data["trace"]["policy"] == "mdp"
    assert data["trace"]["steps"][0]["do"] == "search_again"
    assert data["selected_ids"] == [p["id"] for p in data["trace"]["passages"]]
    assert data["lm_calls"] == sum(part["lm_calls"] for part in data["trace"]["parts"].values())
    replayed = run("mdp", "replay", trace)
    assert (replayed["traces"], replayed["differing"]) == (1, [])
    shown = runner.invoke(app, ["mdp", "replay", str(trace), "--question", "How long is the Tiber?"])
    assert "1 traces replayed, 0 differ" in shown.output
    assert "(retrieve" in shown.output  # its worth, though it could bring nothing new
    assert "the Tiber" in shown.output
    # Another question is another trace, and has luck of its own.
    (folder / "says.json").write_text('{"How long is the Po?": "652 km"}')
    other = run(
        "ask", folder / "index", "How long is the Po?", "--generator", f"scripted:{folder}/says.json",
        "--controller", "mdp", "--trace", trace, "--budget-tokens", 60,
    )  # fmt: skip
    assert other["trace"]["question_id"] != data["trace"]["question_id"]
    assert run("mdp", "replay", trace)["traces"] == 2
    arguments = [*arguments[:2], "How long is the Po?", *arguments[3:]]
    spoilt = trace.read_text().replace('"do": "search_again"', '"do": "reason"')
    trace.write_text(spoilt)
    assert run("mdp", "replay", trace, code=1)["differing"]
    people = runner.invoke(app, [*map(str, arguments), "--controller", "fixed-1"])
    assert "ended: stop" in people.output
    problems = run(*arguments, "--controller", "chance", code=2)["error"]["problems"]
    assert "controller 'chance' is unknown" in problems[0]
    problems = run(*arguments, "--trace", trace, "--max-steps", 2, code=2)["error"]["problems"]
    assert "--max-steps, --trace: no effect without a controller" in problems[0]


def test_a_question_that_fails_leaves_its_trace(folder: Path, river_index: CorpusIndex) -> None:
    river_index.save(folder / "index")
    trace, said = folder / "traces.jsonl", folder / "none.json"
    said.write_text("{}")
    options = ("--generator", f"scripted:{said}", "--controller", "fixed-1", "--trace", trace)
    error = run("ask", folder / "index", "How long is the Po?", *options, code=1)["error"]
    assert "the script has no answer" in error["problems"][0]
    replayed = run("mdp", "replay", trace, "--question", "How long is the Po?")
    assert (replayed["traces"], replayed["differing"]) == (1, [])
    shown = replayed["shown"][0]
    assert (shown["ended"], shown["answer"]) == ("error", "")
    assert shown["steps"][0]["dropped"] is None
    assert "no answer" in shown["steps"][-1]["dropped"]
    assert shown["parts"]["retrieve"]["retrieval_calls"] == 1
    people = runner.invoke(app, ["mdp", "replay", str(trace), "--question", "How long is the Po?"])
    assert "GenerationError: the script has no answer" in people.output


def test_evaluate_compares_controllers_and_methods(folder: Path) -> None:
    out = folder / "out"
    arguments = [
        "evaluate", folder / "data", "--embedder", "tfidf", "--generator", f"scripted:{folder}/says.json",
        "--methods", "topk", "--controllers", "mdp,always-reason,fixed-3,random,mdp@evidence",
        "--budget-tokens", "60", "--out", out, "--passage-penalty", "0",
    ]  # fmt: skip
    data = run(*arguments)
    names = ["topk", "mdp", "always-reason", "fixed-3", "random", "mdp@evidence"]
    assert data["run"]["methods"] == names
    assert data["run"]["baseline"] == "topk"
    assert data["run"]["settings"]["control"]["limits"]["steps"] == 10
    summary = {entry["method"]: entry for entry in data["summary"]}
    assert list(summary) == names
    assert all(entry["exact_match"]["mean"] == 1 and entry["failed"] == 0 for entry in summary.values())
    assert summary["always-reason"]["retrieval_calls"]["mean"] == 0
    assert summary["always-reason"]["gold_recall"]["mean"] == 0
    assert summary["fixed-3"]["steps"]["mean"] == 3
    assert summary["mdp"]["gold_recall"]["mean"] > 0.5
    rows = pyarrow.parquet.read_table(out / "ledger.parquet").to_pylist()
    traces = {(t.question_id, t.policy): t for t in read_traces(out)}
    assert len(rows) == 4 * 6
    assert len(traces) == 4 * 5
    for row in rows:
        if row["method"] == "topk":
            continue
        calls = traces[row["question_id"], row["method"]].calls
        assert row["lm_calls"] == sum(c.lm_calls for c in calls)
        assert row["prompt_tokens"] == sum(c.prompt_tokens for c in calls)
        parts = ("decide", "decompose", "retrieve", "select", "reason", "measure", "generate")
        assert row["total_seconds"] == pytest.approx(sum(row[f"{part}_seconds"] for part in parts))
    assert run("mdp", "replay", out)["differing"] == []
    page = (out / "report.html").read_text()
    assert "always-reason" in page
    # Resumed, nothing is asked again; other limits make another run.
    before = (out / "traces.jsonl").read_text()
    again = run(*arguments, "--resume")
    assert again["summary"] == data["summary"]
    assert (out / "traces.jsonl").read_text() == before
    error = run(*arguments, "--resume", "--max-steps", "2", code=2)["error"]
    assert "had another control" in error["problems"][0]


def test_closed_book_multiple_choice(folder: Path) -> None:
    data = quiz(folder)
    arguments = [
        "evaluate", data, "--closed-book", "--methods", "none", "--controllers", "mdp,fixed-0",
        "--generator", f"scripted:{folder}/quiz.json", "--out",
    ]  # fmt: skip
    found = run(*arguments, folder / "one")
    right = sum(k % 4 == 1 for k in range(6)) / 6
    assert [entry["accuracy"]["mean"] for entry in found["summary"]] == pytest.approx([right, right])
    assert found["run"]["embedder"] is None
    assert found["run"]["baseline"] == "fixed-0"
    orders = {t.choices for t in read_traces(folder / "one")}
    assert len(orders) > 1  # shuffled, each question for itself
    again = run(*arguments, folder / "two")
    assert again["run"]["data_sha256"] == found["run"]["data_sha256"]
    other = run(*arguments, folder / "three", "--seed", "5")
    kept = run(*arguments, folder / "four", "--keep-choices")
    hashes = {entry["run"]["data_sha256"] for entry in (found, other, kept)}
    assert len(hashes) == 3
    assert {t.choices for t in read_traces(folder / "four")} == {("Arno", "Tiber", "Po", "Bread")}


def test_multiple_choice_with_a_corpus(folder: Path) -> None:
    found = run(
        "evaluate", quiz(folder), "--corpus", folder / "data", "--embedder", "tfidf", "--methods", "topk",
        "--controllers", "fixed-1", "--generator", f"scripted:{folder}/quiz.json", "--out", folder / "out",
    )  # fmt: skip
    assert found["run"]["passages"] == 6
    assert found["run"]["dataset"] == "quiz with data"
    assert {t.steps[0].do for t in read_traces(folder / "out")} == {"search_again"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--closed-book", "--methods", "topk", "--controllers", "mdp"], "a closed-book run does not"),
        (
            ["--closed-book", "--corpus", "demo", "--controllers", "mdp", "--methods", "none"],
            "exclude each other",
        ),
        (["--methods", "none"], "no controller is named"),
        (["--stop-at", "0.5"], "--stop-at: no effect"),
        (["--controllers", "mdp,mdp"], "listed twice"),
        (["--controllers", "mdp", "--uncertainty", "luck"], "'luck' is not a way to measure U"),
        (["--controllers", "mdp", "--generator", "none"], "need a model that answers"),
        (["--controllers", "mdp", "--max-total-tokens", "0"], "limit tokens=0"),
        (["--controllers", "mdp", "--mdp-config", "no.toml"], "cannot be read"),
    ],
)
def test_evaluate_refuses_nonsense(folder: Path, options: list[str], message: str) -> None:
    arguments = ["evaluate", folder / "data", "--embedder", "tfidf", "--out", folder / "out"]
    error = run(*arguments, *options, code=2)["error"]
    assert message in " ".join(error["problems"])


def test_calibrate_from_a_run(folder: Path) -> None:
    out, file = folder / "out", folder / "model.toml"
    run(
        "evaluate", folder / "data", "--embedder", "tfidf", "--methods", "none", "--controllers",
        "fixed-4@evidence,mdp", "--generator", f"scripted:{folder}/says.json", "--out", out,
    )  # fmt: skip
    found = run(
        "mdp", "calibrate", out, "--out", file, "--bins", "2", "--cost-by", "tokens", "--price", "0.0001"
    )
    assert found["gauge"] == "evidence"
    assert found["retrievals"] > 0
    assert set(found["solved"]) == {"given", "calibrated", "by bins"}
    again = run("mdp", "solve", "--config", file)
    assert again["segments"] == found["solved"]["calibrated"]["segments"]
    people = runner.invoke(app, ["mdp", "calibrate", str(out), "--cost-by", "tokens"])
    assert people.exit_code == 0, people.output
    assert "p_s" in people.output
    assert "calibrated" in people.output
