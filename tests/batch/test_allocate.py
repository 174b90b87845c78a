"""Totals over Parquet files: never exceeded, proven, and the same whatever is killed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mio_rag import InputError, Selector
from mio_rag.allocation import allocate
from mio_rag.batch import allocate_batch
from mio_rag.cli.app import app
from mio_rag.context import RegexCounter
from tests.batch.made import answered, candidates_of, killed, needs_proc, refused, rows, write

SELECTOR = Selector.raw(redundancy_weight=0.3, max_passages=4)
PLAIN = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0)


def run(
    folder: Path, data: list[dict[str, Any]], total: int, selector: Selector = SELECTOR, **more: Any
) -> Any:
    """Allocate, with tokens and value recomputed from the decisions alone."""
    folder.mkdir(exist_ok=True)
    path = write(folder / "c.parquet", data)
    done = allocate_batch(path, folder / "out", total, selector, workers=0, **more)
    return checked(folder / "out", data, done) if selector is SELECTOR else done


def checked(out: Path, data: list[dict[str, Any]], done: Any) -> Any:
    value, tokens = 0.0, 0
    for row in answered(out):
        pool = candidates_of(data[row["row"]])
        program, x = SELECTOR.program(pool, 10**6), np.zeros(len(pool))
        x[row["selected"]] = 1
        assert program.violations(x) == []
        assert row["value"] == pytest.approx(program.objective(x), abs=1e-6)  # vectors are scaled as read
        objective = program.objective(x) - row["token_price"] * row["tokens_used"]
        assert row["objective"] == pytest.approx(objective, abs=1e-6)
        assert row["tokens_used"] == int(x @ pool.tokens)
        value += row["weight"] * row["value"]
        tokens += row["tokens_used"]
    assert done.value == pytest.approx(value, abs=1e-9)
    assert done.tokens_used == tokens <= done.total_tokens
    assert done.value <= done.bound
    return done


@pytest.mark.parametrize("sample", [12, 5000])
def test_the_total_holds_and_the_gap_is_small_for_any_sample(tmp_path: Path, sample: int) -> None:
    data = rows(100)
    done = run(tmp_path, data, 100 * 60, sample=sample, shard_rows=7)
    exact = allocate([candidates_of(row) for row in data], 100 * 60, selector=SELECTOR)
    assert exact.bound is not None
    assert done.value <= exact.bound + 1e-6
    assert exact.value <= done.bound + 1e-6
    assert done.gap < 0.01
    assert [row["row"] for row in answered(tmp_path / "out")] == list(range(100))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "manifest.json", "prices.json", "rejected.jsonl", "selections", "summary.json",
    ]  # fmt: skip


@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_a_sample_unlike_the_rest_costs_a_round_and_never_the_total(tmp_path: Path, factor: float) -> None:
    data = rows(60)
    for k in np.random.default_rng(0).choice(60, 3, replace=False):  # as they are drawn
        data[k]["relevance"] = [factor * r for r in data[k]["relevance"]]
    done = run(tmp_path, data, 60 * 50, sample=3)
    assert done.rounds > 1
    assert done.tokens_used > 0.9 * 60 * 50


def overlapping(seed: int, count: int = 8, size: int = 24) -> dict[str, Any]:
    """A row: windows of one document, each sharing half of its words with the next."""
    words = [f"w{k}" for k in range(size * (count + 1))]
    at = np.cumsum([0, *(len(word) + 1 for word in words)])
    begins = [int(at[k * size // 2]) for k in range(count)]
    ends = [int(at[k * size // 2 + size]) - 1 for k in range(count)]
    document = " ".join(words)
    return {
        "query_id": f"q{seed}",
        "ids": [f"p{k}" for k in range(count)],
        "relevance": np.random.default_rng(seed).uniform(0.05, 1.0, count).tolist(),
        "texts": [document[a:b] for a, b in zip(begins, ends, strict=True)],
        "titles": ["Title"] * count,
        "sources": ["d"] * (count - 3) + ["e"] * 3,
        "starts": begins,
    }


def test_texts_that_overlap_are_read_and_paid_once(tmp_path: Path) -> None:
    data, total = [overlapping(seed) for seed in range(40)], 40 * 70
    done = run(tmp_path / "merged", data, total, PLAIN, ceiling=150)
    found = answered(tmp_path / "merged" / "out")
    for row in found:
        given = data[row["row"]]
        counted = RegexCounter().count(["\n\n".join(f"Title\n{text}" for text in row["read"])])[0]
        assert row["tokens_used"] == counted <= row["budget_tokens"] <= 150
        assert row["value"] == pytest.approx(sum(given["relevance"][i] for i in row["selected"]))
        words = set(" ".join(row["read"]).split()) - {"\u2026"}
        assert words == {word for i in row["selected"] for word in given["texts"][i].split()}
    assert any(len(row["read"]) < len(row["selected"]) for row in found)
    assert 0.97 * total < done.tokens_used == sum(row["tokens_used"] for row in found) <= total
    apart = run(tmp_path / "apart", data, total, PLAIN.replace(merge=False), ceiling=150)
    assert done.value > 1.1 * apart.value
    assert done.gap < 0.02
    assert "read" not in answered(tmp_path / "apart" / "out")[0]


def test_weights_floors_and_ceilings(tmp_path: Path) -> None:
    data = [
        {**row, "share": 1.0 + 9.0 * (k % 2), "budget_tokens": 120 - 40 * (k % 3)}
        for k, row in enumerate(rows(60))
    ]
    run(tmp_path, data, 60 * 45, weighted=True, columns={"weight": "share"}, floor=10)
    found = answered(tmp_path / "out")
    for row in found:
        assert 10 <= row["tokens_used"] <= row["budget_tokens"] == data[row["row"]]["budget_tokens"]
        assert row["weight"] == data[row["row"]]["share"]
    spent = [np.mean([r["tokens_used"] for r in found if r["row"] % 2 == odd]) for odd in (0, 1)]
    assert spent[1] > spent[0]


def test_invalid_rows_are_rejected_and_spend_nothing(tmp_path: Path) -> None:
    data: list[dict[str, Any]] = [{**row, "weight": 1.0} for row in rows(20)]
    data[3]["tokens"] = [0] * 8
    for k, weight in ((11, None), (12, -1.0), (13, float("nan"))):
        data[k]["weight"] = weight
    done = run(tmp_path, data, 600, weighted=True)
    reasons = refused(tmp_path / "out")
    assert (done.rows, done.rejected, set(reasons)) == (20, 4, {3, 11, 12, 13})
    assert all("weight=" in reasons[k] for k in (11, 12, 13))
    shared = [overlapping(seed) for seed in range(3)]
    shared[1]["sources"] = [f"d{k}" for k in range(8)]  # shares nothing
    done = run(tmp_path / "shared", shared, 300, PLAIN, floor=30)
    assert (done.rejected, [row["row"] for row in answered(tmp_path / "shared" / "out")]) == (2, [1])
    assert "read them apart (merge=False), or leave the floor out" in refused(tmp_path / "shared" / "out")[0]


@needs_proc
def test_a_killed_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    data = rows(200, n=30, d=24)
    path = write(tmp_path / "c.parquet", data, row_group=100)
    out, whole = tmp_path / "out", tmp_path / "whole"

    def command(out: Path, workers: int) -> list[str]:
        return [
            "batch", "allocate", str(path), "--out", str(out), "--total-tokens", str(200 * 55),
            "--set", "selection.preset=raw",
            "--set", "selection.redundancy_weight=0.3", "--set", "selection.max_passages=4",
            "--shard-rows", "5", "--sample", "20",
            "--workers", str(workers), "--json",
        ]  # fmt: skip

    def options() -> int:
        return len(list(out.glob("options-1/selections/part-*.parquet")))

    killed(command(out, 1), lambda: options() >= 3)
    assert 3 <= options() < 40
    assert not list(out.glob("selections/part-*.parquet"))
    second, fresh = (CliRunner().invoke(app, command(folder, 0)) for folder in (out, whole))
    assert (second.exit_code, fresh.exit_code) == (0, 0), second.output
    summary, expected = json.loads(second.stdout), json.loads(fresh.stdout)
    assert 0 < summary["done_before"] < 200
    for key in ("value", "bound", "gap", "tokens_used", "token_price", "prices", "statuses"):
        assert summary[key] == expected[key], key
    shards = [{p.name: p.read_bytes() for p in (folder / "selections").iterdir()} for folder in (out, whole)]
    assert shards[0] == shards[1]


def test_a_run_killed_while_it_writes_is_finished(tmp_path: Path) -> None:
    """Between the options and the summary some final shards exist, and some do not."""
    data = rows(40)
    path, out = write(tmp_path / "c.parquet", data), tmp_path / "out"

    class Killed(BaseException):
        pass

    def die(kind: str, total: int, done: int) -> None:
        if kind == "writing" and done:
            raise Killed

    with pytest.raises(Killed):
        allocate_batch(path, out, 1500, SELECTOR, workers=0, shard_rows=10, progress=die)
    assert len(list((out / "selections").iterdir())) == 1
    done = allocate_batch(path, out, 1500, SELECTOR, workers=0, shard_rows=10)
    assert checked(out, data, done).done_before == 40
    # A finished run is read; another total is refused; a lost shard is made again.
    before = {p: p.stat().st_mtime_ns for p in (out / "selections").iterdir()}
    again = allocate_batch(path, out, 1500, SELECTOR, workers=0, shard_rows=10)
    assert (again.value, again.bound, again.tokens_used) == (done.value, done.bound, done.tokens_used)
    assert before == {p: p.stat().st_mtime_ns for p in (out / "selections").iterdir()}
    with pytest.raises(InputError, match="had another total_tokens"):
        allocate_batch(path, out, 1501, SELECTOR, workers=0, shard_rows=10)
    next(iter(before)).unlink()
    repaired = allocate_batch(path, out, 1500, SELECTOR, workers=0, shard_rows=10)
    assert checked(out, data, repaired).value == done.value


def test_the_command_shares_the_total_of_a_policy(tmp_path: Path) -> None:
    path, policy = write(tmp_path / "c.parquet", rows(12)), tmp_path / "p.toml"
    policy.write_text("[price]\ntotal = 700\nquestions = 12\n[limits]\nbudget = 90\n")

    def allocated(out: str, *more: str) -> Any:
        return CliRunner().invoke(app, ["batch", "allocate", str(path), "--out", str(tmp_path / out), *more])

    done = allocated("o", "--policy", str(policy), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["tokens_used"] <= told["total_tokens"] == 700
    assert all(row["tokens_used"] <= 90 for row in answered(tmp_path / "o"))
    assert "an allocation needs a total" in allocated("n").output
