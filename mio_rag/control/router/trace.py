"""The trace of a question that was answered at a tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mio_rag.control.trace import Trace, is_between

__all__ = ["TierTrace"]


@dataclass(frozen=True, kw_only=True)
class TierTrace(Trace):
    """All of one question.

    Parameters
    ----------
    tier : str
        At which it was answered; blank where that was not decided.
    scores : dict or None
        Tier -> what the router gave it: a probability, or a utility.
    unsure : bool
        Whether more than one tier was plausible, and a dearer one was taken.
    corrected : bool
        Whether the search was weak, and more passages were read.
    top_score : float or None
        Cosine of the best passage found.
    """

    kind: ClassVar[str] = "tier"

    tier: str
    scores: Mapping[str, float] | None = None
    unsure: bool = False
    corrected: bool = False
    top_score: float | None = None

    def columns(self) -> dict[str, Any]:
        """With the tier, and what came of doubts."""
        own = {"tier": self.tier, "tier_unsure": float(self.unsure), "corrected": float(self.corrected)}
        return super().columns() | own

    def explain(self) -> str:
        """The tier, and what came of doubts, in one line."""
        scores = "" if not self.scores else ", ".join(f"{n} {s:.3f}" for n, s in self.scores.items())
        return "; ".join(
            [
                f"tier {self.tier}" + (f" ({scores})" if scores else ""),
                *(["one tier up, since several were plausible"] if self.unsure else []),
                *(
                    [f"more was read, since the search was weak (best cosine {self.top_score:.3f})"]
                    if self.corrected
                    else []
                ),
            ]
        )

    def problems(self) -> list[str]:
        """What no controller with tiers writes."""
        problems = super().problems()
        if self.scores is not None and not all(is_between(s, -1e300, 1e300) for s in self.scores.values()):
            problems.append(f"scores are {self.scores!r}: finite numbers are wanted")
        if not isinstance(self.tier, str):
            problems.append(f"tier is {self.tier!r}, not a name")
        return problems
