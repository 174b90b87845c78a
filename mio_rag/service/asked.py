"""A checked request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from mio_rag.selection.selector import Selector, Units
from mio_rag.solvers.result import SolveOptions

_LEAST_SECONDS = 0.01  # for a program, even past the deadline: enough for a selection and a bound
_RESERVED = 0.1  # share of the remaining time that is kept for explanations and the response
_SELECTOR = (
    *("redundancy_weight", "passage_penalty", "token_price", "radius", "max_passages", "max_per_source"),
    *("merge", "units"),
)


@dataclass(frozen=True)
class Asked:
    """A checked request; `deadline` by `time.monotonic`."""

    question: str
    budget_tokens: int
    pool: int
    deadline: float
    selector: Selector
    more_tokens: int | None = None
    max_tokens: int = 64

    @classmethod
    def of(cls, given: dict[str, Any], began: float, units: Units) -> Asked:
        """Return the request of a checked body; `units` is the default."""
        settings = {name: given[name] for name in _SELECTOR if given[name] is not None}
        selector = Selector.preset(given["preset"], **{"units": units, **settings})
        return cls(
            given["question"],
            given["budget_tokens"],
            given["pool"],
            began + given["deadline_seconds"],
            selector,
            given.get("more_tokens"),
            given.get("max_tokens", 64),
        )

    def seconds_left(self) -> float:
        """Return the seconds until the deadline; negative after it."""
        return self.deadline - time.monotonic()

    def timed(self) -> Selector:
        """Return the selector, with the time left until the deadline as its time limit."""
        left = self.seconds_left() * (1 - _RESERVED)
        return self.selector.replace(options=SolveOptions(time_limit_seconds=max(_LEAST_SECONDS, left)))
