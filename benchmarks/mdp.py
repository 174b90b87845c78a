"""How fast are processes solved, and how far off? Our kernels, plain Python, numpy, quantecon, mdpsolver.

Two processes: the retrieval process as published (1,001 levels of uncertainty, 2 actions), and a large
general one (by default 100,000 states, 5 actions, 10 random successors each). Every contender is asked for an
error of 1e-6, in turns, so that a busy moment hits all of them; the median counts. Building a contender's
model is timed apart. The error is measured against the values of our own solution, whose bound is stated.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mdp_contenders import EPSILON, Contender, FloatArray, contenders, large_process
from benchmarks.runner import Measured
from mio_rag.errors import InputError
from mio_rag.formulations.mdp import FiniteMDP, RetrievalMDP
from mio_rag.solvers.mdp import solve_mdp


def _measure(
    mdp: FiniteMDP, contenders: list[Contender], rounds: int, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Each contender once for warming up, then in turns."""
    truth = solve_mdp(mdp, epsilon=1e-9)
    rows: list[dict[str, Any]] = []
    solvers: dict[str, Callable[[], FloatArray]] = {}
    for name, build in contenders:
        progress(f"build {name}")
        start = time.perf_counter()
        solvers[name] = build()
        built = time.perf_counter() - start
        start = time.perf_counter()
        values = solvers[name]()
        first = time.perf_counter() - start
        error = float(np.abs(values - truth.values).max())
        rows.append({"name": name, "build_seconds": built, "first_seconds": first, "error": error})
    seconds: dict[str, list[float]] = {name: [] for name in solvers}
    for k in range(rounds):
        for name, solve in solvers.items():
            row = next(r for r in rows if r["name"] == name)
            if k > 0 and row["first_seconds"] * k > _PATIENCE:
                continue
            progress(f"round {k + 1} of {rounds}: {name}")
            start = time.perf_counter()
            solve()
            seconds[name].append(time.perf_counter() - start)
    for row in rows:
        taken = seconds[row["name"]]
        row |= {"median_seconds": float(np.median(taken)), "best_seconds": min(taken), "runs": len(taken)}
    return sorted(rows, key=lambda row: row["median_seconds"])


_PATIENCE = 60.0  # seconds that one contender may take in all


def run(
    rounds: int, states: int, seed: int, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Measure both processes.

    Parameters
    ----------
    rounds : int
        Turns of every contender, >= 1; slow ones take fewer.
    states : int
        Of the large process; 0 leaves it out.
    """
    retrieval = RetrievalMDP(horizon=None).to_finite()
    processes = [("retrieval", retrieval, rounds, True)]
    if states:
        processes.append(("general", large_process(states, 5, 10, 0.95, seed), max(1, rounds // 20), False))
    results = []
    for name, mdp, turns, small in processes:
        rows = _measure(mdp, contenders(mdp, small), turns, progress)
        peers = [r for r in rows if not r["name"].startswith("mio-rag") and r["error"] <= EPSILON]
        best = next(r for r in rows if r["name"].startswith("mio-rag") and "unchecked" not in r["name"])
        truth = solve_mdp(mdp, epsilon=EPSILON)
        matrix = mdp.transitions
        results.append(
            {
                "process": name,
                "states": mdp.n_states,
                "actions": mdp.n_actions,
                "transitions": int(matrix.nnz),
                "discount": mdp.discount,
                "megabytes": (matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes) / 1e6,
                "stated_error": truth.error,
                "sweeps": truth.sweeps,
                "contenders": rows,
                "fastest_peer": peers[0]["name"],
                "times_the_fastest_peer": peers[0]["median_seconds"] / best["median_seconds"],
            }
        )
    return {
        "epsilon": EPSILON,
        "rounds": rounds,
        "seed": seed,
        "processes": results,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def table(report: dict[str, Any]) -> str:
    """The measurements as text."""
    lines = []
    for process in report["processes"]:
        lines.append(
            f"{process['process']}: {process['states']} states x {process['actions']} actions, "
            f"{process['transitions']} transitions, discount {process['discount']}, "
            f"{process['megabytes']:.1f} MB; own stated error {process['stated_error']:.1e}"
        )
        for row in process["contenders"]:
            lines.append(
                f"  {row['name']:<38} {1e3 * row['median_seconds']:>12.4f} ms   error {row['error']:.1e}"
                f"   build {row['build_seconds']:.3f} s   {row['runs']} runs"
            )
        lines.append(
            f"  {process['times_the_fastest_peer']:.2f} times as fast as {process['fastest_peer']}, the "
            "fastest peer within the error"
        )
    return "\n".join(lines)


def draw(report: dict[str, Any], path: Path) -> None:
    """The measurements as bars, from the report alone."""
    from matplotlib.figure import Figure

    from mio_rag.pictures import save_figure

    processes = report["processes"]
    figure = Figure(figsize=(9, 1 + 3.2 * len(processes)), layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(processes), 1))
    for ax, process in zip(axes, processes, strict=True):
        rows = process["contenders"][::-1]
        names = [row["name"] for row in rows]
        own = [name.startswith("mio-rag") for name in names]
        times = [1e3 * row["median_seconds"] for row in rows]
        bars = ax.barh(names, times, color=["#3b6fb6" if mine else "#b0b0b0" for mine in own])
        labels = [f" {t:.3g} ms, error {r['error']:.0e}" for t, r in zip(times, rows, strict=True)]
        ax.bar_label(bars, labels, fontsize=7)
        ax.set_xscale("log")
        ax.set_xlim(right=max(times) * 30)
        title = f"{process['process']}: {process['states']:,} states, {process['actions']} actions"
        ax.set_title(title, fontsize=10)
        ax.tick_params(labelsize=8)
    axes[-1].set_xlabel("median milliseconds for one solution (log scale)")
    save_figure(figure, path)


def show_progress(text: str) -> None:
    """One line on standard error, rewritten in place."""
    print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)


def command(given: argparse.Namespace) -> Measured:
    """Measure, write JSON and picture, print the table; 2 for options out of range."""
    if given.rounds < 1 or given.states < 0:
        raise InputError(f"--rounds={given.rounds} must be >= 1, --states={given.states} >= 0")
    report = run(given.rounds, given.states, given.seed, show_progress)
    return Measured(report, table(report), partial(draw, report))
