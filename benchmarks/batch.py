"""Batches: rows a second of a core, memory while rows stream, Ray, and sharing one total among rows.

Rows are synthetic candidates from real embeddings: a question's pool (`benchmarks.speed.pools`), passages
drawn from its 120 best, and the cosine with a question vector that is shifted at random. Rows, shards and
samples of memory stay in the work folder, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import Watch
from benchmarks.runner import Measured, at_least, figure, note, replaced, stored, text_table
from benchmarks.speed.pools import Pool, load_pools
from mio_rag.batch import BatchSummary, Engine, allocate_batch, select_batch
from mio_rag.errors import InputError, require
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from mio_rag.solvers.branch_and_bound import warmup

_BUDGET, _CEILING = 512, 2048
_FILE, _GROUP, _DEEPEST, _SHIFT = 50_000, 1000, 120, 0.02
# Rows take milliseconds; a machine that holds a process up for seconds must not turn a proof into a gap.
_PATIENT = SolveOptions(time_limit_seconds=900.0)
_PAIRS = Selector.raw(redundancy_weight=0.1, passage_penalty="auto", options=_PATIENT)
_PLAIN = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0, options=_PATIENT)


def measure(given: argparse.Namespace) -> Measured:
    """Select from many rows, locally and with Ray; every row must be answered once, with the same bytes."""
    at_least(given, rows=0, stream_rows=0, ray_rows=0, workers=1, items=1)
    pools, described = _pools(given)
    report: dict[str, Any] = {"pools": described, "items": given.items, "budget_tokens": _BUDGET, "runs": {}}
    for name, rows in (
        ("rate", given.rows),
        ("stream", given.stream_rows),
        ("small", given.ray_rows),
        ("ray", given.ray_rows),
    ):
        if not rows:
            continue
        source = write_rows(given.work / f"rows-{rows}", pools, rows, given.items, given.seed)
        engine: Engine = "ray" if name == "ray" else "local"
        work = partial(_select, source, _PAIRS, engine, given.workers)
        run = partial(_run, name, rows, given.work / name, work)
        report["runs"][name] = stored(
            given.work / f"{name}.json", [rows, given.items, given.seed, given.workers], run
        )
    if given.ray_rows:
        report["ray_same_bytes"] = _same(given.work / "small", given.work / "ray")
    wrong = [name for name, run in report["runs"].items() if not run["each_row_once"] or run["rejected"]]
    wrong += [] if report.get("ray_same_bytes", True) else ["ray: other bytes"]
    return Measured({**report, "wrong": wrong}, _table(report["runs"]), wrong=len(wrong))


def measure_allocation(given: argparse.Namespace) -> Measured:
    """Share one total among many rows, next to selecting for each alone; a total that was exceeded is wrong.

    Of rows of pairs every one is a quadratic program; plain rows have relevance and tokens alone.
    """
    at_least(given, pair_rows=1, plain_rows=1)
    pools, described = _pools(given)
    warmup()  # compiling is neither selecting nor allocating
    report: dict[str, Any] = {"pools": described, "budget_tokens": _BUDGET, "ceiling": _CEILING, "runs": {}}
    for kind, rows, items, selector in (
        ("pairs", given.pair_rows, given.items, _PAIRS),
        ("plain", given.plain_rows, given.plain_items, _PLAIN),
    ):
        folder, total = given.work / f"rows-{kind}-{items}-{rows}", _BUDGET * rows * 2 // 3
        source = write_rows(folder, pools, rows, items, given.seed, embeddings=kind == "pairs")
        select, share = (
            partial(_select, source, selector, "local", 1),
            partial(_allocate, source, selector, total),
        )
        selected = _run(f"select {kind}", rows, given.work / f"select-{kind}-{rows}", select)
        shared = _run(f"allocate {kind}", rows, given.work / f"allocate-{kind}-{rows}", share)
        ratio = shared["cpu_seconds"] / selected["cpu_seconds"]
        report["runs"][kind] = {"total_tokens": total, "select": selected, "allocate": shared, "ratio": ratio}
    flat = {
        f"{kind}, {name}": run[name]
        for kind, run in report["runs"].items()
        for name in ("select", "allocate")
    }
    lines = [
        f"{k}: allocate takes {r['ratio']:.2f} times the CPU seconds, gap {r['allocate']['gap']:.4%}"
        for k, r in report["runs"].items()
    ]
    wrong = sum(run["allocate"]["tokens_used"] > run["total_tokens"] for run in report["runs"].values())
    draw = partial(_draw, report["runs"]["plain"])
    return Measured(report, "\n".join([_table(flat), *lines]), draw, wrong)


def _select(
    source: Path, selector: Selector, engine: Engine, workers: int, out: Path, watch: Watch
) -> BatchSummary:
    return select_batch(
        source, out, _BUDGET, selector, engine=engine, workers=workers, progress=watch.progress
    )


def _allocate(source: Path, selector: Selector, total: int, out: Path, watch: Watch) -> BatchSummary:
    return allocate_batch(source, out, total, selector, ceiling=_CEILING, progress=watch.progress)


def _pools(given: argparse.Namespace) -> tuple[list[Pool], dict[str, Any]]:
    pools, described = load_pools(given.data, (), 10 if given.data else 25, given.seed)
    least = min(map(len, pools))
    if given.items > least:
        raise InputError(f"--items {given.items} is more than {least}, the smallest pool")
    return pools, described


def _run(name: str, rows: int, out: Path, work: Callable[[Path, Watch], BatchSummary]) -> dict[str, Any]:
    """Run one batch; CPU seconds are those of all its processes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    watch, cpu, began = Watch(name, out.with_suffix(".memory")), _cpu(), time.perf_counter()
    with watch:
        done = work(out, watch)
    columns = {key: value for key, value in done.to_dict().items() if key != "out"}
    seconds = {"cpu_seconds": _cpu() - cpu, "seconds": time.perf_counter() - began}
    memory = watch.summary(rows)
    return {**columns, **seconds, "memory": memory, "each_row_once": _once(out, done.rows - done.rejected)}


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _once(out: Path, answered: int) -> bool:
    parquet: Any = require("pyarrow.parquet", "batch", "the benchmark")
    found = np.sort(parquet.read_table(out / "selections", columns=["row"])["row"].to_numpy())
    return bool(found.size == answered and np.all(np.diff(found) > 0))


def _same(one: Path, other: Path) -> bool:
    files = [{p.name: p.read_bytes() for p in (run / "selections").iterdir()} for run in (one, other)]
    return files[0] == files[1]


def _table(runs: Mapping[str, Any]) -> str:
    rows = []
    for name, run in runs.items():
        early, late = run["memory"]["second_tenth"], run["memory"]["last_tenth"]
        grown = f"{early['largest_mb']:.0f} -> {late['largest_mb']:.0f}" if early and late else "too short"
        rate = run["rows"] / max(run["cpu_seconds"], 1e-9)
        rows.append(
            (name, run["rows"], f"{run['seconds']:.0f}", f"{run['cpu_seconds']:.0f}", f"{rate:.0f}", grown)
        )
    heads = ("", "rows", "seconds", "CPU seconds", "rows a CPU second", "MB of a worker, early -> late")
    return text_table(heads, rows)


def _draw(run: Mapping[str, Any], path: Path) -> None:
    made, (panel,) = figure(1, 7, 3.5)
    for name in ("select", "allocate"):
        curve = np.array(run[name]["memory"]["curve_rows_worker_mb_parent_mb"]).reshape(-1, 3)
        for place, who, style in ((1, "worker", "-"), (2, "parent", "--")):
            panel.plot(curve[:, 0], curve[:, place], style, label=f"{name}, {who}")
    panel.set(xlabel="rows", ylabel="resident MB", ylim=(0, None))
    panel.legend(frameon=False)
    made.savefig(path, format="png", dpi=110)


# Rows ------------------------------------------------------------------------------------------------------


def write_rows(
    folder: Path, pools: Sequence[Pool], rows: int, items: int, seed: int, *, embeddings: bool = True
) -> Path:
    """Write a folder of candidates files, the same for the same arguments; finished files stay.

    embeddings: whether rows hold vectors: nearly all of their bytes, and needed for redundancy alone.
    """
    arrow: Any = require("pyarrow", "batch", "the benchmark")
    parquet: Any = require("pyarrow.parquet", "batch", "the benchmark")
    split = ["embeddings.list.element.list.element"] if embeddings else False
    for number, first in enumerate(range(0, rows, _FILE)):
        path, last = folder / f"{number:04d}-{items}-{seed}.parquet", min(rows, first + _FILE)
        if path.exists():
            continue
        note(f"writing rows {first} to {last}")
        rng, writer = np.random.default_rng([seed, number]), None
        with replaced(path) as temporary:
            for start in range(first, last, _GROUP):
                numbers = range(start, min(last, start + _GROUP))
                made = [_row(pools[int(rng.integers(len(pools)))], items, k, rng) for k in numbers]
                columns = {
                    name: [row[name] for row in made] for name in ("query_id", "ids", "relevance", "tokens")
                }
                if embeddings:
                    vectors = np.concatenate([row["embeddings"] for row in made])
                    lists = arrow.FixedSizeListArray.from_arrays(
                        arrow.array(vectors.ravel()), vectors.shape[1]
                    )
                    ends = arrow.array(np.arange(len(made) + 1) * items, arrow.int32())
                    columns["embeddings"] = arrow.ListArray.from_arrays(ends, lists)
                table = arrow.table(columns)
                # Bytes of like weight next to each other take two thirds of the disk and are read as fast.
                writer = writer or parquet.ParquetWriter(
                    temporary, table.schema, compression="zstd", use_dictionary=False,
                    use_byte_stream_split=split, write_statistics=False,
                )  # fmt: skip
                writer.write_table(table)
            assert writer is not None
            writer.close()
    return folder


def _row(pool: Pool, items: int, number: int, rng: np.random.Generator) -> dict[str, Any]:
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
