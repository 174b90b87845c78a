"""Rows -> figures: times to proof, gaps, ratios (as lower bounds where a peer timed out), contradictions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.speed.entrants import OURS, RIVALS
from benchmarks.speed.runner import Row
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
    """Wall seconds of the run that proved the optimum; infinite where none did."""
    last = row["stages"][-1]
    return float(last["seconds"]) if last["status"] == Status.OPTIMAL else math.inf


def gap_at(row: Row, limit_seconds: float) -> float:
    """Relative gap certified within a limit, 0 where proven; infinite without a selection and a bound."""
    stages = [s for s in row["stages"] if s["limit"] <= limit_seconds * (1 + 1e-9)]
    last = stages[-1] if stages else {"status": "", "gap": None}
    if last["status"] == Status.OPTIMAL:
        return 0.0
    return math.inf if last["gap"] is None else float(last["gap"])


def failed(row: Row) -> bool:
    """Whether the solver broke, rather than stopped."""
    return row["stages"][-1]["status"] == Status.ERROR or bool(row["wrong"])


def ratio(rows: dict[str, Row]) -> Ratio | None:
    """The best rival's time over ours on one program; None without a rival that ran (and did not break).

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
    """The median; a lower bound unless every lower bound among the ratios lies above it.

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
    """Rows by program, then by solver."""
    grouped: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        grouped[row["program"]][row["solver"]] = row
    return dict(grouped)


def quantile(values: Sequence[float], share: float) -> float:
    """A value of the sample (the higher one between two), so that infinity stays infinity."""
    return float(np.quantile(values, share, method="higher"))


def statistics_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Figures of one exact solver over some programs; None where it is infinite (not proven, no gap).

    The median of an even number is the mean of the middle two; a 95th percentile is the next higher value.
    """
    times = [seconds_to_proof(row) for row in rows]
    nodes = [row["stages"][-1]["nodes"] for row in rows if row["stages"][-1]["nodes"] is not None]
    late = [s["seconds"] - s["limit"] for row in rows for s in row["stages"]]
    figures = {
        "median_seconds": float(np.median(times)),
        "p95_seconds": quantile(times, 0.95),
        "limit_seconds": rows[0]["limit"],
        "latest_past_limit_seconds": max(0.0, *late),
        "median_nodes": float(np.median(nodes)) if nodes else math.inf,
    }
    for name, limit in (("100ms", 0.1), ("1s", 1.0), ("limit", math.inf)):
        gaps = [gap_at(row, limit) for row in rows]
        figures[f"median_gap_{name}"] = float(np.median(gaps))
        figures[f"p95_gap_{name}"] = quantile(gaps, 0.95)
    return {
        "queries": len(rows),
        "proven": sum(map(math.isfinite, times)),
        "failed": sum(map(failed, rows)),
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
    }


def heuristic_gaps(programs: Iterable[dict[str, Row]], heuristic: str) -> dict[str, Any] | None:
    """How far a heuristic stays below the proven optimum, relative to it, where there is a proof."""
    gaps, seconds = [], []
    for rows in programs:
        proofs = [
            float(row["stages"][-1]["objective"])
            for row in rows.values()
            if row["role"] != "heuristic" and math.isfinite(seconds_to_proof(row)) and not failed(row)
        ]
        if heuristic not in rows or not proofs:
            continue
        last = rows[heuristic]["stages"][-1]
        seconds.append(float(last["seconds"]))
        best = max(proofs)
        found = last["objective"]
        gaps.append(1.0 if found is None else max(0.0, best - float(found)) / max(abs(best), 1e-9))
    if not gaps:
        return None
    return {
        "queries": len(gaps),
        "median_gap": float(np.median(gaps)),
        "p95_gap": quantile(gaps, 0.95),
        "largest_gap": max(gaps),
        "optimal": sum(gap <= 1e-6 for gap in gaps),
        "median_seconds": float(np.median(seconds)),
    }


def contradictions(programs: dict[str, dict[str, Row]]) -> list[str]:
    """Every certified bound below another solver's feasible selection, and every refuted claim.

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
            slack = (
                SolveOptions().tolerance(best, 1.0) if row["role"] != "peer" else 1e-5 * max(1.0, abs(best))
            )
            for stage in row["stages"]:
                if stage["status"] == Status.INFEASIBLE:
                    found.append(f"{where}: {name} claims infeasibility, {finder} found {best:.9g}")
                elif stage["bound"] is not None and stage["bound"] < best - slack:
                    found.append(
                        f"{where}: {name} claims the bound {stage['bound']:.9g}, {finder} found {best:.9g}"
                    )
    return sorted(set(found))


def failures(rows: Iterable[Row]) -> list[str]:
    """Solvers that broke, with their own words."""
    return [
        f"{row['cell']}, {row['question']}: {row['solver']}: {stage['message']}"
        for row in rows
        for stage in row["stages"]
        if stage["status"] == Status.ERROR
    ]
