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
_TIGHTER = 0.25  # with factors that differ the check may be weaker than the stopping rule


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
    sweeps, wanted = 0, epsilon
    while True:
        values, used = _fixed_point(mdp, chosen, values, wanted, max(1, max_sweeps - sweeps))
        sweeps += used + 1
        solution = _checked(mdp, chosen, values, epsilon, sweeps, tie, start)
        # Where no further sweep can help, rounding is what is left.
        if solution.converged or sweeps >= max_sweeps or wanted < 1e-15 or chosen == "one_pass":
            return solution
        wanted *= _TIGHTER


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


def _fixed_point(
    mdp: FiniteMDP, method: str, values: FloatArray, epsilon: float, max_sweeps: int
) -> tuple[FloatArray, int]:
    """Values near the fixed point, and the sweeps that it took."""
    if method == "one_pass":
        _kernel().one_pass(_process(mdp), values)
        return values, 1
    numbers, policy = np.zeros(4), np.empty(mdp.n_states, dtype=np.int32)
    evaluations = _EVALUATIONS if method == "policy_iteration" else 0
    limits = (evaluations, *mdp.factor_range, epsilon, max_sweeps, numbers)
    values = _kernel().iterate(_process(mdp), values, policy, *limits)
    return values, int(numbers[_kernel().SWEEPS])


def _backup(
    mdp: FiniteMDP, values: FloatArray, tie: float, q: FloatArray, policy: NDArray[np.int32]
) -> tuple[FloatArray, float, float, float]:
    """TV with the least and the greatest change, and what rounding can add."""
    improved, numbers = np.empty(mdp.n_states), np.empty(4)
    _kernel().sweep(_process(mdp), values, improved, policy, False, q, tie, numbers)
    low, high, _, scale = numbers.tolist()
    return improved, low, high, 2 * (mdp.successors + 4) * _EPS * scale


def _checked(
    mdp: FiniteMDP, method: str, values: FloatArray, epsilon: float, sweeps: int, tie: float, start: float
) -> MDPSolution:
    """The solution with bounds that follow from the values alone, however they were found."""
    q, policy = np.empty(mdp.rewards.shape), np.empty(mdp.n_states, dtype=np.int32)
    improved, low, high, rounding = _backup(mdp, values, tie, q, policy)
    below, above = _kernel().beyond(low, high, *mdp.factor_range)
    worst, _ = _kernel().beyond(low - tie, high, *mdp.factor_range)
    rounding /= 1 - mdp.factor_range[1]
    error = max(-below, above, 0.0) + rounding
    loss, took = max(0.0, above - worst) + tie + 2 * rounding, time.perf_counter() - start
    return MDPSolution(improved, q, policy, error, loss, error <= epsilon, method, sweeps, took)


def _backward(mdp: FiniteMDP, tie: float, start: float) -> MDPSolution:
    """Exact values of a process with a horizon, from the last decision to the first."""
    assert mdp.horizon is not None
    horizon, (n, m) = int(mdp.horizon), mdp.rewards.shape
    values, q = np.empty((horizon + 1, n)), np.empty((horizon, n, m))
    policy = np.empty((horizon, n), dtype=np.int32)
    values[horizon] = np.asarray(mdp.terminal)
    error = loss = 0.0
    greatest = mdp.factor_range[1]
    for t in reversed(range(horizon)):
        values[t], _, _, rounding = _backup(mdp, values[t + 1], tie, q[t], policy[t])
        error = rounding + greatest * error
        loss = tie + greatest * loss
    loss, took = loss + 2 * error, time.perf_counter() - start
    return MDPSolution(values, q, policy, error, loss, True, "backward_induction", horizon, took)
