"""Solvers as they take part, and what one returns on one program; finished solves are stored in a ledger.

`version` changes with whatever could change a solver's figures: its package, and the sources that call it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

import mio_rag.solvers
from benchmarks.runner import machine, note
from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram, linearize
from mio_rag.solvers import SolveOptions, SolveResult, Status, solve, solvers
from mio_rag.storage import append_lines

#: One solver on one program: plain data, a line of the ledger.
Row = dict[str, Any]
#: The solver that is measured, and the peers that ratios are taken against.
OURS = "branch_and_bound"
RIVALS = ("highs", "highs-glover", "cpsat-1", "cpsat-2")
_OTHERS = {"__init__", "registry", "capabilities", "many", "paths", "mdp", "mdp_kernel", "backends", "build"}
_QUICK, _REPEATS = 0.1, 3


@dataclass(frozen=True)
class Entrant:
    """A solver as it takes part."""

    name: str
    role: Literal["ours", "peer", "heuristic"]
    version: str
    solver: str
    threads: int = 1

    def solve(self, program: SelectionProgram, limit_seconds: float) -> SolveResult:
        """Solve once within a time limit."""
        options = SolveOptions(time_limit_seconds=limit_seconds, threads=self.threads)
        return solve(program, self.solver, options)


def entrants(peers: str) -> list[Entrant]:
    """Return the kernel, the heuristics and the installed peers: "all", "none", or names with commas.

    Raises
    ------
    InputError
        For an unknown peer.
    """
    wanted = [name.strip() for name in peers.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in (*RIVALS, "all", "none")]:
        raise InputError(f"--peers: {', '.join(unknown)} is not among {', '.join(RIVALS)}, all, none")
    own, folder = kernel_version(), Path(str(mio_rag.solvers.__file__)).parent
    found = [Entrant(OURS, "ours", own, OURS)]
    called = _digest([folder / "backends.py", Path(inspect.getfile(linearize))])
    for name, solver, package, threads in (
        ("highs", "highs", "highspy", 1),
        ("highs-glover", "highs-glover", "highspy", 1),
        ("cpsat-1", "cpsat", "ortools", 1),
        ("cpsat-2", "cpsat", "ortools", 2),
    ):
        if "all" not in wanted and name not in wanted:
            continue
        if importlib.util.find_spec(package) is None:
            note(f"{name} is left out: the package '{package}' is not installed")
            continue
        found.append(
            Entrant(name, "peer", f"{package} {metadata.version(package)}, {called}", solver, threads)
        )
    return [
        *found,
        *(Entrant(info.name, "heuristic", own, info.name) for info in solvers() if not info.exact),
    ]


def kernel_version() -> str:
    """Return a digest of the sources of the exact kernel, and the version of numba."""
    folder = Path(str(mio_rag.solvers.__file__)).parent
    own = _digest([p for p in sorted(folder.glob("*.py")) if p.stem not in _OTHERS])
    return f"{own}, numba {metadata.version('numba')}"


def _digest(paths: Sequence[Path]) -> str:
    return f"sources {hashlib.sha256(b''.join(path.read_bytes() for path in paths)).hexdigest()[:12]}"


class Ledger:
    """Finished solves on disk, one JSON object a line; a line cut short by a crash is dropped."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path, self.rows = path, dict[str, Row]()
        if fresh:
            path.unlink(missing_ok=True)
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                row = json.loads(line)
                self.rows[row["key"]] = row
            except (ValueError, KeyError, TypeError):
                continue
        where = machine()
        where.pop("load")
        self._where = json.dumps(where, sort_keys=True)
        self._started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def contest(
        self,
        entrant: Entrant,
        program: SelectionProgram,
        limits: Sequence[float],
        clock: Callable[[], float] = time.perf_counter,
    ) -> Row:
        """Return what a solver returns within growing limits until it proves the optimum; stored or new."""
        digest = program_hash(program)
        parts = f"{digest}|{entrant.name}|{entrant.version}|{limits}|{clock.__name__}|{self._where}"
        key = hashlib.sha256(parts.encode()).hexdigest()[:24]
        if key not in self.rows:
            row = {
                "key": key, "run": self._started, "program": digest, "solver": entrant.name,
                "role": entrant.role, "version": entrant.version, "limit": limits[-1],
                "load": os.getloadavg()[0], **_solved(entrant, program, limits, clock),
            }  # fmt: skip
            append_lines(self.path, [json.dumps(row)])
            self.rows[key] = row
        return self.rows[key]


def program_hash(program: SelectionProgram) -> str:
    """Return a digest of everything that a solver is given; programs here have no rows and nothing fixed."""
    digest, shared = hashlib.sha256(np.array([program.budget]).tobytes()), program.segments
    parts: list[Any] = [program.linear, program.pairwise, program.costs]
    parts += [] if shared is None else [shared.costs, shared.needs, shared.prices]
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:24]


def _solved(
    entrant: Entrant, program: SelectionProgram, limits: Sequence[float], clock: Callable[[], float]
) -> Row:
    stages: list[Row] = []
    wrong: list[str] = []
    for allowed in limits:
        times: list[float] = []
        while len(times) < _REPEATS and (not times or times[0] < min(_QUICK, allowed)):
            start = clock()
            result = entrant.solve(program, allowed)
            times.append(clock() - start)
        wrong += _recomputed(program, result)
        stages.append(
            {
                "limit": allowed, "seconds": statistics.median(times), "status": result.status.value,
                "objective": result.objective, "bound": result.bound, "gap": result.gap,
                "nodes": result.nodes,
                "selected": None if result.x is None else int(result.x.sum()),
                "message": result.message if result.status is Status.ERROR else "",
            }
        )  # fmt: skip
        if result.status in (Status.OPTIMAL, Status.INFEASIBLE, Status.ERROR):
            break
    return {"stages": stages, "wrong": wrong}


def _recomputed(program: SelectionProgram, result: SolveResult) -> list[str]:
    """Return what is wrong with a result by the program alone."""
    if result.x is None or result.status is Status.ERROR:
        return []
    found = [f"infeasible selection: {problem}" for problem in program.violations(result.x)]
    value = program.objective(result.x)
    if result.objective is None or abs(result.objective - value) > 1e-9 * max(1.0, abs(value)):
        found.append(f"claims the objective {result.objective}, its selection is worth {value:.12g}")
    return found


def similar_passages(n: int, seed: int = 0) -> SelectionProgram:
    """Return a made-up program of similar passages: for warming up, start-up time and memory."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 384)) + 0.9
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, 0)
    pairwise, costs = 0.3 * (similarity + similarity.T) / 2, np.floor(40 + 260 * rng.random(n))
    return SelectionProgram(0.2 + 0.5 * rng.random(n), pairwise, costs, 1024)
