"""Finite Markov decision processes as arrays.

States 0..n-1, actions 0..m-1. Action a in state s pays r(s, a), takes tau(s, a) units of time and leads to
state j with probability P(j | s, a). With discount gamma the Bellman equation is

    Q(s, a) = r(s, a) + gamma^tau(s, a) * sum_j P(j | s, a) V(j),      V(s) = max over allowed a of Q(s, a),

without a horizon a fixed point, for which gamma < 1 is needed; with a horizon of T decisions the recursion
V_t from V_{t+1}, with V_T the terminal rewards. Durations other than 1 make it a semi-Markov process; they
affect only the discount; a horizon counts decisions, not time.

Source: Puterman, Markov Decision Processes (1994), chapters 4, 6 and 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy  # loads scipy.sparse, a tenth of a second, where it is first used
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError

__all__ = ["FiniteMDP"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_STOCHASTIC = 1e-8  # how far from 1 a row may sum, before it is scaled to 1
_LISTED = 5
_LARGEST = 1e250  # of rewards: sums over a horizon stay within float64


@dataclass(frozen=True, eq=False)
class FiniteMDP:
    """A Markov decision process with n states and m actions.

    Parameters
    ----------
    transitions : array_like (n, m, n), or scipy sparse matrix (n * m, n)
        P(j | s, a); row s * m + a of the sparse form. Kept sparse, rows scaled to sum to 1 exactly. Rows of
        actions that are not allowed are ignored.
    rewards : array_like (n, m)
        r(s, a), finite where allowed.
    discount : float
        gamma in (0, 1]: value of one unit one unit of time later. 1 only with a horizon.
    horizon : int or None
        Number of decisions, >= 1; None: infinitely many.
    terminal : array_like (n,), optional
        What is paid in each state after the last decision; only with a horizon. By default nothing.
    allowed : array_like of bool (n, m), optional
        Which actions a state has; at least one each. By default all.
    durations : array_like (n, m), optional
        tau(s, a) > 0. By default 1 each.
    actions : sequence of str, length m, optional
        Names; where actions are worth the same, solvers take the one that is named first.

    Raises
    ------
    InputError
        With every problem found.
    """

    transitions: Any
    rewards: FloatArray
    discount: float
    horizon: int | None = None
    terminal: FloatArray | None = None
    allowed: BoolArray | None = None
    durations: FloatArray | None = None
    actions: Sequence[str] = ()

    def __post_init__(self) -> None:
        rewards = _numbers("rewards", self.rewards)
        if rewards.ndim != 2 or 0 in rewards.shape:
            raise InputError(
                f"rewards has shape {rewards.shape}, expected (states, actions), at least one of each"
            )
        n, m = rewards.shape
        problems: list[str] = []
        allowed = np.ones((n, m), dtype=bool) if self.allowed is None else np.array(self.allowed, dtype=bool)
        if allowed.shape != (n, m):
            problems.append(f"allowed has shape {allowed.shape}, expected {(n, m)} as rewards")
            allowed = np.ones((n, m), dtype=bool)
        idle = np.flatnonzero(~allowed.any(axis=1))
        if idle.size:
            problems.append(f"no action is allowed in {_states(idle)}: allow one, for instance to stay there")
        broken = np.argwhere(allowed & ~(np.abs(rewards) <= _LARGEST))
        problems += [
            f"rewards[{s}, {a}] is {rewards[s, a]}: must be finite, and at most {_LARGEST:g} in size"
            for s, a in broken[:_LISTED]
        ]
        problems += self._time_problems()
        terminal = _shaped("terminal", self.terminal, (n,), 0.0, problems)
        durations = _shaped("durations", self.durations, (n, m), 1.0, problems)
        if np.any(durations[allowed] <= 0):
            s, a = np.argwhere(allowed & (durations <= 0))[0]
            problems.append(f"durations[{s}, {a}] is {durations[s, a]}: every action must take some time")
        elif self.horizon is None and not problems and np.any(self.discount ** durations[allowed] >= 1):
            s, a = np.argwhere(allowed & (self.discount**durations >= 1))[0]
            problems.append(
                f"durations[{s}, {a}] is {durations[s, a]}: with discount {self.discount!r} so short an "
                "action is not discounted at all, and values without a horizon are infinite"
            )
        names = tuple(self.actions) or tuple(map(str, range(m)))
        if len(names) != m or len(set(names)) != m:
            problems.append(f"actions {names} must be {m} different names")
        matrix = _stochastic(self.transitions, allowed, problems)
        if problems:
            raise InputError(problems)
        for name, value in (
            ("rewards", np.where(allowed, rewards, -np.inf)),
            ("terminal", terminal),
            ("allowed", allowed),
            ("durations", durations),
        ):
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "transitions", matrix)
        object.__setattr__(self, "actions", names)

    def _time_problems(self) -> list[str]:
        problems = []
        gamma, horizon = self.discount, self.horizon
        if not (isinstance(gamma, (int, float, np.number)) and 0 < gamma <= 1):
            problems.append(f"discount={gamma!r} must be a number in (0, 1]")
        elif gamma == 1 and horizon is None:
            problems.append("discount=1 without a horizon has no finite value: lower it, or set a horizon")
        whole = isinstance(horizon, (int, float, np.number)) and 1 <= horizon < np.inf
        if horizon is not None and not (whole and horizon == int(horizon)):
            problems.append(f"horizon={horizon!r} must be a whole number of decisions >= 1, or None")
        if horizon is None and self.terminal is not None:
            problems.append("terminal rewards need a horizon: without one nothing ends")
        return problems

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.rewards.shape[0])

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return int(self.rewards.shape[1])

    @cached_property
    def factors(self) -> FloatArray:
        """Shape (n, m): gamma^tau(s, a), what one unit after the action is worth before it."""
        factors = np.asarray(np.power(self.discount, np.asarray(self.durations)), dtype=np.float64)
        factors.flags.writeable = False
        return factors

    @cached_property
    def factor_range(self) -> tuple[float, float]:
        """Smallest and largest of the factors of allowed actions."""
        used = self.factors[self.allowed]
        return float(used.min()), float(used.max())

    @cached_property
    def successors(self) -> int:
        """Largest number of successors of an action."""
        return int(np.diff(self.transitions.indptr).max())

    @cached_property
    def never_rises(self) -> bool:
        """Whether no allowed action leads to a state of a higher number: one pass then solves it."""
        states = np.repeat(np.arange(self.n_states), self.n_actions)
        matrix = self.transitions
        return bool(np.all(matrix.indices <= np.repeat(states, np.diff(matrix.indptr))))

    def q_values(self, values: FloatArray) -> FloatArray:
        """Q(s, a), shape (n, m), given the values that follow; minus infinity where not allowed."""
        following = (self.transitions @ values).reshape(self.rewards.shape)
        return np.asarray(self.rewards + self.factors * following, dtype=np.float64)


def _states(states: NDArray[Any]) -> str:
    listed = ", ".join(map(str, states[:_LISTED]))
    return f"state{'' if len(states) == 1 else 's'} {listed}{' ...' if len(states) > _LISTED else ''}"


def _numbers(name: str, value: Any) -> FloatArray:
    """A copy as an array of floats."""
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from error


def _shaped(
    name: str, value: ArrayLike | None, shape: tuple[int, ...], default: float, problems: list[str]
) -> FloatArray:
    if value is None:
        return np.full(shape, default)
    array = _numbers(name, value)
    if array.shape != shape:
        problems.append(f"{name} has shape {array.shape}, expected {shape}")
    elif not np.all(np.isfinite(array)):
        problems.append(f"{name} holds NaN or infinity: every value must be finite")
    else:
        return array
    return np.full(shape, default)


def _stochastic(given: Any, allowed: BoolArray, problems: list[str]) -> Any:
    """The transitions as compressed rows s * m + a that sum to 1, empty where not allowed."""
    n, m = allowed.shape
    matrix: Any
    is_sparse: bool = scipy.sparse.issparse(given)
    if is_sparse:
        matrix = given.tocsr().astype(np.float64)  # a copy
    else:
        dense = _numbers("transitions", given)
        if dense.shape != (n, m, n):
            problems.append(f"transitions has shape {dense.shape}, expected {(n, m, n)}")
            return None
        matrix = scipy.sparse.csr_array(dense.reshape(n * m, n))
    if matrix.shape != (n * m, n):
        problems.append(f"transitions has shape {matrix.shape}, expected {(n * m, n)}: row s * {m} + a")
        return None
    rows = np.repeat(np.arange(n * m), np.diff(matrix.indptr))
    matrix.data[~allowed.ravel()[rows]] = 0.0
    bad = np.flatnonzero(~(matrix.data >= 0) | ~np.isfinite(matrix.data))
    for k in bad[:_LISTED]:
        s, a = divmod(int(rows[k]), m)
        problems.append(f"transitions from state {s} by action {a} hold {matrix.data[k]}: not a probability")
    if bad.size:
        return None
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    for row in np.flatnonzero((np.abs(sums - 1) > _STOCHASTIC) & allowed.ravel())[:_LISTED]:
        s, a = divmod(int(row), m)
        problems.append(f"transitions from state {s} by action {a} sum to {sums[row]:.10g}, not to 1")
    rows = np.repeat(np.arange(n * m), np.diff(matrix.indptr))
    matrix.data /= sums[rows]
    if matrix.nnz < 2**31:  # half the memory: sweeps are limited by memory bandwidth
        matrix = scipy.sparse.csr_array(
            (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)), shape=matrix.shape
        )
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    return matrix
