"""The trace of an agent that follows the decision process, or of a rival: with U and Q at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mio_rag.control.trace import Step, Trace, is_between
from mio_rag.formulations.mdp import ACTIONS

__all__ = ["ProcessStep", "ProcessTrace"]


@dataclass(frozen=True, kw_only=True)
class ProcessStep(Step):
    """One action.

    Parameters
    ----------
    uncertainty, next_uncertainty : float
        U before and after.
    q_values : dict or None
        Worth of every action, where the policy knows it.
    closed : tuple of str
        What the policy chose first and could not change anything: retrieve, where the query that it was to
        search for had been searched for.
    calls : tuple of Call
        What it took, measuring U and asking for such a query included.
    """

    uncertainty: float
    q_values: dict[str, float] | None
    next_uncertainty: float
    closed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProcessTrace(Trace):
    """All of one question.

    Parameters
    ----------
    gauge : str
        How U was known.
    uncertainty : float
        U in the end.
    last_q_values : dict or None
        Worth of every action then.
    last_closed : tuple of str
        As `ProcessStep.closed`, before the end.
    settings : dict
        model, stop_at, seed, closed_book, limits: what decisions depend on.
    opening : tuple of Call
        Measuring U before the first action.
    """

    kind: ClassVar[str] = "mdp"
    step_type: ClassVar[type[Step]] = ProcessStep

    steps: tuple[ProcessStep, ...]
    gauge: str
    uncertainty: float
    last_q_values: dict[str, float] | None
    last_closed: tuple[str, ...] = ()

    def columns(self) -> dict[str, Any]:
        """With U in the end."""
        return super().columns() | {"uncertainty": self.uncertainty}

    @classmethod
    def _read(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "last_closed": tuple(given.get("last_closed", ()))}

    @classmethod
    def _read_step(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "closed": tuple(given.get("closed", ()))}

    def problems(self) -> list[str]:
        """What no agent writes."""
        problems = []
        levels: list[tuple[str, Any]] = [("uncertainty", self.uncertainty)]
        for k, step in enumerate(self.steps):
            levels += [(f"steps[{k}].uncertainty", step.uncertainty)]
            levels += [(f"steps[{k}].next_uncertainty", step.next_uncertainty)]
            if step.action not in ACTIONS[1:]:
                problems.append(f"steps[{k}].action is {step.action!r}, not reason or retrieve")
        closed = [("last_closed", self.last_closed)]
        closed += [(f"steps[{k}].closed", step.closed) for k, step in enumerate(self.steps)]
        problems += [
            f"{name} is {actions!r}, not empty or retrieve"
            for name, actions in closed
            if actions not in ((), ("retrieve",))
        ]
        problems += [f"{name} is {u!r}, not in [0, 1]" for name, u in levels if not is_between(u, 0, 1)]
        problems += super().problems()
        settings: Any = self.settings
        if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
            return [*problems, "settings hold no model"]
        if not (isinstance(settings.get("seed"), int) and settings["seed"] >= 0):
            problems.append(f"settings.seed is {settings.get('seed')!r}, not a whole number >= 0")
        if not is_between(settings.get("stop_at"), 0, 1):
            problems.append(f"settings.stop_at is {settings.get('stop_at')!r}, not in [0, 1]")
        if not isinstance(settings.get("closed_book"), bool):
            problems.append(f"settings.closed_book is {settings.get('closed_book')!r}, not true or false")
        return problems
