"""The benchmark of the adapters tells the truth about a small case."""

import json
from pathlib import Path

import pytest

from benchmarks import adapters, adapters_contenders
from benchmarks.__main__ import main

for package in ("langchain_core", "llama_index.core", "haystack", "dspy"):
    pytest.importorskip(package)


def test_all_contenders_choose_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "adapters.json"
    options = ["--documents", "14", "--questions", "2", "--rounds", "2", "--embedder", "tfidf"]
    assert main(["adapters", *options, "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["wrong"] == []
    assert report["documents"] == [14, 14]
    rows = {row["name"]: row for row in report["contenders"]}
    assert set(rows) == {"bare", "select", "langchain", "llama_index", "haystack", "dspy"}
    alone = {name for name, row in rows.items() if row["framework_milliseconds"] > 0}
    assert alone == {"llama_index", "dspy"}
    assert rows["bare"]["overhead_milliseconds"] < 0.5 * rows["bare"]["median_milliseconds"]
    assert all(0 < row["overhead_milliseconds"] < row["median_milliseconds"] for row in rows.values())
    assert all(row["runs"] == 4 and len(row["overhead_by_question"]) == 2 for row in rows.values())
    assert "beyond the framework's own" in capsys.readouterr().err


def test_an_adapter_that_chooses_otherwise_fails_the_run(monkeypatch, tmp_path: Path) -> None:
    honest = adapters.contenders

    def lying(pool, budget_tokens):
        return {**honest(pool, budget_tokens), "haystack": lambda: ["something else"]}

    monkeypatch.setattr(adapters, "contenders", lying)
    options = ["--documents", "5", "--questions", "1", "--rounds", "1", "--embedder", "tfidf"]
    assert main(["adapters", *options, "--out", str(tmp_path / "x.json")]) == 1
    assert main(["adapters", "--rounds", "0"]) == 2


def test_pools_are_best_first() -> None:
    pool = adapters_contenders.pools(9, 1, "tfidf")[0]
    assert len(pool.texts) == 9
    assert pool.scores == sorted(pool.scores, reverse=True)
