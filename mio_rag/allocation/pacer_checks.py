"""What a pacer may be told: counts, and windows of time."""

from __future__ import annotations

import math
from typing import Any, Literal

from mio_rag.errors import InputError
from mio_rag.formulations import rows
from mio_rag.formulations.numbers import is_setting

__all__ = ["WhenSpent", "Window", "count_problem", "whole", "window_seconds"]

Window = Literal["hour", "day"]
WhenSpent = Literal["rest", "refuse"]

_LARGEST_TOTAL = 10**15  # SQLite adds in 64 bits
_SECONDS = {"hour": 3600.0, "day": 86400.0}


def count_problem(name: str, value: Any, least: int) -> str | None:
    """What is wrong with a count, in words."""
    wrong = rows.count_problem(name, value) is not None or not least <= value <= _LARGEST_TOTAL
    return f"{name}={value!r} must be a whole number from {least} to {_LARGEST_TOTAL:g}" if wrong else None


def whole(name: str, value: Any, least: int) -> int:
    """The count.

    Raises
    ------
    InputError
        If it is none, or below `least`.
    """
    if problem := count_problem(name, value, least):
        raise InputError(problem)
    return int(value)


def window_seconds(window: Any) -> float | None:
    """Its length; infinite without one, None where it is no window."""
    if window is None:
        return math.inf
    if isinstance(window, str):
        return _SECONDS.get(window)
    return float(window) if is_setting(window) and window >= 1 else None
