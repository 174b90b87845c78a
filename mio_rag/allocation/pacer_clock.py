"""The time of a pacer: what its clock says, checked, and the window that this lies in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import is_setting

__all__ = ["Windows"]

_LATEST = 1e12  # seconds since 1970: what is beyond is no time


@dataclass(frozen=True)
class Windows:
    """Windows of time, numbered from 1970 on.

    Parameters
    ----------
    seconds : float
        Length; infinite: there is only one, number 0.
    clock : callable
        Seconds since 1970.
    """

    seconds: float
    clock: Callable[[], float]

    def now(self) -> float:
        """What the clock says.

        Raises
        ------
        InputError
            If that is no time.
        """
        now = self.clock()
        if not is_setting(now) or now > _LATEST:
            raise InputError(
                f"clock() gave {now!r}: it must be seconds since 1970, a number from 0 to {_LATEST:g}"
            )
        return float(now)

    def at(self, now: float) -> tuple[int, float]:
        """Number of the window at a time, and when it began."""
        if math.isinf(self.seconds):
            return 0, now
        number = int(now // self.seconds)
        return number, number * self.seconds

    def left(self, began: float, now: float) -> float | None:
        """Seconds until a window ends, from 0 to its length; None: never."""
        if math.isinf(self.seconds):
            return None
        return min(max(0.0, began + self.seconds - now), self.seconds)

    def over(self, began: float, now: float) -> float:
        """Share of a window that is over; 0 where there is only one."""
        left = self.left(began, now)
        return 0.0 if left is None else 1 - left / self.seconds

    def __str__(self) -> str:
        return "none" if math.isinf(self.seconds) else f"{self.seconds:g} s"
