"""What callers give besides documents: counters, budgets, and values in metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mio_rag.context import TokenCounter
from mio_rag.errors import InputError
from mio_rag.formulations.rows import count_problem

__all__ = ["Counter", "as_counter", "check_budget", "label", "number", "place"]

#: A `TokenCounter`, or a function that counts the tokens of one text.
Counter = TokenCounter | Callable[[str], int]


class _FunctionCounter:
    def __init__(self, function: Callable[[str], int]) -> None:
        self._function = function

    @property
    def name(self) -> str:
        return getattr(self._function, "__name__", "counter")

    def count(self, texts: Sequence[str]) -> list[int]:
        counts = [self._function(text) for text in texts]
        for text, count in zip(texts, counts, strict=True):
            if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
                raise InputError(
                    f"counter {self.name} made {count!r} of {text[:40]!r}, expected a whole number >= 0"
                )
        return [int(count) for count in counts]


def as_counter(counter: Counter) -> TokenCounter:
    """A counter of many texts, of one that counts a single text.

    Raises
    ------
    InputError
        If it is neither.
    """
    if isinstance(counter, TokenCounter):
        return counter
    if callable(counter):
        return _FunctionCounter(counter)
    raise InputError(
        f"counter={counter!r} counts nothing: give a function from a text to its tokens, or a TokenCounter"
    )


def check_budget(budget_tokens: int) -> None:
    """Refuse a budget that is no whole number >= 1.

    Raises
    ------
    InputError
        If it is not.
    """
    if problem := count_problem("budget_tokens", budget_tokens):
        raise InputError(problem)
    if budget_tokens < 1:
        raise InputError(f"budget_tokens={budget_tokens} must be >= 1")


def place(value: Any) -> int | None:
    """Where a text begins, as it stands in metadata; None for what is no place."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int(value) if whole and value >= 0 else None


def label(value: Any) -> str:
    """What stands in metadata as a text; blank for nothing."""
    return "" if value is None else str(value)


def number(metadata: Mapping[str, Any], key: str | None, where: str) -> float | None:
    """The number under a key of a document's metadata; None without key, or where it is missing.

    Raises
    ------
    InputError
        If something else stands there.
    """
    value = None if key is None else metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise InputError(f"{where}: '{key}' is {value!r}, expected a number")
    return float(value)
