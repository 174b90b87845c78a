"""Tokens that a request reserves in a total, and what it used of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from mio_rag.allocation.pacer import Account, Pacer, Reservation
from mio_rag.errors import StateError


def standing(pacer: Pacer | None) -> Account | None:
    """Return the account of a pacer; None without one, or if its count cannot be read now."""
    with suppress(StateError):
        return None if pacer is None else pacer.account()
    return None


@dataclass
class Held:
    """What a request may spend, and what it did.

    Parameters
    ----------
    reservation : Reservation or None
        None: nothing limits it.
    used : int or None
        To be set as soon as something is spent; None: nothing was.
    report : dict
        For the response, once the request is done.
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

    Raises
    ------
    SpentError
        If fewer than `least` are left.
    StateError
        If nothing can be reserved.
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
