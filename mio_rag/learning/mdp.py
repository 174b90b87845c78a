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
    solution = solve_mdp(model.to_finite(), tie=TIE)
    if not bounded or not model.constant:
        return Plan(model, solution, None)
    # Rounding successors up and down brackets the continuous values, since these fall as U rises.
    low, high = (solve_mdp(model.rounded(r), tie=TIE) for r in ("up", "down"))
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
_EQUAL = 1e-9
_FORMULAS = {"retrieve": "p_s delta_r / c_r", "reason": "delta_p / c_p"}


@dataclass(frozen=True)
class Segment:
    """An interval of U, both ends points of the grid, in which the same actions are best.

    actions: the action taken; for ties all actions that are worth as much.
    """

    start: float
    end: float
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Structure:
    """The shape of a policy.

    segments: for each step the action over U; one entry without a horizon.
    ties: for each step where several actions are worth the same (within 1e-9).
    striped: for each step whether an action is taken in more than one interval.
    unused: actions that are never taken.
    """

    segments: tuple[tuple[Segment, ...], ...]
    ties: tuple[tuple[Segment, ...], ...]
    striped: tuple[bool, ...]
    unused: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Sensitivity:
    """What one parameter does to the policy.

    factor: by which it was multiplied; for the discount gamma, by which 1 - gamma was.
    changed: share of all (step, U) in which another action is taken.
    value_change: largest change of V before the first decision.
    first: the first decision under the changed parameter.
    """

    parameter: str
    factor: float
    changed: float
    value_change: float
    first: tuple[Segment, ...]


def _segments(plan: Plan, best: NDArray[np.bool_], least: int) -> tuple[Segment, ...]:
    """Intervals over which the same actions are best, at least so many; best: shape (grid, actions)."""
    levels, codes = plan.model.levels, best @ (1 << np.arange(best.shape[1]))
    ends = [*np.flatnonzero(np.diff(codes)), len(codes) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    return tuple(
        Segment(
            round(float(levels[i]), 10),
            round(float(levels[j]), 10),
            tuple(action for action, is_best in zip(plan.model.actions, best[i], strict=True) if is_best),
        )
        for i, j in zip(starts, ends, strict=True)
        if best[i].sum() >= least
    )


def _taken(plan: Plan, step: int) -> tuple[Segment, ...]:
    return _segments(plan, plan.policy(step)[:, None] == np.arange(len(plan.model.actions)), 1)


def structure(plan: Plan) -> Structure:
    """Describe the policy of a plan."""
    segments = tuple(_taken(plan, t) for t in range(plan.steps))
    qs = [plan.q(t) for t in range(plan.steps)]
    ties = tuple(_segments(plan, q >= q.max(axis=1, keepdims=True) - TIE, 2) for q in qs)
    used = {segment.actions[0] for step in segments for segment in step}
    unused = tuple(a for a in plan.model.actions if a not in used)
    striped = tuple(len(step) > len({s.actions for s in step}) for step in segments)
    return Structure(segments, ties, striped, unused, tuple(_warnings(plan, unused, any(striped))))


def _warnings(plan: Plan, unused: Sequence[str], striped: bool) -> list[str]:
    model = plan.model
    found, reasons = _efficiency(model, striped) if model.constant else (list[str](), dict[str, str]())
    for action in unused:
        why = _too_expensive(model, action) or reasons.get(action, "it is worth its cost in no state")
        found.append(f"{action} is never used: {why}")
    if model.horizon is None:
        at_zero = model.actions[int(plan.policy()[0])]
        cost = float(model.at(f"{at_zero}_cost", 0.0))
        found.append(
            f"the published process cannot stop: at U = 0 it goes on to {at_zero} and pays {cost:g} a step"
        )
    if plan.grid_error is None:
        found.append("parameters differ by U, so the error of the grid is not bounded")
    elif plan.grid_error.at_points > _COARSE:
        found.append(
            f"the grid of {model.grid} points may be off by up to {plan.grid_error.at_points:.2g}: choose "
            "one whose step divides both drops, or a finer one"
        )
    return found


def _too_expensive(model: RetrievalMDP, action: str) -> str:
    """Why an action is not used, if one step costs more than it can raise the quality of the answer."""
    if model.horizon is None or action == "stop" or not model.constant:
        return ""
    u = model.levels
    chance = float(model.at("success", 1.0)) if action == "retrieve" else 1.0
    gain = chance * float((model.quality_at(model.lowered(action, u)) - model.quality_at(u)).max())
    cost = float(model.at(f"{action}_cost", 1.0))
    return f"one step costs {cost:.4g} and raises quality by at most {gain:.4g}" if gain <= cost else ""


def _efficiency(model: RetrievalMDP, striped: bool) -> tuple[list[str], dict[str, str]]:
    """Warnings where actions lower U equally per unit of cost, or never; why the worse one is unused."""
    drop = {action: float(model.at(f"{action}_drop", 1.0)) for action in _FORMULAS}
    drop["retrieve"] *= float(model.at("success", 1.0))
    cost = {action: float(model.at(f"{action}_cost", 1.0)) for action in drop}
    found = [f"{action} never lowers U in this model" for action in drop if drop[action] == 0]
    if 0 in cost.values():
        return found, {}
    rate = {action: drop[action] / cost[action] for action in drop}
    if abs(rate["retrieve"] - rate["reason"]) <= _EQUAL * max(rate.values()):
        same = " = ".join([_FORMULAS["retrieve"], f"{rate['retrieve']:.4g}", _FORMULAS["reason"]])
        text = f"exact tie: {same}; both lower U equally per unit of cost"
        more = ", so the best action depends on how U divides into drops" if striped else ""
        return [*found, text + more], {}
    worse, better = sorted(rate, key=lambda action: rate[action])
    terms = [f"{_FORMULAS[action]} = {rate[action]:.4g}" for action in (worse, better)]
    return found, {worse: " against ".join(terms)}


def sensitivity(plan: Plan, factors: Sequence[float] = (0.9, 1.1)) -> tuple[Sensitivity, ...]:
    """Change one parameter at a time by each factor, and solve again."""
    rows = []
    for name in [*_PARAMETERS, *(["k"] if plan.model.quality == "exp" else [])]:
        for factor in factors:
            other = solve_plan(plan.model.changed(name, factor), bounded=False)
            moved = np.mean([np.mean(plan.policy(t) != other.policy(t)) for t in range(plan.steps)])
            change = float(np.abs(plan.values() - other.values()).max())
            rows.append(Sensitivity(name, factor, float(moved), change, _taken(other, 0)))
    return tuple(rows)


def to_json(
    plan: Plan, shape: Structure, changes: Sequence[Sensitivity] = (), seconds: float | None = None
) -> dict[str, Any]:
    """Return plain data; ``segments`` is for each step a list of {from, to, action}."""
    solution = plan.solution

    def plain(segments: Sequence[Segment]) -> list[dict[str, Any]]:
        return [{"from": s.start, "to": s.end, "action": s.actions[0]} for s in segments]

    return {
        "model": plan.model.to_dict(),
        "reading": "as published" if plan.model.horizon is None else "with stop",
        "segments": list(map(plain, shape.segments)),
        "striped": list(shape.striped),
        "ties": [
            [{"from": s.start, "to": s.end, "actions": list(s.actions)} for s in step] for step in shape.ties
        ],
        "unused": list(shape.unused),
        "warnings": list(shape.warnings),
        "sensitivity": [
            {name: value for name, value in vars(row).items() if name != "first"}
            | {"segments": plain(row.first)}
            for row in changes
        ],
        "method": solution.method,
        "error": solution.error,
        "policy_loss": solution.policy_loss,
        "sweeps": solution.sweeps,
        "grid_error": None if plan.grid_error is None else dataclasses.asdict(plan.grid_error),
        "seconds": solution.wall_seconds if seconds is None else seconds,
    }
