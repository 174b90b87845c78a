"""Figures of rows: times to proof, gaps, ratios (lower bounds where a peer timed out), contradictions."""

from __future__ import annotations

import fnmatch
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
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

    Parameters
    ----------
    rows : dict
        By solver, all of one program.
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


# Targets ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What cells must reach: figures with their limits.

    Parameters
    ----------
    cells : tuple of str
        Patterns of names.
    must : mapping of str to float
        Median ratio, at least; seconds to proof (median, p95), below; share proven, at least; 95th percentile
        of the gap at one second, at most; seconds that a solve went on after its limit, at most.
    """

    name: str
    cells: tuple[str, ...]
    must: dict[str, float]


def _dense(sizes: Sequence[int], weights: Sequence[float], radius: str = "*") -> tuple[str, ...]:
    return tuple(f"dense/n{n}/l{weight:g}/r{radius}/b1024" for n in sizes for weight in weights)


_LIGHT, _HEAVY = (0.05, 0.1), (0.3, 0.5, 1.0)
TARGETS = (
    Target("n=20, lambda <= .3", _dense([20], (*_LIGHT, 0.3)), {"ratio": 100}),
    Target("n=50, lambda <= .1", _dense([50], _LIGHT), {"ratio": 300, "p95": 0.010}),
    Target("n=50, lambda >= .3", _dense([50], _HEAVY), {"ratio": 70, "p95": 0.050}),
    Target("n=100-200, lambda <= .1", _dense([100, 200], _LIGHT), {"ratio": 200, "p95": 0.050}),
    Target("n=100, lambda >= .3", _dense([100], _HEAVY), {"median": 0.150, "proven": 1.0, "p95": 0.150}),
    Target("n=200, lambda = .3, rho = 0", _dense([200], [0.3], "0"), {"gap_1s": 0.10}),
    Target("n=200, lambda = 1, rho = 0", _dense([200], [1.0], "0"), {"gap_1s": 0.50}),
    Target("n=500, lambda <= .1", _dense([500], _LIGHT), {"median": 0.100, "p95": 0.100}),
    Target("links, n=60, budget 512", ("links/*/b512",), {"proven": 1.0, "p95": 0.020}),
    Target("links, n=60, budget 1024", ("links/*/b1024",), {"proven": 1.0, "p95": 0.150}),
    Target("time limits, all cells", ("*",), {"late": 0.020}),
)


def judge(target: Target, rows: Sequence[Row]) -> dict[str, Any]:
    """Return what was measured for a target over all programs of its cells, and the verdict of each check.

    A ratio that is only a lower bound, and below the limit, is "not shown".
    """
    here = [row for row in rows if any(fnmatch.fnmatchcase(row["cell"], pattern) for pattern in target.cells)]
    programs = by_program(here)
    ours = [found[OURS] for found in programs.values() if OURS in found]
    ratios = [r for found in programs.values() if (r := ratio(found)) is not None]
    checks = {}
    for measure, limit in target.must.items():
        shown, met = _checked(measure, limit, ours, ratios)
        checks[f"{measure} {limit:g}"] = {"measured": shown, "verdict": met}
    return {
        "target": target.name,
        "programs": len(ours),
        "programs_with_peers": len(ratios),
        "checks": checks,
    }


def _checked(measure: str, limit: float, ours: Sequence[Row], ratios: Sequence[Ratio]) -> tuple[str, str]:
    if measure == "ratio":
        middle = median_ratio(ratios)
        if middle is None:
            return "-", "not measured"
        short = "not shown" if middle.at_least and middle.value > 0 else "not met"
        return str(middle), "met" if middle.value >= limit else short
    if not ours:
        return "-", "not measured"
    times = [seconds_to_proof(row) for row in ours]
    if measure == "proven":
        proven = sum(map(math.isfinite, times))
        shown, met = f"{proven} of {len(times)}", proven >= limit * len(times)
    elif measure == "gap_1s":
        gap = quantile([gap_at(row, 1.0) for row in ours], 0.95)
        shown, met = f"{gap:.1%} (p95)", gap <= limit
    elif measure == "late":
        late = max(stage["seconds"] - stage["limit"] for row in ours for stage in row["stages"])
        shown, met = f"{1e3 * max(0.0, late):.3g} ms late", late <= limit
    else:
        value = quantile(times, 0.95) if measure == "p95" else median(times)
        shown, met = seconds_text(value, max(row["limit"] for row in ours)), value < limit
    return shown, "met" if met else "not met"


def seconds_text(value: float | None, limit: float) -> str:
    """Format a time to proof; beyond the limit if there was none."""
    if value is None or math.isinf(value):
        return f"> {limit:g} s"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
