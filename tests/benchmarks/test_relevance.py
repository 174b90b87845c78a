"""The relevance benchmark on the bundled questions: it runs, goes on where it stopped, keeps halves apart."""

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
from mio_rag.datasets import Dataset
from mio_rag.retrieval import CorpusIndex, Retriever


@pytest.fixture(scope="module")
def arguments(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("benchmark")
    shutil.copytree(Path(mio_rag.__file__).parent / "data" / "demo", folder / "data" / "demo")
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


def test_it_runs_resumes_and_draws(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = Path(arguments[-1])
    report = json.loads(out.read_text())
    found = report["results"]["demo"]
    assert found["questions"] + found["fitted_on"] == 25
    for method in (*BASELINES, OURS):
        for budget, entry in found["methods"][method].items():
            assert 0 <= entry["recall"]["mean"] <= found["ceilings"]["1"]["recall"] + 1e-12
            assert entry["tokens"] <= int(budget)
    assert found["calibration"]["links"]["ece"] < found["calibration"]["cosine"]["ece"]
    assert {e["method"] for e in found["matched"]} > {*BASELINES, OURS}
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    first = capsys.readouterr()
    assert "demo: 12 questions" in first.out
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
    pool = Retriever(demo_index, pool=84).retrieve(question.text)
    found = ceilings([question], {0: [pool]})["0"]
    cost = sum(int(pool.tokens[pool.ids.index(g)]) for g in question.gold_ids)
    assert found["recall"] == 1
    assert found["gold_tokens"] == cost
    assert found["all_gold_within"] == {str(b): float(cost <= b) for b in (128, 256, 512, 1024)}
    assert np.isclose(found["pool"], 84)
