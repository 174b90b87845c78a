"""Checks of executors' settings: what is wrong with a value, in words, or None."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Check", "number", "one_of", "workflow_problem"]

Check = Callable[[Any], str | None]


def number(low: float, high: float, *, whole: bool = False) -> Check:
    """A check for numbers of a range, both ends included."""

    def problem(value: Any) -> str | None:
        fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if fine and low <= value <= high and (not whole or value == int(value)):
            return None
        return f"must be a {'whole ' if whole else ''}number in [{low:g}, {high:g}]"

    return problem


def one_of(*names: str) -> Check:
    """A check for one of these names."""
    return lambda value: None if value in names else f"must be one of {', '.join(names)}"


def workflow_problem(value: Any) -> str | None:
    """What is wrong with a setting that names or holds a workflow; None: nothing is."""
    return None if isinstance(value, (str, Mapping)) else "must be the name of a workflow, or a workflow"
