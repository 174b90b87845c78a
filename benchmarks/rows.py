"""The exact kernel on programs with side rows: source caps, topics to cover, near-duplicates in conflict.

Programs are those of real pools (`benchmarks.speed.pools`) at lambda_1 = .1 without a passage penalty. Every
pool is solved five times: without rows, with each kind of rows alone, and with all. Six sources are dealt out
at random, with at most two passages from each; five topics are made by k-means, each to be covered; the
conflicts are the 15 most similar pairs. Times are CPU time of one thread, model building apart, each program
solved once after the kernel has been compiled.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.options import numbers
from benchmarks.runner import Measured
from benchmarks.speed.pools import Pool, load_pools
from mio_rag.cli.terminal import progress_bar
from mio_rag.errors import InputError
from mio_rag.formulations import SelectionProgram
from mio_rag.pool import Candidates
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions, solve
from mio_rag.solvers.branch_and_bound import warmup

_SOURCES, _PER_SOURCE, _TOPICS, _CONFLICTS = 6, 2, 5, 15
_WEIGHT = 0.1


def command(given: argparse.Namespace) -> Measured:
    """Solve and write the JSON."""
    names = [name.strip() for name in given.sets.split(",") if name.strip()]
    budgets = numbers("--budgets", given.budgets, int)
    if given.n < _TOPICS or given.pools < 1:
        raise InputError(f"--pools={given.pools} must be >= 1 and --n={given.n} >= {_TOPICS}")
    pools, drawn = load_pools(
        given.data, names, given.pools, given.seed, lambda text: print(text, file=sys.stderr)
    )
    pools = [pool for pool in pools if len(pool) >= given.n]
    if not pools:
        raise InputError(f"no pool has {given.n} passages: lower --n, or use larger data sets")
    options = SolveOptions(time_limit_seconds=given.time_limit)
    warmup()
    solves: list[dict[str, Any]] = []
    with progress_bar("side rows", len(pools) * len(budgets)) as advance:
        for budget in budgets:
            for pool in pools:
                made = programs_of(pool, given.n, budget, given.seed)
                found = {rows: measured(program, options) for rows, program in made.items()}
                of = {"pool": pool.question, "budget": budget, "chosen_freely": found["none"]["chosen"]}
                solves += [{**of, "rows": rows, **one} for rows, one in found.items()]
                advance(1)
    report = {
        "n": given.n,
        "lambda_1": _WEIGHT,
        "time_limit_seconds": given.time_limit,
        "pools": drawn | {"used": len(pools)},
        "summary": summarize(solves),
        "solves": solves,
    }
    return Measured(report, table(report))


def programs_of(pool: Pool, n: int, budget: int, seed: int) -> dict[str, SelectionProgram]:
    """By kind of rows."""
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
    options = SolveOptions(seed=seed)
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "none": ({}, {}),
        "source caps": (caps, {}),
        "topics": ({}, topics),
        "conflicts": ({}, conflicts),
        "all": (caps, topics | conflicts),
    }
    return {
        name: Selector.raw(
            redundancy_weight=_WEIGHT,
            passage_penalty=0.0,
            options=options,
            side=SideConstraints(**side),
            **more,
        ).program(candidates, budget)
        for name, (more, side) in kinds.items()
    }


def measured(program: SelectionProgram, options: SolveOptions) -> dict[str, Any]:
    """One solve by the kernel."""
    start = time.process_time()
    result = solve(program, "branch_and_bound", options)
    seconds = time.process_time() - start
    return {
        "cpu_ms": 1e3 * seconds,
        "status": result.status.value,
        "gap": result.gap,
        "nodes": result.nodes,
        "chosen": len(result.selected),
    }


def summarize(solves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Time to proof by budget and kind of rows: all pools, and those of which few or many are read freely."""
    found = []
    for budget in dict.fromkeys(one["budget"] for one in solves):
        for rows in dict.fromkeys(one["rows"] for one in solves):
            mine = [one for one in solves if one["budget"] == budget and one["rows"] == rows]
            for which, keep in _PARTS.items():
                part = [one for one in mine if keep(one["chosen_freely"])]
                if part:
                    found.append({"budget": budget, "rows": rows, "chosen_freely": which, **_figures(part)})
    return found


_PARTS: dict[str, Callable[[int], bool]] = {
    "any": lambda k: True,
    "at most 10": lambda k: k <= 10,
    "more than 10": lambda k: k > 10,
}


def _figures(part: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    times = np.array([one["cpu_ms"] for one in part])
    done = [one["status"] in ("optimal", "infeasible") for one in part]
    return {
        "programs": len(part),
        "proven": int(np.sum(done)),
        "infeasible": sum(one["status"] == "infeasible" for one in part),
        "median_ms": float(np.median(times)),
        "p95_ms": float(np.percentile(times, 95)),
        "largest_ms": float(times.max()),
        "largest_gap": max((one["gap"] or 0.0 for one in part), default=0.0),
    }


def table(report: Mapping[str, Any]) -> str:
    """For a terminal."""
    lines = [
        f"n = {report['n']}, lambda_1 = {report['lambda_1']}: CPU milliseconds to proof, by the number "
        "of passages read without rows"
    ]
    for one in report["summary"]:
        lines.append(
            f"  {one['budget']:>5} tokens, {one['rows']:<12} {one['chosen_freely']:<13}"
            f"proven {one['proven']:>3} of {one['programs']:<4} median {one['median_ms']:7.1f}  "
            f"p95 {one['p95_ms']:7.1f}  largest {one['largest_ms']:7.1f}"
        )
    return "\n".join(lines)
