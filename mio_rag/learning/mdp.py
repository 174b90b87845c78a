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

    bounded: whether to bound the error of the grid as well, which takes two more solutions.
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

    Raises `InputError` for unknown names or values out of range.
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

    Raises `InputError` as `read_model` and `model_from_mapping`.
    """
    settings = {} if config is None else read_model(config)
    return model_from_mapping({**settings, **given}, f"'{config}'" if config else "the command line")


def model_to_toml(model: RetrievalMDP) -> str:
    """The model as TOML that `read_model` reads back."""
    return toml_text({"mdp": model.to_dict()})


def read_model(path: Path) -> dict[str, Any]:
    """The settings of a model in a TOML file, at its top or in a table [mdp].

    Raises `InputError` if the file cannot be read.
    """
    data = read_toml(path)
    table = data.get("mdp", data)
    if not isinstance(table, dict):
        raise InputError(f"'{path}': mdp must be a table, for instance [mdp] and below it discount = 0.98")
    return table


# -- structure ----------------------------------------------------------------------------------------------

_PARAMETERS = ("retrieve_drop", "reason_drop", "success", "retrieve_cost", "reason_cost", "discount")
_COARSE = 0.01  # an error of the grid worth a warning
_EQUAL = 1e-9


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


def _segments(levels: NDArray[np.float64], codes: NDArray[Any], names: dict[int, Any]) -> tuple[Segment, ...]:
    """Runs of equal codes, as intervals; codes without a name are left out."""
    ends = [*np.flatnonzero(np.diff(codes)), len(codes) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    return tuple(
        Segment(round(float(levels[i]), 10), round(float(levels[j]), 10), names[int(codes[i])])
        for i, j in zip(starts, ends, strict=True)
        if int(codes[i]) in names
    )


def _step_segments(plan: Plan, step: int) -> tuple[Segment, ...]:
    names = {a: (action,) for a, action in enumerate(plan.model.actions)}
    return _segments(plan.model.levels, plan.policy(step), names)


def structure(plan: Plan) -> Structure:
    """Describe the policy of a plan."""
    model, actions = plan.model, plan.model.actions
    segments = tuple(_step_segments(plan, t) for t in range(plan.steps))
    ties = []
    for t in range(plan.steps):
        q = plan.q(t)
        equal = q >= q.max(axis=1, keepdims=True) - TIE
        codes = equal @ (1 << np.arange(len(actions)))
        names = {
            code: tuple(a for k, a in enumerate(actions) if code >> k & 1)
            for code in range(1 << len(actions))
            if code.bit_count() > 1
        }
        ties.append(_segments(model.levels, codes, names))
    used = {segment.actions[0] for step in segments for segment in step}
    unused = tuple(a for a in actions if a not in used)
    striped = tuple(len(step) > len({s.actions for s in step}) for step in segments)
    warnings = _warnings(plan, unused, striped)
    return Structure(segments, tuple(ties), striped, unused, tuple(warnings))


def _warnings(plan: Plan, unused: Sequence[str], striped: Sequence[bool]) -> list[str]:
    model = plan.model
    found: list[str] = []
    reasons: dict[str, str] = {}
    if model.constant:
        reasons = _efficiency(model, found, any(striped))
    for action in unused:
        why = _too_dear(model, action) or reasons.get(action, "it is worth its cost in no state")
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


def _too_dear(model: RetrievalMDP, action: str) -> str:
    """Says so if one step of an action costs more than it can raise the quality of the answer."""
    if model.horizon is None or action == "stop" or not model.constant:
        return ""
    u = model.levels
    chance = float(model.at("success", 1.0)) if action == "retrieve" else 1.0
    gain = chance * float((model.quality_at(model.lowered(action, u)) - model.quality_at(u)).max())
    cost = float(model.at(f"{action}_cost", 1.0))
    return f"one step costs {cost:.4g} and raises quality by at most {gain:.4g}" if gain <= cost else ""


def _efficiency(model: RetrievalMDP, found: list[str], striped: bool) -> dict[str, str]:
    """Which of the two actions lowers U more per unit of cost; says so where they are equal or useless."""
    u = np.ones(1)
    drop = {
        "retrieve": float(model.at("success", u)[0] * model.at("retrieve_drop", u)[0]),
        "reason": float(model.at("reason_drop", u)[0]),
    }
    cost = {action: float(model.at(f"{action}_cost", u)[0]) for action in drop}
    for action in drop:
        if drop[action] == 0:
            found.append(f"{action} never lowers U in this model")
    if 0 in cost.values():
        return {}
    rate = {action: drop[action] / cost[action] for action in drop}
    formula = {"retrieve": "p_s delta_r / c_r", "reason": "delta_p / c_p"}
    if abs(rate["retrieve"] - rate["reason"]) <= _EQUAL * max(rate.values(), default=1.0):
        text = (
            f"exact tie: {formula['retrieve']} = {rate['retrieve']:.4g} = {formula['reason']}; both lower U "
            "equally per unit of cost"
        )
        found.append(text + (", so the best action depends on how U divides into drops" if striped else ""))
        return {}
    worse, better = sorted(rate, key=lambda action: rate[action])
    return {worse: f"{formula[worse]} = {rate[worse]:.4g} against {formula[better]} = {rate[better]:.4g}"}


def sensitivity(plan: Plan, factors: Sequence[float] = (0.9, 1.1)) -> tuple[Sensitivity, ...]:
    """Change one parameter at a time by each factor, and solve again."""
    names = [*_PARAMETERS, *(["k"] if plan.model.quality == "exp" else [])]
    rows = []
    for name in names:
        for factor in factors:
            other = solve_plan(plan.model.changed(name, factor), bounded=False)
            steps = range(plan.steps)
            moved = np.mean([np.mean(plan.policy(t) != other.policy(t)) for t in steps])
            change = float(np.abs(plan.values() - other.values()).max())
            rows.append(Sensitivity(name, factor, float(moved), change, _step_segments(other, 0)))
    return tuple(rows)


def to_json(
    plan: Plan, shape: Structure, changes: Sequence[Sensitivity] = (), seconds: float | None = None
) -> dict[str, Any]:
    """Plain data: the model, ``segments`` (for each step a list of {from, to, action}), and the rest."""
    solution = plan.solution
    return {
        "model": plan.model.to_dict(),
        "reading": "as published" if plan.model.horizon is None else "with stop",
        "segments": [[_plain(s) for s in step] for step in shape.segments],
        "striped": list(shape.striped),
        "ties": [
            [{"from": s.start, "to": s.end, "actions": list(s.actions)} for s in step] for step in shape.ties
        ],
        "unused": list(shape.unused),
        "warnings": list(shape.warnings),
        "sensitivity": [
            {
                "parameter": row.parameter,
                "factor": row.factor,
                "changed": row.changed,
                "value_change": row.value_change,
                "segments": [_plain(s) for s in row.first],
            }
            for row in changes
        ],
        "method": solution.method,
        "error": solution.error,
        "policy_loss": solution.policy_loss,
        "sweeps": solution.sweeps,
        "grid_error": None
        if plan.grid_error is None
        else {"at_points": plan.grid_error.at_points, "anywhere": plan.grid_error.anywhere},
        "seconds": solution.wall_seconds if seconds is None else seconds,
    }


def _plain(segment: Segment) -> dict[str, Any]:
    return {"from": segment.start, "to": segment.end, "action": segment.actions[0]}
