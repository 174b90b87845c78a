"""Every solver on every program, one after the other; finished solves are kept in a ledger.

A solver gets three runs of growing time limit (0.1 s, 1 s, its own limit) until it proves the optimum, so
that its gap at 0.1 s and 1 s is what it returns at that limit. A solve of less than `_QUICK` is repeated, and
the median time counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.cells import Cell, build, program_hash
from benchmarks.speed.entrants import Entrant
from benchmarks.speed.pools import Pool
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import SolveResult, Status

#: One solver on one program: plain data, a line of the ledger.
Row = dict[str, Any]

_STAGES = (0.1, 1.0)
_QUICK, _REPEATS = 0.1, 3


@dataclass(frozen=True)
class Plan:
    """What is run.

    Parameters
    ----------
    cells, peer_cells : sequence of Cell
        Where the kernel and the heuristics run; where the peers do, too.
    queries, peer_queries : int
        Pools a cell, and how many of them the peers see.
    limit_seconds, peer_limit_seconds : float
        The longest time limit.
    """

    cells: Sequence[Cell]
    peer_cells: Sequence[Cell]
    queries: int
    peer_queries: int
    limit_seconds: float
    peer_limit_seconds: float
    seed: int

    def limit(self, entrant: Entrant) -> float:
        """Of one solver."""
        return self.peer_limit_seconds if entrant.role == "peer" else self.limit_seconds

    def takes_part(self, entrant: Entrant, cell: Cell, query: int) -> bool:
        """Whether a solver runs on the query-th pool of a cell."""
        return entrant.role != "peer" or (query < self.peer_queries and cell in self.peer_cells)


class Ledger:
    """Finished solves on disk, one JSON object a line; a line cut short by a crash is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            return
        with path.open("r+", encoding="utf-8") as lines:
            text = lines.read()
            for line in text.splitlines():
                try:
                    row = json.loads(line)
                    self.rows[row["key"]] = row
                except (ValueError, KeyError, TypeError):
                    continue
            if text and not text.endswith("\n"):
                lines.write("\n")

    def add(self, row: Row) -> None:
        """Remember a solve; it is on disk when this returns."""
        with self.path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
        self.rows[row["key"]] = row


def run(
    plan: Plan,
    pools: Sequence[Pool],
    taking_part: Sequence[Entrant],
    ledger: Ledger,
    progress: Callable[[int], None],
) -> Iterator[Row]:
    """Rows of the plan, cell by cell; each is solved, or taken from the ledger where it was solved before.

    Parameters
    ----------
    progress : callable
        Called with 1 as each row is known.
    """
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    where = json.dumps(machine(), sort_keys=True)
    for entrant in taking_part:  # imports and compilation are not what is timed
        entrant.solve(_warm_up_program(), 5.0)
    for cell in plan.cells:
        for query, pool in enumerate(pools[: plan.queries]):
            here = [e for e in taking_part if plan.takes_part(e, cell, query)]
            program = build(pool, cell, plan.seed)
            if program is None:
                progress(len(here))
                continue
            digest = program_hash(program)
            for entrant in here:
                limit = plan.limit(entrant)
                parts = f"{digest}|{entrant.name}|{entrant.version}|{limit:g}|{where}"
                key = hashlib.sha256(parts.encode()).hexdigest()[:24]
                row = ledger.rows.get(key)
                if row is None:
                    row = {
                        "key": key,
                        "run": started,
                        "program": digest,
                        "question": pool.question,
                        "solver": entrant.name,
                        "version": entrant.version,
                        "limit": limit,
                        "load": os.getloadavg()[0],
                        **_contest(entrant, program, limit),
                    }
                    ledger.add(row)
                progress(1)
                yield {**row, "cell": cell.name, "role": entrant.role}


def _contest(entrant: Entrant, program: SelectionProgram, limit: float) -> Row:
    """One solver on one program: what each stage returned."""
    stages: list[Row] = []
    wrong: list[str] = []
    limits = [limit] if entrant.role == "heuristic" else [*(s for s in _STAGES if s < limit), limit]
    for allowed in limits:
        result, seconds = _timed(entrant, program, allowed)
        wrong += _recomputed(program, result)
        stages.append(
            {
                "limit": allowed,
                "seconds": seconds,
                "status": result.status.value,
                "objective": result.objective,
                "bound": result.bound,
                "gap": result.gap,
                "nodes": result.nodes,
                "selected": None if result.x is None else int(result.x.sum()),
                "message": result.message if result.status is Status.ERROR else "",
            }
        )
        if result.status in (Status.OPTIMAL, Status.INFEASIBLE, Status.ERROR):
            break
    return {"stages": stages, "wrong": wrong}


def _timed(entrant: Entrant, program: SelectionProgram, allowed: float) -> tuple[SolveResult, float]:
    """A result and its wall seconds: the median of three where it is quick."""
    times: list[float] = []
    while True:
        start = time.perf_counter()
        result = entrant.solve(program, allowed)
        times.append(time.perf_counter() - start)
        if len(times) >= _REPEATS or times[0] >= min(_QUICK, allowed):
            return result, statistics.median(times)


def _recomputed(program: SelectionProgram, result: SolveResult) -> list[str]:
    """What is wrong with a result by the program alone, whatever the solver says."""
    if result.x is None or result.status is Status.ERROR:
        return []
    found = [f"infeasible selection: {problem}" for problem in program.violations(result.x)]
    value = program.objective(result.x)
    if result.objective is None or abs(result.objective - value) > 1e-9 * max(1.0, abs(value)):
        found.append(f"claims the objective {result.objective}, its selection is worth {value:.12g}")
    return found


def _warm_up_program() -> SelectionProgram:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(14, 5)) + 1
    similarity = vectors @ vectors.T / 10
    np.fill_diagonal(similarity, 0)
    return SelectionProgram(rng.random(14), 0.1 * similarity, np.floor(20 + 70 * rng.random(14)), 300)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text(encoding="utf-8").splitlines() if "model name" in line]
        model = names[0].partition(":")[2].strip() if names else model
    return {"system": platform.system(), "processor": model, "cores": os.cpu_count()}
