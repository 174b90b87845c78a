"""Parquet files of random pools, what a batch makes of them, and runs that are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag import Candidates, Selector

arrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

SELECTOR = Selector.raw(redundancy_weight=0.3, passage_penalty="auto", max_passages=4)


class Deadly(Selector):
    """A selector that kills its process at one question."""

    def choose(self, candidates: Candidates, *given: Any) -> Any:
        """As any selector, with one exception."""
        if candidates.ids[0] == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().choose(candidates, *given)


def rows(count: int, n: int = 8, d: int = 6) -> list[dict[str, Any]]:
    """Rows of random unit vectors, their cosine with a query, random costs."""
    rng, found = np.random.default_rng(0), []
    for k in range(count):
        vectors = rng.normal(size=(n, d)) + 0.5
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        found.append(
            {
                "query_id": f"q{k}",
                "ids": [f"p{i}" for i in range(n)],
                "relevance": (vectors @ (np.ones(d) / d**0.5)).tolist(),
                "tokens": rng.integers(10, 60, n).tolist(),
                "embeddings": vectors.astype(np.float32).tolist(),
            }
        )
    return found


def candidates_of(row: dict[str, Any]) -> Candidates:
    """The pool of a row."""
    return Candidates(
        ids=row["ids"], texts=row["ids"], relevance=np.array(row["relevance"]),
        tokens=np.array(row["tokens"]), embeddings=np.array(row["embeddings"], dtype=np.float32),
    )  # fmt: skip


def write(path: Path, data: Any, row_group: int = 10) -> Path:
    """Write rows, or a table."""
    table = arrow.Table.from_pylist(data) if isinstance(data, list) else data
    parquet.write_table(table, path, row_group_size=row_group)
    return path


def answered(out: Path) -> list[dict[str, Any]]:
    """All rows of all shards, by row."""
    found: list[dict[str, Any]] = parquet.read_table(out / "selections").to_pylist()
    return sorted(found, key=lambda row: int(row["row"]))


def refused(out: Path) -> dict[int, str]:
    """The reasons of rejected rows."""
    lines = (out / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["row"]: "; ".join(row["reasons"]) for row in map(json.loads, lines)}


def lines_of(out: Path) -> list[dict[str, Any]]:
    """The lines of a batch of answers."""
    return [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]


def killed(command: list[str], when: Callable[[], bool]) -> list[int]:
    """Kill a command as soon as something holds; the processes that it had started, all gone by now."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mio_rag", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not when():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
    workers = [int(part) for part in children.split()]
    process.kill()
    process.wait()
    while any(_is_alive(worker) for worker in workers):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)
    return workers


def _is_alive(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except OSError:
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc")
