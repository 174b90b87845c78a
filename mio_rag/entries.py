"""What callers hand over as a list: whether it is one, and of what; embeddings at unit length."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError


def listed(name: str, value: Any) -> tuple[Any, ...]:
    """Return the entries of a list, tuple, array or column; `InputError` for None, a string, a set or an
    iterator.
    """
    if isinstance(value, (list, tuple)):
        return tuple(value)
    found = f"{name} is {'None' if value is None else f'a {type(value).__name__}'}"
    if isinstance(value, (str, bytes)):
        raise InputError(f"{name} is one string: give a list of strings")
    if isinstance(value, (Set, Mapping)):
        raise InputError(f"{found}, which has no order: give a list")
    try:
        len(value)
        # An array's own numbers and truth values are no JSON.
        return tuple(value.tolist() if isinstance(value, np.ndarray) else value)
    except TypeError as error:
        raise InputError(f"{found}: give a list") from error


def no_strings(name: str, entries: Sequence[Any]) -> list[str]:
    """The problem of the first entry that is no string, if there is one."""
    if set(map(type, entries)) <= {str}:
        return []
    return _first(name, entries, str)  # a subclass will do


def no_names(name: str, entries: Sequence[Any]) -> list[str]:
    """The problem of the first entry that cannot tell one passage from another, as no list can."""
    if set(map(type, entries)) <= {str}:
        return []
    return _first(name, entries, (str, int, float))


def _first(name: str, entries: Sequence[Any], kind: type | tuple[type, ...]) -> list[str]:
    wrong = (k for k, entry in enumerate(entries) if not isinstance(entry, kind))
    return [f"{name}[{k}] is {entries[k]!r}, expected a string" for k in wrong][:1]


def _holds_truth_values(value: Any) -> bool:
    """Whether some of the values are True or False, which pass for 1 and 0 unnoticed."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return bool(value.dtype.kind == "b")
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return isinstance(value.item(), bool)
    if isinstance(value, (list, tuple, np.ndarray)):
        return bool(set(map(type, value)) & {bool, np.bool_})
    return str(getattr(value, "dtype", "")) in ("bool", "boolean")  # a column of another library


def not_numbers(value: Any) -> str | None:
    """What a list or array holds that numpy would turn into numbers unasked; None where it holds numbers."""
    if _holds_truth_values(value):
        return "truth values"
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    listing = isinstance(value, (list, tuple)) or (kind == "O" and getattr(value, "ndim", 0) > 0)
    kinds: set[type] = set(map(type, value)) if listing else set()
    if kind in ("U", "S", "T") or any(issubclass(one, (str, bytes)) for one in kinds):
        return "strings"
    times = (np.datetime64, np.timedelta64, datetime.date, datetime.timedelta)
    if kind in ("m", "M") or any(issubclass(one, times) for one in kinds):
        return "dates or times"
    return None


def unit_rows(vectors: ArrayLike) -> NDArray[np.float32]:
    """Return one vector, or one a row, at length 1; read-only.

    A row of zeros stays one, a single number as it is. A row with entries that float32 cannot hold becomes
    NaN, which `Pool` refuses: a division would silently make zeros of it. Errors are numpy's.
    """
    with np.errstate(over="ignore"):
        matrix = np.asarray(vectors, dtype=np.float32)
        if matrix.ndim == 0:
            return matrix
        squares = np.einsum("...i,...i->...", matrix, matrix)  # half the time of linalg.norm
        listed = np.ravel(squares).tolist()
        if listed and not (min(listed) > 1e-25 and max(listed) < math.inf):  # beyond the range of float32
            squares = np.einsum("...i,...i->...", matrix, matrix, dtype=np.float64)
    norms = np.sqrt(squares)[..., None]
    norms[norms == 0] = 1.0
    norms[np.isinf(norms)] = np.nan
    unit: NDArray[np.float32] = (matrix / norms).astype(np.float32, copy=False)
    unit.flags.writeable = False
    return unit
