"""Selections over Parquet files: the same as one by one, invalid rows apart, each row once after any kill."""

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mio_rag import InputError, Selector
from mio_rag.batch import select_batch as run_batch
from mio_rag.batch.run import DIED
from mio_rag.cli.app import app
from tests.batch.made import (
    SELECTOR,
    Deadly,
    answered,
    arrow,
    candidates_of,
    killed,
    needs_proc,
    parquet,
    refused,
    rows,
    write,
)

select_batch = partial(run_batch, workers=0)


def chosen(data: Any, folder: Path, selector: Selector = SELECTOR, **more: Any) -> list[list[int]]:
    """The selections of a batch."""
    folder.mkdir(exist_ok=True)
    select_batch(write(folder / "c.parquet", data), folder / "out", 90, selector, **more)
    return [row["selected"] for row in answered(folder / "out")]


def test_rows_are_selected_as_by_the_selector_and_claims_hold(tmp_path: Path) -> None:
    data = rows(25)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "c.parquet", data)
    (tmp_path / "in" / ".b.parquet").write_bytes(b"PAR1 half of it")  # hidden ones are unfinished
    done = select_batch(tmp_path / "in", tmp_path / "out", 90, SELECTOR, shard_rows=7)
    found = answered(tmp_path / "out")
    assert (done.rows, done.rejected, done.statuses) == (25, 0, {"optimal": 25})
    assert [row["row"] for row in found] == list(range(25))
    for row, given in zip(found, data, strict=True):
        pool = candidates_of(given)
        one = SELECTOR.select(pool, 90)
        assert (row["query_id"], tuple(row["selected_ids"])) == (given["query_id"], one.ids)
        assert row["relevance_source"] == (one.relevance_source and one.relevance_source.kind)
        # Recomputed from the decision alone.
        program, x = SELECTOR.program(pool, 90), np.zeros(len(pool))
        x[row["selected"]] = 1
        assert row["objective"] == pytest.approx(program.objective(x), abs=1e-6)
        assert program.violations(x) == []
        assert row["objective"] <= row["bound"] + 1e-12
        assert row["tokens_used"] == sum(given["tokens"][k] for k in row["selected"]) <= 90


def test_layouts_of_the_same_numbers_give_the_same_selections(tmp_path: Path) -> None:
    data = rows(6)
    expected = chosen(data, tmp_path / "plain")
    vectors = [np.array(row["embeddings"], dtype=np.float32) for row in data]
    table = arrow.Table.from_pylist(data)
    place, fixed = table.schema.get_field_index("embeddings"), arrow.list_(arrow.list_(arrow.float32(), 6), 8)

    def changed(name: str, made: Any) -> list[dict[str, Any]]:
        others = [{k: v for k, v in row.items() if k != "embeddings"} for row in data]
        return [{**row, name: made(v.astype(float)).tolist()} for row, v in zip(others, vectors, strict=True)]

    layouts: dict[str, Any] = {
        "flat": changed("embeddings", np.ravel),
        "square": changed("similarity", lambda v: v @ v.T),
        "fixed": table.set_column(place, "embeddings", table["embeddings"].cast(fixed)),
        "renamed": [{("score" if k == "relevance" else k): v for k, v in row.items()} for row in data],
        "long": changed("embeddings", lambda v: 1e30 * v),
        "short": changed("embeddings", lambda v: 1e-30 * v),
    }
    for name, given in layouts.items():
        names = {"relevance": "score"} if name == "renamed" else None
        assert chosen(given, tmp_path / name, columns=names) == expected, name


def test_invalid_rows_are_rejected_with_every_reason(tmp_path: Path) -> None:
    wrong: dict[int, tuple[dict[str, Any], str]] = {
        1: ({"relevance": [0.5, 0.5, float("nan"), *[0.5] * 5]}, "relevance[2] is nan"),
        2: ({"tokens": [0] * 8}, "tokens must be whole numbers >= 1"),
        3: ({"embeddings": [[1.0, 2.0], *[[0.5] * 6] * 7]}, "embeddings holds rows of 2 and of 6 numbers"),
        4: ({"ids": ["p1", *[f"p{k}" for k in range(1, 8)]]}, "ids repeat (p1)"),
        5: ({"ids": []}, "ids is null or empty"),
        7: ({"embeddings": None}, "needs embeddings"),
        8: ({"query_id": None}, "query_id is null or empty"),
        9: ({"embeddings": [*[[0.5] * 6] * 7, [1e40] * 6]}, "embeddings row 7 (passage 'p7') holds NaN"),
        10: ({"budget_tokens": float("inf")}, "budget_tokens=inf must be a whole number"),
        11: ({"budget_tokens": 90.5}, "budget_tokens=90.5 must be a whole number"),
        12: ({"budget_tokens": 1e150}, "budget_tokens=1e+150 must be a whole number, at most 1e+15"),
    }
    data = [{**row, "budget_tokens": 90.0, **wrong.get(k, ({},))[0]} for k, row in enumerate(rows(14))]
    data[6]["tokens"] = [500] * 8
    data[13]["budget_tokens"] = None
    out = tmp_path / "out"
    with warnings.catch_warnings(action="error"):
        done = select_batch(write(tmp_path / "c.parquet", data), out, 200, SELECTOR)
    assert (done.rejected, done.statuses) == (11, {"optimal": 3})
    reasons = refused(out)
    assert {row for row, (_, words) in wrong.items() if words not in reasons[row]} == set()
    found = {row["row"]: (row["budget_tokens"], bool(row["selected_ids"])) for row in answered(out)}
    assert found == {0: (90, True), 6: (90, False), 13: (200, True)}
    infeasible = Selector.raw(redundancy_weight=0, min_passages=5)  # a result, and no rejected row
    done = select_batch(write(tmp_path / "c.parquet", rows(1)), tmp_path / "few", 45, infeasible)
    assert (done.rejected, done.statuses) == (0, {"infeasible": 1})


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
    chosen(table.set_column(table.schema.get_field_index(name), name, damaged), tmp_path)
    assert [row["row"] for row in answered(tmp_path / "out")] == [0, 2]
    assert refused(tmp_path / "out") == {1: f"{name} is not valid UTF-8 text"}


def test_a_text_that_is_null_is_refused_in_words(tmp_path: Path) -> None:
    data = [{**row, "texts": list(row["ids"]), "titles": list(row["ids"])} for row in rows(2)]
    data[1]["texts"][3] = None
    data[0]["titles"][2] = None
    chosen(arrow.Table.from_pylist(data).drop_columns("tokens"), tmp_path)
    words = {0: "titles[2] is None, expected a string", 1: "texts[3] is None, expected a string"}
    assert refused(tmp_path / "out") == words


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "c.parquet", rows(40), row_group=20)
    content = bytearray(path.read_bytes())
    content[200:1200] = b"\0" * 1000
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"row group 0 of '.*c.parquet' cannot be read"):
        select_batch(path, tmp_path / "out", 90, SELECTOR)
    parquet.write_table(arrow.table({"na\u00efve": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace("\u00ef".encode(), b"\xff\xff"))
    with pytest.raises(InputError, match=r"c.parquet' cannot be read as Parquet"):
        select_batch(path, tmp_path / "out", 90, SELECTOR)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda row: row.pop("ids"), {}, "column 'ids' is missing"),
        (lambda row: row.pop("tokens"), {}, "token costs are unknown"),
        (lambda row: row.pop("embeddings"), {}, "needs 'embeddings' or 'similarity'"),
        (lambda row: row.pop("relevance"), {}, "relevance is unknown"),
        (lambda row: row.update(tokens="many"), {}, "column 'tokens' is string, expected a list of numbers"),
        (
            None,
            {"selector": Selector(units="sentences")},
            "a batch chooses passages: leave units='sentences' out",
        ),
        (None, {"budget_tokens": 0}, "budget_tokens must be >= 1, got 0"),
        (None, {"budget_tokens": 10**21}, "budget_tokens must be <= 1000000000000000"),
        (None, {"shard_rows": 0}, "shard_rows must be >= 1"),
        (None, {"engine": "spark"}, "engine must be local or ray"),
    ],
)
def test_wrong_schemas_and_settings_are_refused_first(
    tmp_path: Path, change: Any, options: dict[str, Any], words: str
) -> None:
    data = rows(2)
    for row in data if change else ():
        change(row)
    given = {"budget_tokens": 90, "selector": SELECTOR, **options}
    with pytest.raises(InputError, match=words):
        select_batch(write(tmp_path / "c.parquet", data), tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_runs_with_other_input_or_settings_do_not_mix(tmp_path: Path) -> None:
    path, out = write(tmp_path / "c.parquet", rows(4)), tmp_path / "out"
    select_batch(path, out, 90, SELECTOR)
    for budget, selector, named in (
        (91, SELECTOR, "budget_tokens"),
        (90, SELECTOR.replace(redundancy_weight=0.2), "redundancy_weight"),
    ):
        with pytest.raises(InputError, match=f"another {named}"):
            select_batch(path, out, budget, selector)
    assert select_batch(path, out, 90, SELECTOR).done_before == 4
    write(path, rows(5)[1:])
    with pytest.raises(InputError, match="another input"):
        select_batch(path, out, 90, SELECTOR)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(InputError, match="not empty and holds no batch"):
        select_batch(path, tmp_path / "full", 90, SELECTOR)


def test_a_lost_shard_is_made_again_with_the_same_bytes(tmp_path: Path) -> None:
    data = rows(12)
    data[5]["tokens"] = [0] * 8
    path, out = write(tmp_path / "c.parquet", data, row_group=12), tmp_path / "out"
    select_batch(path, out, 90, SELECTOR, shard_rows=4)
    shard = out / "selections" / "part-000000000004.parquet"
    before, side = shard.read_bytes(), (out / "rejected.jsonl").read_bytes()
    shard.unlink()
    (out / "selections" / f".part-000000000008.{'0f' * 16}.partial.parquet").write_bytes(b"PAR1")
    assert select_batch(path, out, 90, SELECTOR, shard_rows=4).done_before == 8
    assert shard.read_bytes() == before
    assert (out / "rejected.jsonl").read_bytes() == side
    assert len(list((out / "selections").iterdir())) == 3
    shard.write_bytes(before[:100])  # a disk that lost some of it
    assert select_batch(path, out, 90, SELECTOR, shard_rows=4).done_before == 8
    assert shard.read_bytes() == before


def command(path: Path, out: Path, workers: int) -> list[str]:
    settings = ["--budget", "400", "--workers", str(workers), "--shard-rows", "10", "--json"]
    return ["batch", "select", str(path), "--out", str(out), *settings]


@needs_proc
def test_a_killed_run_resumes_with_each_row_once(tmp_path: Path) -> None:
    path, out = write(tmp_path / "c.parquet", rows(400, n=40, d=24), row_group=100), tmp_path / "out"

    def shards() -> list[Path]:
        return list((out / "selections").glob("part-*.parquet"))

    assert killed(command(path, out, workers=2), lambda: len(shards()) >= 3)
    kept = {shard: shard.stat().st_mtime_ns for shard in shards()}
    assert 3 <= len(kept) < 40
    second = CliRunner().invoke(app, command(path, out, workers=0))
    assert second.exit_code == 0, second.output
    assert json.loads(second.stdout)["done_before"] == 10 * len(kept)
    assert [row["row"] for row in answered(out)] == list(range(400))
    assert {shard: shard.stat().st_mtime_ns for shard in kept} == kept


def test_a_row_that_kills_its_process_is_rejected_and_the_rest_answered(tmp_path: Path) -> None:
    data = rows(20)
    data[14]["ids"][0] = "deadly"
    path, out = write(tmp_path / "c.parquet", data), tmp_path / "out"
    run_batch(path, out, 90, Deadly(redundancy_weight=0.3), workers=1)
    assert refused(out) == {14: DIED}
    assert [row["row"] for row in answered(out)] == [k for k in range(20) if k != 14]
