"""On Ray: the same results as on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mio_rag.batch import allocate_batch, select_batch
from mio_rag.batch.ask import AskedSummary, ask_many
from mio_rag.batch.job import Engine
from mio_rag.batch.run import joined
from mio_rag.retrieval import CorpusIndex
from mio_rag.types import Question
from tests.batch.made import SELECTOR, lines_of, rows, write
from tests.batch.test_answers import POLICY

ray: Any = pytest.importorskip("ray")

ASKED = tuple(Question(f"q{k}", f"How long is the river number {k}?") for k in range(24))
ENGINES: tuple[Engine, ...] = ("local", "ray")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of our own that several runs join, one after the other."""
    with joined(2):
        yield
        assert ray.is_initialized()  # no run ended what it had not started
    assert not ray.is_initialized()


def test_ray_writes_the_same_bytes(tmp_path: Path) -> None:
    data = rows(30)
    data[7]["tokens"] = [0] * 8
    path = write(tmp_path / "c.parquet", data)
    for engine in ENGINES:
        select_batch(path, tmp_path / engine, 90, SELECTOR, engine=engine, workers=1, shard_rows=6)
    local, on_ray = (
        {p.relative_to(tmp_path / engine): p.read_bytes() for p in (tmp_path / engine).rglob("*part-*")}
        | {Path("rejected"): (tmp_path / engine / "rejected.jsonl").read_bytes()}
        for engine in ENGINES
    )
    assert len(local) == 8
    assert local == on_ray


def test_ray_shares_a_total_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "c.parquet", rows(30))
    local, on_ray = (
        allocate_batch(path, tmp_path / engine, 1000, SELECTOR, engine=engine, workers=1, shard_rows=8)
        for engine in ENGINES
    )
    assert local.value == on_ray.value
    for shard in (tmp_path / "local" / "selections").iterdir():
        assert shard.read_bytes() == (tmp_path / "ray" / "selections" / shard.name).read_bytes()


def test_ray_answers_alike_and_never_exceeds_a_total(river_index: CorpusIndex, tmp_path: Path) -> None:
    index = river_index.save(tmp_path / "INDEX")

    def ask(out: str, engine: Engine, **more: Any) -> AskedSummary:
        given = {"engine": engine, "concurrency": 4, "workers": 1, **more}
        return ask_many(ASKED, index, "extractive", POLICY, tmp_path / out, **given)

    local, free = ask("local", "local"), ask("free", "ray", workers=2)
    assert (free.answered, free.lost, free.spent) == (24, 0, local.spent)
    found = [
        [{k: v for k, v in row.items() if k != "cpu_seconds"} for row in lines_of(tmp_path / out)]
        for out in ("local", "free")
    ]
    assert found[0] == found[1]
    total = int(0.6 * local.spent)
    paced = ask("paced", "ray", total_tokens=total)
    answered = [row for row in lines_of(tmp_path / "paced") if row["state"] == "answered"]
    assert paced.spent == sum(row["prompt_tokens"] + row["completion_tokens"] for row in answered)
    assert 0.8 * total <= paced.spent + paced.lost <= total
