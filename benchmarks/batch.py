"""Batches: rows a second of a core, memory while a million rows stream, what Ray adds.

Rows are synthetic candidates from real embeddings (`batch_rows`). With `--scratch`, rows, shards and samples
of memory stay there: a run that was stopped goes on, and the same rows are not written twice.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.batch_memory import Watch
from benchmarks.batch_rows import write_rows
from benchmarks.files import write_json
from benchmarks.runner import Measured, note
from benchmarks.speed.pools import load_pools
from benchmarks.speed.runner import machine
from mio_rag.batch import Engine, select_batch
from mio_rag.errors import InputError, require
from mio_rag.evaluation.ledger import environment
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions

_BUDGET_TOKENS = 512
_PATIENCE_SECONDS = 900.0


def command(given: argparse.Namespace) -> Measured:
    """Run the benchmark and write its JSON; 1 where a row is missing, doubled, rejected or not the same."""
    pools, described = load_pools(given.data, (), 10 if given.data else 25, given.seed, note)
    least = min(len(pool) for pool in pools)
    if not 0 < given.items <= least:
        raise InputError(f"--items {given.items} must be between 1 and {least}, the smallest pool")
    if min(given.rows, given.stream_rows, given.ray_rows) < 0 or given.workers < 1:
        raise InputError("rows must be >= 0, and --workers >= 1")
    report: dict[str, Any] = {
        "benchmark": "batch",
        "machine": machine(),
        "pools": described,
        "items": given.items,
        "seed": given.seed,
        "budget_tokens": _BUDGET_TOKENS,
        "runs": [],
    }
    # Rows take milliseconds; a machine that holds a process up for seconds must not turn a proof into a gap.
    patient = SolveOptions(time_limit_seconds=_PATIENCE_SECONDS)
    selector = Selector.raw(redundancy_weight=0.1, passage_penalty="auto", options=patient)
    runs: list[tuple[str, int, Engine]] = [
        ("rate", given.rows, "local"),
        ("stream", given.stream_rows, "local"),
        ("small", given.ray_rows, "local"),
        ("ray", given.ray_rows, "ray"),
    ]
    with _scratch(given.scratch) as work:
        for name, rows, engine in runs:
            if rows:
                source = write_rows(work / f"rows-{rows}", pools, rows, given.items, given.seed, note)
                made_of = {"pools": described, "items": given.items, "seed": given.seed, "rows": rows}
                made_of |= {"workers": given.workers}
                run = partial(_run, name, source, work / name, selector, engine, given.workers)
                report["runs"].append(_kept(work / f"{name}.json", made_of, run))
        if given.ray_rows:
            report["ray_same_bytes"] = _same(work / "small", work / "ray")
    report |= environment()
    wrong = [run["name"] for run in report["runs"] if not run["each_row_once"] or run["rejected"]]
    wrong += [] if report.get("ray_same_bytes", True) else ["ray"]
    return Measured(report, "\n".join(map(_sentence, report["runs"])), wrong=len(wrong))


@contextmanager
def _scratch(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="mio-rag-batch-") as folder:
        yield Path(folder)


def _kept(path: Path, made_of: dict[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A run's report: of the run that ended in this scratch folder before, or of a new one."""
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if _rows_of(kept["made_of"]) != _rows_of(made_of):
            raise InputError(f"'{path}' is of other rows: choose another --scratch, or empty this one")
        found: dict[str, Any] = kept["report"]
        return found
    before = os.getloadavg()
    report = {**run(), "load_before": before, "load_after": os.getloadavg()}
    write_json(path, {"made_of": made_of, "report": report})
    return report


def _rows_of(made_of: dict[str, Any]) -> dict[str, Any]:
    """What decides the rows: of the pools that, and not how they are described."""
    decisive = ("format", "data_sha256", "questions", "seed", "embedder", "pool")
    return {**made_of, "pools": {name: made_of["pools"].get(name) for name in decisive}}


def _run(
    name: str, source: Path, out: Path, selector: Selector, engine: Engine, workers: int
) -> dict[str, Any]:
    watch = Watch(name, out.with_suffix(".memory"), note)
    with watch:
        done = select_batch(
            source, out, _BUDGET_TOKENS, selector, engine=engine, workers=workers, progress=watch.progress
        )
    answered = done.rows - done.done_before
    return {
        "name": name,
        **{key: value for key, value in done.to_dict().items() if key != "out"},
        "rows_per_worker_cpu_second": answered / max(done.worker_seconds, 1e-9),
        "input_mb": sum(path.stat().st_size for path in source.glob("*.parquet")) / 1e6,
        "memory": watch.summary(done.rows),
        "each_row_once": _once(out, done.rows - done.rejected),
    }


def _once(out: Path, answered: int) -> bool:
    parquet: Any = require("pyarrow.parquet", "batch", "the benchmark")
    found = np.sort(parquet.read_table(out / "selections", columns=["row"])["row"].to_numpy())
    return bool(found.size == answered and np.all(np.diff(found) > 0))


def _same(one: Path, other: Path) -> bool:
    names = [sorted(p.name for p in (run / "selections").iterdir()) for run in (one, other)]
    return names[0] == names[1] and all(
        (one / "selections" / name).read_bytes() == (other / "selections" / name).read_bytes()
        for name in names[0]
    )


def _sentence(run: dict[str, Any]) -> str:
    early, late = run["memory"]["second_tenth"], run["memory"]["last_tenth"]
    grown = (
        "" if not (early and late) else f", {early['largest_mb']:.0f} -> {late['largest_mb']:.0f} MB a worker"
    )
    return (
        f"{run['name']}: {run['rows']} rows, {run['rows_per_second']:.0f} a second, "
        f"{run['rows_per_worker_cpu_second']:.0f} a CPU second of {run['workers']} worker(s){grown}"
    )
