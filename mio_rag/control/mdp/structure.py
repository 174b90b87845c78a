"""The structure of a solved retrieve/reason/stop process.

A single threshold is the exception: where retrieving lowers U as much per unit of cost as reasoning
does, the policy is striped, and which action is taken is decided by how U divides into drops. So every step
reports its segments as they are, actions that are worth the same, actions that are never taken, and what
makes a model degenerate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.control.mdp.plan import TIE, Plan, solve_plan
from mio_rag.formulations.mdp import RetrievalMDP

__all__ = ["Segment", "Sensitivity", "Structure", "sensitivity", "structure", "to_json"]

_PARAMETERS = (
    "retrieve_drop",
    "reason_drop",
    "success",
    "retrieve_cost",
    "reason_cost",
    "discount",
)
_COARSE = 0.01  # an error of the grid worth a warning
_EQUAL = 1e-9


@dataclass(frozen=True)
class Segment:
    """An interval of U, both ends points of the grid, in which the same actions are best.

    Parameters
    ----------
    actions : tuple of str
        The action taken; for ties all actions that are worth as much.
    """

    start: float
    end: float
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Structure:
    """The shape of a policy.

    Parameters
    ----------
    segments : tuple of tuples of Segment
        For each step the action over U; one entry without a horizon.
    ties : tuple of tuples of Segment
        For each step where several actions are worth the same (within 1e-9).
    striped : tuple of bool
        For each step whether an action is taken in more than one interval.
    unused : tuple of str
        Actions that are never taken.
    warnings : tuple of str
    """

    segments: tuple[tuple[Segment, ...], ...]
    ties: tuple[tuple[Segment, ...], ...]
    striped: tuple[bool, ...]
    unused: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Sensitivity:
    """What one parameter does to the policy.

    Parameters
    ----------
    factor : float
        By which it was multiplied; for the discount gamma, by which 1 - gamma was.
    changed : float
        Share of all (step, U) in which another action is taken.
    value_change : float
        Largest change of V before the first decision.
    first : tuple of Segment
        The first decision under the changed parameter.
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
