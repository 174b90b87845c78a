"""A request as `Answering` takes it: checked, with its selector and its deadline."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pydantic import BaseModel

from mio_rag.selection.selector import Selector, Units
from mio_rag.solvers.result import SolveOptions

__all__ = ["Asked", "asked_of"]

_LEAST_SECONDS = 0.01  # for a program, even past the deadline: enough for a selection and a bound
_RESERVED = 0.1  # share of the remaining time that is kept for explanations and the response


@dataclass(frozen=True)
class Asked:
    """A checked request.

    Parameters
    ----------
    deadline : float
        By `time.monotonic`.
    """

    question: str
    budget_tokens: int
    pool: int
    deadline: float
    selector: Selector
    more_tokens: int | None = None
    max_tokens: int = 64

    def timed(self) -> Selector:
        """The selector, with the time left until the deadline as its time limit."""
        left = (self.deadline - time.monotonic()) * (1 - _RESERVED)
        return self.selector.replace(options=SolveOptions(time_limit_seconds=max(_LEAST_SECONDS, left)))


def asked_of(body: BaseModel, began: float, units: Units) -> Asked:
    """The checked request that `Answering` takes; units: what is chosen where it does not say."""
    given = body.model_dump()
    names = (
        "redundancy_weight",
        "passage_penalty",
        "token_price",
        "radius",
        "max_passages",
        "max_per_source",
        "merge",
        "units",
    )
    settings = {name: given[name] for name in names if given[name] is not None}
    selector = Selector.preset(given["preset"], **{"units": units, **settings})
    return Asked(
        given["question"],
        given["budget_tokens"],
        given["pool"],
        began + given["deadline_seconds"],
        selector,
        given.get("more_tokens"),
        given.get("max_tokens", 64),
    )
