"""Who takes part: the exact kernel, general solvers as peers, and the heuristics.

`version` changes with whatever could change a solver's figures: its package, and the sources that call it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import mio_rag.solvers
from mio_rag.formulations import SelectionProgram, linearize
from mio_rag.solvers import SolveOptions, SolveResult, solve, solvers

#: The solver that is measured, and the peers that ratios are taken against.
OURS = "branch_and_bound"
RIVALS = ("highs", "highs-glover", "cpsat-1", "cpsat-2")

_OTHERS = {
    *("__init__", "registry", "capabilities", "many", "paths", "mdp", "mdp_kernel", "backends"),
}


@dataclass(frozen=True)
class Entrant:
    """A solver as it takes part.

    Parameters
    ----------
    role : {"ours", "peer", "heuristic"}
    threads : int
        That it may use.
    """

    name: str
    role: Literal["ours", "peer", "heuristic"]
    version: str
    run: Callable[[SelectionProgram, SolveOptions], SolveResult]
    threads: int = 1

    def solve(self, program: SelectionProgram, limit_seconds: float) -> SolveResult:
        """One solve within a time limit."""
        return self.run(program, SolveOptions(time_limit_seconds=limit_seconds, threads=self.threads))


def entrants() -> tuple[list[Entrant], list[str]]:
    """All that are installed, and a note on each that is not."""
    folder = Path(str(mio_rag.solvers.__file__)).parent
    own = _digest([p for p in sorted(folder.glob("*.py")) if p.stem not in _OTHERS])
    found = [Entrant(OURS, "ours", f"{own}, numba {metadata.version('numba')}", _by_name(OURS))]
    notes = []
    linear = Path(inspect.getfile(linearize))
    for name, solver, package, file, threads in (
        ("highs", "highs", "highspy", "backends.py", 1),
        ("highs-glover", "highs-glover", "highspy", "backends.py", 1),
        ("cpsat-1", "cpsat", "ortools", "backends.py", 1),
        ("cpsat-2", "cpsat", "ortools", "backends.py", 2),
    ):
        if importlib.util.find_spec(package) is None:
            notes.append(f"{name} is left out: the package '{package}' is not installed")
            continue
        version = f"{package} {metadata.version(package)}, {_digest([folder / file, linear])}"
        found.append(Entrant(name, "peer", version, _by_name(solver), threads))
    if importlib.util.find_spec("pyscipopt") is None:
        notes.append("scip is left out: the package 'pyscipopt' is not installed (pip install pyscipopt)")
    else:
        from benchmarks.speed import scip

        digest = _digest([Path(str(scip.__file__)), linear])
        found.append(
            Entrant("scip", "peer", f"pyscipopt {metadata.version('pyscipopt')}, {digest}", scip.solve)
        )
    found += [
        Entrant(info.name, "heuristic", own, _by_name(info.name)) for info in solvers() if not info.exact
    ]
    return found, notes


def _by_name(solver: str) -> Callable[[SelectionProgram, SolveOptions], SolveResult]:
    return lambda program, options: solve(program, solver, options)


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return f"sources {digest.hexdigest()[:12]}"
