"""``mio-rag batch``: what it says of a run, and of one that finds nothing left to do."""

import re
from pathlib import Path

import pytest

from mio_rag.cli.batch import kept
from tests.cli.running import here, refused


def test_a_finished_batch_says_so_and_no_rate(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [
        {"query_id": f"q{k}", "ids": ["a", "b"], "relevance": [0.9, 0.8], "tokens": [5, 6]} for k in range(3)
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    asked = ("batch", "select", tmp_path / "rows.parquet", "--out", tmp_path / "out", "-b", 9)
    first, again = here(*asked), here(*asked)
    assert first.returncode == again.returncode == 0, first.stderr
    assert re.search(r"[1-9]\S* rows per (second|minute|hour), .* 1 worker, ", first.stdout)
    assert "3 were finished before: nothing was left to do" in again.stdout
    assert " rows per " not in again.stdout
    assert "finished shards (1)" in kept(tmp_path / "out")


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        ("select", ("--set", "search.rerank=maxsim"), "a batch takes its candidates as they are"),
        ("select", ("--set", "repeat.by=price"), "decides more than a selection"),
        ("select", ("--column", "score"), "--column score: write NAME=VALUE"),
        ("allocate", (), "an allocation needs a total"),
        ("allocate", ("--set", "depth.tier=easy", "--set", "selection.by=tier"), "shares one total"),
    ],
)
def test_what_a_batch_cannot_do(command: str, given: tuple[str, ...], said: str, tmp_path: Path) -> None:
    asked = ("batch", command, tmp_path / "pools.parquet", "--out", tmp_path / "out", *given)
    assert said in " ".join(refused(here(*asked)))
