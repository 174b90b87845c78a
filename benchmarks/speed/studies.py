"""The studies of speed: the grid against other solvers, side rows, shared text, memory and start-up.

Dense and linked programs are measured by wall time in three runs of growing limit (0.1 s, 1 s, the solver's
own) until the optimum is proven, so that the gap at 0.1 s and 1 s is what is returned at that limit. Programs
with shared text and side rows are measured by CPU time of one thread. Building a program is not timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import Measured, at_least, figure, numbers, text_table
from benchmarks.speed.cells import build, chosen_cells, grid
from benchmarks.speed.contest import OURS, Ledger, Row, entrants, similar_passages
from benchmarks.speed.pools import Pool, load_pools, set_of
from benchmarks.speed.summary import (
    GROUPS,
    by_program,
    contradictions,
    in_group,
    median_ratio,
    ratio,
    seconds_text,
    statistics_of,
)
from benchmarks.speed.windows import load_windows, shared_cells, shared_program
from mio_rag.cli.terminal import progress_bar
from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.pool import Candidates
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions, solve
from mio_rag.solvers.branch_and_bound import warmup

_STAGES = (0.1, 1.0)
_PEER_PRICE = 0.0002  # of shared text, at which general solvers run too


def _names(given: argparse.Namespace) -> list[str]:
    return [name.strip() for name in given.sets.split(",") if name.strip()]


def measure_solvers(given: argparse.Namespace) -> Measured:
    """Solve the grid; a bound below another solver's selection is wrong."""
    at_least(given, queries=1, peer_queries=0, time_limit=0.01, peer_time_limit=0.01)
    cells, peer_cells = chosen_cells(grid(), given.cells), set(chosen_cells(grid(), given.peer_cells))
    taking_part, ledger = entrants(given.peers), Ledger(given.shared / "solves.jsonl", given.fresh)
    pools, described = load_pools(given.data, _names(given), given.queries, given.seed)
    for entrant in taking_part:  # imports and compilation are not what is timed
        entrant.solve(similar_passages(14), 5.0)
    rows: list[Row] = []
    with progress_bar("cells", len(cells)) as advance:
        for cell in cells:
            for query, pool in enumerate(pools[: given.queries]):
                program = build(pool, cell, given.seed)
                for entrant in taking_part if program is not None else ():
                    peer = entrant.role == "peer"
                    if peer and (query >= given.peer_queries or cell not in peer_cells):
                        continue
                    limit = given.peer_time_limit if peer else given.time_limit
                    stages = [] if entrant.role == "heuristic" else [s for s in _STAGES if s < limit]
                    assert program is not None
                    row = ledger.contest(entrant, program, [*stages, limit])
                    rows.append({**row, "cell": cell.name, "question": pool.question})
            advance(1, cell.name)
    report = _report(rows, GROUPS)
    names = dict.fromkeys(set_of(row["question"]) for row in rows)
    report |= {"pools": described, "sets": {
        name: _groups([row for row in rows if set_of(row["question"]) == name], GROUPS) for name in names
    }}  # fmt: skip
    tables = [_cells_table(report["cells"]), _cells_table(report["groups"])]
    text = "\n\n".join([*tables, *report["contradictions"]])
    return Measured(report, text, partial(_draw, report["cells"]), len(report["contradictions"]))


def measure_shared(given: argparse.Namespace) -> Measured:
    """Solve pools of overlapping windows, whose shared text is paid once."""
    at_least(given, queries=1, peer_queries=0, time_limit=0.01, peer_time_limit=0.01)
    taking_part = [e for e in entrants(given.peers) if e.role != "heuristic" and e.name != "cpsat-2"]
    pools, described = load_windows(given.data, _names(given), given.queries, given.seed)
    ledger, rows = Ledger(given.shared / "shared.jsonl", given.fresh), []
    warmup()
    cells = [cell for cell in shared_cells() if cell.n in numbers("--windows", given.windows, int)]
    with progress_bar("cells", len(cells)) as advance:
        for cell in cells:
            here = [pool for pool in pools if pool.overlap == cell.overlap]
            for query, pool in enumerate(here[: given.queries]):
                program = shared_program(pool, cell)
                for entrant in taking_part if program is not None else ():
                    if entrant.role == "peer" and (query >= given.peer_queries or cell.price != _PEER_PRICE):
                        continue
                    limit = given.peer_time_limit if entrant.role == "peer" else given.time_limit
                    assert program is not None
                    row = ledger.contest(entrant, program, [limit], time.process_time)
                    rows.append({**row, "cell": cell.name, "question": pool.question})
            advance(1, cell.name)
    sizes = sorted({cell.n for cell in cells})
    report = _report(rows, {f"shared/*/n{n}/*": (f"shared/*/n{n}/*",) for n in sizes})
    text = "\n\n".join([_cells_table(report["groups"]), *report["contradictions"]])
    return Measured({**report, "pools": described}, text, wrong=len(report["contradictions"]))


def _report(rows: Sequence[Row], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    programs = by_program(rows)
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(row["cell"], []).append(row)
    return {
        "cells": {name: _cell(of) for name, of in cells.items()},
        "groups": _groups(rows, groups),
        "programs": len(programs),
        "solves": len(rows),
        "contradictions": contradictions(programs),
        "runs": sorted({row["run"] for row in rows}),
        "solver_versions": dict(sorted({(row["solver"], row["version"]) for row in rows})),
    }


def _groups(rows: Sequence[Row], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    found = {name: [row for row in rows if in_group(row, patterns)] for name, patterns in groups.items()}
    return {name: _cell(of) for name, of in found.items() if of}


def _cell(rows: Sequence[Row]) -> dict[str, Any]:
    exact = list(dict.fromkeys(row["solver"] for row in rows if row["role"] != "heuristic"))
    ratios = [r for found in by_program(rows).values() if (r := ratio(found)) is not None]
    middle = median_ratio(ratios)
    return {
        "solvers": {name: statistics_of([r for r in rows if r["solver"] == name]) for name in exact},
        "ratio": middle and {"median": middle.value, "at_least": middle.at_least, "shown": str(middle)},
    }


def _cells_table(cells: Mapping[str, Any]) -> str:
    peers = list(dict.fromkeys(name for cell in cells.values() for name in cell["solvers"] if name != OURS))
    rows = []
    for name, cell in cells.items():
        ours, limit = cell["solvers"][OURS], cell["solvers"][OURS]["limit_seconds"]
        rows.append(
            (
                name,
                f"{ours['proven']}/{ours['programs']}",
                *(seconds_text(ours[f"{of}_seconds"], limit) for of in ("median", "p95", "largest")),
                "-" if ours["p95_gap_1s"] is None else f"{ours['p95_gap_1s']:.1%}",
                *(
                    "-"
                    if (p := cell["solvers"].get(peer)) is None
                    else seconds_text(p["median_seconds"], p["limit_seconds"])
                    for peer in peers
                ),
                "-" if cell["ratio"] is None else cell["ratio"]["shown"],
            )
        )
    return text_table(
        ("time to proof", "proven", "median", "p95", "largest", "gap 1 s", *peers, "best peer"), rows
    )


def _draw(cells: Mapping[str, Any], path: Path) -> None:
    """Draw median time to proof by passages, one panel a lambda_1 (budget 1024, radius 0).

    A hollow mark: the median was not proven within the time limit, at which it stands.
    """
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for name, cell in cells.items():
        kind, n, weight, radius, budget = name.split("/")
        if (kind, radius, budget) == ("dense", "r0", "b1024"):
            found.setdefault(weight, []).append((int(n[1:]), cell["solvers"]))
    made, panels = figure(max(1, len(found)), 4.2)
    for panel, (weight, here) in zip(panels, found.items(), strict=False):
        for k, solver in enumerate(dict.fromkeys(name for _, of in here for name in of)):
            points = [(n, of[solver]) for n, of in sorted(here, key=lambda one: one[0]) if solver in of]
            y = [one["median_seconds"] or one["limit_seconds"] for _, one in points]
            panel.plot([n for n, _ in points], y, color=f"C{k}", marker="o", label=solver)
            open_ = [(n, one["limit_seconds"]) for n, one in points if one["median_seconds"] is None]
            panel.plot(
                [n for n, _ in open_], [v for _, v in open_], "o", color=f"C{k}", markerfacecolor="white"
            )
        panel.set(title=f"lambda_1 = {weight[1:]}", xlabel="passages", xscale="log", yscale="log")
        panel.grid(alpha=0.25)
        panel.legend(frameon=False, fontsize=7)
    panels[0].set_ylabel("median time to proof, s (hollow: not proven)")
    made.savefig(path, format="png", dpi=150)


# Side rows -------------------------------------------------------------------------------------------------

_SOURCES, _PER_SOURCE, _TOPICS, _CONFLICTS, _WEIGHT = 6, 2, 5, 15, 0.1


def measure_rows(given: argparse.Namespace) -> Measured:
    """Solve every pool without side rows, with each kind alone, and with all: caps, topics, conflicts.

    Six sources are dealt out at random, with at most two passages from each; five topics are made by k-means,
    each to be covered; the conflicts are the 15 most similar pairs.
    """
    at_least(given, pools=1, n=_TOPICS)
    pools, described = load_pools(given.data, _names(given), given.pools, given.seed)
    pools = [pool for pool in pools if len(pool) >= given.n]
    if not pools:
        raise InputError(f"no pool has {given.n} passages: lower --n, or use larger data sets")
    options, solves = SolveOptions(time_limit_seconds=given.time_limit), list[dict[str, Any]]()
    warmup()
    with progress_bar("pools", len(pools)) as advance:
        for pool in pools:
            for budget in numbers("--budgets", given.budgets, int):
                for kind, program in programs_with_rows(pool, given.n, budget, given.seed).items():
                    start = time.process_time()
                    result = solve(program, OURS, options)
                    seconds = time.process_time() - start
                    kind = f"{budget} tokens, {kind}"
                    solves.append({"kind": kind, "ms": 1e3 * seconds, "status": result.status.value})
            advance(1)
    summary = {}
    for kind in sorted({one["kind"] for one in solves}):
        here = [one for one in solves if one["kind"] == kind]
        times = [one["ms"] for one in here]
        done = [one["status"] in ("optimal", "infeasible") for one in here]
        summary[kind] = {
            "programs": len(here), "proven": sum(done),
            "infeasible": sum(one["status"] == "infeasible" for one in here),
            "median_ms": float(np.median(times)), "p95_ms": float(np.percentile(times, 95)),
            "largest_ms": max(times),
        }  # fmt: skip
    rows = [
        (k, *(f"{v:.1f}" if isinstance(v, float) else v for v in one.values())) for k, one in summary.items()
    ]
    report = {"n": given.n, "lambda_1": _WEIGHT, "pools": described, "summary": summary}
    heads = (f"n = {given.n}", "programs", "proven", "infeasible", "median ms", "p95 ms", "largest ms")
    return Measured(report, text_table(heads, rows))


def programs_with_rows(pool: Pool, n: int, budget: int, seed: int) -> dict[str, SelectionProgram]:
    """Return the programs of a pool by kind of rows."""
    vectors = pool.embeddings[:n]
    dealt = np.random.default_rng([seed, n]).permutation(n) % _SOURCES
    candidates = Candidates(
        ids=[str(k) for k in range(n)],
        texts=["-"] * n,
        relevance=pool.cosine[:n],
        tokens=pool.tokens[:n],
        embeddings=vectors,
        query_embedding=pool.query,
        sources=[str(k) for k in dealt],
    )
    similar = np.sort((vectors @ vectors.T)[np.triu_indices(n, 1)])
    alike = float(similar[-_CONFLICTS - 1]) if similar.size > _CONFLICTS else 1.0
    caps: dict[str, Any] = {"max_per_source": _PER_SOURCE}
    topics: dict[str, Any] = {"cover": f"kmeans:{_TOPICS}"}
    conflicts: dict[str, Any] = {"max_similarity": min(1.0, alike)}
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "none": ({}, {}), "source caps": (caps, {}), "topics": ({}, topics), "conflicts": ({}, conflicts),
        "all": (caps, topics | conflicts),
    }  # fmt: skip
    base = Selector.raw(redundancy_weight=_WEIGHT, passage_penalty=0.0, options=SolveOptions(seed=seed))
    return {
        kind: base.replace(side=SideConstraints(**side), **more).program(candidates, budget)
        for kind, (more, side) in kinds.items()
    }
