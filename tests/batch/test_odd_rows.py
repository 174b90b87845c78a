"""Rows with numbers and text at which something ends: each is refused by itself, or chosen from."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag import InputError, Selector
from mio_rag.batch import select_batch
from mio_rag.batch.rows import _candidates
from mio_rag.relevance.model import pool_signals, relevance_of

arrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

SELECTOR = Selector.raw(redundancy_weight=0.3, passage_penalty="auto", max_passages=4)


def rows(count: int) -> list[dict[str, Any]]:
    """Random vectors, values and costs."""
    rng = np.random.default_rng(0)
    return [
        {
            "query_id": f"q{k}",
            "ids": [f"p{i}" for i in range(8)],
            "relevance": rng.random(8).tolist(),
            "tokens": rng.integers(10, 60, 8).tolist(),
            "embeddings": rng.normal(size=(8, 6)).astype(np.float32).astype(np.float64).tolist(),
        }
        for k in range(count)
    ]


def chosen(table: Any, folder: Path) -> tuple[list[dict[str, Any]], dict[int, list[str]]]:
    """What a batch makes of a table: the rows that are answered, and the reasons of the others."""
    folder.mkdir(exist_ok=True)
    parquet.write_table(table, folder / "c.parquet")
    select_batch(folder / "c.parquet", folder / "out", 90, SELECTOR, workers=0)
    found: list[dict[str, Any]] = parquet.read_table(folder / "out" / "selections").to_pylist()
    lines = (folder / "out" / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    refused = {row["row"]: row["reasons"] for row in map(json.loads, lines)}
    return sorted(found, key=lambda row: int(row["row"])), refused


def test_numbers_that_overflow_are_refused_and_not_taken_for_zero(tmp_path: Path) -> None:
    data = rows(5)
    data[0]["embeddings"][3][2] = 1e40
    budgets = [90.0, float("inf"), 90.5, 1e150, 90.0]
    data = [{**row, "budget_tokens": b} for row, b in zip(data, budgets, strict=True)]
    with warnings.catch_warnings(action="error"):
        answered, reasons = chosen(arrow.Table.from_pylist(data), tmp_path)
    assert [row["row"] for row in answered] == [4]
    assert "embeddings row 3 (passage 'p3') holds NaN or infinity" in reasons[0][0]
    assert "budget_tokens=inf must be a whole number" in reasons[1][0]
    assert "budget_tokens=90.5 must be a whole number" in reasons[2][0]
    assert "budget_tokens=1e+150 must be a whole number, at most 1e+15" in reasons[3][0]


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_embeddings_of_any_length_choose_the_same(tmp_path: Path, scale: float) -> None:
    data = rows(3)
    scaled = [{**row, "embeddings": (scale * np.array(row["embeddings"])).tolist()} for row in data]
    one, _ = chosen(arrow.Table.from_pylist(data), tmp_path / "one")
    other, _ = chosen(arrow.Table.from_pylist(scaled), tmp_path / "other")
    assert [row["selected_ids"] for row in one] == [row["selected_ids"] for row in other]
    assert [row["objective"] for row in one] == pytest.approx([row["objective"] for row in other], abs=1e-6)


@pytest.mark.parametrize("name", ["query_id", "ids", "titles"])
def test_text_that_is_not_utf8_costs_its_own_row(tmp_path: Path, name: str) -> None:
    data = [{**row, "titles": row["ids"], "texts": row["ids"]} for row in rows(3)]
    table = arrow.Table.from_pylist(data).drop_columns("tokens")
    given = table[name].combine_chunks()
    words = [w.encode() for w in (given if name == "query_id" else given.values).to_pylist()]
    words[1 if name == "query_id" else 9] = b"\xff"
    damaged = arrow.array(words).view(arrow.string())
    if name != "query_id":
        damaged = arrow.ListArray.from_arrays(given.offsets, damaged)
    table = table.set_column(table.schema.get_field_index(name), name, damaged)
    answered, reasons = chosen(table, tmp_path)
    assert [row["row"] for row in answered] == [0, 2]
    assert reasons == {1: [f"{name} is not valid UTF-8 text"]}


def test_a_name_of_a_column_that_is_not_utf8_is_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    parquet.write_table(arrow.table({"na\u00efve": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace("\u00ef".encode(), b"\xff\xff"))
    with pytest.raises(InputError, match=r"c.parquet' cannot be read as Parquet"):
        select_batch(path, tmp_path / "out", 90, SELECTOR)


def test_without_texts_nothing_is_taken_for_words_of_the_question() -> None:
    """Ids stand for texts that nobody gave: a passage called "bridge" is none about bridges."""
    row = {
        "ids": ["bridge", "b", "c"],
        "relevance": [0.5, 0.4, 0.3],
        "tokens": [5, 5, 5],
        "question": "How long is the bridge?",
        "score:dense": [0.5, 0.4, 0.3],
        "score:bm25": [1.0, 2.0, 0.0],
        "score:fused": [3.0, 2.0, 1.0],
    }
    told = _candidates("q", dict(row))
    assert relevance_of("auto", told)[1].kind == "scores"
    assert pool_signals(told) is None
    whole = _candidates("q", {**row, "texts": ["The bridge is long.", "It is old.", "Nothing."]})
    assert relevance_of("auto", whole)[1].kind == "ranks"
    assert (pool_signals(whole) or {})["first_cover"] > 0
