"""A data set's frontier: rows, points, the operating point, and what an interruption leaves."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.evaluation.harness import EvaluationSettings, evaluate
from mio_rag.frontier.dataset import (
    FrontierResult,
    FrontierSettings,
    data_frontier,
    operating_point,
    summarize_grid,
)
from mio_rag.frontier.page import render_page
from mio_rag.generation import make_generator
from mio_rag.retrieval import CorpusIndex, RetrievalSettings

SETTINGS = FrontierSettings(
    budgets=(100, 200), weights=(0.0, 0.3), radii=(0.0, 0.1), penalties=(0.002,), draws=2, limit=8, seed=3,
    retrieval=RetrievalSettings(pool=15),
)  # fmt: skip


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def page_data(folder: Path) -> Any:
    page = (folder / "frontier.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="frontier-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module")
def found(demo: Dataset, demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> FrontierResult:
    return data_frontier(demo, demo_index, SETTINGS, tmp_path_factory.mktemp("frontier") / "run")


def test_points_agree_with_the_harness(
    demo: Dataset, demo_index: CorpusIndex, found: FrontierResult, tmp_path: Path
) -> None:
    point = next(p for p in found.points if p["redundancy_weight"] == 0.3 and p["radius"] == 0.1)
    same = SETTINGS.selector.replace(redundancy_weight=0.3, radius=0.1, passage_penalty=0.002)
    settings = EvaluationSettings(
        methods=("exact",), budgets=(100,), selector=same, retrieval=SETTINGS.retrieval, limit=8, seed=3
    )
    run = evaluate(demo, demo_index, None, settings, tmp_path / "run")
    assert point["budget_tokens"] == 100
    for measure in ("gold_recall", "all_gold", "tokens_used"):
        assert point["measures"][measure]["mean"] == pytest.approx(run.summary[0][measure]["mean"], abs=1e-9)


def test_points_are_certified_and_marked(found: FrontierResult) -> None:
    points = found.points
    assert len(points) == 8
    assert all(p["certified"] and p["n"] == 8 and not p["failed"] for p in points)
    assert all(row["tokens_used"] <= row["budget_tokens"] for row in rows_of(found.folder))

    def value(p: dict[str, Any], name: str) -> float:
        # One passage has no diversity; that never beats one that has.
        return float(p["measures"][name]["mean"]) if name in p["measures"] else -1.0

    for p in points:
        beaten = any(
            value(o, "tokens_used") <= value(p, "tokens_used") + 1e-9
            and all(value(o, m) >= value(p, m) - 1e-9 for m in ("gold_recall", "diversity", "stability"))
            and (
                value(o, "tokens_used") < value(p, "tokens_used") - 1e-6
                or any(value(o, m) > value(p, m) + 1e-6 for m in ("gold_recall", "diversity", "stability"))
            )
            for o in points
        )
        assert p["dominated"] is beaten
        assert 0 <= value(p, "stability") <= 1
        low, mean, high = (p["measures"]["gold_recall"][k] for k in ("low", "mean", "high"))
        assert low <= mean <= high
    assert any(not p["dominated"] for p in points)


def test_unproven_points_are_not_on_the_frontier(found: FrontierResult) -> None:
    rows = rows_of(found.folder)
    spoiled = [row | {"status": "feasible"} if row["budget_tokens"] == 200 else row for row in rows]
    points = summarize_grid(spoiled, SETTINGS)
    for p in points:
        assert p["certified"] is (p["budget_tokens"] == 100)
        if not p["certified"]:
            assert (p["dominated"], p["front"], p["proven"]) == (None, [], 0.0)
    chosen = operating_point(spoiled, points, SETTINGS)
    assert chosen is not None
    assert chosen["budget_tokens"] == 100


def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    demo: Dataset, demo_index: CorpusIndex, found: FrontierResult, tmp_path: Path
) -> None:
    def stop(_: int, text: str) -> None:
        if text.startswith("3 of"):
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        data_frontier(demo, demo_index, SETTINGS, folder, progress=stop)
    assert len(rows_of(folder)) == 24
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"question_id": "cut sh')
    with pytest.raises(InputError, match="already holds a run"):
        data_frontier(demo, demo_index, SETTINGS, folder)
    with pytest.raises(InputError, match="another draws"):
        data_frontier(demo, demo_index, replace(SETTINGS, draws=1), folder, resume=True)
    data_frontier(demo, demo_index, SETTINGS, folder, resume=True)

    def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "solve_seconds"} for row in rows]

    assert timeless(rows_of(folder)) == timeless(rows_of(found.folder))
    assert not list(folder.glob(".*"))
    # Whoever asks for less is told, rather than left with less.
    with pytest.raises(InputError, match="also has 2 more questions,"):
        data_frontier(demo, demo_index, replace(SETTINGS, limit=6), folder, resume=True)


def test_the_page_is_closed_and_shows_what_was_read(found: FrontierResult, demo: Dataset) -> None:
    page = (found.folder / "frontier.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    data = page_data(found.folder)
    picks = {
        (question["id"], point["name"], point["budget_tokens"]): [
            data["passages"][k]["id"] for k in pick["read"]
        ]
        for question in data["questions"]
        for point, pick in zip(data["points"], question["picks"], strict=True)
    }
    rows = rows_of(found.folder)
    assert picks == {(r["question_id"], r["method"], r["budget_tokens"]): r["selected_ids"] for r in rows}
    assert (found.folder / "frontier.png").read_bytes()[:4] == b"\x89PNG"
    hostile = "</script><script>alert(1)</script> ${x} $data"
    passages = tuple(replace(p, text=hostile, title=hostile) for p in demo.passages)
    questions = tuple(replace(q, text=hostile) for q in demo.questions[:8])
    saved = json.loads((found.folder / "frontier.json").read_text())
    page = render_page(saved, rows, Dataset(hostile, passages, questions), questions, "")
    assert "<script>alert(1)" not in page
    assert "$data" in page


def test_answers_are_scored_where_a_reader_reads(
    rivers: Dataset, river_index: CorpusIndex, tmp_path: Path
) -> None:
    settings = FrontierSettings(
        budgets=(30, 60), weights=(0.0,), radii=(0.0,), retrieval=RetrievalSettings(pool=6), draws=0
    )
    with make_generator("extractive") as reader:
        found = data_frontier(rivers, river_index, settings, tmp_path / "run", generator=reader)
    assert all(0 <= p["measures"]["token_f1"]["mean"] <= 1 for p in found.points)
    assert all("stability" not in p["measures"] for p in found.points)
    assert all(row["answer"] and not row["over_budget"] for row in rows_of(found.folder))
    assert found.chosen is not None
    assert found.chosen["held_out"] is None  # three labelled questions
