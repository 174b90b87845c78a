"""Solve the retrieve, reason or stop process, and describe its policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.settings import toml_text
from mio_rag.solvers.mdp import MDPSolution, solve_mdp
from mio_rag.storage import read_toml

# -- solution -----------------------------------------------------------------------------------------------

FloatArray = NDArray[np.float64]

#: How much worse than the best an action may be and still count as worth the same.
TIE = 1e-9

_FIELDS = tuple(field.name for field in dataclasses.fields(RetrievalMDP))


@dataclass(frozen=True)
class GridError:
    """How far the values can be from those of the process over continuous U.

    at_points: at the points of the grid; 0 where every drop is a multiple of the grid's step.
    anywhere: between them as well, for the value of the next higher point.
    """

    at_points: float
    anywhere: float


@dataclass(frozen=True, eq=False)
class Plan:
    """A model with its solution.

    grid_error: None where parameters differ by U: values need not fall as U rises then, which the bound rests
        on.
    """

    model: RetrievalMDP
    solution: MDPSolution
    grid_error: GridError | None

    @property
    def steps(self) -> int:
        """Number of different decision rules: the horizon, or 1."""
        return self.model.horizon or 1

    def _at(self, array: NDArray[Any], step: int) -> NDArray[Any]:
        return (array if self.model.horizon is None else array[step])[: self.model.grid]

    def values(self, step: int = 0) -> FloatArray:
        """Return V on the grid before decision `step`: shape (grid,)."""
        return self._at(self.solution.values, step)

    def q(self, step: int = 0) -> FloatArray:
        """Return Q on the grid before decision `step`: shape (grid, actions)."""
        return self._at(self.solution.q, step)

    def policy(self, step: int = 0) -> NDArray[np.int32]:
        """Return places in `model.actions` on the grid: shape (grid,)."""
        return self._at(self.solution.policy, step)

    def q_at(self, step: int, uncertainty: float) -> dict[str, float]:
        """Return Q of every action at any U in [0, 1], interpolated; the last step of a horizon rules on."""
        q, levels = self.q(min(step, self.steps - 1)), self.model.levels
        return {
            action: float(np.interp(uncertainty, levels, q[:, a]))
            for a, action in enumerate(self.model.actions)
        }


def solve_plan(model: RetrievalMDP, *, bounded: bool = True) -> Plan:
    """Solve a model.

    bounded: whether to bound the error of the grid as well, which takes two more solutions.
    """
    published, most = model.iterations is not None, model.iterations or 100_000
    solution = solve_mdp(
        model.to_finite(), "value_iteration" if published else "auto",
        epsilon=model.epsilon, max_sweeps=most, tie=TIE,
    )  # fmt: skip
    if not bounded or not model.constant:
        return Plan(model, solution, None)
    # Rounding successors up and down brackets the continuous values, since these fall as U rises.
    low, high = (solve_mdp(model.to_finite(r), tie=TIE) for r in ("up", "down"))
    below, above = (s.values[..., : model.grid] for s in (low, high))
    slack = low.error + high.error
    at_points, between = (above - below).max(), (above[..., :-1] - below[..., 1:]).max()
    return Plan(model, solution, GridError(float(at_points + slack), float(between + slack)))


def model_of(config: Path | None, given: Mapping[str, Any]) -> RetrievalMDP:
    """Return the model of a TOML file, with what was given on the command line in its place.

    Raises `InputError` if the file cannot be read, for unknown names, or values out of range.
    """
    settings = {} if config is None else read_model(config)
    return model_from_mapping({**settings, **given}, f"'{config}'" if config else "the command line")


def model_from_mapping(given: Mapping[str, Any], where: str) -> RetrievalMDP:
    """Return a model from plain data; ``horizon = "inf"`` means none."""
    unknown = [name for name in given if name not in _FIELDS]
    if unknown:
        raise InputError(f"{where} sets {', '.join(unknown)}: known are {', '.join(_FIELDS)}")
    settings: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    if settings.get("horizon") == "inf":
        settings["horizon"] = None
    return RetrievalMDP(**settings)


def model_to_toml(model: RetrievalMDP) -> str:
    """Return the model as TOML that `read_model` reads back."""
    return toml_text({"mdp": model.to_dict()})


def read_model(path: Path) -> dict[str, Any]:
    """Return the settings of a model in a TOML file, at its top or in a table [mdp]."""
    data = read_toml(path)
    table = data.get("mdp", data)
    if not isinstance(table, dict):
        raise InputError(f"'{path}': mdp must be a table, for instance [mdp] and below it discount = 0.98")
    return table


# -- structure ----------------------------------------------------------------------------------------------

_PARAMETERS = ("retrieve_drop", "reason_drop", "success", "retrieve_cost", "reason_cost", "discount")
_COARSE = 0.01  # an error of the grid worth a warning
_FORMULAS = {"retrieve": "p_s delta_r / c_r", "reason": "delta_p / c_p"}


def _segments(plan: Plan, best: NDArray[np.bool_], least: int) -> list[dict[str, Any]]:
    """Intervals of U over which the same actions are best, at least so many; best: shape (grid, actions)."""
    levels, codes = np.round(plan.model.levels, 10).tolist(), best @ (1 << np.arange(best.shape[1]))
    ends = [*np.flatnonzero(np.diff(codes)), len(codes) - 1]
    return [
        {"from": levels[i], "to": levels[j], "actions": np.array(plan.model.actions)[best[i]].tolist()}
        for i, j in zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True)
        if best[i].sum() >= least
    ]


def _taken(plan: Plan, step: int) -> list[dict[str, Any]]:
    found = _segments(plan, plan.policy(step)[:, None] == np.arange(len(plan.model.actions)), 1)
    return [{"from": one["from"], "to": one["to"], "action": one["actions"][0]} for one in found]


def structure(plan: Plan) -> dict[str, Any]:
    """Describe the policy of a plan, as plain data.

    segments: for each step {from, to, action} over U; one entry without a horizon.
    ties: for each step {from, to, actions} where several actions are worth the same (within 1e-9).
    striped: for each step whether an action is taken in more than one interval.
    unused: actions that are never taken.
    warnings: what is odd about it, in sentences.
    """
    segments, qs = [_taken(plan, t) for t in range(plan.steps)], [plan.q(t) for t in range(plan.steps)]
    used = {segment["action"] for step in segments for segment in step}
    unused = [action for action in plan.model.actions if action not in used]
    striped = [len(step) > len({s["action"] for s in step}) for step in segments]
    return {
        "segments": segments,
        "striped": striped,
        "ties": [_segments(plan, q >= q.max(axis=1, keepdims=True) - TIE, 2) for q in qs],
        "unused": unused,
        "warnings": _warnings(plan, unused, any(striped)),
    }


def _warnings(plan: Plan, unused: Sequence[str], striped: bool) -> list[str]:
    model, found, reasons = plan.model, list[str](), dict[str, str]()
    if model.constant:
        success = {"retrieve": float(model.at("success", 1.0)), "reason": 1.0}
        drop = {action: chance * float(model.at(f"{action}_drop", 1.0)) for action, chance in success.items()}
        cost = {action: float(model.at(f"{action}_cost", 1.0)) for action in success}
        found = [f"{action} never lowers U in this model" for action in drop if drop[action] == 0]
        if all(cost.values()):
            rate = {action: drop[action] / cost[action] for action in drop}
            worse, better = sorted(rate, key=lambda action: rate[action])
            if rate[better] - rate[worse] <= TIE * rate[better]:
                more = ", so the best action depends on how U divides into drops" if striped else ""
                same = f"{_FORMULAS['retrieve']} = {rate['retrieve']:.4g} = {_FORMULAS['reason']}"
                found.append(f"exact tie: {same}; both lower U equally per unit of cost{more}")
            else:
                terms = [f"{_FORMULAS[action]} = {rate[action]:.4g}" for action in (worse, better)]
                reasons[worse] = " against ".join(terms)
        for action in cost if model.horizon is not None else ():
            lower, u = model.lowered(action, model.levels), model.levels
            gain = success[action] * float((model.quality_at(lower) - model.quality_at(u)).max())
            if gain <= cost[action]:
                reasons[action] = (
                    f"one step costs {cost[action]:.4g} and raises quality by at most {gain:.4g}"
                )
    for action in unused:
        found.append(f"{action} is never used: {reasons.get(action, 'it is worth its cost in no state')}")
    if model.horizon is None:
        at_zero = model.actions[int(plan.policy()[0])]
        paid = float(model.at(f"{at_zero}_cost", 0.0))
        found.append(
            f"the published process cannot stop: at U = 0 it goes on to {at_zero} and pays {paid:g} a step"
        )
    if plan.grid_error is None:
        found.append("parameters differ by U, so the error of the grid is not bounded")
    elif plan.grid_error.at_points > _COARSE:
        found.append(
            f"the grid of {model.grid} points may be off by up to {plan.grid_error.at_points:.2g}: choose "
            "one whose step divides both drops, or a finer one"
        )
    return found


def sensitivity(plan: Plan, factors: Sequence[float] = (0.9, 1.1)) -> list[dict[str, Any]]:
    """Change one parameter at a time by each factor (of the discount, 1 - gamma), and solve again.

    changed: share of all (step, U) in which another action is taken.
    value_change: largest change of V before the first decision.
    segments: the first decision under the changed parameter.
    """
    rows = []
    for name in [*_PARAMETERS, *(["k"] if plan.model.quality == "exp" else [])]:
        for factor in factors:
            other = solve_plan(plan.model.changed(name, factor), bounded=False)
            moved = np.mean([np.mean(plan.policy(t) != other.policy(t)) for t in range(plan.steps)])
            change = float(np.abs(plan.values() - other.values()).max())
            row = {"parameter": name, "factor": factor, "changed": float(moved), "value_change": change}
            rows.append({**row, "segments": _taken(other, 0)})
    return rows


def to_json(
    plan: Plan,
    shape: Mapping[str, Any],
    changes: Sequence[Mapping[str, Any]] = (),
    seconds: float | None = None,
) -> dict[str, Any]:
    """Return a plan with its `structure` and `sensitivity`, as plain data."""
    solution = plan.solution
    return {
        "model": plan.model.to_dict(),
        "reading": "as published" if plan.model.horizon is None else "with stop",
        **shape,
        "sensitivity": list(changes),
        **{name: getattr(solution, name) for name in ("method", "error", "policy_loss", "sweeps")},
        "grid_error": None if plan.grid_error is None else dataclasses.asdict(plan.grid_error),
        "seconds": solution.wall_seconds if seconds is None else seconds,
    }
