"""Finite Markov decision processes as arrays, and the one of retrieve, reason or stop.

States 0..n-1, actions 0..m-1. Action a in state s pays r(s, a), takes tau(s, a) units of time and leads to
state j with probability P(j | s, a). With discount gamma the Bellman equation is

    Q(s, a) = r(s, a) + gamma^tau(s, a) * sum_j P(j | s, a) V(j),      V(s) = max over allowed a of Q(s, a),

without a horizon a fixed point, for which gamma < 1 is needed; with a horizon of T decisions the recursion
V_t from V_{t+1}, with V_T the terminal rewards. A horizon counts decisions, not time.

`RetrievalMDP` is a process over the uncertainty level U in [0, 1]: at 1 nothing is known, 0 is certain.
Retrieving costs c_r and lowers U by delta_r with probability p_s, otherwise U stays; reasoning costs c_p and
lowers U by delta_p; U never falls below 0. An answer given at U has the quality Q(U):

    linear  1 - U        log  1 - log2(1 + U)        exp  1 - exp(-k (1 - U))

*With stop* (a horizon of T decisions, the default), actions cost on the way and Q(U) is paid once, at the
stop or after the last decision. *As published* (no horizon), Q(U) - C(a) is paid at every step for ever.
Values between the points of the grid are interpolated linearly. For constant parameters values fall as U
rises, so rounding every successor down or up bounds the continuous process (`RetrievalMDP.to_finite`).

Source: Puterman, Markov Decision Processes (1994), chapters 4, 6 and 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
_STOCHASTIC = 1e-8  # how far from 1 a row may sum, before it is scaled to 1
_LISTED = 5
_LARGEST = 1e250  # of rewards: sums over a horizon stay within float64


@dataclass(frozen=True, eq=False)
class FiniteMDP:
    """A Markov decision process with n states and m actions; `InputError` lists every problem found.

    transitions (n, m, n): P(j | s, a); row s * m + a of the sparse form. Kept sparse, rows scaled to sum to 1
        exactly. Rows of actions that are not allowed are ignored.
    rewards (n, m): r(s, a), finite where allowed.
    discount: gamma in (0, 1]: value of one unit one unit of time later. 1 only with a horizon.
    horizon: number of decisions, >= 1; None: infinitely many.
    terminal (n,): what is paid in each state after the last decision; only with a horizon. By default
        nothing.
    allowed (n, m): which actions a state has; at least one each. By default all.
    durations (n, m): tau(s, a) > 0. By default 1 each.
    actions: names; where actions are worth the same, solvers take the one that is named first.
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
            shape = f"rewards has shape {rewards.shape}"
            raise InputError(f"{shape}, expected (states, actions), at least one of each")
        n, m = rewards.shape
        problems: list[str] = []
        every = np.ones((n, m), dtype=bool)
        allowed = every if self.allowed is None else np.array(self.allowed, dtype=bool)
        if allowed.shape != (n, m):
            problems.append(f"allowed has shape {allowed.shape}, expected {(n, m)} as rewards")
            allowed = every
        idle = np.flatnonzero(~allowed.any(axis=1))
        if idle.size:
            problems.append(f"no action is allowed in {_states(idle)}: allow one, for instance to stay there")
        broken = np.argwhere(allowed & ~(np.abs(rewards) <= _LARGEST))
        problems += [
            f"rewards[{s}, {a}] is {rewards[s, a]}: must be finite, and at most {_LARGEST:g} in size"
            for s, a in broken[:_LISTED]
        ]
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
        terminal = _shaped("terminal", self.terminal, (n,), 0.0, problems)
        durations = _shaped("durations", self.durations, (n, m), 1.0, problems)
        if np.any(durations[allowed] <= 0):
            s, a = np.argwhere(allowed & (durations <= 0))[0]
            problems.append(f"durations[{s}, {a}] is {durations[s, a]}: every action must take some time")
        elif horizon is None and not problems and np.any(gamma ** durations[allowed] >= 1):
            s, a = np.argwhere(allowed & (gamma**durations >= 1))[0]
            problems.append(
                f"durations[{s}, {a}] is {durations[s, a]}: with discount {gamma!r} so short an action is "
                "not discounted at all, and values without a horizon are infinite"
            )
        names = tuple(self.actions) or tuple(map(str, range(m)))
        if len(names) != m or len(set(names)) != m:
            problems.append(f"actions {names} must be {m} different names")
        matrix = _stochastic(self.transitions, allowed, problems)
        if problems:
            raise InputError(problems)
        rewards = np.where(allowed, rewards, -np.inf)
        for array in (rewards, terminal, allowed, durations):
            array.flags.writeable = False
        self.__dict__.update(rewards=rewards, terminal=terminal, allowed=allowed, durations=durations)
        self.__dict__.update(transitions=matrix, actions=names)

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
        return np.asarray(np.power(self.discount, np.asarray(self.durations)), dtype=np.float64)

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
    return array if array.shape == shape else np.full(shape, default)


def _stochastic(given: Any, allowed: BoolArray, problems: list[str]) -> Any:
    """The transitions as compressed rows s * m + a that sum to 1, empty where not allowed."""
    import scipy.sparse  # here, as below: it takes a tenth of a second

    n, m = allowed.shape
    matrix: Any
    if hasattr(given, "tocsr"):
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


QualityName = Literal["linear", "log", "exp"]
Rounding = Literal["interpolate", "down", "up"]

#: One value for all U, or one for each of as many equal bins of [0, 1], from U = 0 upwards.
Parameter = float | tuple[float, ...]
#: From the cheapest: where actions are worth the same, the first is taken.
ACTIONS = ("stop", "reason", "retrieve")
_BY_BINS = ("retrieve_drop", "reason_drop", "success", "retrieve_cost", "reason_cost")
_DEAREST = 1e12  # in units of quality: more is a mistake, and would eventually overflow float64
_HUGE = 1e300
_MOST_CELLS = 50_000_000  # points of the grid times decisions: about 3 GB
_EXACT = 1e-9  # a level so near to a point of the grid lies on it


@dataclass(frozen=True)
class RetrievalMDP:
    """The model and its grid; `InputError` lists every problem found.

    retrieve_drop, reason_drop: delta_r, delta_p in [0, 1]: how far one action lowers U.
    success: p_s in [0, 1]: how often retrieving does.
    retrieve_cost, reason_cost: c_r, c_p >= 0, in units of quality.
    discount, horizon: as in `FiniteMDP`; without a horizon, the published reading.
    k: > 0: steepness of "exp". Large: quality saturates early.
    grid: points of the grid over U, >= 2, both ends included.
    epsilon: > 0: wanted error of the values.
    iterations: without a horizon: value iteration, as published, with so many sweeps at most; None: the
        fastest exact way.
    """

    retrieve_drop: Parameter = 0.25
    reason_drop: Parameter = 0.08
    success: Parameter = 0.8
    retrieve_cost: Parameter = 0.05
    reason_cost: Parameter = 0.02
    discount: float = 0.98
    horizon: int | None = 10
    quality: QualityName = "linear"
    k: float = 1.0
    grid: int = 1001
    epsilon: float = 1e-6
    iterations: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):  # so that files, traces and reports hold plain Python numbers
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        problems, form = [], "one number, or one for each bin of U"
        for name in _BY_BINS:
            value, top = getattr(self, name), _DEAREST if name.endswith("cost") else 1.0
            each = value if isinstance(value, tuple) else (value,)
            if not each:
                problems.append(f"{name} is empty: give {form}")
            elif not all(_number(v) and 0 <= v <= top for v in each):
                problems.append(f"{name}={value!r} must be in [0, {top:g}]: {form}")
        gamma, horizon, grid, infinite = self.discount, self.horizon, self.grid, self.horizon is None
        sweeps = self.iterations
        if sweeps is not None and not infinite:
            problems.append("iterations has no effect with a horizon, which is solved exactly: leave it out")
        if gamma == 1 and infinite:
            problems.append("discount=1 without a horizon has no finite value: lower it, or set a horizon")
        whole = "must be a whole number >= 1; for none, as published, inf (None in Python)"
        for name, holds, wanted in (
            ("discount", _number(gamma) and 0 < gamma <= 1, "must be in (0, 1]"),
            ("horizon", infinite or (_number(horizon) and horizon == int(horizon or 0) >= 1), whole),
            ("quality", str(self.quality) in get_args(QualityName), "is unknown: choose linear, log or exp"),
            ("k", _number(self.k) and self.k > 0, "must be a finite number > 0"),
            ("grid", _number(grid) and grid == int(grid) >= 2, "must be a whole number of points >= 2"),
            ("epsilon", _number(self.epsilon) and self.epsilon > 0, "must be a finite number > 0"),
            (
                "iterations",
                sweeps is None or (_number(sweeps) and sweeps == int(sweeps) >= 1),
                "must be a whole number >= 1",
            ),
        ):
            if not holds:
                problems.append(f"{name}={getattr(self, name)!r} {wanted}")
        if not problems and grid * (horizon or 1) > _MOST_CELLS:
            cells = f"grid={grid} times horizon={horizon or 1}"
            problems.append(f"{cells} is more than {_MOST_CELLS:,} decisions: lower one of them")
        if problems:
            raise InputError(problems)
        for name in ("horizon", "grid", "iterations"):  # 10.0 is a whole number as well
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int(getattr(self, name)))

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the actions, the cheapest first; the published reading has no stop."""
        return ACTIONS if self.horizon is not None else ACTIONS[1:]

    @property
    def levels(self) -> FloatArray:
        """The grid: shape (grid,), from 0 to 1."""
        return np.linspace(0.0, 1.0, self.grid)

    @property
    def constant(self) -> bool:
        """Whether every parameter is the same for all U; values then fall as U rises."""
        values = [getattr(self, name) for name in _BY_BINS]
        return all(not isinstance(v, tuple) or len(set(v)) == 1 for v in values)

    def at(self, name: str, uncertainty: Any) -> FloatArray:
        """The parameter of that name at U, of the shape of `uncertainty`."""
        u, value = np.asarray(uncertainty, dtype=np.float64), getattr(self, name)
        if not isinstance(value, tuple):
            return np.full(u.shape, float(value))
        bins = np.minimum((u * len(value) + _EXACT).astype(np.int64), len(value) - 1)
        return np.asarray(value, dtype=np.float64)[bins]

    def quality_at(self, uncertainty: Any) -> FloatArray:
        """Q(U): quality of an answer given at uncertainty U, falling from Q(0) <= 1 to Q(1) = 0."""
        u = np.asarray(uncertainty, dtype=np.float64)
        if self.quality == "linear":
            return 1 - u
        return 1 - np.log2(1 + u) if self.quality == "log" else 1 - np.exp(-self.k * (1 - u))

    def lowered(self, action: str, uncertainty: Any) -> FloatArray:
        """U after a successful action."""
        u = np.asarray(uncertainty, dtype=np.float64)
        return np.maximum(0.0, u - self.at(f"{action}_drop", u))

    def to_finite(self, rounding: Rounding = "interpolate") -> FiniteMDP:
        """Return the process on the grid; with a horizon its last state is "answered", which pays nothing.

        A successor between two points is both, weighted ("interpolate"); the lower one ("down"), an upper
        bound of the values; or the higher one ("up"), a lower bound (both for constant parameters).
        """
        import scipy.sparse

        u, n = self.levels, self.grid
        stops = self.horizon is not None
        states, m = n + stops, len(self.actions)
        rewards = np.zeros((states, m))
        allowed = np.ones((states, m), dtype=bool)
        parts = []  # action, state, successor, probability
        own = np.arange(n)
        for a, action in enumerate(self.actions):
            if action == "stop":
                rewards[:n, a] = self.quality_at(u)
                parts.append((a, own, np.full(n, n), np.ones(n)))
                continue
            rewards[:n, a] = -self.at(f"{action}_cost", u) + (0 if stops else self.quality_at(u))
            chance = self.at("success", u) if action == "retrieve" else np.ones(n)
            low, share = self._place(self.lowered(action, u), rounding)
            parts.append((a, own, low, chance * (1 - share)))
            parts.append((a, own, np.minimum(low + 1, n - 1), chance * share))
            parts.append((a, own, own, 1 - chance))
        if stops:  # "answered": one action that stays there
            allowed[n, 1:] = False
            parts.append((0, np.array([n]), np.array([n]), np.ones(1)))
        rows = np.concatenate([state * m + a for a, state, _, _ in parts])
        columns, weights = (np.concatenate([part[k] for part in parts]) for k in (2, 3))
        matrix = scipy.sparse.coo_array((weights, (rows, columns)), shape=(states * m, states))
        terminal = None if not stops else np.append(self.quality_at(u), 0.0)
        rest = self.discount, self.horizon, terminal, allowed
        return FiniteMDP(matrix, rewards, *rest, actions=self.actions)

    def _place(self, u: FloatArray, rounding: Rounding) -> tuple[NDArray[np.int64], FloatArray]:
        """The grid point below each U, and U's fraction of the way to the next one."""
        position = u * (self.grid - 1)
        near = np.rint(position)
        position = np.where(np.abs(position - near) < _EXACT * self.grid, near, position)
        low = np.minimum(position.astype(np.int64), self.grid - 2)
        share = position - low
        return low, np.floor(share) if rounding == "down" else np.ceil(share) if rounding == "up" else share

    def to_dict(self) -> dict[str, Any]:
        """The parameters as plain data, the infinite horizon as "inf"."""
        return asdict(self) | {"horizon": "inf" if self.horizon is None else self.horizon}

    def changed(self, name: str, factor: float) -> RetrievalMDP:
        """The model with one parameter multiplied: of the discount 1 - gamma; shares and drops stay <= 1."""
        value = getattr(self, name)
        if name == "discount":
            return replace(self, discount=1 - min((1 - value) * factor, 1 - _EXACT))
        top = np.inf if name.endswith("cost") or name == "k" else 1.0
        scaled = [min(float(v) * factor, top) for v in (value if isinstance(value, tuple) else [value])]
        changes: dict[str, Any] = {name: tuple(scaled) if isinstance(value, tuple) else scaled[0]}
        return replace(self, **changes)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_HUGE < value < _HUGE


def _plain(value: Any) -> Any:
    """Numpy's scalars and arrays, and lists, as Python's numbers and tuples."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value
