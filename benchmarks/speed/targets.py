"""What the kernel is meant to reach, and whether it does: at 1024 tokens where nothing else is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.speed.cells import Cell
from benchmarks.speed.entrants import OURS
from benchmarks.speed.runner import Row
from benchmarks.speed.summary import (
    Ratio,
    by_program,
    gap_at,
    median_ratio,
    quantile,
    ratio,
    seconds_to_proof,
)

Measure = Literal["ratio", "p95", "median", "proven", "gap_1s", "late"]
Verdict = Literal["met", "not met", "not shown", "not measured"]


@dataclass(frozen=True)
class Check:
    """A figure and its limit.

    Parameters
    ----------
    measure : {"ratio", "p95", "median", "proven", "gap_1s", "late"}
        Median ratio, at least; seconds to proof, below; share proven, at least; 95th percentile of the gap at
        one second, at most; the most seconds that a solve went on after its limit, at most.
    """

    measure: Measure
    limit: float

    def __str__(self) -> str:
        if self.measure == "ratio":
            return f"ratio >= {self.limit:g}x"
        if self.measure == "proven":
            return "all proven"
        if self.measure == "gap_1s":
            return f"gap at 1 s <= {self.limit:.0%}"
        if self.measure == "late":
            return f"stops within {1e3 * self.limit:g} ms"
        return f"{self.measure} < {1e3 * self.limit:g} ms"


@dataclass(frozen=True)
class Target:
    """A regime, what it must reach and what it aims at."""

    name: str
    covers: Callable[[Cell], bool]
    must: tuple[Check, ...]
    aim: tuple[Check, ...]


def _dense(
    sizes: Sequence[int], low: float, high: float, radius: float | None = None
) -> Callable[[Cell], bool]:
    return lambda c: (
        c.kind == "dense"
        and c.budget == 1024
        and c.n in sizes
        and low <= c.redundancy <= high
        and radius in (None, c.radius)
    )


def _links(budget: int) -> Callable[[Cell], bool]:
    return lambda c: c.kind == "links" and c.budget == budget


_PROVEN = Check("proven", 1.0)

TARGETS = (
    Target("n=20, lambda <= .3", _dense([20], 0, 0.3), (Check("ratio", 100),), (Check("ratio", 500),)),
    Target(
        "n=50, lambda <= .1",
        _dense([50], 0, 0.1),
        (Check("ratio", 300), Check("p95", 0.010)),
        (Check("ratio", 2000), Check("p95", 0.003)),
    ),
    Target(
        "n=50, lambda >= .3",
        _dense([50], 0.3, 1),
        (Check("ratio", 70), Check("p95", 0.050)),
        (Check("ratio", 500), Check("p95", 0.010)),
    ),
    Target(
        "n=100-200, lambda <= .1",
        _dense([100, 200], 0, 0.1),
        (Check("ratio", 200), Check("p95", 0.050)),
        (Check("ratio", 1000), Check("p95", 0.010)),
    ),
    Target(
        "n=100, lambda >= .3",
        _dense([100], 0.3, 1),
        (Check("median", 0.150), _PROVEN),
        (Check("p95", 0.150),),
    ),
    Target(
        "n=200, lambda = .3, rho = 0",
        _dense([200], 0.3, 0.3, 0.0),
        (Check("gap_1s", 0.10),),
        (_PROVEN, Check("p95", 1.0)),
    ),
    Target(
        "n=200, lambda = 1, rho = 0",
        _dense([200], 1, 1, 0.0),
        (Check("gap_1s", 0.50),),
        (_PROVEN, Check("p95", 1.0)),
    ),
    Target(
        "n=500, lambda <= .1",
        _dense([500], 0, 0.1),
        (Check("median", 0.100), Check("p95", 0.100)),
        (Check("median", 0.020), Check("p95", 0.020)),
    ),
    Target("links, n=60, budget 512", _links(512), (_PROVEN, Check("p95", 0.020)), (Check("p95", 0.005),)),
    Target("links, n=60, budget 1024", _links(1024), (_PROVEN, Check("p95", 0.150)), (Check("p95", 0.020),)),
    Target("time limits, all cells", lambda cell: True, (Check("late", 0.020),), ()),
)


def judge(target: Target, cells: Sequence[Cell], rows: Sequence[Row]) -> dict[str, Any]:
    """What was measured for a target over all programs of its cells, and the verdict of each check.

    A ratio that is only a lower bound, and below the limit, is "not shown".
    """
    names = {cell.name for cell in cells if target.covers(cell)}
    programs = by_program(row for row in rows if row["cell"] in names)
    ours = [found[OURS] for found in programs.values() if OURS in found]
    ratios = [r for found in programs.values() if (r := ratio(found)) is not None]
    return {
        "target": target.name,
        "cells_measured": len({row["cell"] for row in ours}),
        "cells": len(names),
        "programs": len(ours),
        "programs_with_peers": len(ratios),
        "must": [_judged(check, ours, ratios) for check in target.must],
        "aim": [_judged(check, ours, ratios) for check in target.aim],
    }


def _judged(check: Check, ours: Sequence[Row], ratios: Sequence[Ratio]) -> dict[str, Any]:
    if check.measure == "ratio":
        middle = median_ratio(ratios)
        verdict: Verdict = "not measured"
        if middle is not None:
            short: Verdict = "not shown" if middle.at_least and middle.value > 0 else "not met"
            verdict = "met" if middle.value >= check.limit else short
        return {"check": str(check), "measured": "-" if middle is None else str(middle), "verdict": verdict}
    if not ours:
        return {"check": str(check), "measured": "-", "verdict": "not measured"}
    times = [seconds_to_proof(row) for row in ours]
    if check.measure == "proven":
        proven = sum(map(math.isfinite, times))
        met, shown = proven >= check.limit * len(times), f"{proven} of {len(times)}"
    elif check.measure == "gap_1s":
        gap = quantile([gap_at(row, 1.0) for row in ours], 0.95)
        met, shown = gap <= check.limit, f"{gap:.1%} (p95)"
    elif check.measure == "late":
        late = max(stage["seconds"] - stage["limit"] for row in ours for stage in row["stages"])
        met, shown = late <= check.limit, f"{1e3 * max(0.0, late):.3g} ms late"
    else:
        value = quantile(times, 0.95) if check.measure == "p95" else float(np.median(times))
        longest = max(row["limit"] for row in ours)
        met = value < check.limit
        shown = f"{1e3 * value:.3g} ms" if math.isfinite(value) else f"> {longest:g} s"
    return {"check": str(check), "measured": shown, "verdict": "met" if met else "not met"}
