"""The report: plain data for JSON out of rows, and the tables that are printed from that data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.speed.cells import Cell
from benchmarks.speed.entrants import OURS, RIVALS
from benchmarks.speed.pools import set_of
from benchmarks.speed.runner import Row
from benchmarks.speed.summary import (
    Ratio,
    by_program,
    contradictions,
    failures,
    heuristic_gaps,
    median_ratio,
    ratio,
    statistics_of,
)
from benchmarks.speed.targets import TARGETS, judge

_VERDICTS = {"met": "green", "not met": "bold red", "not shown": "yellow", "not measured": "dim"}


def assemble(rows: Sequence[Row], cells: Sequence[Cell], grid: Sequence[Cell]) -> dict[str, Any]:
    """What the rows say.

    Parameters
    ----------
    cells : sequence of Cell
        Those that were run; those without any program (pools too small) are listed as skipped.
    grid : sequence of Cell
        All there are: a target says how many of its cells were measured.
    """
    by_cell: dict[str, list[Row]] = {}
    for row in rows:
        by_cell.setdefault(row["cell"], []).append(row)
    heuristics = list(dict.fromkeys(row["solver"] for row in rows if row["role"] == "heuristic"))
    programs = by_program(rows)
    return {
        "cells": [_cell(cell, by_cell[cell.name]) for cell in cells if cell.name in by_cell],
        "skipped_cells": [cell.name for cell in cells if cell.name not in by_cell],
        "heuristics": [
            {"group": group, "heuristic": name, **gaps}
            for group, names in _groups(cells).items()
            for name in heuristics
            if (gaps := heuristic_gaps(_programs(by_cell, names), name)) is not None
        ],
        "targets": [judge(target, grid, rows) for target in TARGETS],
        "sets": {name: _of_set(name, grid, rows) for name in sorted({set_of(r["question"]) for r in rows})},
        "programs": len(programs),
        "solves": len(rows),
        "contradictions": contradictions(programs),
        "failures": failures(rows),
        "load": {"median": median(row["load"] for row in rows), "most": max(row["load"] for row in rows)}
        if rows
        else None,
        "runs": sorted({row["run"] for row in rows}),
        "versions": dict(sorted({(row["solver"], row["version"]) for row in rows})),
    }


def _of_set(name: str, grid: Sequence[Cell], rows: Sequence[Row]) -> dict[str, Any]:
    """The targets over one data set, and how many passages its dense optima hold: sets differ in both."""
    own = [row for row in rows if set_of(row["question"]) == name]
    dense = [r for r in own if r["solver"] == OURS and r["cell"].startswith("dense/n1")]
    selected = [k for row in dense if (k := row["stages"][-1].get("selected")) is not None]
    return {
        "median_selected": median(selected) if selected else None,
        "targets": [judge(target, grid, own) for target in TARGETS],
    }


def _groups(cells: Iterable[Cell]) -> dict[str, set[str]]:
    """Cells by kind, size and lambda_1."""
    groups: dict[str, set[str]] = {}
    for c in cells:
        groups.setdefault(f"{c.kind} n={c.n} lambda={c.redundancy:g}", set()).add(c.name)
    return groups


def _programs(by_cell: dict[str, list[Row]], names: set[str]) -> list[dict[str, Row]]:
    return list(by_program(row for name in names for row in by_cell.get(name, [])).values())


def _cell(cell: Cell, rows: Sequence[Row]) -> dict[str, Any]:
    exact = list(dict.fromkeys(row["solver"] for row in rows if row["role"] != "heuristic"))
    ratios = [r for found in by_program(rows).values() if (r := ratio(found)) is not None]
    middle = median_ratio(ratios)
    return {
        "cell": cell.name,
        "kind": cell.kind,
        "n": cell.n,
        "redundancy_weight": cell.redundancy,
        "radius": cell.radius,
        "budget_tokens": cell.budget,
        "solvers": {name: statistics_of([r for r in rows if r["solver"] == name]) for name in exact},
        "ratio": None
        if middle is None
        else {"median": middle.value, "at_least": middle.at_least, "programs": len(ratios)},
    }


def print_report(console: Console, report: dict[str, Any]) -> None:
    """Targets last: they are what one looks for."""
    _print_cells(console, report["cells"])
    _print_heuristics(console, report["heuristics"])
    if report["skipped_cells"]:
        console.print(f"pools too small for: {', '.join(report['skipped_cells'])}", style="dim")
    _print_targets(console, report["targets"])
    if len(report["sets"]) > 1:
        _print_sets(console, report["sets"], report["pools"]["median_tokens_by_set"])
    for problem in report["failures"][:10]:
        console.print(f"failed: {problem}", style="yellow", markup=False, soft_wrap=True)
    for problem in report["contradictions"]:
        console.print(f"CONTRADICTION: {problem}", style="bold red", markup=False, soft_wrap=True)
    if not report["contradictions"]:
        console.print(
            f"no bound contradicts a selection: {report['solves']} solves of {report['programs']} programs"
        )
    if len(report["runs"]) > 1:
        console.print(
            f"measured in {len(report['runs'])} runs ({report['runs'][0]} to {report['runs'][-1]}): ratios "
            "between runs are not taken under the same conditions; --fresh measures all in one",
            style="yellow",
        )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 else "right", no_wrap=True)
    return table


def seconds(value: float | None, limit: float) -> str:
    """A time to proof; beyond the limit where there was none."""
    if value is None:
        return f"> {limit:g} s"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _print_cells(console: Console, cells: Sequence[dict[str, Any]]) -> None:
    peers = list(dict.fromkeys(name for cell in cells for name in cell["solvers"] if name != OURS))
    table = _table(
        f"Time to proof: ours, then the medians of the peers (gaps: 95th percentile; ratio: the best of "
        f"{', '.join(RIVALS)} over ours, median)",
        *("cell", "proven", "median", "p95", "gap .1 s", "gap 1 s", "nodes", *peers, "ratio"),
    )
    for cell in cells:
        ours = cell["solvers"].get(OURS)
        if ours is None:
            continue
        beside = [cell["solvers"].get(name) for name in peers]
        table.add_row(
            cell["cell"],
            f"{ours['proven']}/{ours['queries']}",
            seconds(ours["median_seconds"], ours["limit_seconds"]),
            seconds(ours["p95_seconds"], ours["limit_seconds"]),
            _share(ours["p95_gap_100ms"]),
            _share(ours["p95_gap_1s"]),
            "-" if ours["median_nodes"] is None else f"{ours['median_nodes']:.0f}",
            *(
                "-" if peer is None else seconds(peer["median_seconds"], peer["limit_seconds"])
                for peer in beside
            ),
            "-" if (r := cell["ratio"]) is None else str(Ratio(r["median"], r["at_least"])),
        )
    console.print(table)


def _print_heuristics(console: Console, found: Sequence[dict[str, Any]]) -> None:
    table = _table(
        "Heuristics: gap to the proven optimum",
        *("programs", "heuristic", "number", "optimal", "median gap", "p95 gap", "median time"),
    )
    for entry in found:
        table.add_row(
            entry["group"],
            entry["heuristic"],
            str(entry["queries"]),
            str(entry["optimal"]),
            _share(entry["median_gap"]),
            _share(entry["p95_gap"]),
            seconds(entry["median_seconds"], math.inf),
        )
    if found:
        console.print(table)


def _print_targets(console: Console, targets: Sequence[dict[str, Any]]) -> None:
    table = _table(
        "Targets", "regime", "cells", "programs", "with peers", "", "wanted", "measured", "verdict"
    )
    for target in targets:
        for kind in ("must", "aim"):
            for k, check in enumerate(target[kind]):
                first = kind == "must" and k == 0
                table.add_row(
                    target["target"] if first else "",
                    f"{target['cells_measured']}/{target['cells']}" if first else "",
                    str(target["programs"]) if first else "",
                    str(target["programs_with_peers"]) if first else "",
                    kind if k == 0 else "",
                    check["check"],
                    check["measured"],
                    f"[{_VERDICTS[check['verdict']]}]{check['verdict']}[/]",
                )
    console.print(table)


def _print_sets(console: Console, sets: dict[str, Any], tokens: dict[str, float]) -> None:
    """What must be reached, set by set: long passages, of which few are chosen, are the easier ones."""
    shown = [
        k
        for k, target in enumerate(TARGETS)
        if any(check.measure in ("p95", "median") for check in target.must)
    ]
    table = _table(
        "Targets by data set",
        *("set", "tokens a passage", "chosen"),
        *(TARGETS[k].name for k in shown),
    )
    for name, found in sets.items():
        cells = []
        for k in shown:
            checks = [
                check
                for check, wanted in zip(found["targets"][k]["must"], TARGETS[k].must, strict=True)
                if wanted.measure in ("p95", "median")
            ]
            cells.append(
                " ".join(f"[{_VERDICTS[check['verdict']]}]{check['measured']}[/]" for check in checks)
            )
        chosen = found["median_selected"]
        table.add_row(name, f"{tokens[name]:.0f}", "-" if chosen is None else f"{chosen:g}", *cells)
    console.print(table)
