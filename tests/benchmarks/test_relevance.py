"""The relevance benchmark on every other bundled question: it runs, goes on, keeps halves apart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import mio_rag
from benchmarks.__main__ import main
from benchmarks.relevance.methods import BASELINES, OURS, compared
from benchmarks.relevance.models import halves
from benchmarks.relevance.picture import draw
from benchmarks.relevance.study import ceilings
from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex, Retriever


@pytest.fixture(scope="module")
def arguments(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("benchmark")
    there, here = Path(mio_rag.__file__).parent / "data" / "demo", folder / "data" / "demo"
    here.mkdir(parents=True)
    shutil.copy(there / "corpus.jsonl", here)
    lines = (there / "questions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (here / "questions.jsonl").write_text("".join(lines[::2]), encoding="utf-8")
    demo_index.save(folder / "indexes" / "demo")
    given = ["--data", str(folder / "data"), "--indexes", str(folder / "indexes"), "--sets", "demo"]
    return [
        "relevance",
        *given,
        "--work",
        str(folder / "work"),
        "--out",
        str(folder / "out" / "relevance.json"),
    ]


def test_halves_are_apart_and_complete(demo: Dataset) -> None:
    split = halves(demo, seed=3)
    fitted, reported = ({q.id for q in part} for part in (split.fit, split.report))
    assert not fitted & reported
    assert fitted | reported == {q.id for q in demo.questions if q.gold_ids}
    assert halves(demo, seed=3).report == split.report
    assert halves(demo, seed=4).report != split.report
    assert len(halves(demo, limit=2).fit) == 2


def test_it_runs_resumes_and_draws(
    demo: Dataset, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    out = Path(arguments[-1])
    report = json.loads(out.read_text())
    found = report["results"]["demo"]
    assert found["questions"] + found["fitted_on"] == sum(bool(q.gold_ids) for q in demo.questions[::2]) == 41
    for method in (*BASELINES, OURS):
        for budget, entry in found["methods"][method].items():
            assert 0 <= entry["recall"]["mean"] <= found["ceilings"]["1"]["recall"] + 1e-12
            assert entry["tokens"] <= int(budget)
    assert found["calibration"]["links"]["ece"] < found["calibration"]["cosine"]["ece"]
    assert {e["method"] for e in found["matched"]} > {*BASELINES, OURS}
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    first = capsys.readouterr()
    assert "demo: 20 questions" in first.out
    assert "ours at 512" in first.err

    def stripped(text: str) -> str:  # times differ, nothing else may
        data = json.loads(text)
        for entry in data["results"]["demo"]["methods"].values():
            for column in entry.values():
                del column["milliseconds"]
        return json.dumps(data)

    before = stripped(out.read_text())
    assert main(arguments) == 0
    assert "ours at 512" not in capsys.readouterr().err  # nothing is done twice
    assert stripped(out.read_text()) == before
    draw(report["results"], out.parent / "again.png")
    assert (out.parent / "again.png").is_file()


def test_unknown_data_is_bad_input(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments[:6], "nowhere", *arguments[7:]]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_methods_follow_the_models() -> None:
    names = [one.name for one in compared({}, 1.0)]
    assert names == [*BASELINES, "raw cosine"]


def test_ceilings_by_hand(demo: Dataset, demo_index: CorpusIndex) -> None:
    question = next(q for q in demo.questions if len(q.gold_ids) == 2)
    pool = Retriever(demo_index, pool=len(demo_index)).retrieve(question.text)
    found = ceilings([question], {0: [pool]})["0"]
    cost = sum(int(pool.tokens[pool.ids.index(g)]) for g in question.gold_ids)
    assert found["recall"] == 1
    assert found["gold_tokens"] == cost
    assert found["all_gold_within"] == {str(b): float(cost <= b) for b in (128, 256, 512, 1024)}
    assert np.isclose(found["pool"], len(demo_index))


def common(arguments: list[str], *names: str) -> list[str]:
    """The options --NAME that the relevance study was given; the study itself is run if it was not."""
    if not Path(arguments[-1]).is_file():
        assert main(arguments) == 0
    return [part for name in names for part in (name, arguments[arguments.index(name) + 1])]


def test_answers_go_on_and_compare_with_the_best_ranking(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["answers", *common(arguments, "--data", "--indexes", "--sets", "--work")]
    given += ["--study", arguments[-1], "--generator", "extractive", "--questions", "2"]
    out = Path(arguments[-1]).parent / "answers.json"
    assert main([*given, "--conditions", "baseline,ours", "--out", str(out)]) == 0
    first = json.loads(out.read_text())["results"]["demo"]
    assert {e["method"] for e in first["summary"]} == {"baseline", "ours"}
    every = "baseline,mmr,ours,gold,sparing,default,ends,document,closed"
    assert main([*given, "--conditions", every, "--out", str(out)]) == 0
    found = json.loads(out.read_text())["results"]["demo"]
    entries = {e["method"]: e for e in found["summary"]}
    assert found["questions"] == 2
    assert set(entries) == set(every.split(","))
    assert (
        entries["ours"]["token_f1"] == next(e for e in first["summary"] if e["method"] == "ours")["token_f1"]
    )
    assert entries["closed"]["tokens_used"]["mean"] == 0
    for name in ("baseline", "mmr", "ours", "sparing", "ends"):
        assert 0 < entries[name]["tokens_used"]["mean"] <= 256
    same = ("ours", "ends", "document")  # the same passages in other orders
    assert len({entries[name]["gold_recall"]["mean"] for name in same}) == 1
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert out.with_suffix(".txt").read_text().count("against ours") == 4
    rows = (Path(given[8]) / "answers" / "demo" / "rows.jsonl").read_text().splitlines()
    assert len(rows) == 2 * len(entries)  # nothing was answered twice
    capsys.readouterr()
    assert main([*given, "--conditions", "best", "--out", str(out)]) == 2
    assert "conditions best are unknown" in capsys.readouterr().err
    assert main([*given, "--max-tokens", "9", "--out", str(out)]) == 2
    assert "other settings" in capsys.readouterr().err


def test_transfer_and_latency(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(arguments[-1]).parent
    given = ["transfer", *common(arguments, "--data", "--indexes", "--sets", "--work")]
    assert main([*given, "--study", arguments[-1], "--limit", "5", "--out", str(folder / "t.json")]) == 0
    models = json.loads((folder / "t.json").read_text())["results"]["demo"]["models"]
    assert set(models) == {"best ranking", "demo", "all sets"}
    study = json.loads(Path(arguments[-1]).read_text())["results"]["demo"]
    assert models["demo"]["256"]["tokens"] <= 256
    assert models["demo"]["calibration"]["ece"] < models["best ranking"]["calibration"]["ece"]
    assert study["questions"] >= 5
    assert "[" in capsys.readouterr().out  # a set's own weights are marked
    command = ["latency", *common(arguments, "--data", "--indexes", "--sets"), "--questions", "4"]
    assert main([*command, "--out", str(folder / "r.json")]) == 0
    timed = json.loads((folder / "r.json").read_text())["results"]["demo"]
    assert timed["questions"] == 4
    for clock in (timed["processor"], timed["wall"]):
        assert sum(entry["share"] for entry in clock["stages"].values()) == pytest.approx(1.0)
        assert all(entry["median"] >= 0 for entry in clock["stages"].values())
        assert clock["without_embedding"]["median"] <= clock["total"]["median"]


def test_tuning_one_half_and_reporting_the_other(arguments: list[str]) -> None:
    pytest.importorskip("optuna")
    out = Path(arguments[-1]).parent / "tuned.json"
    given = ["tuned", *common(arguments, "--data", "--indexes", "--sets", "--work")]
    assert main([*given, "--budgets", "200", "--trials", "1", "--out", str(out)]) == 0
    found = json.loads(out.read_text())["results"]["demo"]["budgets"]["200"]
    assert found["ranking"]["method"] in BASELINES
    assert found["ours"]["relevance"] in ("probability", "cosine", "fused")
    # The only trial is the start, so that with the probability nothing has changed.
    if found["ours"]["relevance"] == "probability":
        assert found["ours"]["recall"] == found["untuned"]["recall"]
    for entry in found.values():
        assert entry["tokens"] <= 200
