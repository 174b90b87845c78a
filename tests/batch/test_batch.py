"""Batches: the same choices as one by one, bad rows apart, each row once whatever is killed."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mio_rag import Candidates, InputError, Selector
from mio_rag.batch import select_batch as run_batch
from mio_rag.batch.work import DIED, _marked
from mio_rag.cli.app import app
from mio_rag.formulations.program import SelectionProgram
from tests.batch.deadly import Deadly

arrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

SELECTOR = Selector.raw(redundancy_weight=0.3, passage_penalty="auto", max_passages=4)


select_batch = partial(run_batch, workers=0)


def pool(rng: np.random.Generator, n: int = 8, d: int = 6) -> dict[str, Any]:
    """A row: random vectors, their cosine with a query, random costs."""
    vectors = rng.normal(size=(n, d)) + 0.5
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return {
        "ids": [f"p{k}" for k in range(n)],
        "relevance": (vectors @ (np.ones(d) / d**0.5)).tolist(),
        "tokens": rng.integers(10, 60, n).tolist(),
        "embeddings": vectors.astype(np.float32).tolist(),
    }


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"query_id": f"q{k}", **pool(rng)} for k in range(count)]


def write(path: Path, data: list[dict[str, Any]], row_group: int = 10) -> Path:
    parquet.write_table(arrow.Table.from_pylist(data), path, row_group_size=row_group)
    return path


def answered(out: Path) -> list[dict[str, Any]]:
    """All rows of all shards, by row."""
    found: list[dict[str, Any]] = parquet.read_table(out / "selections").to_pylist()
    return sorted(found, key=lambda row: row["row"])


def refused(out: Path) -> dict[int, list[str]]:
    lines = (out / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["row"]: row["reasons"] for row in map(json.loads, lines)}


@pytest.mark.parametrize("units", ["sentences", "auto"])
def test_a_batch_is_of_passages(tmp_path: Path, units: str) -> None:
    path = write(tmp_path / "c.parquet", rows(3))
    with pytest.raises(InputError, match=f"a batch chooses passages: leave units='{units}' out"):
        select_batch(path, tmp_path / "out", 90, Selector(units=units))


def test_a_batch_chooses_what_select_chooses_and_claims_what_holds(tmp_path: Path) -> None:
    data = rows(25)
    done = select_batch(write(tmp_path / "c.parquet", data), tmp_path / "out", 90, SELECTOR, shard_rows=7)
    found = answered(tmp_path / "out")
    assert (done.rows, done.rejected, done.statuses) == (25, 0, {"optimal": 25})
    assert [row["row"] for row in found] == list(range(25))
    for row, given in zip(found, data, strict=True):
        candidates = Candidates(
            ids=given["ids"],
            texts=given["ids"],
            relevance=np.array(given["relevance"]),
            tokens=np.array(given["tokens"]),
            embeddings=np.array(given["embeddings"], dtype=np.float32),
        )
        one = SELECTOR.select(candidates, 90)
        assert row["query_id"] == given["query_id"]
        assert tuple(row["selected_ids"]) == one.ids
        assert one.relevance_source is not None
        assert row["relevance_source"] == one.relevance_source.kind
        # Recomputed from nothing but the decision.
        program: SelectionProgram = SELECTOR.program(candidates, 90)
        x = np.zeros(len(candidates))
        x[row["selected"]] = 1
        assert row["objective"] == pytest.approx(program.objective(x), abs=1e-6)
        assert program.violations(x) == []
        assert row["objective"] <= row["bound"] + 1e-12
        assert row["tokens_used"] == sum(given["tokens"][k] for k in row["selected"]) <= 90


def test_layouts_of_the_same_numbers_give_the_same_choices(tmp_path: Path) -> None:
    data = rows(6)
    plain = tmp_path / "plain"
    select_batch(write(tmp_path / "c.parquet", data), plain, 90, SELECTOR)
    vectors = [np.array(row["embeddings"], dtype=np.float32) for row in data]
    alike = [(v.astype(np.float64) @ v.T) for v in vectors]
    halves = [{**row, "embeddings": v.ravel().tolist()} for row, v in zip(data, vectors, strict=True)]
    square = [
        {**{k: v for k, v in row.items() if k != "embeddings"}, "similarity": s.tolist()}
        for row, s in zip(data, alike, strict=True)
    ]
    table = arrow.Table.from_pylist(data)
    fixed = arrow.list_(arrow.list_(arrow.float32(), 6), 8)
    fixed_table = table.set_column(
        table.schema.get_field_index("embeddings"), "embeddings", table["embeddings"].cast(fixed)
    )
    parquet.write_table(fixed_table, tmp_path / "fixed.parquet", row_group_size=4)
    renamed = [{("score" if k == "relevance" else k): v for k, v in row.items()} for row in data]
    runs: list[tuple[Path, dict[str, str]]] = [
        (write(tmp_path / "flat.parquet", halves), {}),
        (write(tmp_path / "square.parquet", square), {}),
        (tmp_path / "fixed.parquet", {}),
        (write(tmp_path / "renamed.parquet", renamed), {"relevance": "score"}),
    ]
    for path, names in runs:
        out = tmp_path / f"out-{path.stem}"
        select_batch(path, out, 90, SELECTOR, columns=names)
        assert [r["selected"] for r in answered(out)] == [r["selected"] for r in answered(plain)], path.stem


def test_bad_rows_stand_aside_with_every_reason_and_cost_nobody_else(tmp_path: Path) -> None:
    data = rows(9)
    data[1]["relevance"][2] = float("nan")
    data[2]["tokens"] = [0] * 8
    data[3]["embeddings"][4] = [1.0, 2.0]
    data[4]["ids"][0] = data[4]["ids"][1]
    data[5]["ids"] = []
    data[6]["tokens"] = [500] * 8
    data[7]["embeddings"] = None
    data[8]["query_id"] = None
    out = tmp_path / "out"
    done = select_batch(write(tmp_path / "c.parquet", data), out, 90, SELECTOR)
    assert (done.rejected, done.statuses) == (7, {"optimal": 2})
    reasons = {row: "; ".join(texts) for row, texts in refused(out).items()}
    for row, words in {
        1: "relevance[2] is nan",
        2: "tokens must be whole numbers >= 1",
        3: "embeddings holds rows of 2 and of 6 numbers",
        4: "ids repeat (p1)",
        5: "ids is null or empty",
        7: "needs embeddings",
        8: "query_id is null or empty",
    }.items():
        assert words in reasons[row]
    assert [(row["row"], len(row["selected_ids"]) > 0) for row in answered(out)] == [(0, True), (6, False)]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "c.parquet", rows(40), row_group=20)
    content = bytearray(path.read_bytes())
    content[200:1200] = b"\0" * 1000
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"row group 0 of '.*c.parquet' cannot be read"):
        select_batch(path, tmp_path / "out", 90, SELECTOR)


def test_infeasible_rows_are_results_and_rows_may_bring_their_budget(tmp_path: Path) -> None:
    data = rows(3)
    budgets = [45, None, 90]
    data = [{**row, "budget_tokens": b} for row, b in zip(data, budgets, strict=True)]
    out = tmp_path / "out"
    done = select_batch(
        write(tmp_path / "c.parquet", data), out, 200, Selector.raw(redundancy_weight=0, min_passages=5)
    )
    found = answered(out)
    assert [row["budget_tokens"] for row in found] == [45, 200, 90]
    assert found[0]["status"] == "infeasible"
    assert found[0]["selected_ids"] == []
    assert sum(done.statuses.values()) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row.pop("ids"), "column 'ids' is missing"),
        (lambda row: row.pop("tokens"), "token costs are unknown"),
        (lambda row: row.pop("embeddings"), "needs 'embeddings' or 'similarity'"),
        (lambda row: row.pop("relevance"), "relevance is unknown"),
        (lambda row: row.update(tokens="many"), "column 'tokens' is string, expected a list of numbers"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_before_anything_runs(
    tmp_path: Path, change: Any, words: str
) -> None:
    data = rows(2)
    for row in data:
        change(row)
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        select_batch(write(tmp_path / "c.parquet", data), tmp_path / "out", 90, SELECTOR)
    assert not (tmp_path / "out").exists()


def test_other_input_settings_or_folders_are_not_mixed(tmp_path: Path) -> None:
    path, out = write(tmp_path / "c.parquet", rows(4)), tmp_path / "out"
    select_batch(path, out, 90, SELECTOR)
    with pytest.raises(InputError, match="another budget_tokens"):
        select_batch(path, out, 91, SELECTOR)
    with pytest.raises(InputError, match="another redundancy_weight"):
        select_batch(
            path, out, 90, Selector.raw(redundancy_weight=0.2, passage_penalty="auto", max_passages=4)
        )
    again = select_batch(path, out, 90, SELECTOR)
    assert (again.done_before, again.rows) == (4, 4)
    write(path, rows(4, seed=1))
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
    done = select_batch(path, out, 90, SELECTOR, shard_rows=4)
    assert done.done_before == 8
    assert shard.read_bytes() == before
    assert (out / "rejected.jsonl").read_bytes() == side
    assert len(list((out / "selections").iterdir())) == 3
    shard.write_bytes(before[:100])  # a disk that lost some of it
    assert select_batch(path, out, 90, SELECTOR, shard_rows=4).done_before == 8
    assert shard.read_bytes() == before


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        with (
            pytest.raises(InputError, match=r"group-0\.at' could not be written"),
            _marked(tmp_path / "group-0.at"),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    path, out = write(tmp_path / "c.parquet", rows(4)), tmp_path / "out"
    select_batch(path, out, 90, SELECTOR)
    (out / "work").write_text("where a folder cannot be made")
    with pytest.raises(InputError, match="out' cannot be written"):
        select_batch(path, out, 90, SELECTOR)


def test_counts_that_cannot_be_are_refused_before_anything_runs(tmp_path: Path) -> None:
    path, out = write(tmp_path / "c.parquet", rows(2)), tmp_path / "out"
    with pytest.raises(InputError, match="budget_tokens=0 must be >= 1"):
        select_batch(path, out, 0, SELECTOR)
    with pytest.raises(InputError, match="budget_tokens=1000000000000000000000 must be at most"):
        select_batch(path, out, 10**21, SELECTOR)
    with pytest.raises(InputError, match="shard_rows=0 must be >= 1"):
        select_batch(path, out, 90, SELECTOR, shard_rows=0)
    assert not out.exists()


def test_hidden_files_of_a_folder_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", rows(3))
    for name in (".b.parquet", "_c.parquet"):
        (folder / name).write_bytes(b"PAR1 half of it")
    assert select_batch(folder, tmp_path / "out", 90, SELECTOR).rows == 3


def command(path: Path, out: Path, workers: int) -> list[str]:
    """On dense pools: every row takes some milliseconds."""
    settings = ["--budget-tokens", "400", "--workers", str(workers), "--shard-rows", "10", "--json"]
    return ["select-batch", str(path), "--out", str(out), *settings]


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    return [int(part) for part in listed.split()]


def alive(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for processes in /proc")
def test_killed_in_the_middle_the_rerun_ends_with_each_row_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = [{"query_id": f"q{k}", **pool(rng, n=40, d=24)} for k in range(600)]
    path, out = write(tmp_path / "c.parquet", data, row_group=150), tmp_path / "out"
    first = subprocess.Popen(
        [sys.executable, "-m", "mio_rag", *command(path, out, workers=2)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(list((out / "selections").glob("part-*.parquet"))) < 5:
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = children(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(worker) for worker in workers), "workers outlive their parent"
    kept = {p.name: p.stat().st_mtime_ns for p in (out / "selections").glob("part-*.parquet")}
    assert 5 <= len(kept) < 60
    second = CliRunner().invoke(app, command(path, out, workers=0))
    assert second.exit_code == 0, second.output
    summary = json.loads(second.stdout)
    assert summary["done_before"] == 10 * len(kept)
    assert [row["row"] for row in answered(out)] == list(range(600))
    for name, changed in kept.items():
        assert (out / "selections" / name).stat().st_mtime_ns == changed


def test_a_row_that_kills_its_process_is_rejected_and_the_rest_answered(tmp_path: Path) -> None:
    data = rows(30)
    data[14]["ids"][0] = "deadly"
    path, out = write(tmp_path / "c.parquet", data), tmp_path / "out"
    run_batch(path, out, 90, Deadly(redundancy_weight=0.3), workers=1)
    assert refused(out) == {14: [DIED]}
    assert [row["row"] for row in answered(out)] == [k for k in range(30) if k != 14]
