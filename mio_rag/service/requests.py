"""A checked request, and the tokens that it reserves in a total."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from mio_rag.allocation.pacer import Account, Pacer, Reservation
from mio_rag.errors import StateError
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

    def ends_at(self) -> float:
        """Return when programs must end, by `time.monotonic`: the rest is for the response."""
        return self.deadline - _RESERVED * self.seconds_left()

    def timed(self) -> Selector:
        """Return the selector, with the time left until then as its time limit."""
        left = self.ends_at() - time.monotonic()
        return self.selector.replace(options=SolveOptions(time_limit_seconds=max(_LEAST_SECONDS, left)))


def standing(pacer: Pacer | None) -> Account | None:
    """Return the account of a pacer; None without one, or if its count cannot be read now."""
    with suppress(StateError):
        return None if pacer is None else pacer.account()
    return None


@dataclass
class Held:
    """What a request may spend, and what it did.

    reservation: None: nothing limits it.
    used: to be set as soon as something is spent; None: nothing was.
    report: for the response, once the request is done.
    """

    reservation: Reservation | None = None
    used: int | None = None
    report: dict[str, Any] = field(default_factory=dict)


@contextmanager
def held_tokens(pacer: Pacer | None, tokens: int, least: int) -> Iterator[Held]:
    """Reserve tokens while a request is worked on, and report to the pacer what it used, even if it fails.

    In /select the block of passages counts, as the reader counts it; in /ask also instructions, question and
    answer. If the count can no longer be written (a full disk), the request is answered all the same, and all
    that it reserved counts as spent.

    Raises `SpentError` if fewer than `least` are left; `StateError` if nothing can be reserved.
    """
    if pacer is None:
        yield Held()
        return
    held = Held(pacer.ask(tokens, least))
    assert held.reservation is not None
    try:
        yield held
    finally:
        with suppress(StateError):
            if held.used is None:
                pacer.release(held.reservation)
            else:
                pacer.spent(held.reservation, held.used)
    if (account := standing(pacer)) is None:
        return
    held.report["pacing"] = {
        "token_price": held.reservation.price,
        **{name: getattr(account, name) for name in ("total", "spent", "left", "ends_in")},
    }
