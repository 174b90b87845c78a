"""Batches: rows a second of a core, memory while rows stream, what Ray adds.

Rows are synthetic candidates from real embeddings: each takes a question's pool of MiniLM vectors
(`speed.pools`), n of its 120 best passages at random, and the cosine with a question vector that is shifted
at random. They are written a row group at a time, so that any number of rows can be asked for.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.files import replaced, write_json
from benchmarks.speed.pools import Pool, load_pools
from benchmarks.speed.runner import machine
from mio_rag.batch import BatchSummary, Engine, select_batch
from mio_rag.errors import InputError, require
from mio_rag.evaluation.harness import environment
from mio_rag.selector import Selector

__all__ = ["add_options", "command"]

_GROUP = 1000
_DEEPEST = 120
_SHIFT = 0.02  # a coordinate of the question


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m benchmarks batch``."""
    parser.add_argument("--data", type=Path, help="folder of data sets (default: the demo)")
    parser.add_argument("--rows", type=int, default=50_000, help="rows of the rate (default: 50000)")
    parser.add_argument(
        "--stream-rows", type=int, default=0, help="cheap rows (lambda_1 = 0, n = 20) for memory"
    )
    parser.add_argument("--ray-rows", type=int, default=0, help="rows that Ray answers too (default: none)")
    parser.add_argument("--items", type=int, default=50, help="passages a row (default: 50)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the rows (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/batch.json"))
    parser.add_argument("--scratch", type=Path, help="where rows and shards are written (default: temporary)")


def command(given: argparse.Namespace) -> int:
    """Run the benchmark and write its JSON; 1 where a row is missing, doubled or not proven."""
    pools, described = load_pools(given.data, (), 10 if given.data else 25, given.seed, _note)
    least = min(len(pool) for pool in pools)
    if least < given.items:
        raise InputError(f"--items {given.items} is more than the {least} passages of the smallest pool")
    with tempfile.TemporaryDirectory(dir=given.scratch, prefix="mio-rag-batch-") as folder:
        work = Path(folder)
        report: dict[str, Any] = {
            "benchmark": "batch",
            "machine": machine(),
            "load_before": os.getloadavg(),
            "pools": described,
            "items": given.items,
            "seed": given.seed,
            "runs": [],
        }
        dense = Selector(redundancy_weight=0.1, passage_penalty="auto")
        linear = Selector(redundancy_weight=0.0, passage_penalty="auto")
        runs: list[tuple[str, int, int, Selector, Engine]] = [
            ("rate", given.rows, given.items, dense, "local"),
            ("stream", given.stream_rows, given.items, linear, "local"),
            ("small", given.ray_rows, given.items, dense, "local"),
            ("ray", given.ray_rows, given.items, dense, "ray"),
        ]
        for name, rows, items, selector, engine in runs:
            if rows:
                path = write_rows(work / f"{rows}-{items}.parquet", pools, rows, items, given.seed)
                report["runs"].append(_run(name, path, work / name, selector, engine, given.workers))
        if given.ray_rows:
            report["ray_same_bytes"] = _same(work / "small", work / "ray")
        report |= {**environment(), "load_after": os.getloadavg()}
    write_json(given.out, report)
    for run in report["runs"]:
        print(_sentence(run), file=sys.stderr)
    wrong = [run["name"] for run in report["runs"] if not run["each_row_once"] or run["rejected"]]
    return 1 if wrong or not report.get("ray_same_bytes", True) else 0


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def write_rows(path: Path, pools: list[Pool], rows: int, items: int, seed: int) -> Path:
    """A candidates file; the same one for the same arguments."""
    if path.exists():
        return path
    arrow: Any = require("pyarrow", "batch", "the benchmark")
    parquet: Any = require("pyarrow.parquet", "batch", "the benchmark")
    rng = np.random.default_rng(seed)
    writer: Any = None
    with replaced(path) as temporary:
        for first in range(0, rows, _GROUP):
            made = [_row(pools, items, k, rng) for k in range(first, min(rows, first + _GROUP))]
            names = ("query_id", "ids", "relevance", "tokens")
            columns = {name: [row[name] for row in made] for name in names}
            vectors = np.concatenate([row["embeddings"] for row in made])
            lists = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.ravel()), vectors.shape[1])
            ends = arrow.array(np.arange(len(made) + 1) * items, arrow.int32())
            columns["embeddings"] = arrow.ListArray.from_arrays(ends, lists)
            table = arrow.table(columns)
            writer = writer or parquet.ParquetWriter(temporary, table.schema, use_dictionary=False)
            writer.write_table(table)
        writer.close()
    return path


def _row(pools: list[Pool], items: int, number: int, rng: np.random.Generator) -> dict[str, Any]:
    pool = pools[int(rng.integers(len(pools)))]
    picked = rng.choice(min(len(pool), _DEEPEST), items, replace=False)
    query = pool.query + _SHIFT * rng.standard_normal(pool.query.size).astype(np.float32)
    relevance = (pool.embeddings[picked] @ (query / np.linalg.norm(query))).astype(np.float64)
    order = np.argsort(-relevance, kind="stable")
    picked = picked[order]
    return {
        "query_id": f"{pool.question}#{number}",
        "ids": [str(k) for k in picked],
        "relevance": relevance[order],
        "tokens": pool.tokens[picked],
        "embeddings": pool.embeddings[picked].astype(np.float16),
    }


def _run(
    name: str, path: Path, out: Path, selector: Selector, engine: Engine, workers: int
) -> dict[str, Any]:
    done_rows = 0

    def progress(kind: str, total: int, done: int) -> None:
        nonlocal done_rows
        if kind == "selecting":
            done_rows += done

    with _memory(lambda: done_rows) as samples:
        done = select_batch(path, out, 512, selector, engine=engine, workers=workers, progress=progress)
    size = path.stat().st_size
    return {
        "name": name,
        **{key: value for key, value in done.to_dict().items() if key != "out"},
        "rows_per_worker_cpu_second": done.rows / max(done.worker_seconds, 1e-9),
        "input_mb": size / 1e6,
        "memory": _flatness(samples, done),
        "each_row_once": _once(out, done),
    }


def _once(out: Path, done: BatchSummary) -> bool:
    parquet: Any = require("pyarrow.parquet", "batch", "the benchmark")
    found = np.sort(parquet.read_table(out / "selections", columns=["row"])["row"].to_numpy())
    return bool(found.size == done.rows - done.rejected and np.all(np.diff(found) > 0))


def _same(one: Path, other: Path) -> bool:
    names = [sorted(p.name for p in (run / "selections").iterdir()) for run in (one, other)]
    return names[0] == names[1] and all(
        (one / "selections" / name).read_bytes() == (other / "selections" / name).read_bytes()
        for name in names[0]
    )


@contextmanager
def _memory(rows: Any) -> Iterator[list[tuple[int, float]]]:
    """(rows done, resident MB of the largest worker), a sample a second, where /proc says so."""
    samples: list[tuple[int, float]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(1.0):
            sizes = [_resident(child) for child in _children(os.getpid())]
            if sizes and max(sizes) > 0:
                samples.append((int(rows()), max(sizes)))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def _children(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(part) for part in task.read_text(encoding="ascii").split()]
        except OSError:
            continue
    return found


def _resident(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _flatness(samples: list[tuple[int, float]], done: BatchSummary) -> dict[str, Any]:
    """Largest and median resident size of a worker in the second tenth of the rows, and in the last."""
    tenths = {
        label: [mb for rows, mb in samples if low * done.rows <= rows <= high * done.rows]
        for label, low, high in (("second_tenth", 0.1, 0.2), ("last_tenth", 0.9, 1.0))
    }
    return {
        "samples": len(samples),
        **{
            label: {"median_mb": float(np.median(sizes)), "largest_mb": max(sizes)} if sizes else None
            for label, sizes in tenths.items()
        },
    }


def _sentence(run: dict[str, Any]) -> str:
    early, late = run["memory"]["second_tenth"], run["memory"]["last_tenth"]
    grown = (
        "" if not (early and late) else f", {early['largest_mb']:.0f} -> {late['largest_mb']:.0f} MB a worker"
    )
    return (
        f"{run['name']}: {run['rows']} rows, {run['rows_per_second']:.0f} a second, "
        f"{run['rows_per_worker_cpu_second']:.0f} a CPU second of {run['workers']} worker(s){grown}"
    )
