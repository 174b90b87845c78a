"""Options that several benchmarks read."""

from __future__ import annotations

from typing import Any

from mio_rag.errors import InputError


def numbers(option: str, text: str, kind: type[int] | type[float], *, zero: bool = False) -> list[Any]:
    """Different numbers above 0, or where `zero` is allowed from 0, with commas between them.

    Raises
    ------
    InputError
        If they are not.
    """
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError as error:
        whole = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{option}={text!r} must be {whole} with commas between them") from error
    if any(not (value > 0 or (zero and value == 0)) for value in found) or len(set(found)) < len(found):
        raise InputError(f"{option}={text!r} must be different numbers {'>= 0' if zero else 'above 0'}")
    return found
