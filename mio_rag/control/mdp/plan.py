"""The retrieve, reason or stop process, solved: what to do at any step and any uncertainty."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.reading import read_toml
from mio_rag.settings import toml_text
from mio_rag.solvers.mdp import MDPSolution, solve_mdp

__all__ = [
    "TIE",
    "GridError",
    "Plan",
    "model_from_mapping",
    "model_of",
    "model_to_toml",
    "read_model",
    "solve_plan",
]

FloatArray = NDArray[np.float64]

#: How much worse than the best an action may be and still count as worth the same.
TIE = 1e-9

_FIELDS = tuple(field.name for field in dataclasses.fields(RetrievalMDP))


@dataclass(frozen=True)
class GridError:
    """How far the values can be from those of the process over continuous U.

    Parameters
    ----------
    at_points : float
        At the points of the grid; 0 where every drop is a multiple of the grid's step.
    anywhere : float
        Between them as well, for the value of the next higher point.
    """

    at_points: float
    anywhere: float


@dataclass(frozen=True, eq=False)
class Plan:
    """A model with its solution.

    Parameters
    ----------
    grid_error : GridError or None
        None where parameters differ by U: values need not fall as U rises then, which the bound rests on.
    """

    model: RetrievalMDP
    solution: MDPSolution
    grid_error: GridError | None

    @property
    def steps(self) -> int:
        """Number of different decision rules: the horizon, or 1."""
        return self.model.horizon or 1

    def values(self, step: int = 0) -> FloatArray:
        """V on the grid before decision `step`: shape (grid,)."""
        values = self.solution.values if self.model.horizon is None else self.solution.values[step]
        return values[: self.model.grid]

    def q(self, step: int = 0) -> FloatArray:
        """Q on the grid before decision `step`: shape (grid, actions)."""
        q = self.solution.q if self.model.horizon is None else self.solution.q[step]
        return q[: self.model.grid]

    def policy(self, step: int = 0) -> NDArray[np.int32]:
        """Places in `model.actions` on the grid: shape (grid,)."""
        policy = self.solution.policy if self.model.horizon is None else self.solution.policy[step]
        return policy[: self.model.grid]

    def q_at(self, step: int, uncertainty: float) -> dict[str, float]:
        """Q of every action at any U in [0, 1], interpolated; with a horizon its last step rules on."""
        if not 0 <= uncertainty <= 1:
            raise InputError(f"uncertainty={uncertainty!r} must be in [0, 1]")
        q = self.q(min(step, self.steps - 1))
        levels = self.model.levels
        return {
            action: float(np.interp(uncertainty, levels, q[:, a]))
            for a, action in enumerate(self.model.actions)
        }

    def action_at(self, step: int, uncertainty: float) -> str:
        """The action to take: the best, the cheapest of equal ones."""
        q = self.q_at(step, uncertainty)
        best = max(q.values())
        return next(action for action, worth in q.items() if worth >= best - TIE)


def solve_plan(model: RetrievalMDP, *, bounded: bool = True) -> Plan:
    """Solve a model.

    Parameters
    ----------
    bounded : bool
        Whether to bound the error of the grid as well, which takes two more solutions.
    """
    solution = solve_mdp(model.to_finite(), tie=TIE)
    return Plan(model, solution, _grid_error(model) if bounded else None)


def _grid_error(model: RetrievalMDP) -> GridError | None:
    """Rounding successors up and down brackets the continuous values, since these fall as U rises."""
    if not model.constant:
        return None
    low, high = (solve_mdp(model.rounded(r), tie=TIE) for r in ("up", "down"))
    below, above = (s.values[..., : model.grid] for s in (low, high))
    slack = low.error + high.error
    between = above[..., :-1] - below[..., 1:]
    return GridError(float((above - below).max() + slack), float(between.max() + slack))


def model_from_mapping(given: dict[str, Any], where: str) -> RetrievalMDP:
    """A model from plain data; what is left out has its default, and ``horizon = "inf"`` means none.

    Raises
    ------
    InputError
        For unknown names or values out of range.
    """
    unknown = [name for name in given if name not in _FIELDS]
    if unknown:
        raise InputError(f"{where} sets {', '.join(unknown)}: known are {', '.join(_FIELDS)}")
    settings: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    if settings.get("horizon") == "inf":
        settings["horizon"] = None
    return RetrievalMDP(**settings)


def model_of(config: Path | None, given: Mapping[str, Any]) -> RetrievalMDP:
    """The model of a TOML file, with what was given on the command line in its place.

    Raises
    ------
    InputError
        As `read_model` and `model_from_mapping`.
    """
    settings = {} if config is None else read_model(config)
    return model_from_mapping({**settings, **given}, f"'{config}'" if config else "the command line")


def model_to_toml(model: RetrievalMDP) -> str:
    """The model as TOML that `read_model` reads back."""
    return toml_text({"mdp": model.to_dict()})


def read_model(path: Path) -> dict[str, Any]:
    """The settings of a model in a TOML file, at its top or in a table [mdp].

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    data = read_toml(path)
    table = data.get("mdp", data)
    if not isinstance(table, dict):
        raise InputError(f"'{path}': mdp must be a table, for instance [mdp] and below it discount = 0.98")
    return table
