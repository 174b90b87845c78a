"""Peak memory of solving 500 items, above what `import mio_rag` takes, measured in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.formulations import SelectionProgram

TARGET_MEGABYTES = 200.0


def measure(program: SelectionProgram, limit_seconds: float, note: Callable[[str], None]) -> dict[str, Any]:
    """Megabytes after import, with the kernel loaded, and at the peak of one solve.

    Parameters
    ----------
    limit_seconds : float
        The search keeps nothing but its path, so that its memory does not grow with time; a few seconds do.
    """
    from mio_rag.solvers.branch_and_bound import warmup

    warmup()  # compiling takes memory that solving does not
    note(f"solving {program.n} items in a new process")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.npz"
        np.savez(
            path, linear=program.linear, pairwise=program.pairwise, costs=program.costs, budget=program.budget
        )
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.speed.memory", str(path), str(limit_seconds)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    found["above_import_megabytes"] = found["peak_megabytes"] - found["import_megabytes"]
    found["target_megabytes"] = TARGET_MEGABYTES
    found["met"] = found["above_import_megabytes"] < TARGET_MEGABYTES
    return found


def synthetic(n: int = 500, seed: int = 0) -> SelectionProgram:
    """A program of similar passages, for where the pools are smaller than n."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 384)) + 0.9
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, 0)
    return SelectionProgram(
        0.2 + 0.5 * rng.random(n),
        0.3 * (similarity + similarity.T) / 2,
        np.floor(40 + 260 * rng.random(n)),
        1024,
    )


def _resident(peak: bool) -> float:
    """Megabytes of this process, now or at its peak so far; off Linux the peak stands for both."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Not getrusage: on Linux its peak includes that of the process that started this one.
        name = "VmHWM:" if peak else "VmRSS:"
        lines = [line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith(name)]
        return float(lines[0].split()[1]) / 1024
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _in_this_process(path: str, limit_seconds: float) -> dict[str, Any]:
    at_import = _resident(peak=False)
    from mio_rag.solvers import SolveOptions, solve
    from mio_rag.solvers.branch_and_bound import warmup

    warmup()
    loaded = _resident(peak=False)
    with np.load(path, allow_pickle=False) as arrays:
        program = SelectionProgram(
            arrays["linear"], arrays["pairwise"], arrays["costs"], float(arrays["budget"])
        )
    result = solve(program, "branch_and_bound", SolveOptions(time_limit_seconds=limit_seconds))
    return {
        "items": program.n,
        "import_megabytes": at_import,
        "kernel_loaded_megabytes": loaded,
        "peak_megabytes": _resident(peak=True),
        "status": result.status.value,
        "nodes": result.nodes,
        "seconds": result.wall_seconds,
        "version": result.version,
    }


if __name__ == "__main__":
    print(json.dumps(_in_this_process(sys.argv[1], float(sys.argv[2]))))
