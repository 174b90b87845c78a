"""Finite Markov decision processes: values with a guaranteed error, whoever found them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError, SolverError
from mio_rag.formulations.mdp import FiniteMDP
from mio_rag.solvers.compiled import warm

FloatArray = NDArray[np.float64]
MDPMethod = Literal["auto", "one_pass", "policy_iteration", "value_iteration", "backward_induction"]
_METHODS = get_args(MDPMethod)
_EPS = float(np.finfo(np.float64).eps)
_EVALUATIONS = 100  # most backups under one policy


@dataclass(frozen=True, eq=False)
class MDPSolution:
    """Values, the policy, and how far they can be off.

    values (n,), with a horizon of T (T + 1, n): V; row t: before decision t, row T: the terminal rewards.
    q (n, m) or (T, n, m): Q; minus infinity where an action is not allowed.
    policy (n,) or (T, n): the first action that is within `tie` of the best.
    error, policy_loss: |V - V*| <= error in every state; following the policy loses at most policy_loss
        against V*.
    converged: whether error <= epsilon; if not, the limit on sweeps came first.
    sweeps: passes over all states, the check included.
    """

    values: FloatArray
    q: FloatArray
    policy: NDArray[np.int32]
    error: float
    policy_loss: float
    converged: bool
    method: str
    sweeps: int
    wall_seconds: float


def solve_mdp(
    mdp: FiniteMDP,
    method: MDPMethod = "auto",
    *,
    epsilon: float = 1e-6,
    max_sweeps: int = 100_000,
    initial: ArrayLike | None = None,
    tie: float = 1e-9,
) -> MDPSolution:
    """Solve a process.

    method: "auto": backward induction with a horizon; without one a single pass where states never rise, else
        modified policy iteration. `SolverError` if it cannot take the process.
    epsilon: > 0: wanted error of the values.
    max_sweeps: >= 1: when to give up on that; the solution then has its error.
    initial (n,): values to start from; by default zeros.
    tie: >= 0: how much worse than the best an action may be and still be taken, if it is named earlier.
    """
    problems = []
    if method not in _METHODS:
        problems.append(f"method '{method}' is unknown: choose {', '.join(_METHODS)}")
    if not 0 < epsilon < np.inf:
        problems.append(f"epsilon={epsilon!r} must be a finite number > 0")
    if max_sweeps < 1:
        problems.append(f"max_sweeps={max_sweeps} must be >= 1")
    if not 0 <= tie < np.inf:
        problems.append(f"tie={tie!r} must be a finite number >= 0")
    values = np.zeros(mdp.n_states) if initial is None else np.array(initial, dtype=np.float64)
    if initial is not None and not (values.shape == (mdp.n_states,) and np.all(np.isfinite(values))):
        problems.append(f"initial must be {mdp.n_states} finite values, one for each state")
    if problems:
        raise InputError(problems)
    chosen = _resolve(mdp, method)
    _kernel()
    start = time.perf_counter()
    if mdp.horizon is not None:
        return _backward(mdp, tie, start)
    kernel, process, sweeps = _kernel(), _process(mdp), 0
    if chosen == "one_pass":
        kernel.one_pass(process, values)
        sweeps, max_sweeps = 1, 1
    q, policy, numbers = np.empty(mdp.rewards.shape), np.zeros(mdp.n_states, dtype=np.int32), np.zeros(4)
    # Rounding of a sum is followed by the same in all sums that use it.
    noise, evaluations = (
        _noise(mdp) / (1 - mdp.factor_range[1]),
        _EVALUATIONS * (chosen == "policy_iteration"),
    )
    limits = (evaluations, *mdp.factor_range, noise, epsilon, max_sweeps, numbers)
    values = kernel.iterate(process, values, policy, q, *limits)
    kernel.name_first(q, values, tie, policy)
    low, high, used, scale = numbers.tolist()
    below, above = kernel.beyond(low, high, *mdp.factor_range)
    worst, _ = kernel.beyond(low - tie, high, *mdp.factor_range)
    error = max(-below, above, 0.0) + noise * scale
    loss, took = max(0.0, above - worst) + tie + 2 * noise * scale, time.perf_counter() - start
    return MDPSolution(values, q, policy, error, loss, error <= epsilon, chosen, sweeps + int(used), took)


def warmup() -> float:
    """Compile the kernels ahead of their first use; returns the seconds that took, under one when cached."""
    start = time.perf_counter()
    _kernel()
    return time.perf_counter() - start


@cache
def _kernel() -> Any:
    """The compiled functions, loaded or compiled: that is not solving."""
    found = import_module("mio_rag.solvers.mdp_kernel")
    warm((found,), "the kernels of decision processes", "2 to 4")
    return found


def _resolve(mdp: FiniteMDP, method: MDPMethod) -> str:
    if mdp.horizon is not None:
        if method not in ("auto", "backward_induction"):
            raise SolverError(f"{method} cannot take a process with a horizon: use backward_induction")
        return "backward_induction"
    if method == "backward_induction":
        raise SolverError("backward_induction needs a horizon: use policy_iteration")
    if method == "one_pass" and not mdp.never_rises:
        raise SolverError(
            "one_pass needs a process in which no action leads to a higher state: use policy_iteration, or "
            "number the states so that they never rise"
        )
    return method if method != "auto" else "one_pass" if mdp.never_rises else "policy_iteration"


def _process(mdp: FiniteMDP) -> Any:
    matrix = mdp.transitions
    parts = (matrix.indptr, matrix.indices, matrix.data, mdp.rewards.ravel(), mdp.factors.ravel())
    return _kernel().Process(*parts, mdp.n_actions)


def _noise(mdp: FiniteMDP) -> float:
    """How much rounding can add to a value in a sweep, for a largest value of 1."""
    return float(2 * (mdp.successors + 4) * _EPS)


def _backward(mdp: FiniteMDP, tie: float, start: float) -> MDPSolution:
    """Exact values of a process with a horizon, from the last decision to the first."""
    assert mdp.horizon is not None
    horizon, (n, m) = int(mdp.horizon), mdp.rewards.shape
    values, q = np.empty((horizon + 1, n)), np.empty((horizon, n, m))
    policy = np.empty((horizon, n), dtype=np.int32)
    values[horizon] = np.asarray(mdp.terminal)
    error = loss = 0.0
    greatest, noise, numbers = mdp.factor_range[1], _noise(mdp), np.zeros(4)
    for t in reversed(range(horizon)):
        _kernel().sweep(_process(mdp), values[t + 1], values[t], policy[t], False, q[t], numbers)
        _kernel().name_first(q[t], values[t], tie, policy[t])
        error = noise * float(numbers[_kernel().SCALE]) + greatest * error
        loss = tie + greatest * loss
    loss, took = loss + 2 * error, time.perf_counter() - start
    return MDPSolution(values, q, policy, error, loss, True, "backward_induction", horizon, took)
