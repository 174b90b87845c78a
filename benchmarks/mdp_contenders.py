"""Who is measured on decision processes: our methods, plain Python, quantecon and mdpsolver; and a large
process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mio_rag.formulations.mdp import FiniteMDP
from mio_rag.solvers.mdp import MDPMethod, solve_mdp

EPSILON = 1e-6
FloatArray = NDArray[np.float64]
Contender = tuple[str, Callable[[], Callable[[], FloatArray]]]  # name, build -> solve -> values


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


def plain_python(mdp: FiniteMDP) -> Callable[[], FloatArray]:
    """Value iteration in plain loops over lists, with the same stopping rule."""
    n, m = mdp.rewards.shape
    starts, columns = mdp.transitions.indptr.tolist(), mdp.transitions.indices.tolist()
    weights, rewards = mdp.transitions.data.tolist(), mdp.rewards.ravel().tolist()
    gamma = mdp.discount

    def solve() -> FloatArray:
        values = [0.0] * n
        while True:
            improved = []
            for s in range(n):
                best = -np.inf
                for row in range(s * m, s * m + m):
                    following = 0.0
                    for k in range(starts[row], starts[row + 1]):
                        following += weights[k] * values[columns[k]]
                    best = max(best, rewards[row] + gamma * following)
                improved.append(best)
            changes = [new - old for new, old in zip(improved, values, strict=True)]
            values = improved
            low, high = (edge * gamma / (1 - gamma) for edge in (min(changes), max(changes)))
            if 0.5 * (high - low) <= EPSILON:
                return np.array(values) + 0.5 * (low + high)

    return solve


def ours(mdp: FiniteMDP, method: MDPMethod) -> Callable[[], FloatArray]:
    """One of our methods, its check included."""
    return lambda: solve_mdp(mdp, method, epsilon=EPSILON).values


def kernel_alone(mdp: FiniteMDP) -> Callable[[], FloatArray]:
    """The single pass by itself, without its check."""
    kernel = import_module("mio_rag.solvers.mdp_kernel")
    n, m = mdp.rewards.shape
    matrix, values = mdp.transitions, np.zeros(n)
    rows = (matrix.indptr, matrix.indices, matrix.data, mdp.rewards.ravel(), mdp.factors.ravel())

    def solve() -> FloatArray:
        kernel.one_pass(*rows, m, values)
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

    def solve() -> FloatArray:
        model.solve(algorithm=algorithm, tolerance=EPSILON, update=update, parallel=False)
        return np.asarray(model.getValueVector())

    return solve


def contenders(mdp: FiniteMDP, small: bool) -> list[Contender]:
    """Everyone who can take the process; with `small` also those whom a large one would take too long."""
    methods: list[MDPMethod] = ["policy_iteration", "value_iteration", "numpy"]
    if mdp.never_rises:
        methods.insert(0, "one_pass")
    found: list[Contender] = [(f"mio-rag {name}", partial(ours, mdp, name)) for name in methods]
    if mdp.never_rises:
        found.append(("mio-rag one_pass, unchecked", partial(kernel_alone, mdp)))
    if small:
        found.append(("plain Python", partial(plain_python, mdp)))
    slow = ["policy_iteration"] if small else []  # a dense or sparse linear system each time
    for name in ["modified_policy_iteration", "value_iteration", *slow]:
        found.append((f"quantecon {name}", partial(quantecon, mdp, name)))
    for algorithm in ("mpi", "vi", *(["pi"] if small else [])):
        for update in ("standard", "gs"):
            found.append((f"mdpsolver {algorithm} {update}", partial(mdpsolver, mdp, algorithm, update)))
    return found
