"""How controllers decide, and where they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mio_rag.errors import InputError
from mio_rag.formulations.mdp import RetrievalMDP
from mio_rag.session.budget import Limits

__all__ = ["GAUGES", "ControlSettings"]

#: How an agent may know its uncertainty U; see `mio_rag.control.mdp.gauges`.
GAUGES = ("tracked", "confidence", "evidence", "complete")


@dataclass(frozen=True)
class ControlSettings:
    """How agents decide and where they end.

    Parameters
    ----------
    model : RetrievalMDP
        The decision process of retrieving, reasoning and stopping.
    gauge : str
        How U is known where a controller's name does not say: one of `GAUGES`.
    stop_at : float
        U at which always-reason, always-retrieve and threshold stop.
    note_tokens : int
        Longest note, >= 1.
    kept_notes : int
        How many of the last notes the model sees, >= 0.
    kinds : mapping of str to plain data
        Settings of further kinds of controllers, by the name of the kind, which checks its own.
    """

    model: RetrievalMDP = field(default_factory=RetrievalMDP)
    gauge: str = "tracked"
    limits: Limits = field(default_factory=Limits)
    stop_at: float = 0.05
    note_tokens: int = 48
    kept_notes: int = 4
    kinds: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = []
        if self.note_tokens < 1:
            problems.append(f"note_tokens={self.note_tokens} must be >= 1")
        if self.kept_notes < 0:
            problems.append(f"kept_notes={self.kept_notes} must be >= 0")
        if not 0 <= self.stop_at <= 1:
            problems.append(f"stop_at={self.stop_at!r} must be in [0, 1]")
        if self.gauge not in GAUGES:
            problems.append(f"'{self.gauge}' is not a way to measure U: choose {', '.join(GAUGES)}")
        if problems:
            raise InputError(problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for run records and traces."""
        data = asdict(self) | {"model": self.model.to_dict()}
        if not self.kinds:  # records of runs are compared: those without have always been written without
            del data["kinds"]
        return data
