"""The trace of a search by strategies: a step for each, who found what was read, and how it was chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from mio_rag.control.trace import Trace, is_between

__all__ = ["SearchTrace"]


@dataclass(frozen=True, kw_only=True)
class SearchTrace(Trace):
    """All of one question.

    Parameters
    ----------
    found : dict
        Passage that was read -> strategy -> its rank there, from 1; 0 where only a link leads to it.
    chosen : dict
        Id, strategies, and what the chooser says of them.
    notes : tuple of str
        Who was left out, and what was dropped.
    """

    kind: ClassVar[str] = "strategies"

    found: dict[str, dict[str, int]] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def columns(self) -> dict[str, Any]:
        """With the strategies that ran."""
        return super().columns() | {"strategies": "+".join(self.chosen.get("strategies", ()))}

    @classmethod
    def _read(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "notes": tuple(given.get("notes", ()))}

    def problems(self) -> list[str]:
        """What no search writes."""
        problems = super().problems()
        if not isinstance(self.found, dict) or not all(
            isinstance(of, dict) and all(is_between(rank, 0, 1e9) for rank in of.values())
            for of in self.found.values()
        ):
            problems.append("found is no passage -> strategy -> rank")
        if not isinstance(self.chosen, dict):
            problems.append("chosen is no object")
        return problems
