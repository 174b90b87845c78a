"""The trace of an agent that follows the decision process, or of a rival: with U and Q at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mio_rag.control.trace import Step, Trace, is_between
from mio_rag.formulations.retrieval_mdp import ACTIONS

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
    calls : tuple of Call
        What it took, measuring U included.
    """

    uncertainty: float
    q_values: dict[str, float] | None
    next_uncertainty: float


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

    def columns(self) -> dict[str, Any]:
        """With U in the end."""
        return super().columns() | {"uncertainty": self.uncertainty}

    def problems(self) -> list[str]:
        """What no agent writes."""
        problems = []
        levels: list[tuple[str, Any]] = [("uncertainty", self.uncertainty)]
        for k, step in enumerate(self.steps):
            levels += [(f"steps[{k}].uncertainty", step.uncertainty)]
            levels += [(f"steps[{k}].next_uncertainty", step.next_uncertainty)]
            if step.action not in ACTIONS[1:]:
                problems.append(f"steps[{k}].action is {step.action!r}, not reason or retrieve")
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
