"""Retrieve, reason or stop: a Markov decision process over the uncertainty level U.

U lies in [0, 1]: at 1 nothing is known, 0 is certain. Retrieving costs c_r and lowers U by delta_r with
probability p_s, otherwise U stays; reasoning costs c_p and lowers U by delta_p; U never falls below 0. An
answer given at U has the quality Q(U):

    linear  1 - U        log  1 - log2(1 + U)        exp  1 - exp(-k (1 - U))

Two readings:

- *with stop* (a horizon of T decisions, the default): actions cost on the way, Q(U) is paid once, at the stop
  or after the last decision.
- *as published* (no horizon): Q(U) - C(a) is paid at every step for ever. There is no stop action, so it
  acts, and pays, even at U = 0.

U is continuous; values between the points of the grid are interpolated linearly. Since values fall as U rises
(for constant parameters), rounding every successor to the next lower or next higher point of the grid gives
an upper and a lower bound of the continuous process: `rounded` builds these two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import scipy  # loads scipy.sparse, a tenth of a second, where it is first used
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import FiniteMDP

__all__ = ["ACTIONS", "Parameter", "QualityName", "RetrievalMDP", "Rounding", "quality_of"]

FloatArray = NDArray[np.float64]

QualityName = Literal["linear", "log", "exp"]
Rounding = Literal["interpolate", "down", "up"]
#: One value for all U, or one for each of as many equal bins of [0, 1], from U = 0 upwards.
Parameter = float | tuple[float, ...]

#: From the cheapest: where actions are worth the same, the first is taken.
ACTIONS = ("stop", "reason", "retrieve")

_DEAREST = 1e12  # in units of quality: more is a mistake, and would eventually overflow float64
_HUGE = 1e300
_MOST_CELLS = 50_000_000  # points of the grid times decisions: about 3 GB
_EXACT = 1e-9  # a level so near to a point of the grid lies on it


def quality_of(uncertainty: Any, name: QualityName, k: float = 1.0) -> FloatArray:
    """Q(U): quality of an answer given at uncertainty U, falling from Q(0) <= 1 to Q(1) = 0."""
    u = np.asarray(uncertainty, dtype=np.float64)
    if name == "linear":
        return 1 - u
    return 1 - np.log2(1 + u) if name == "log" else 1 - np.exp(-k * (1 - u))


@dataclass(frozen=True)
class RetrievalMDP:
    """The model and its grid.

    Parameters
    ----------
    retrieve_drop, reason_drop : float or tuple of float
        delta_r, delta_p in [0, 1]: how far one action lowers U.
    success : float or tuple of float
        p_s in [0, 1]: how often retrieving does.
    retrieve_cost, reason_cost : float or tuple of float
        c_r, c_p >= 0, in units of quality.
    discount : float
        gamma in (0, 1]; below 1 without a horizon.
    horizon : int or None
        Decisions until the answer is due; None: the published reading.
    quality : {"linear", "log", "exp"}
    k : float
        > 0: steepness of "exp". Large: quality saturates early.
    grid : int
        Points of the grid over U, >= 2, both ends included.

    Raises
    ------
    InputError
        With every problem found.
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

    def __post_init__(self) -> None:
        for field in fields(self):  # so that files, traces and reports hold plain Python numbers
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        problems = []
        for name in ("retrieve_drop", "reason_drop", "success", "retrieve_cost", "reason_cost"):
            value = getattr(self, name)
            top = _DEAREST if name.endswith("cost") else 1.0
            if not all(
                _number(v) and 0 <= v <= top for v in (value if isinstance(value, tuple) else [value])
            ):
                holds = f"in [0, {_DEAREST:g}]" if name.endswith("cost") else "in [0, 1]"
                problems.append(f"{name}={value!r} must be {holds}: one number, or one for each bin of U")
            if value == ():
                problems.append(f"{name} is empty: give one number, or one for each bin of U")
        if not (_number(self.discount) and 0 < self.discount <= 1):
            problems.append(f"discount={self.discount!r} must be in (0, 1]")
        elif self.discount == 1 and self.horizon is None:
            problems.append("discount=1 without a horizon has no finite value: lower it, or set a horizon")
        if self.horizon is not None and not (
            _number(self.horizon) and self.horizon == int(self.horizon) >= 1
        ):
            problems.append(
                f"horizon={self.horizon!r} must be a whole number >= 1; for none, as published, inf (None in "
                "Python)"
            )
        if not (isinstance(self.quality, str) and self.quality in get_args(QualityName)):
            problems.append(f"quality={self.quality!r} is unknown: choose linear, log or exp")
        if not (_number(self.k) and self.k > 0):
            problems.append(f"k={self.k!r} must be a finite number > 0")
        if not (_number(self.grid) and self.grid == int(self.grid) >= 2):
            problems.append(f"grid={self.grid!r} must be a whole number of points >= 2")
        if not problems and self.grid * (self.horizon or 1) > _MOST_CELLS:
            problems.append(
                f"grid={self.grid} times horizon={self.horizon or 1} is more than {_MOST_CELLS:,} decisions: "
                "lower one of them"
            )
        if problems:
            raise InputError(problems)
        for name in ("horizon", "grid"):  # 10.0 is a whole number as well
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
        names = ("retrieve_drop", "reason_drop", "success", "retrieve_cost", "reason_cost")
        return all(not isinstance(v, tuple) or len(set(v)) == 1 for v in map(self.__getattribute__, names))

    def at(self, name: str, uncertainty: Any) -> FloatArray:
        """The parameter of that name at U, of the shape of `uncertainty`."""
        u, value = np.asarray(uncertainty, dtype=np.float64), getattr(self, name)
        if not isinstance(value, tuple):
            return np.full(u.shape, float(value))
        bins = np.minimum((u * len(value) + _EXACT).astype(np.int64), len(value) - 1)
        return np.asarray(value, dtype=np.float64)[bins]

    def quality_at(self, uncertainty: Any) -> FloatArray:
        """Q(U)."""
        return quality_of(uncertainty, self.quality, self.k)

    def lowered(self, action: str, uncertainty: Any) -> FloatArray:
        """U after a successful action."""
        u = np.asarray(uncertainty, dtype=np.float64)
        return np.maximum(0.0, u - self.at(f"{action}_drop", u))

    def rounded(self, rounding: Rounding) -> FiniteMDP:
        """The process on the grid; with a horizon its last state is "answered", in which nothing more is
        paid.

        Parameters
        ----------
        rounding : {"interpolate", "down", "up"}
            Where a successor falls between two points: both, weighted; the lower one, which gives an upper
            bound of the values; or the higher one, which gives a lower bound (both for constant parameters).
        """
        u, n = self.levels, self.grid
        stops = self.horizon is not None
        states, m = n + stops, len(self.actions)
        rewards = np.zeros((states, m))
        allowed = np.ones((states, m), dtype=bool)
        rows, columns, weights = [], [], []
        own = np.arange(n)
        for a, action in enumerate(self.actions):
            if action == "stop":
                rewards[:n, a] = self.quality_at(u)
                parts = [(np.full(n, n), np.ones(n))]
            else:
                rewards[:n, a] = -self.at(f"{action}_cost", u) + (0 if stops else self.quality_at(u))
                chance = self.at("success", u) if action == "retrieve" else np.ones(n)
                low, share = self._place(self.lowered(action, u), rounding)
                parts = [
                    (low, chance * (1 - share)),
                    (np.minimum(low + 1, n - 1), chance * share),
                    (own, 1 - chance),
                ]
            for column, weight in parts:
                rows.append(own * m + a)
                columns.append(column)
                weights.append(weight)
        if stops:  # "answered": one action that stays there
            allowed[n, 1:] = False
            rows.append(np.array([n * m]))
            columns.append(np.array([n]))
            weights.append(np.ones(1))
        matrix = scipy.sparse.coo_array(
            (np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))),
            shape=(states * m, states),
        )
        terminal = None if not stops else np.append(self.quality_at(u), 0.0)
        return FiniteMDP(
            matrix, rewards, self.discount, self.horizon, terminal, allowed, actions=self.actions
        )

    def to_finite(self) -> FiniteMDP:
        """The process on the grid, interpolated."""
        return self.rounded("interpolate")

    def _place(self, u: FloatArray, rounding: Rounding) -> tuple[NDArray[np.int64], FloatArray]:
        """The grid point below each U, and U's fraction of the way to the next one."""
        position = u * (self.grid - 1)
        near = np.rint(position)
        position = np.where(np.abs(position - near) < _EXACT * self.grid, near, position)
        low = np.minimum(position.astype(np.int64), self.grid - 2)
        share = position - low
        if rounding == "down":
            share = np.floor(share)
        elif rounding == "up":
            share = np.ceil(share)
        return low, share

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
