"""What a pacer tells: what one question may spend, and where a window stands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mio_rag.errors import SpentError
from mio_rag.formulations.numbers import plural

__all__ = ["Account", "Reservation", "refusal"]


@dataclass(frozen=True)
class Reservation:
    """What one question may spend; unpacks into price and allowed tokens.

    Parameters
    ----------
    id : int
        By which `Pacer.spent` knows it.
    price : float
        What a token must be worth, in units of relevance: `token_price` of a `Selector`.
    allowed : int
        Tokens it may spend at most; 0 where nothing is left.
    """

    id: int
    price: float
    allowed: int

    def __iter__(self) -> Iterator[Any]:
        yield self.price
        yield self.allowed


@dataclass(frozen=True)
class Account:
    """Where a window stands.

    Parameters
    ----------
    total, spent, reserved, left : int
        Tokens; total = spent + reserved + left, unless somebody spent more than was allowed.
    lost : int
        Tokens of questions that never told what they spent; part of `spent`.
    price : float
        Of the next token.
    asked, finished, refused : int
        Questions.
    ends_in : float or None
        Seconds until the next window; None: there is none.
    """

    total: int
    spent: int
    reserved: int
    left: int
    lost: int
    price: float
    asked: int
    finished: int
    refused: int
    ends_in: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)


def refusal(left: int, total: int, reserved: int, wanted: int, wait: float | None) -> SpentError:
    """Why a question is turned away, and when to come back; `wait` in seconds, None: never."""
    if wait is None and left + reserved >= wanted:  # what questions under way do not use is free again
        wait = 1.0
    when = "there will be no more" if wait is None else f"there are more in {math.ceil(wait)} s"
    held = f", {plural(reserved, 'token')} held by questions under way" if reserved else ""
    return SpentError(
        f"{plural(left, 'token')} of {total} left{held}, and {wanted} wanted: {when}; ask for fewer, or "
        "start a pacer with a higher total",
        wait,
    )
