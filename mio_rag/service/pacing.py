"""Tokens a day or an hour: the pacer of a service, and what it makes of a request.

What counts in /select is the block of passages as the reader counts it; in /ask also instructions, question
and answer, as the reader reports them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mio_rag.allocation.pacer import Pacer, Window
from mio_rag.allocation.pacer_account import Account, Reservation
from mio_rag.errors import InputError, StateError

__all__ = ["Held", "Pacing", "held_tokens", "make_pacing", "standing"]


@dataclass(frozen=True)
class Pacing:
    """A total of tokens for every window, and where its state lies.

    Parameters
    ----------
    tokens : int
    window : {"hour", "day"}
    path : str or None
        File of the state, shared by worker processes; None: in memory.
    price, mean_tokens : float or None
        As in `Pacer`: where it begins, and what requests take in the mean there.
    """

    tokens: int
    window: Window
    path: str | None = None
    price: float | None = None
    mean_tokens: float | None = None

    def opened(self) -> Pacer:
        """The pacer.

        Raises
        ------
        InputError
            As `Pacer`.
        """
        return Pacer(self.tokens, None, self.window, self.price, self.path, mean_tokens=self.mean_tokens)

    def explain(self) -> str:
        """One line for the operator."""
        where = "in memory: a restart begins anew" if self.path is None else f"in '{self.path}'"
        said = f"at most {self.tokens} tokens each {self.window} (UTC), their count {where}"
        if self.mean_tokens is None:
            return said
        return f"{said}; expected are {self.mean_tokens:g} tokens a request at a price of {self.price:g}"


def make_pacing(
    per_day: int | None,
    per_hour: int | None,
    folder: Path | None,
    index: Path,
    workers: int = 1,
    price: float | None = None,
    mean_tokens: float | None = None,
) -> Pacing | None:
    """The pacing that an operator asks for; None where no total is given.

    Parameters
    ----------
    folder : Path or None
        For the state; by default the folder that the index lies in, or memory where nothing can be written
        there.
    price, mean_tokens : float, optional
        As in `Pacer`.

    Raises
    ------
    InputError
        For two totals, anything else without a total, a state that cannot be used, or several workers without
        a file to share.
    """
    if per_day is not None and per_hour is not None:
        raise InputError("--tokens-per-day and --tokens-per-hour exclude each other: give one of them")
    if per_day is None and per_hour is None:
        given = {"--pacer-state": folder, "--start-price": price, "--mean-tokens": mean_tokens}
        if named := [name for name, value in given.items() if value is not None]:
            needs = "needs" if len(named) == 1 else "need"
            raise InputError(
                f"{' and '.join(named)} {needs} --tokens-per-day or --tokens-per-hour: give one of them"
            )
        return None
    window: Window = "day" if per_day is not None else "hour"
    tokens = per_day if per_day is not None else per_hour
    assert tokens is not None
    place = index.resolve().parent if folder is None else folder
    path: str | None = str(place / f"{index.resolve().name}.tokens-per-{window}.sqlite")
    if folder is None and not os.access(place, os.W_OK):
        if workers > 1:
            raise InputError(
                f"'{place}' cannot be written, and {workers} workers must share the count of tokens: name a "
                "folder with --pacer-state"
            )
        path = None
    made = Pacing(tokens, window, path, price, mean_tokens)
    try:
        made.opened().close()
    except InputError as error:
        raise InputError([_by_options(problem, window) for problem in error.problems]) from error
    return made


def _by_options(problem: str, window: Window) -> str:
    """What is wrong with a pacer, in the words of the command line."""
    for name, option in (
        ("total_tokens", f"--tokens-per-{window}"),
        ("mean_tokens", "--mean-tokens"),
        ("price=", "--start-price="),
        ("give price", "give --start-price"),
        ("another path", "another --pacer-state"),
    ):
        problem = problem.replace(name, option)
    return problem


def standing(pacer: Pacer | None) -> Account | None:
    """Where the window of a pacer stands; None without one, or where its count cannot be read just now."""
    with suppress(StateError):
        return None if pacer is None else pacer.account()
    return None


@dataclass
class Held:
    """What a request may spend, and what it did.

    Parameters
    ----------
    reservation : Reservation or None
        None: nobody limits it.
    used : int or None
        To be set as soon as something is spent; None: nothing was.
    said : dict
        What the response says of it, once the request is done.
    """

    reservation: Reservation | None = None
    used: int | None = None
    said: dict[str, Any] = dataclasses.field(default_factory=dict)


@contextmanager
def held_tokens(pacer: Pacer | None, tokens: int, least: int) -> Iterator[Held]:
    """Hold tokens while a request is worked on, and tell the pacer what it used, also where it fails.

    Where what was used cannot be written any more (a full disk), the request is answered nevertheless: all
    that it held counts as spent.

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
    held.said["pacing"] = {
        "token_price": held.reservation.price,
        "total": account.total,
        "spent": account.spent,
        "left": account.left,
        "ends_in": account.ends_in,
    }
