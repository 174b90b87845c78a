"""Does every solver tell the truth? Random programs against exhaustive enumeration.

An exact back end must find what enumeration finds: the same status, the same objective to within the
tolerance that it states, and a proof of it. A heuristic may find less, but its selection must be feasible,
its bound must hold, and it must not claim an optimum or an infeasibility that enumeration refutes.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.runner import Measured
from mio_rag.errors import InputError
from mio_rag.solvers import Status, solve, solvers
from mio_rag.testing.programs import SCALES, at_scale, random_program, random_shared_program
from mio_rag.testing.solvers import disagreement

ORACLE = "exhaustive"


def command(given: argparse.Namespace) -> Measured:
    """Compare, and say which claims do not hold."""
    if given.programs < 1:
        raise InputError(f"--programs={given.programs} must be >= 1")
    report = run(given.programs, given.seed, progress=lambda done: show_progress(done, given.programs))
    found = report["disagreements"]
    text = [f"{report['comparisons']} comparisons, {len(found)} disagreements"]
    text += [f"program {one['program']}, {one['solver']}: {one['wrong']}" for one in found[:10]]
    return Measured(report, "\n".join(text), wrong=len(found))


def run(
    programs: int, seed: int, n_max: int = 10, progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Compare all installed solvers on `programs` random programs, at eleven scales from 1e-10 to 1e10.

    Scales go round in the order of the programs; costs and rows each have another one, drawn. In every third
    program items share segments.

    Returns
    -------
    dict
        Plain data for JSON: what was compared, every disagreement (none, if all is well), the largest
        difference of an exact objective from the optimum (relative to the scale), and per solver the median
        milliseconds and how many optima and infeasible programs were proven; and how many side rows the
        programs have.
    """
    rng = np.random.default_rng(seed)
    names = [info for info in solvers() if info.available and info.name != ORACLE]
    seconds: dict[str, list[float]] = {name: [] for name in (ORACLE, *(info.name for info in names))}
    optimal: Counter[str] = Counter()
    infeasible: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    scales: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    versions: dict[str, str] = {}
    disagreements: list[dict[str, Any]] = []
    largest, shared = 0.0, 0
    for k in range(programs):
        scale = SCALES[k % len(SCALES)]
        draw = random_shared_program if k % 3 == 2 else random_program
        program = at_scale(draw(rng, n_max), scale, *rng.choice(SCALES, 2))
        shared += program.segments is not None
        scales[f"{scale:g}"] += 1
        truth = solve(program, ORACLE)
        statuses[truth.status.value] += 1
        rows["none" if not program.rows else "1 to 4" if len(program.rows) < 5 else "5 or more"] += 1
        seconds[ORACLE].append(truth.wall_seconds)
        for info in names:
            try:
                claim = solve(program, info.name)
            except InputError:  # what it would have to round
                refused[info.name] += 1
                continue
            seconds[info.name].append(claim.wall_seconds)
            versions[info.name] = claim.version
            optimal[info.name] += claim.is_optimal
            infeasible[info.name] += claim.status is Status.INFEASIBLE
            if info.exact and claim.objective is not None and truth.objective is not None:
                largest = max(largest, abs(claim.objective - truth.objective) / scale)
            wrong = disagreement(program, truth, claim, info.exact)
            if wrong is not None:
                disagreements.append(
                    {"program": k, "solver": info.name, "wrong": wrong, "data": program.to_dict()}
                )
        if progress is not None:
            progress(k + 1)
    return {
        "benchmark": "conformance",
        "programs": programs,
        "seed": seed,
        "n_max": n_max,
        "oracle": ORACLE,
        "truth": dict(statuses),
        "comparisons": programs * len(names) - sum(refused.values()),
        "programs_by_scale_of_values": dict(scales),
        "refused": {info.name: refused[info.name] for info in names},
        "disagreements": disagreements,
        "largest_difference": largest,
        "median_milliseconds": {s: 1e3 * float(np.median(t)) for s, t in seconds.items()},
        "programs_by_rows": dict(rows),
        "programs_with_segments": shared,
        "proven_infeasible": {info.name: infeasible[info.name] for info in names},
        "proven_optimal": {info.name: optimal[info.name] for info in names},
        "versions": {"python": platform.python_version(), "numpy": np.__version__, **versions},
        "machine": {"system": platform.system(), "processor": platform.machine()},
    }


def show_progress(done: int, total: int) -> None:
    """One line on standard error, rewritten in place."""
    if done == total or done % 25 == 0:
        end = "\n" if done == total else ""
        print(f"\r{done} of {total} programs", end=end, file=sys.stderr, flush=True)
