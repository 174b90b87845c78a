"""How fast are processes solved, and how far off? Our kernels, quantecon, mdpsolver.

The retrieval process as published (1,001 levels of uncertainty, 2 actions), and large general ones (10,000
and by default 100,000 states, 5 actions, 10 random successors each). Every contender is asked for an error of
1e-6, from zeros, in turns; the median of its processor time counts, since the machine may be busy. Building a
contender's model is timed apart. The error is measured against the values of our own solution, whose bound is
stated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.runner import Measured, at_least, note, text_table
from mio_rag.formulations.mdp import FiniteMDP, RetrievalMDP
from mio_rag.solvers.mdp import MDPMethod, solve_mdp

EPSILON = 1e-6
FloatArray = NDArray[np.float64]
Contender = tuple[str, Callable[[], Callable[[], FloatArray]]]  # name, build -> solve -> values
_PATIENCE = 60.0  # seconds that one contender may take in all


def measure(given: argparse.Namespace) -> Measured:
    """Measure the retrieval process as published, and large general ones."""
    at_least(given, rounds=1, states=0)
    processes = [("retrieval", RetrievalMDP(horizon=None).to_finite(), given.rounds, True)]
    for states in sorted({min(given.states, 10_000), given.states} - {0}):
        large = large_process(states, 5, 10, 0.95, given.seed)
        processes.append(("general", large, max(1, given.rounds // 20), False))
    results = []
    for name, mdp, turns, small in processes:
        rows, truth = _timed(mdp, contenders(mdp, small), turns), solve_mdp(mdp, epsilon=EPSILON)
        peer = next(r for r in rows if not r["name"].startswith("mio-rag") and r["error"] <= EPSILON)
        best = next(r for r in rows if r["name"].startswith("mio-rag") and "unchecked" not in r["name"])
        results.append(
            {
                "process": name, "states": mdp.n_states, "actions": mdp.n_actions, "discount": mdp.discount,
                "transitions": int(mdp.transitions.nnz), "stated_error": truth.error, "contenders": rows,
                "fastest_peer": peer["name"],
                "times_the_fastest_peer": peer["median_seconds"] / best["median_seconds"],
            }
        )  # fmt: skip
    return Measured({"epsilon": EPSILON, "processes": results}, _table(results))


def _table(results: list[dict[str, Any]]) -> str:
    parts = []
    for one in results:
        rows = [
            (
                r["name"],
                f"{1e3 * r['median_seconds']:.4f}",
                f"{r['error']:.1e}",
                f"{r['build_seconds']:.3f}",
                r["runs"],
            )
            for r in one["contenders"]
        ]
        head = f"{one['process']}: {one['states']} states x {one['actions']} actions"
        parts.append(text_table((head, "ms", "error", "s to build", "runs"), rows))
        parts.append(
            f"{one['times_the_fastest_peer']:.2f} times as fast as {one['fastest_peer']}, the fastest peer"
        )
    return "\n".join(parts)


def _timed(mdp: FiniteMDP, contenders: list[Contender], rounds: int) -> list[dict[str, Any]]:
    """Each contender once for warming up, then in turns."""
    truth = solve_mdp(mdp, epsilon=1e-9)
    rows: list[dict[str, Any]] = []
    solvers: dict[str, Callable[[], FloatArray]] = {}
    for name, build in contenders:
        note(f"build {name}")
        start = time.process_time()
        solvers[name] = build()
        built = time.process_time() - start
        start = time.process_time()
        values = solvers[name]()
        first = time.process_time() - start
        error = float(np.abs(values - truth.values).max())
        rows.append({"name": name, "build_seconds": built, "first_seconds": first, "error": error})
    seconds: dict[str, list[float]] = {name: [] for name in solvers}
    for k in range(rounds):
        for name, solve in solvers.items():
            row = next(r for r in rows if r["name"] == name)
            if k > 0 and row["first_seconds"] * k > _PATIENCE:
                continue
            start = time.process_time()
            solve()
            seconds[name].append(time.process_time() - start)
    for row in rows:
        taken = seconds[row["name"]]
        row |= {"median_seconds": float(np.median(taken)), "best_seconds": min(taken), "runs": len(taken)}
    return sorted(rows, key=lambda row: row["median_seconds"])


def large_process(states: int, actions: int, successors: int, discount: float, seed: int) -> FiniteMDP:
    """A general process: uniformly random successors, Dirichlet probabilities, rewards in [0, 1]."""
    rng = np.random.default_rng(seed)
    rows = states * actions
    weights = rng.exponential(size=(rows, successors))
    weights /= weights.sum(axis=1, keepdims=True)
    columns = rng.integers(0, states, size=rows * successors)
    starts = np.arange(0, rows * successors + 1, successors)
    matrix = sparse.csr_array((weights.ravel(), columns, starts), shape=(rows, states))
    return FiniteMDP(matrix, rng.random((states, actions)), discount)


def ours(mdp: FiniteMDP, method: MDPMethod) -> Callable[[], FloatArray]:
    """One of our methods, its check included."""
    return lambda: solve_mdp(mdp, method, epsilon=EPSILON).values


def kernel_alone(mdp: FiniteMDP) -> Callable[[], FloatArray]:
    """Return the single pass by itself, without its check."""
    kernel, values = import_module("mio_rag.solvers.mdp_kernel"), np.zeros(mdp.n_states)
    matrix = mdp.transitions
    parts = (matrix.indptr, matrix.indices, matrix.data, mdp.rewards.ravel(), mdp.factors.ravel())
    process = kernel.Process(*parts, mdp.n_actions)

    def solve() -> FloatArray:
        kernel.one_pass(process, values)
        return values

    return solve


def quantecon(mdp: FiniteMDP, method: str) -> Callable[[], FloatArray]:
    """quantecon's DiscreteDP on state-action pairs."""
    markov = import_module("quantecon").markov
    n, m = mdp.rewards.shape
    states, actions = np.repeat(np.arange(n), m), np.tile(np.arange(m), n)
    process = markov.DiscreteDP(mdp.rewards.ravel(), mdp.transitions, mdp.discount, states, actions)
    return lambda: np.asarray(process.solve(method=method, epsilon=EPSILON, max_iter=100_000).v)


def mdpsolver(mdp: FiniteMDP, algorithm: str, update: str) -> Callable[[], FloatArray]:
    """mdpsolver's C++ on lists of successors, one thread."""
    n, m = mdp.rewards.shape
    starts = mdp.transitions.indptr.tolist()
    columns, weights = mdp.transitions.indices.tolist(), mdp.transitions.data.tolist()
    cut = [[(starts[r], starts[r + 1]) for r in range(s * m, s * m + m)] for s in range(n)]
    model = import_module("mdpsolver").model()
    model.mdp(
        discount=mdp.discount,
        rewards=mdp.rewards.tolist(),
        tranMatProbs=[[weights[i:j] for i, j in state] for state in cut],
        tranMatColumns=[[columns[i:j] for i, j in state] for state in cut],
    )

    zeros = [0.0] * n  # without them it starts from the values that it found the time before

    def solve() -> FloatArray:
        model.solve(
            algorithm=algorithm, tolerance=EPSILON, update=update, parallel=False, initValueVector=zeros
        )
        return np.asarray(model.getValueVector())

    return solve


def contenders(mdp: FiniteMDP, small: bool) -> list[Contender]:
    """Return the contenders of a process; `small` adds those that take too long on a large one."""
    methods: list[MDPMethod] = ["policy_iteration", "value_iteration"]
    if mdp.never_rises:
        methods.insert(0, "one_pass")
    found: list[Contender] = [(f"mio-rag {name}", partial(ours, mdp, name)) for name in methods]
    if mdp.never_rises:
        found.append(("mio-rag one_pass, unchecked", partial(kernel_alone, mdp)))
    # Left out are a dense or sparse linear system each time, and what takes ten times as long as the rest.
    slow, many = ["policy_iteration"] if small else [], mdp.n_states > 10_000
    for name in ["modified_policy_iteration", *([] if many else ["value_iteration"]), *slow]:
        found.append((f"quantecon {name}", partial(quantecon, mdp, name)))
    for algorithm in ("mpi", "vi", *(["pi"] if small else [])):
        for update in ("standard",) if many else ("standard", "gs"):
            found.append((f"mdpsolver {algorithm} {update}", partial(mdpsolver, mdp, algorithm, update)))
    return found
