"""Totals over Parquet files: what is proven, bad rows apart, the same result whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mio_rag import Candidates, InputError, Selector
from mio_rag.allocation import allocate
from mio_rag.batch import allocate_batch
from mio_rag.cli.app import app
from mio_rag.context import RegexCounter
from tests.batch.test_batch import answered, parquet, pool, refused, rows, write

SELECTOR = Selector.raw(redundancy_weight=0.3, max_passages=4)


def candidates_of(row: dict[str, Any]) -> Candidates:
    return Candidates(
        ids=row["ids"],
        texts=row["ids"],
        relevance=np.array(row["relevance"]),
        tokens=np.array(row["tokens"]),
        embeddings=np.array(row["embeddings"], dtype=np.float32),
    )


def checked(out: Path, data: list[dict[str, Any]], done: Any) -> None:
    """Tokens and value, recomputed from nothing but the decisions."""
    value, tokens = 0.0, 0
    for row in answered(out):
        given = candidates_of(data[row["row"]])
        x = np.zeros(len(given))
        x[row["selected"]] = 1
        program = SELECTOR.program(given, 10**6)
        assert program.violations(x) == []
        assert row["value"] == pytest.approx(program.objective(x), abs=1e-6)  # vectors are scaled as read
        assert row["objective"] == pytest.approx(
            program.objective(x) - row["token_price"] * row["tokens_used"], abs=1e-6
        )
        assert row["tokens_used"] == int(x @ given.tokens)
        value += row["weight"] * row["value"]
        tokens += row["tokens_used"]
    assert done.value == pytest.approx(value, abs=1e-9)
    assert done.tokens_used == tokens <= done.total_tokens
    assert done.value <= done.bound


@pytest.mark.parametrize("sample", [12, 60, 5000])
def test_the_total_holds_and_the_gap_is_small_whatever_the_sample(tmp_path: Path, sample: int) -> None:
    data = rows(150)
    path, out = write(tmp_path / "c.parquet", data), tmp_path / "out"
    done = allocate_batch(path, out, 150 * 60, SELECTOR, sample=sample, workers=0, shard_rows=7)
    checked(out, data, done)
    exact = allocate([candidates_of(row) for row in data], 150 * 60, selector=SELECTOR)
    assert exact.bound is not None
    assert done.value <= exact.bound + 1e-6
    assert exact.value <= done.bound + 1e-6
    assert done.gap < 0.01
    assert [row["row"] for row in answered(out)] == list(range(150))
    assert sorted(p.name for p in out.iterdir()) == [
        "manifest.json", "prices.json", "rejected.jsonl", "selections", "summary.json",
    ]  # fmt: skip


def test_a_sample_that_is_far_off_costs_another_round_and_never_the_total(tmp_path: Path) -> None:
    """The rows that are drawn are worth nothing like the others."""
    data = rows(80)
    drawn = np.random.default_rng(0).choice(80, 3, replace=False)
    for factor, name in ((1e-4, "cheap"), (1e4, "dear")):
        here = [dict(row) for row in data]
        for k in drawn:
            here[k]["relevance"] = [factor * r for r in here[k]["relevance"]]
        out = tmp_path / name
        done = allocate_batch(
            write(tmp_path / f"{name}.parquet", here), out, 80 * 50, SELECTOR, sample=3, workers=0
        )
        checked(out, here, done)
        assert done.tokens_used > 0.9 * 80 * 50


def test_rows_take_one_solve_each_beside_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left, or missing, is made up for by rows that read one passage more, or less."""
    import mio_rag.batch.job as options

    solves, solve = [0], options.solve

    def counting(*given: Any) -> Any:
        solves[0] += 1
        return solve(*given)

    monkeypatch.setattr(options, "solve", counting)
    data = rows(120)
    out = tmp_path / "out"
    done = allocate_batch(write(tmp_path / "c.parquet", data), out, 120 * 60, SELECTOR, sample=40, workers=0)
    checked(out, data, done)
    assert (done.rounds, len(done.prices), solves[0]) == (1, 1, 120)
    assert done.total_tokens - done.tokens_used < 20
    assert set(done.statuses) == {"optimal", "feasible"}  # a neighbour is no optimum, and says so
    for row in answered(out):
        assert (row["status"] == "optimal") == (row["gap"] <= 1e-6)
        assert row["bound"] >= row["objective"]


def overlapping(seed: int, count: int = 8, size: int = 24) -> dict[str, Any]:
    """A row: windows of one document, each sharing half of its words with the next."""
    rng = np.random.default_rng(seed)
    words = [f"w{k}" for k in range(size * (count + 1))]
    at = np.cumsum([0, *(len(word) + 1 for word in words)])
    begins = [int(at[k * size // 2]) for k in range(count)]
    ends = [int(at[k * size // 2 + size]) - 1 for k in range(count)]
    document = " ".join(words)
    return {
        "query_id": f"q{seed}",
        "ids": [f"p{k}" for k in range(count)],
        "relevance": rng.uniform(0.05, 1.0, count).tolist(),
        "texts": [document[a:b] for a, b in zip(begins, ends, strict=True)],
        "titles": ["Title"] * count,
        "sources": ["d"] * (count - 3) + ["e"] * 3,
        "starts": begins,
    }


def test_texts_that_overlap_are_read_and_paid_once(tmp_path: Path) -> None:
    data, total = [overlapping(seed) for seed in range(40)], 40 * 70
    path = write(tmp_path / "c.parquet", data)
    plain = {"redundancy_weight": 0.0, "passage_penalty": 0.0}
    done = allocate_batch(path, tmp_path / "out", total, Selector.raw(**plain), ceiling=150, workers=0)
    found = answered(tmp_path / "out")
    for row in found:
        given = data[row["row"]]
        counted = RegexCounter().count(["\n\n".join(f"Title\n{text}" for text in row["read"])])[0]
        assert row["tokens_used"] == counted <= row["budget_tokens"] <= 150
        assert row["value"] == pytest.approx(sum(given["relevance"][i] for i in row["selected"]))
        words = set(" ".join(row["read"]).split()) - {"\u2026"}
        assert words == {word for i in row["selected"] for word in given["texts"][i].split()}
    assert any(len(row["read"]) < len(row["selected"]) for row in found)
    assert done.tokens_used == sum(row["tokens_used"] for row in found) <= total
    assert total - done.tokens_used < 0.03 * total
    apart = allocate_batch(
        path, tmp_path / "apart", total, Selector.raw(**plain, merge=False), ceiling=150, workers=0
    )
    assert done.value > 1.1 * apart.value
    assert done.gap < 0.02
    assert "read" not in answered(tmp_path / "apart")[0]


def test_a_floor_is_refused_where_text_is_shared(tmp_path: Path) -> None:
    data = [overlapping(seed) for seed in range(3)]
    data[1]["sources"] = [f"d{k}" for k in range(8)]  # shares nothing
    plain = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0)
    out = tmp_path / "out"
    done = allocate_batch(write(tmp_path / "c.parquet", data), out, 300, plain, floor=30, workers=0)
    assert (done.rejected, [row["row"] for row in answered(out)]) == (2, [1])
    assert "read them apart (merge=False), or leave the floor out" in refused(out)[0][0]


def test_weights_floors_and_ceilings(tmp_path: Path) -> None:
    data = [
        {**row, "share": 1.0 + 9.0 * (k % 2), "budget_tokens": 120 - 40 * (k % 3)}
        for k, row in enumerate(rows(60))
    ]
    path, out = write(tmp_path / "c.parquet", data), tmp_path / "out"
    done = allocate_batch(
        path, out, 60 * 45, SELECTOR, weighted=True, columns={"weight": "share"}, floor=10, workers=0
    )
    checked(out, data, done)
    found = answered(out)
    for row in found:
        assert 10 <= row["tokens_used"] <= row["budget_tokens"] == data[row["row"]]["budget_tokens"]
        assert row["weight"] == data[row["row"]]["share"]
    spent = [np.mean([r["tokens_used"] for r in found if r["row"] % 2 == odd]) for odd in (0, 1)]
    assert spent[1] > spent[0]


def test_bad_rows_stand_aside_and_spend_nothing(tmp_path: Path) -> None:
    data = rows(30)
    data[3]["tokens"] = [0] * 8
    data[7]["query_id"] = None
    weights: list[Any] = [1.0] * 30
    weights[11], weights[12], weights[13] = None, -1.0, float("nan")
    data = [{**row, "weight": weight} for row, weight in zip(data, weights, strict=True)]
    out = tmp_path / "out"
    done = allocate_batch(write(tmp_path / "c.parquet", data), out, 900, SELECTOR, weighted=True, workers=0)
    assert (done.rows, done.rejected) == (30, 5)
    reasons = {row: "; ".join(texts) for row, texts in refused(out).items()}
    assert set(reasons) == {3, 7, 11, 12, 13}
    assert all("weight=" in reasons[k] for k in (11, 12, 13))
    checked(out, data, done)


def command(path: Path, out: Path, workers: int) -> list[str]:
    return [
        "allocate", str(path), "--out", str(out), "--total-tokens", str(400 * 55), "--preset", "raw",
        "--redundancy", "0.3", "--max-passages", "4", "--shard-rows", "10", "--sample", "40",
        "--workers", str(workers), "--json",
    ]  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="kills a process group")
def test_killed_in_the_middle_the_rerun_ends_with_the_same_allocation(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = [{"query_id": f"q{k}", **pool(rng, n=30, d=24)} for k in range(400)]
    path, out, whole = (
        write(tmp_path / "c.parquet", data, row_group=100),
        tmp_path / "out",
        tmp_path / "whole",
    )
    first = subprocess.Popen(
        [sys.executable, "-m", "mio_rag", *command(path, out, 1)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(list(out.glob("options-1/selections/part-*.parquet"))) < 5:
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = len(list(out.glob("options-1/selections/part-*.parquet")))
    assert 5 <= kept < 40
    assert not list(out.glob("selections/part-*.parquet"))
    second = CliRunner().invoke(app, command(path, out, 0))
    assert second.exit_code == 0, second.output
    summary = json.loads(second.stdout)
    assert 0 < summary["done_before"] < 400
    checked(out, data, allocate_batch(path, out, 400 * 55, _as_asked(), sample=40, shard_rows=10, workers=0))
    uninterrupted = CliRunner().invoke(app, command(path, whole, 0))
    assert uninterrupted.exit_code == 0
    names = sorted(p.name for p in (whole / "selections").iterdir())
    assert names == sorted(p.name for p in (out / "selections").iterdir())
    for name in names:
        assert (whole / "selections" / name).read_bytes() == (out / "selections" / name).read_bytes()
    fresh = json.loads(uninterrupted.stdout)
    for key in ("value", "bound", "gap", "tokens_used", "token_price", "prices", "statuses"):
        assert summary[key] == fresh[key], key


def _as_asked() -> Selector:
    return Selector.raw(redundancy_weight=0.3, max_passages=4)


def test_a_killed_writer_of_shards_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the options and the summary: some final shards stand, some do not."""
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
    assert done.done_before == 40
    checked(out, data, done)


def test_a_finished_allocation_says_so_and_another_is_refused(tmp_path: Path) -> None:
    data = rows(20)
    path, out = write(tmp_path / "c.parquet", data), tmp_path / "out"
    first = allocate_batch(path, out, 700, SELECTOR, workers=0)
    before = {p: p.stat().st_mtime_ns for p in (out / "selections").iterdir()}
    again = allocate_batch(path, out, 700, SELECTOR, workers=0)
    assert again.done_before == 20
    assert (again.value, again.bound, again.tokens_used) == (first.value, first.bound, first.tokens_used)
    assert before == {p: p.stat().st_mtime_ns for p in (out / "selections").iterdir()}
    with pytest.raises(InputError, match="had another total_tokens"):
        allocate_batch(path, out, 701, SELECTOR, workers=0)
    next(iter(before)).unlink()
    repaired = allocate_batch(path, out, 700, SELECTOR, workers=0)
    assert repaired.value == first.value
    checked(out, data, repaired)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"total_tokens": 0}, "total_tokens=0 must be >= 1"),
        ({"total_tokens": 1}, "total_tokens=1 is below the shortest passage of all rows"),
        ({"sample": 0}, "sample=0 must be >= 1"),
        ({"floor": 9, "ceiling": 8}, "floor=9 is above ceiling=8"),
        ({"engine": "spark"}, "engine='spark' is unknown"),
        ({"selector": Selector(token_price=0.1)}, "token_price=0.1 is what is looked for here"),
        ({"selector": Selector.raw(min_passages=2)}, "total_tokens=500 is too little: what must be chosen"),
        ({"weighted": True}, "column 'weight', given for 'weight', is not in the file"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"total_tokens": 500, "selector": SELECTOR, "workers": 0, **changes}
    with pytest.raises(InputError, match=words):
        allocate_batch(write(tmp_path / "c.parquet", rows(40)), tmp_path / "out", **given)


def test_the_command_says_what_was_reached_and_what_is_proven(tmp_path: Path) -> None:
    path = write(tmp_path / "c.parquet", [{**row, "share": 2.0} for row in rows(20)])
    asked = ["allocate", str(path), "--out", str(tmp_path / "out"), "--total-tokens", "800", "--weights",
             "share", "--preset", "raw", "--workers", "0"]  # fmt: skip
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "of 800 tokens; no allocation can exceed" in done.stdout
    assert "20 rows: 20 optimal, 0 rejected" in done.stdout
    assert parquet.read_table(tmp_path / "out" / "selections").num_rows == 20


def test_a_policy_says_total_reading_and_the_most_for_a_question(tmp_path: Path) -> None:
    path = write(tmp_path / "c.parquet", rows(12))
    policy = tmp_path / "p.toml"
    policy.write_text("[price]\ntotal = 700\nquestions = 12\n[limits]\nevidence_tokens = 90\n")
    runner = CliRunner()
    done = runner.invoke(
        app, ["allocate", str(path), "--policy", str(policy), "--out", str(tmp_path / "o"), "--json"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["tokens_used"] <= told["total_tokens"] == 700
    assert told["unused"]
    assert all(row["tokens_used"] <= 90 for row in answered(tmp_path / "o"))
    refused = runner.invoke(
        app,
        ["allocate", str(path), "--policy", str(policy), "--max-passages", "2", "--out", str(tmp_path / "n")],
    )
    assert refused.exit_code == 2
    assert "--policy excludes --max-passages" in refused.output
    nothing = runner.invoke(app, ["allocate", str(path), "--out", str(tmp_path / "n")])
    assert nothing.exit_code == 2
    assert "there is no total to share" in nothing.output
