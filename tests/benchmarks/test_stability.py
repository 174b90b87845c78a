"""The stability study on the bundled questions: it runs, goes on where it stopped, and is fair."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import mio_rag
from benchmarks.__main__ import main
from benchmarks.stability.study import Row, read_rows
from benchmarks.stability.summary import summarize, verdict
from benchmarks.stability.versions import VERSIONS, Versions
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.retrieval import CorpusIndex, Retriever

pytest.importorskip("matplotlib")
pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def arguments(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("stability")
    shutil.copytree(Path(mio_rag.__file__).parent / "data" / "demo", folder / "data" / "demo")
    demo_index.save(folder / "indexes" / "demo")
    return [
        "stability", "--data", str(folder / "data"), "--indexes", str(folder / "indexes"), "--sets", "demo",
        "--work", str(folder / "work"), "--parts", "10", "--limit", "3", "--budgets", "128",
        "--radii", "1e-9,0.1", "--out", str(folder / "out.json"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def report(arguments: list[str]) -> dict:
    assert main(arguments) == 0
    return json.loads(Path(arguments[-1]).read_text())


def test_a_radius_of_nothing_costs_and_buys_nothing(report: dict) -> None:
    cells = report["results"]["demo"]["cells"]
    assert len(cells) == 2 * 4 + 1  # two kinds of relevance, two counterparts, two radii; and l-infinity
    for key, cell in cells.items():
        assert cell["robust"]["tokens"] <= 128
        assert cell["nominal matched"]["tokens"] <= max(cell["robust"]["tokens"], 128)
        assert all(0 <= cell["robust matched"][f"jaccard {v}"] <= 1 for v in VERSIONS)
        if "|termwise 1e-09|" in key or "|joint 1e-09|" in key:
            assert abs(cell["price"]["mean"]) < 2e-3
            assert abs(cell["gain"]["mean"]) < 2e-3
    joint = cells["cosine|joint 0.1|128"]
    assert joint["gain"]["mean"] > -2e-3  # never clearly below what the nominal selection guarantees
    assert joint["price"]["mean"] > -2e-3


def test_finished_questions_are_not_computed_again(
    report: dict, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a finished question was computed again")

    monkeypatch.setattr("benchmarks.stability.study.question_row", never)
    assert main(arguments) == 0
    assert json.loads(Path(arguments[-1]).read_text()) == report
    assert "robustness buys neither" in capsys.readouterr().out
    assert main([*arguments, "--limit", "5", "--finished"]) == 0
    assert json.loads(Path(arguments[-1]).read_text())["results"]["demo"]["questions"] == 3
    assert main([*arguments, "--seed", "9", "--finished"]) == 2
    assert "leave out --finished" in capsys.readouterr().err
    assert Path(arguments[-1]).with_suffix(".png").read_bytes()[:4] == b"\x89PNG"


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "row": {"pool": {"passages": 1.0}}}\n{"id": "b", "ro', encoding="utf-8")
    assert list(read_rows(path)) == ["a"]


def test_versions_keep_the_passages_and_the_scale(demo: Dataset, demo_index: CorpusIndex) -> None:
    pool = Retriever(demo_index, pool=10).retrieve(demo.questions[0].text)
    made = Versions(demo_index, "tfidf", 10, 0.1, seed=0).of(demo.questions[0], pool)
    assert set(made) == set(VERSIONS)
    assert all(other.ids == pool.ids for other in made.values())
    assert made["encoder"].relevance.mean() == pytest.approx(pool.relevance.mean())
    assert made["encoder"].relevance.std() == pytest.approx(pool.relevance.std())
    assert (made["pq"].embeddings != pool.embeddings).any()
    with pytest.raises(InputError, match="does not divide the 60 dimensions"):
        Versions(demo_index, "tfidf", 7, 0.1, seed=0)


def _row(robust: float, nominal: float) -> Row:
    keys = ["tokens", "passages", "recall", "value", "certified", "gap", "stopped"]
    keys += [f"{m} {v}" for m in ("jaccard", "recall") for v in VERSIONS]
    cell = {f"{name}: {key}": robust for key in keys for name in ("robust", "robust matched")}
    cell |= {f"{name}: {key}": nominal for key in keys for name in ("nominal", "nominal matched")}
    return {"pool": {"passages": 10.0, "pq error": 0.1}, "cosine|joint 0.1|128": cell}


def test_the_verdict_says_what_differs_and_which_way() -> None:
    better, worse = verdict(summarize([_row(1.0, 0.5)] * 3)["cells"]["cosine|joint 0.1|128"])
    assert "recall" in better
    assert not worse
    better, worse = verdict(summarize([_row(0.5, 1.0), _row(0.6, 1.0)])["cells"]["cosine|joint 0.1|128"])
    assert not better
    assert "jaccard pq" in worse
    better, worse = verdict(summarize([_row(0.5, 1.0), _row(1.0, 0.5)])["cells"]["cosine|joint 0.1|128"])
    assert not better
    assert not worse
