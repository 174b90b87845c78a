"""`python -m benchmarks solvers`: options, the run, and where its figures go."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.files import write_json
from benchmarks.runner import note
from benchmarks.speed import memory, plot, shared, start
from benchmarks.speed.cells import Cell, build, chosen_cells, grid
from benchmarks.speed.entrants import OURS, Entrant, entrants
from benchmarks.speed.pools import load_pools
from benchmarks.speed.report import assemble, print_report
from benchmarks.speed.runner import Ledger, Plan, Row, machine, run
from benchmarks.speed.windows import load_windows, shared_cells
from mio_rag.cli.terminal import progress_bar
from mio_rag.errors import InputError
from mio_rag.retrieval.cached import cache_folder
from mio_rag.solvers.branch_and_bound import warmup

_QUICK_CELLS = "dense/n20/l0.1/r0/b1024,dense/n20/l0.3/r0/b1024,dense/n50/l0.1/r0/b1024,links/*/l0.1/*/b512"
_RECORDED = ("mio-rag", "numpy", "scipy", "numba", "highspy", "ortools", "pyscipopt")


def command(given: argparse.Namespace) -> int:
    """Run it."""
    arguments = shlex.split(given.command_line)[3:]
    if given.start:
        return _start(given, arguments)
    if given.shared:
        return _shared(given, arguments)
    return _memory(given, arguments) if given.memory else _speed(given, arguments)


def _plan(given: argparse.Namespace) -> Plan:
    if given.quick:
        given.queries, given.peer_queries = min(given.queries, 2), 1
        given.cells = _QUICK_CELLS if given.cells == "*" else given.cells
        given.time_limit, given.peer_time_limit = min(given.time_limit, 5), min(given.peer_time_limit, 5)
    problems = [
        f"--{name.replace('_', '-')} {getattr(given, name)} must be above 0"
        for name in ("queries", "time_limit", "peer_time_limit")
        if not getattr(given, name) > 0
    ]
    problems += [f"--peer-queries {given.peer_queries} must be >= 0"] if given.peer_queries < 0 else []
    if problems:
        raise InputError(problems)
    cells = chosen_cells(grid(), given.cells)
    peer_cells = chosen_cells(grid(), given.peer_cells)
    return Plan(
        cells,
        peer_cells,
        given.queries,
        given.peer_queries,
        given.time_limit,
        given.peer_time_limit,
        given.seed,
    )


def _taking_part(peers: str) -> list[Entrant]:
    found, notes = entrants()
    for text in notes:
        note(text)
    wanted = [name.strip() for name in peers.split(",") if name.strip()]
    names = [e.name for e in found if e.role == "peer"]
    unknown = [name for name in wanted if name not in (*names, "all", "none")]
    if unknown:
        raise InputError(f"--peers: {', '.join(unknown)} is not among {', '.join(names)}")
    return [e for e in found if e.role != "peer" or "all" in wanted or e.name in wanted]


def _speed(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    plan, taking_part = _plan(given), _taking_part(given.peers)
    sets = [name.strip() for name in given.sets.split(",") if name.strip()]
    pools, described = load_pools(given.data, sets, given.queries, given.seed, note)
    if len(pools) < plan.queries:
        note(f"the data sets have {len(pools)} questions: fewer than --queries {plan.queries}")
    path = given.ledger or cache_folder() / "benchmarks" / "solvers.jsonl"
    if given.fresh:
        path.unlink(missing_ok=True)
    ledger = Ledger(path)
    known, started = len(ledger.rows), time.time()
    rows: list[Row] = []
    with progress_bar("solving", _solves(plan, taking_part, min(len(pools), plan.queries))) as advance:
        seen = ""
        for row in run(plan, pools, taking_part, ledger, advance):
            if row["cell"] != seen and not sys.stderr.isatty():
                note(f"{time.time() - started:6.0f} s  {row['cell']}")
            seen = row["cell"]
            rows.append(row)
    note(f"{len(ledger.rows) - known} solves done now, {len(rows)} in the report: {path}")
    report = {
        "benchmark": "solvers",
        **assemble(rows, plan.cells, grid()),
        "settings": {
            "queries": plan.queries,
            "peer_queries": plan.peer_queries,
            "time_limit_seconds": plan.limit_seconds,
            "peer_time_limit_seconds": plan.peer_limit_seconds,
            "cells": given.cells,
            "peer_cells": given.peer_cells,
            "seed": plan.seed,
        },
        "pools": described,
        **_circumstances(arguments),
    }
    write_json(given.out, report)
    picture = given.out.with_suffix(".png")
    plot.draw(report, picture)
    print_report(Console(highlight=False, width=None if sys.stdout.isatty() else 180), report)
    note(f"written: {given.out}, {picture}")
    return 1 if report["contradictions"] else 0


def _solves(plan: Plan, taking_part: Sequence[Entrant], pools: int) -> int:
    return sum(
        plan.takes_part(entrant, cell, query)
        for cell in plan.cells
        for query in range(pools)
        for entrant in taking_part
    )


def _shared(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    plan = _plan(given)
    wanted = _taking_part(given.peers)
    taking_part = [e for e in wanted if e.name in (OURS, *shared.PEERS)]
    sets = [name.strip() for name in given.sets.split(",") if name.strip()]
    pools, described = load_windows(given.data, sets, plan.queries, plan.seed, note)
    path = given.ledger or cache_folder() / "benchmarks" / "shared.jsonl"
    if given.fresh:
        path.unlink(missing_ok=True)
    warmup()
    limits = {"ours": plan.limit_seconds, "peer": plan.peer_limit_seconds}
    peers = sum(e.role == "peer" for e in taking_part)
    count = len(shared_cells()) * plan.queries + peers * plan.peer_queries * len(shared.peer_cells())
    with progress_bar("solving", count) as advance:
        rows = shared.run(pools, taking_part, plan.queries, plan.peer_queries, limits, Ledger(path), advance)
    report = {
        "benchmark": "solvers --shared",
        **shared.summary(rows),
        "settings": {
            "queries": plan.queries,
            "peer_queries": plan.peer_queries,
            "time_limit_seconds": limits,
            "seed": plan.seed,
        },
        "pools": described,
        **_circumstances(arguments),
    }
    out = given.out.with_name(f"{given.out.stem}-shared.json")
    write_json(out, report)
    print(shared.table(report))
    note(f"written: {out}")
    for text in report["contradictions"]:
        note(f"contradiction: {text}")
    return 1 if report["contradictions"] else 0


def _memory(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    program, origin = memory.synthetic(), "synthetic"
    if given.data is not None:
        sets = [name.strip() for name in given.sets.split(",") if name.strip()]
        pools, _ = load_pools(given.data, sets, given.queries, given.seed, note)
        # Short passages without a radius are the hardest: every stage is reached.
        hardest = Cell("dense", 500, 0.3, 0.0, 2048)
        for pool in sorted(pools, key=lambda pool: float(pool.tokens.mean())):
            real = build(pool, hardest, given.seed)
            if real is not None:
                program, origin = real, f"{hardest.name} of {pool.question}"
                break
    found = memory.measure(program, given.time_limit, note)
    out = given.out.with_name(f"{given.out.stem}-memory.json")
    write_json(out, {"program": origin, **found, **_circumstances(arguments)})
    print(
        f"n={found['items']} ({origin}): {found['import_megabytes']:.0f} MB after import, "
        f"{found['kernel_loaded_megabytes']:.0f} MB with the kernel, {found['peak_megabytes']:.0f} MB at the "
        f"peak: {found['above_import_megabytes']:.0f} MB above import, target < "
        f"{memory.TARGET_MEGABYTES:.0f} MB: {'met' if found['met'] else 'not met'}"
    )
    note(f"written: {out}")
    return 0 if found["met"] else 1


def _start(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    if given.queries < 1:
        raise InputError(f"--queries {given.queries} must be above 0")
    found = start.measure(given.queries, note)
    out = given.out.with_name(f"{given.out.stem}-start.json")
    write_json(out, {**found, **_circumstances(arguments)})
    print(
        f"{len(found['runs'])} new processes, medians: {found['median_import_seconds']:.2f} s to import the "
        f"solvers, {found['median_first_solve_seconds']:.2f} s to load the kernel and solve 50 items, both "
        f"{found['median_seconds']:.2f} s; the slowest {found['slowest_seconds']:.2f} s, target < "
        f"{start.TARGET_SECONDS} s: {'met' if found['met'] else 'not met'}"
    )
    note(f"written: {out}")
    return 0 if found["met"] else 1


def _circumstances(arguments: Sequence[str]) -> dict[str, Any]:
    """What a reader needs to judge the figures, or to take them again."""
    packages = {}
    for package in _RECORDED:
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "packages": {"python": platform.python_version(), **packages},
        "machine": machine(),
        "command": f"python -m benchmarks {shlex.join(_public(arguments))}",
    }


def _public(arguments: Sequence[str]) -> list[str]:
    """The arguments, with folders of this machine shortened to their last part."""
    return [Path(a).name if os.path.isabs(a) else a for a in arguments]
