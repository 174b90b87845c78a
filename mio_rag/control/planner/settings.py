"""Settings of workflows: generators that nodes may name, what these cost, how deep workflows may lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mio_rag.errors import InputError
from mio_rag.generation import check_generator
from mio_rag.session.costs import Prices

_READER = "reader"


@dataclass(frozen=True)
class WorkflowSettings:
    """What `ControlSettings.kinds["workflow"]` holds.

    Parameters
    ----------
    models : mapping of str to str
        Name -> generator, as `make_generator` takes it; "reader" is whoever answers, and is no name here.
    prices : mapping of str to (float, float)
        Name -> dollars per million tokens into it and out of it; "reader" has one too.
    depth : int
        How many workflows may lie within each other, >= 0.
    threads : int
        Branches that run side by side, >= 1.
    seconds : float or None
        Longest time of one executor that sets none itself.

    Raises
    ------
    InputError
        With every problem found.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    depth: int = 2
    threads: int = 4
    seconds: float | None = None

    def __post_init__(self) -> None:
        problems = [f"model '{_READER}' is whoever answers: choose another name"] * (_READER in self.models)
        for name, spec in self.models.items():
            try:
                check_generator(spec)
            except InputError as error:
                problems += [f"model '{name}': {problem}" for problem in error.problems]
        for name, least in (("depth", 0), ("threads", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                problems.append(f"workflow setting {name}={value!r} must be a whole number >= {least}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            problems.append(f"workflow setting seconds={self.seconds!r} must be > 0")
        try:
            Prices(self.prices)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(problems)

    @classmethod
    def of(cls, data: Any) -> WorkflowSettings:
        """The settings of plain data; None: the defaults.

        Raises
        ------
        InputError
            For unknown names, and as the class.
        """
        given = dict(data or {})
        known = cls.__dataclass_fields__
        if unknown := sorted(set(given) - set(known)):
            raise InputError(
                f"workflow settings {', '.join(unknown)} are unknown: known are {', '.join(known)}"
            )
        if "prices" in given:
            given["prices"] = {name: tuple(pair) for name, pair in given["prices"].items()}
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `ControlSettings.kinds` holds it."""
        return {
            "models": dict(self.models),
            "prices": {name: list(pair) for name, pair in self.prices.items()},
            "depth": self.depth,
            "threads": self.threads,
            "seconds": self.seconds,
        }


def workflow_settings(kinds: Mapping[str, Any]) -> WorkflowSettings:
    """Those of workflows in `ControlSettings.kinds`; raises as `WorkflowSettings`."""
    return WorkflowSettings.of(kinds.get("workflow"))
