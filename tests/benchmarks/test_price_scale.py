"""The benchmark of many rows: what is missing is said, and the same rows go both ways."""

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.price import scale
from mio_rag.batch import BatchSummary, allocate_batch, select_batch
from tests.batch.test_batch import rows, write


def test_what_is_missing_or_wrong_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["price"]) == 2
    assert [line for line in capsys.readouterr().err.splitlines() if "missing" in line] == [
        "error: --data is missing", "error: --indexes is missing", "error: --sets is missing"
    ]  # fmt: skip
    assert main(["price", "--scale", "0"]) == 2
    assert "--scale='0' must be different numbers above 0" in capsys.readouterr().err


def test_both_ways_are_measured_and_told(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.parquet", rows(40))

    def measured(name: str) -> dict[str, object]:
        def work(out: Path, watch: scale.Watch) -> BatchSummary:
            if name == "select":
                return select_batch(source, out, 60, scale._KINDS["plain"], workers=0)
            return allocate_batch(source, out, 2400, scale._KINDS["plain"], workers=0, sample=20)

        return scale._run(f"{name} plain", 40, tmp_path, work)

    runs = {name: measured(name) for name in ("select", "allocate")}
    assert runs["allocate"]["rows"] == runs["select"]["rows"] == 40
    assert runs["allocate"]["tokens_used"] <= 2400
    assert runs["allocate"]["cpu_seconds"] > 0
    said = {"processes": 4, "a_second": 1600.0, "median_seconds": 1e-4}
    said |= {"p95_seconds": 2e-3, "alone_median_seconds": 5e-5}
    report = {"items": {"plain": 8}, "budget_tokens": 60, "decisions": said}
    told = scale.table({**report, "runs": {"plain": {"rows": 40, "ratio": 1.25, **runs}}})
    assert "1.25" in told
    assert "rows of 8 (plain) passages" in told
    assert "too short to tell" in told
    assert "1600 questions a second" in told
