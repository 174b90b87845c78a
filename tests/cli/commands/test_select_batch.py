"""``mio-rag select-batch``: what it says of a run, and of one that finds nothing left to do."""

import re
from pathlib import Path

import pytest

from tests.cli.running import here


def test_a_finished_batch_says_so_and_no_rate(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"query_id": f"q{k}", "ids": ["a", "b"], "relevance": [0.9, 0.8], "tokens": [5, 6]} for k in range(3)
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    asked = ("select-batch", tmp_path / "rows.parquet", "--out", tmp_path / "out", "--redundancy", 0)
    first, again = here(*asked), here(*asked)
    assert first.returncode == again.returncode == 0, first.stderr
    assert re.search(r"[1-9]\S* rows per (second|minute|hour), .* 1 worker, ", first.stdout)
    assert "3 were finished before: nothing was left to do" in again.stdout
    assert " rows per " not in again.stdout
