"""`python -m benchmarks trust`: every certificate of the exact kernel against enumeration.

Each small program is solved to the end, to three node limits, to a tiny time limit, with a relative gap, with
both, and some along a path of warm starts. In most of them the later stages of the kernel are forced from the
first nodes on; half of them start from random selections, as an optimal one would hide a wrong bound. One
program in two hundred is large, and compared with general solvers. With --segments, the items of all programs
share segments. Each is drawn from the seed and its number
alone, so that a run can be stopped and resumed, and a disagreement repeated.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import sys
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.files import write_json
from benchmarks.speed.entrants import entrants
from benchmarks.trust.checks import check_all, check_path, forced_stages, weak_starts
from benchmarks.trust.draw import draw
from benchmarks.trust.peers import check_peers
from mio_rag.cli.terminal import progress_bar
from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.solvers import branch_and_bound
from mio_rag.solvers.presolve import presolve

N_MAX, SHARED_N_MAX = 16, 14
_LARGE_EVERY = 200
_SAVE_EVERY = 200
_FORCED, _WEAK, _PATHS = 0.7, 0.5, 0.3  # shares of the small programs


def command(given: argparse.Namespace) -> int:
    """Run it; returns 1 where a certificate does not hold."""
    if given.programs < 1 or given.seed < 0:
        raise InputError(f"--programs {given.programs} must be >= 1, --seed {given.seed} >= 0")
    shared = bool(given.segments)
    given.out = given.out or Path(f"benchmarks/results/trust{'-segments' if shared else ''}.json")
    partial = given.out.with_suffix(".partial.json")
    counts, wrong, first = _resumed(partial, given.seed, shared) if given.resume else (Counter[str](), [], 0)
    _versions()  # of the sources that run, not of what an editor makes of them meanwhile
    branch_and_bound.warmup()
    with progress_bar("programs", max(given.programs - first, 0)) as advance:
        for k in range(first, given.programs):
            wrong += check_program(given.seed, k, counts, shared)
            advance(1)
            if (k + 1) % _SAVE_EVERY == 0:
                write_json(partial, _report(k + 1, given.seed, counts, wrong, shared))
    report = _report(max(given.programs, first), given.seed, counts, wrong, shared)
    write_json(given.out, report)
    partial.unlink(missing_ok=True)
    print(f"{report['certificates']} certificates, {len(wrong)} wrong: {given.out}", file=sys.stderr)
    for found in wrong[:10]:
        print(f"program {found['program']}, {found['way']}: {found['wrong']}", file=sys.stderr)
    return 1 if wrong else 0


def check_program(seed: int, k: int, counts: Counter[str], shared: bool = False) -> list[dict[str, Any]]:
    """Draw program k of a seed and check it in every way; adds to `counts`, returns what is wrong."""
    rng = np.random.default_rng([seed, k])
    if k % _LARGE_EVERY == _LARGE_EVERY - 1:
        counts["programs: large"] += 1
        program, found = check_peers(rng, counts, shared)
        return [_entry(k, "general solvers", text, program) for text in found]
    program, twists = draw(rng, int(rng.integers(9, (SHARED_N_MAX if shared else N_MAX) + 1)), shared)
    counts.update(f"twist: {name}" for name in twists)
    counts[f"items: {program.n}"] += 1
    if shared:
        counts["programs: with segments"] += program.segments is not None
        problem = presolve(program)
        counts["programs: segments left after presolve"] += (
            problem is not None and problem.sharing is not None
        )
    settings = ExitStack()
    if rng.random() < _FORCED:
        counts["programs: later stages forced"] += 1
        efforts = (20, 60, 200) if rng.random() < 0.02 else (2, 4, 12)
        after_nodes, narrow_gap = int(rng.choice([0, 0, 1, 3])), float(rng.choice([0.0, 0.06, 1e9]))
        settings.enter_context(forced_stages(after_nodes, narrow_gap, efforts))
    if rng.random() < _WEAK:
        counts["programs: weak starts"] += 1
        settings.enter_context(weak_starts())
    try:
        with settings:
            wrong = check_all(program, rng, counts)
            if rng.random() < _PATHS:
                wrong += check_path(program, rng, counts)
    except Exception:
        wrong = [("crash", traceback.format_exc())]
    return [_entry(k, way, text, program) for way, text in wrong]


def _entry(k: int, way: str, text: str, program: SelectionProgram) -> dict[str, Any]:
    return {"program": k, "way": way, "wrong": text, "data": program.to_dict()}


def _resumed(partial: Path, seed: int, shared: bool) -> tuple[Counter[str], list[dict[str, Any]], int]:
    """Counts, disagreements and number of programs of an interrupted run; nothing where there is none."""
    if not partial.exists():
        return Counter(), [], 0
    report = json.loads(partial.read_text(encoding="utf-8"))
    same = report["seed"] == seed and report.get("segments", False) == shared
    if not same or report["versions"] != _versions():
        print(f"{partial} has another seed or other versions: starting anew", file=sys.stderr)
        return Counter(), [], 0
    return Counter(report["counts"]), report["wrong"], int(report["programs"])


@functools.cache
def _versions() -> dict[str, str]:
    """Of all that could change a result; the kernel's is a digest of its sources."""
    kernel = entrants()[0][0].version
    return {"kernel": kernel, "python": platform.python_version(), "numpy": np.__version__}


def _report(
    programs: int, seed: int, counts: Counter[str], wrong: list[dict[str, Any]], shared: bool
) -> dict[str, Any]:
    return {
        "benchmark": "trust",
        "programs": programs,
        "seed": seed,
        "segments": shared,
        "n_max": SHARED_N_MAX if shared else N_MAX,
        "certificates": sum(n for name, n in counts.items() if name.startswith("solves: ")),
        "wrong": wrong,
        "counts": dict(counts),
        "versions": _versions(),
        "machine": {"system": platform.system(), "processor": platform.machine()},
        "command": f"python -m benchmarks trust --programs {programs} --seed {seed}"
        + (" --segments" if shared else ""),
    }
