"""The benchmark of batches: real runs on a few rows, that go on, and that notice what is missing."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import batch
from benchmarks.__main__ import main
from benchmarks.batch_memory import Watch
from benchmarks.speed.pools import Pool

parquet: Any = pytest.importorskip("pyarrow.parquet")


def made_up(number: int) -> Pool:
    rng = np.random.default_rng(number)
    vectors = (rng.normal(size=(60, 16)) + 0.4).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = np.full(16, 0.25, dtype=np.float32)
    cosine = (vectors @ query).astype(np.float64)
    best = np.argsort(-cosine)
    none = np.zeros((0, 2), dtype=np.int64)
    return Pool(f"made up/{number}", cosine[best], rng.integers(30, 150, 60), vectors[best], query, none)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "load_pools", lambda *given: ([made_up(0), made_up(1)], {"drawn": 2}))


def test_a_run_answers_each_row_once_and_goes_on_where_it_was(pools: None, tmp_path: Path) -> None:
    out, scratch = tmp_path / "batch.json", tmp_path / "scratch"
    options = ["batch", "--rows", "40", "--items", "20", "--scratch", str(scratch), "--out", str(out)]
    assert main(options) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    (run,) = report["runs"]
    assert (run["name"], run["rows"], run["rejected"], run["done_before"]) == ("rate", 40, 0, 0)
    assert run["statuses"] == {"optimal": 40}
    assert run["each_row_once"]
    assert run["rows_per_worker_cpu_second"] == pytest.approx(40 / run["worker_seconds"])
    (rows,) = (scratch / "rows-40").iterdir()
    table = parquet.read_table(rows)
    assert str(table.schema.field("embeddings").type).count("halffloat") == 1
    first = table.slice(0, 1).to_pylist()[0]
    assert len(first["ids"]) == len(first["embeddings"]) == 20
    assert first["relevance"] == sorted(first["relevance"], reverse=True)
    before = rows.stat().st_mtime_ns
    (shard,) = (scratch / "rate" / "selections").iterdir()
    held = shard.read_bytes()
    assert main(options) == 0  # what ended is taken as it is
    assert json.loads(out.read_text(encoding="utf-8"))["runs"] == [run]
    (scratch / "rate.json").unlink()  # as if it had been stopped before its end
    assert main(options) == 0
    (again,) = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert again["done_before"] == 40
    assert (rows.stat().st_mtime_ns, shard.read_bytes()) == (before, held)
    # What the exit code rests on notices a row that is missing, and one that is there twice.
    assert batch._once(scratch / "rate", 40)
    assert not batch._once(scratch / "rate", 41)
    (shard.parent / "part-again.parquet").write_bytes(held)
    assert not batch._once(scratch / "rate", 80)
    assert main([*options, "--seed", "1"]) == 2


def test_bad_options_are_refused(pools: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = str(tmp_path / "x.json")
    assert main(["batch", "--items", "61", "--out", out]) == 2
    assert "--items 61 must be between 1 and 60" in capsys.readouterr().err
    assert main(["batch", "--workers", "0", "--out", out]) == 2
    assert not (tmp_path / "x.json").exists()


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads sizes in /proc")
def test_memory_of_a_process_is_seen_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.memory"
    path.write_text("10 50.0 40.0\n20 50.0", encoding="ascii")  # of a run that was killed while writing
    watch = Watch("run", path, lambda text: None)
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; held = b'x' * (90 << 20); print(flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        with watch:
            watch.progress("selecting", 100, 95)
            time.sleep(1.5)
    finally:
        child.kill()
        child.communicate()
    found = watch.summary(100)
    assert found["second_tenth"] == {"median_mb": 50.0, "largest_mb": 50.0, "parent_largest_mb": 40.0}
    assert 90 < found["last_tenth"]["largest_mb"] < 300
    assert [part[0] for part in found["curve_rows_worker_mb_parent_mb"]] == [10, 95]
