"""Figures of rows: times to proof, gaps, ratios (lower bounds where a peer timed out), contradictions."""

from __future__ import annotations

import fnmatch
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.speed.contest import OURS, RIVALS, Row
from mio_rag.solvers import SolveOptions, Status


@dataclass(frozen=True)
class Ratio:
    """How many times longer the best rival takes; `at_least` where it did not finish, or we did not (0)."""

    value: float
    at_least: bool

    def __str__(self) -> str:
        digits = f"{self.value:.0f}" if self.value >= 10 else f"{self.value:.2g}"
        return f"{'>= ' if self.at_least else ''}{digits}x"


def seconds_to_proof(row: Row) -> float:
    """Return the seconds of the run that proved the optimum; infinite where none did."""
    last = row["stages"][-1]
    return float(last["seconds"]) if last["status"] in (Status.OPTIMAL, Status.INFEASIBLE) else math.inf


def gap_at(row: Row, limit_seconds: float) -> float:
    """Return the relative gap certified within a limit, 0 where proven; infinite without one."""
    stages = [s for s in row["stages"] if s["limit"] <= limit_seconds * (1 + 1e-9)]
    last = stages[-1] if stages else {"status": "", "gap": None}
    if last["status"] == Status.OPTIMAL:
        return 0.0
    return math.inf if last["gap"] is None else float(last["gap"])


def failed(row: Row) -> bool:
    """Return whether the solver broke, rather than stopped."""
    return row["stages"][-1]["status"] == Status.ERROR or bool(row["wrong"])


def ratio(rows: dict[str, Row]) -> Ratio | None:
    """Return the best rival's time over ours on one program; None without a rival that ran and did not break.

    rows: by solver, all of one program.
    """
    rivals = [rows[name] for name in RIVALS if name in rows and not failed(rows[name])]
    if OURS not in rows or not rivals:
        return None
    ours = seconds_to_proof(rows[OURS])
    if math.isinf(ours):
        return Ratio(0.0, True)
    best = min(map(seconds_to_proof, rivals))
    if math.isfinite(best):
        return Ratio(best / ours, False)
    return Ratio(min(float(row["stages"][-1]["seconds"]) for row in rivals) / ours, True)


def median_ratio(ratios: Sequence[Ratio]) -> Ratio | None:
    """Return the median; a lower bound unless every lower bound among the ratios lies above it.

    With lower bounds in the place of what they bound, a median can only come out too small. It is exact where
    it, and all below it, are: whatever the true values above are, they stay above.
    """
    if not ratios:
        return None
    ordered = sorted(ratios, key=lambda r: (r.value, not r.at_least))
    upper = ordered[len(ordered) // 2]
    at_least = any(r.at_least and r.value <= upper.value for r in ordered)
    return Ratio(float(np.median([r.value for r in ordered])), at_least)


def by_program(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """Group rows by program, then by solver."""
    grouped: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        grouped[row["program"]][row["solver"]] = row
    return dict(grouped)


def quantile(values: Sequence[float], share: float) -> float:
    """Return a value of the sample (the higher one between two), so that infinity stays infinity."""
    return float(np.quantile(values, share, method="higher"))


def statistics_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return figures of one solver over some programs; None where one is infinite."""
    times = [seconds_to_proof(row) for row in rows]
    nodes = [row["stages"][-1]["nodes"] for row in rows if row["stages"][-1]["nodes"] is not None]
    late = [s["seconds"] - s["limit"] for row in rows for s in row["stages"]]
    figures = {
        "median_seconds": float(np.median(times)),
        "p95_seconds": quantile(times, 0.95),
        "largest_seconds": max(times),
        "limit_seconds": rows[0]["limit"],
        "latest_past_limit_seconds": max(0.0, *late),
        "median_nodes": float(np.median(nodes)) if nodes else math.inf,
        **{
            f"p95_gap_{n}": quantile([gap_at(r, t) for r in rows], 0.95)
            for n, t in (("100ms", 0.1), ("1s", 1.0))
        },
    }
    return {
        "programs": len(rows),
        "proven": sum(map(math.isfinite, times)),
        "failed": sum(map(failed, rows)),
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
    }


def contradictions(programs: dict[str, dict[str, Row]]) -> list[str]:
    """Return every certified bound below another solver's feasible selection, and every refuted claim.

    Our own solvers must keep the tolerance that they promise; peers work to a feasibility of 1e-6 and are
    allowed 1e-5 of the objective, as `conclude` does.
    """
    found = []
    for digest, rows in programs.items():
        known = [
            (float(stage["objective"]), name)
            for name, row in rows.items()
            if not row["wrong"]
            for stage in row["stages"]
            if stage["objective"] is not None and stage["status"] != Status.ERROR
        ]
        best, finder = max(known, default=(-math.inf, ""))
        for name, row in rows.items():
            where = f"{row['cell']}, {row['question']} ({digest})"
            found += [f"{where}: {name}: {problem}" for problem in row["wrong"]]
            if math.isinf(best):
                continue
            ours = SolveOptions().tolerance(best, 1.0)
            slack = ours if row["role"] != "peer" else 1e-5 * max(1.0, abs(best))
            for stage in row["stages"]:
                if stage["status"] == Status.INFEASIBLE:
                    found.append(f"{where}: {name} claims infeasibility, {finder} found {best:.9g}")
                elif stage["bound"] is not None and stage["bound"] < best - slack:
                    found.append(
                        f"{where}: {name} claims the bound {stage['bound']:.9g}, {finder} found {best:.9g}"
                    )
    return sorted(set(found))


# Groups of cells -------------------------------------------------------------------------------------------


def _dense(sizes: Sequence[int], weights: Sequence[float], radius: str = "*") -> tuple[str, ...]:
    return tuple(f"dense/n{n}/l{weight:g}/r{radius}/b1024" for n in sizes for weight in weights)


_LIGHT, _HEAVY = (0.05, 0.1), (0.3, 0.5, 1.0)
#: Name of a group -> patterns of the names of its cells.
GROUPS: dict[str, tuple[str, ...]] = {
    "n=20, lambda <= .3": _dense([20], (*_LIGHT, 0.3)),
    "n=50, lambda <= .1": _dense([50], _LIGHT),
    "n=50, lambda >= .3": _dense([50], _HEAVY),
    "n=100-200, lambda <= .1": _dense([100, 200], _LIGHT),
    "n=100, lambda >= .3": _dense([100], _HEAVY),
    "n=200, lambda = .3, rho = 0": _dense([200], [0.3], "0"),
    "n=200, lambda = 1, rho = 0": _dense([200], [1.0], "0"),
    "n=500, lambda <= .1": _dense([500], _LIGHT),
    "links, n=60, budget 512": ("links/*/b512",),
    "links, n=60, budget 1024": ("links/*/b1024",),
    "all cells": ("*",),
}


def in_group(row: Row, patterns: Sequence[str]) -> bool:
    """Return whether a row is of a cell of a group."""
    return any(fnmatch.fnmatchcase(row["cell"], pattern) for pattern in patterns)


def seconds_text(value: float | None, limit: float) -> str:
    """Format a time to proof; beyond the limit if there was none."""
    if value is None or math.isinf(value):
        return f"> {limit:g} s"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
