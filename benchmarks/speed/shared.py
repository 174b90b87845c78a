"""`python -m benchmarks solvers --shared`: programs whose windows overlap, the kernel beside general solvers.

Every program of `benchmarks.speed.windows` is solved to proven optimality by the exact kernel, which knows
segments; general solvers get the same program as rows (`precedence_program`). Times are CPU milliseconds of
the process, one thread, building of the program apart; a solve of less than a tenth of a second is repeated
twice, and the median counts. Finished solves are kept in the ledger, so an interrupted run goes on.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.speed.entrants import OURS, Entrant
from benchmarks.speed.runner import Ledger, Row, machine
from benchmarks.speed.windows import OVERLAPS, SharedCell, WindowPool, shared_cells, shared_program
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import Status

#: CPU milliseconds at the 95th percentile, by windows in the pool.
GOALS = {50: 20.0, 100: 60.0}
PEERS = ("highs", "highs-glover", "cpsat-1")
_QUICK, _REPEATS = 0.1, 3
_AGREE = 1e-5  # relative: general solvers meet bounds to their own tolerances


def peer_cells() -> list[SharedCell]:
    """Where general solvers run, too: one price of a token."""
    return [cell for cell in shared_cells() if cell.price == 0.0002]


def run(
    pools: Sequence[WindowPool],
    taking_part: Sequence[Entrant],
    queries: int,
    peer_queries: int,
    limits: dict[str, float],
    ledger: Ledger,
    progress: Callable[[int], None],
) -> list[Row]:
    """A row for every solve, done now or taken from the ledger.

    Parameters
    ----------
    queries, peer_queries : int
        Pools a cell, and how many of them the peers see.
    limits : dict
        Seconds by role, "ours" and "peer".
    progress : callable
        Called with 1 after each solve.
    """
    where = json.dumps(machine(), sort_keys=True)
    rows: list[Row] = []
    for cell, pool, k in _programs(pools, queries):
        program = shared_program(pool, cell)
        if program is None:
            continue
        digest = _program_hash(program)
        for entrant in taking_part:
            if entrant.role == "peer" and (k >= peer_queries or cell not in peer_cells()):
                continue
            limit = limits[entrant.role]
            parts = f"{digest}|{entrant.name}|{entrant.version}|{limit:g}|{where}|cpu"
            key = hashlib.sha256(parts.encode()).hexdigest()[:24]
            row = ledger.rows.get(key)
            if row is None:
                row = {"key": key, "solver": entrant.name, "version": entrant.version}
                row |= {"question": pool.question, **_solved(entrant, program, limit)}
                ledger.add(row)
            rows.append({**row, "cell": cell.name, "n": cell.n})
            progress(1)
    return rows


def _programs(pools: Sequence[WindowPool], queries: int) -> Iterable[tuple[SharedCell, WindowPool, int]]:
    for cell in shared_cells():
        here = [pool for pool in pools if pool.overlap == cell.overlap and pool.cosine.size >= cell.n]
        for k, pool in enumerate(here[:queries]):
            yield cell, pool, k


def _solved(entrant: Entrant, program: SelectionProgram, limit: float) -> Row:
    """What a solver returns, and its CPU seconds."""
    times: list[float] = []
    while True:
        start = time.process_time()
        result = entrant.solve(program, limit)
        times.append(time.process_time() - start)
        if len(times) >= _REPEATS or times[0] >= _QUICK:
            break
    return {
        "seconds": statistics.median(times),
        "status": result.status.value,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "nodes": result.nodes,
        "selected": None if result.x is None else int(result.x.sum()),
        "infeasible": [] if result.x is None else program.violations(result.x),
    }


def _program_hash(program: SelectionProgram) -> str:
    shared = program.segments
    assert shared is not None
    digest = hashlib.sha256(np.array([program.budget]).tobytes())
    parts = (program.linear, program.pairwise, program.costs, shared.costs, shared.needs, shared.prices)
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:24]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Times by pool size, by overlap and by cell; the goals; contradictions between solvers."""
    ours = [row for row in rows if row["solver"] == OURS]
    sizes = sorted({row["n"] for row in ours})
    report: dict[str, Any] = {"goals": {}, "overall": {}, "peers": {}, "cells": {}}
    for n in sizes:
        here = [row for row in ours if row["n"] == n]
        found = _times(here)
        goal = GOALS[n]
        report["goals"][f"n{n}"] = {
            "p95_milliseconds_below": goal,
            "p95_milliseconds": found["p95_milliseconds"],
            "worst_cell_p95_milliseconds": max(
                _times([row for row in here if row["cell"] == cell])["p95_milliseconds"]
                for cell in {row["cell"] for row in here}
            ),
            "met": found["p95_milliseconds"] < goal and found["proven"] == found["programs"],
        }
        for overlap in OVERLAPS:
            part = [row for row in here if f"/o{100 * overlap:.0f}/" in row["cell"]]
            report["overall"][f"n{n}, overlap {overlap:.0%}"] = _times(part)
        for redundancy in ("l0", "l0.3"):
            part = [row for row in here if f"/{redundancy}/" in row["cell"]]
            report["overall"][f"n{n}, redundancy {redundancy[1:]}"] = _times(part)
        report["peers"][f"n{n}"] = _beside([row for row in rows if row["n"] == n])
    for cell in dict.fromkeys(row["cell"] for row in rows):
        part = [row for row in rows if row["cell"] == cell]
        report["cells"][cell] = {
            solver: _times([row for row in part if row["solver"] == solver])
            for solver in dict.fromkeys(row["solver"] for row in part)
        }
    report["contradictions"] = contradictions(rows)
    return report


def _times(rows: Sequence[Row]) -> dict[str, Any]:
    milliseconds = [1e3 * row["seconds"] for row in rows]
    return {
        "programs": len(rows),
        "proven": sum(row["status"] in (Status.OPTIMAL, Status.INFEASIBLE) for row in rows),
        "median_milliseconds": round(float(np.median(milliseconds)), 3),
        "p95_milliseconds": round(float(np.percentile(milliseconds, 95)), 3),
        "largest_milliseconds": round(max(milliseconds), 3),
        "median_nodes": float(np.median([row["nodes"] or 0 for row in rows])),
    }


def _beside(rows: Sequence[Row]) -> dict[str, Any]:
    """Each solver on the programs that every solver had, and how many times as long as ours it took."""
    by_solver: dict[str, dict[tuple[str, str], Row]] = {}
    for row in rows:
        by_solver.setdefault(row["solver"], {})[row["cell"], row["question"]] = row
    if len(by_solver) < 2 or OURS not in by_solver:
        return {}
    common = set.intersection(*(set(found) for found in by_solver.values()))
    result = {}
    for solver, found in by_solver.items():
        here = [found[key] for key in sorted(common)]
        ratios = [found[key]["seconds"] / by_solver[OURS][key]["seconds"] for key in sorted(common)]
        result[solver] = {**_times(here), "median_times_ours": round(float(np.median(ratios)), 1)}
    return result


def contradictions(rows: Sequence[Row]) -> list[str]:
    """What two solvers cannot both be right about."""
    found = [
        f"{row['solver']} on {row['cell']}, {row['question']}: {row['infeasible'][0]}"
        for row in rows
        if row["infeasible"] or row["status"] == Status.ERROR
    ]
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row["cell"], row["question"]
        if (
            row["objective"] is not None
            and row["objective"] > best.get(key, {"objective": -np.inf})["objective"]
        ):
            best[key] = row
    for row in rows:
        top = best.get((row["cell"], row["question"]))
        if top is None or row["bound"] is None:
            continue
        if row["bound"] < top["objective"] - _AGREE * max(1.0, abs(top["objective"])):
            found.append(
                f"{row['solver']} bounds {row['cell']}, {row['question']} by {row['bound']:.9g}, "
                f"{top['solver']} found {top['objective']:.9g}"
            )
    return found


def table(report: dict[str, Any]) -> str:
    """The figures for people."""
    lines = ["CPU milliseconds to the proven optimum: median / 95th percentile / largest, programs, proven"]
    for name, found in report["overall"].items():
        lines.append(f"  {name:28s} {_figures(found)}")
    for n, solvers in report["peers"].items():
        for solver, found in solvers.items():
            times = "" if solver == OURS else f", {found['median_times_ours']:g} times as long (median)"
            lines.append(f"  {n + ', ' + solver:28s} {_figures(found)}{times}")
    for n, goal in report["goals"].items():
        lines.append(
            f"{n}: 95th percentile {goal['p95_milliseconds']:.1f} ms (worst cell "
            f"{goal['worst_cell_p95_milliseconds']:.1f}), goal below {goal['p95_milliseconds_below']:g}: "
            f"{'met' if goal['met'] else 'not met'}"
        )
    return "\n".join(lines)


def _figures(found: dict[str, Any]) -> str:
    return (
        f"{found['median_milliseconds']:9.1f} {found['p95_milliseconds']:9.1f} "
        f"{found['largest_milliseconds']:9.1f} {found['programs']:6d} {found['proven']:6d}"
    )
