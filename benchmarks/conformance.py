"""All solvers against exhaustive enumeration on random programs.

An exact back end must find what enumeration finds: the same status, the same objective within the tolerance
that it states, and a proof. A heuristic may find less, but its selection must be feasible, its bound must
hold, and it must not claim an optimum or an infeasibility that enumeration refutes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.runner import Measured, at_least
from mio_rag.cli.terminal import progress_bar
from mio_rag.errors import InputError
from mio_rag.solvers import Status, solve, solvers
from mio_rag.testing.programs import SCALES, at_scale, random_program, random_shared_program
from mio_rag.testing.solvers import disagreement

ORACLE = "exhaustive"


def measure(given: argparse.Namespace) -> Measured:
    """Compare all installed solvers at eleven scales from 1e-10 to 1e10; every third program has segments."""
    at_least(given, programs=1)
    rng = np.random.default_rng(given.seed)
    names = [info for info in solvers() if info.available and info.name != ORACLE]
    seconds: dict[str, list[float]] = {name: [] for name in (ORACLE, *(info.name for info in names))}
    counts: dict[str, Counter[str]] = {
        of: Counter()
        for of in ("truth", "rows", "segments", "proven_optimal", "proven_infeasible", "refused")
    }
    wrong: list[dict[str, Any]] = []
    largest = 0.0
    with progress_bar("programs", given.programs) as advance:
        for k in range(given.programs):
            scale = SCALES[k % len(SCALES)]
            draw = random_shared_program if k % 3 == 2 else random_program
            program = at_scale(draw(rng, 10), scale, *rng.choice(SCALES, 2))
            truth = solve(program, ORACLE)
            seconds[ORACLE].append(truth.wall_seconds)
            counts["truth"][truth.status.value] += 1
            counts["segments"][str(program.segments is not None)] += 1
            counts["rows"][
                "none" if not program.rows else "1 to 4" if len(program.rows) < 5 else "5 or more"
            ] += 1
            for info in names:
                try:
                    claim = solve(program, info.name)
                except InputError:  # what it would have to round
                    counts["refused"][info.name] += 1
                    continue
                seconds[info.name].append(claim.wall_seconds)
                counts["proven_optimal"][info.name] += claim.is_optimal
                counts["proven_infeasible"][info.name] += claim.status is Status.INFEASIBLE
                if info.exact and claim.objective is not None and truth.objective is not None:
                    largest = max(largest, abs(claim.objective - truth.objective) / scale)
                problem = disagreement(program, truth, claim, info.exact)
                if problem is not None:
                    wrong.append(
                        {"program": k, "solver": info.name, "wrong": problem, "data": program.to_dict()}
                    )
            advance(1)
    comparisons = sum(map(len, seconds.values())) - len(seconds[ORACLE])
    report = {
        "programs": given.programs, "comparisons": comparisons, "disagreements": wrong,
        "largest_difference": largest, **{name: dict(count) for name, count in counts.items()},
        "median_milliseconds": {s: 1e3 * float(np.median(t)) for s, t in seconds.items() if t},
    }  # fmt: skip
    lines = [f"{comparisons} comparisons, {len(wrong)} disagreements; largest difference {largest:.1e}"]
    lines += [f"program {one['program']}, {one['solver']}: {one['wrong']}" for one in wrong[:10]]
    return Measured(report, "\n".join(lines), wrong=len(wrong))
