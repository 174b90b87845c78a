"""On Ray: what comes out here comes out there, in clusters of our own and in one that was joined before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mio_rag.batch import allocate_batch
from mio_rag.batch import select_batch as run_batch
from mio_rag.batch.ask import AskedSummary, ask_many
from mio_rag.batch.job import Engine
from mio_rag.batch.on_ray import joined
from mio_rag.retrieval import CorpusIndex
from mio_rag.types import Question
from tests.batch import test_allocate_batch
from tests.batch.test_asking import POLICY
from tests.batch.test_asking import rows as read_answers
from tests.batch.test_batch import SELECTOR, rows, write

ray: Any = pytest.importorskip("ray")

ASKED = tuple(Question(f"q{k}", f"How long is the river number {k}?") for k in range(60))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster that several runs join, one after the other; starting one takes seconds."""
    with joined(2):
        yield
        assert ray.is_initialized()  # none of them ended what it had not started
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def saved(river_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return river_index.save(tmp_path_factory.mktemp("rivers") / "INDEX")


@pytest.fixture(scope="module")
def threaded(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[AskedSummary, Path]:
    """All questions answered without Ray."""
    out = tmp_path_factory.mktemp("local")
    return ask(saved, "local", out), out


def ask(index: Path, engine: Engine, out: Path, **more: Any) -> AskedSummary:
    return ask_many(ASKED, index, "extractive", POLICY, out, engine=engine, concurrency=4, **more)


def test_ray_writes_the_same_bytes(tmp_path: Path) -> None:
    data = rows(40)
    data[7]["tokens"] = [0] * 8
    path = write(tmp_path / "c.parquet", data)
    engines: tuple[Engine, ...] = ("local", "ray")
    for engine in engines:
        run_batch(path, tmp_path / engine, 90, SELECTOR, engine=engine, workers=1, shard_rows=6)
    assert not ray.is_initialized()
    names = [
        sorted(p.relative_to(tmp_path / e).as_posix() for p in (tmp_path / e).rglob("part-*"))
        for e in ("local", "ray")
    ]
    assert names[0] == names[1]
    assert len(names[0]) == 9
    for name in [*names[0], "rejected.jsonl"]:
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes(), name


def test_ray_answers_as_threads_do(saved: Path, threaded: tuple[AskedSummary, Path], tmp_path: Path) -> None:
    free, (local, folder) = ask(saved, "ray", tmp_path, workers=2), threaded
    assert not ray.is_initialized()
    assert (free.answered, free.lost, free.spent) == (60, 0, local.spent)
    found = [
        [{k: v for k, v in row.items() if k != "cpu_seconds"} for row in read_answers(out)]
        for out in (tmp_path, folder)
    ]
    assert found[0] == found[1]


@pytest.mark.usefixtures("cluster")
def test_ray_spends_nearly_all_of_a_total_and_no_more(
    saved: Path, threaded: tuple[AskedSummary, Path], tmp_path: Path
) -> None:
    total = int(0.6 * threaded[0].spent)
    paced = ask(saved, "ray", tmp_path, workers=2, total_tokens=total)
    answered = [row for row in read_answers(tmp_path) if row["state"] == "answered"]
    assert paced.spent == sum(row["prompt_tokens"] + row["completion_tokens"] for row in answered)
    assert 0.9 * total <= paced.spent + paced.lost <= total
    again = ask(saved, "ray", tmp_path, workers=2, total_tokens=total)
    assert again.spent + again.lost <= total
    assert again.done_before == paced.answered


@pytest.mark.usefixtures("cluster")
def test_ray_shares_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "c.parquet", rows(30))
    selector = test_allocate_batch.SELECTOR
    engines: tuple[Engine, ...] = ("local", "ray")
    local, on_ray = (
        allocate_batch(path, tmp_path / engine, 1000, selector, engine=engine, workers=1, shard_rows=8)
        for engine in engines
    )
    assert local.value == on_ray.value
    for shard in (tmp_path / "local" / "selections").iterdir():
        assert shard.read_bytes() == (tmp_path / "ray" / "selections" / shard.name).read_bytes()
