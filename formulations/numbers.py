"""Numbers of a program: what range they have, when a row counts as kept, and how they are read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Largest magnitude of any number of a program: a hundred thousand of them still add up within float64.
LARGEST_NUMBER = 1e303
#: Largest weight, price or radius: products of several stay within float64, too.
LARGEST_SETTING = 1e50
#: Largest violation of a row with fractions that counts as satisfied; times its size where that is below 1.
FEASIBILITY_TOLERANCE = 1e-6
_ROUNDING = 1e-12  # relative error of sums in float64, the only tolerance of rows of whole numbers


def plural(count: float, noun: str) -> str:
    """A count with its noun, for people."""
    return f"{count:.10g} {noun}{'' if count == 1 else 's'}"


def is_setting(value: Any) -> bool:
    """Whether a value is a number from 0 to `LARGEST_SETTING`; booleans are not numbers."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    if isinstance(value, np.floating):  # a half-precision one cannot be compared with what it cannot hold
        value = float(value)
    return bool(0 <= value <= LARGEST_SETTING)


def row_size(coefficients: FloatArray, bound: float) -> float:
    """The size of the numbers that decide whether  coefficients . x  keeps a bound; 0 for an infinite one.

    If no coefficient cancels another, sums within a bound are no larger than the bound; otherwise the largest
    coefficient counts too.
    """
    if not math.isfinite(bound):
        return 0.0
    if coefficients.size == 0 or coefficients.min() >= 0 or coefficients.max() <= 0:
        return abs(bound)
    return max(abs(bound), float(np.abs(coefficients).max()))


def is_whole(coefficients: FloatArray) -> bool:
    """Whether all are whole numbers, so that their sums are exact."""
    return bool(np.all(coefficients == np.rint(coefficients)))


def feasibility_tolerance(coefficients: FloatArray, bound: float) -> float:
    """How far beyond `bound` (which may be infinite) coefficients . x may lie and count as within it.

    Rows of whole numbers are exact, but for the rounding of the bound itself (29 against .29 * 100).
    """
    size = row_size(coefficients, bound)
    rounding = _ROUNDING * size
    return rounding if is_whole(coefficients) else max(FEASIBILITY_TOLERANCE * min(1.0, size), rounding)


def size_of(value: Any) -> int:
    """Number of entries of a vector as given; 0 for what is not an array at all (reported later)."""
    try:
        return int(np.size(value))
    except ValueError:  # ragged nesting
        return 0


def number(name: str, value: Any, problems: list[str]) -> float:
    """`value` as a float; 0, and the problem noted, where it is not one (`float` would take "1" for one)."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            problems.append(f"{name} is a whole number of more than 300 digits")
            return 0.0
    problems.append(f"{name} is {value!r}, expected a number")
    return 0.0


def numeric(name: str, value: Any, shape: tuple[int, ...], problems: list[str]) -> FloatArray:
    """`value` as a read-only finite float array of `shape`; zeros, and the problem noted, where it is not."""
    try:
        # A read-only array that owns its data cannot change: no copy is needed.
        settled = type(value) is np.ndarray and value.dtype == np.float64 and not value.flags.writeable
        settled = settled and value.flags.owndata and value.flags.c_contiguous
        given = value if settled else np.array(value, order="C")
        if given.dtype.kind not in "iuf" and given.size:  # numpy would turn "1", True and None into numbers
            raise TypeError
        given = given.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        problems.append(f"{name} is not an array of numbers: expected shape {shape}")
        given = np.zeros(shape)
    if given.size == 0 and math.prod(shape) == 0:
        given = given.reshape(shape)
    if given.shape != shape:
        problems.append(f"{name} has shape {given.shape}, expected {shape}")
        given = np.zeros(shape)
    elif given.size and not max(float(given.max()), -float(given.min())) <= LARGEST_NUMBER:  # or NaN
        infinite = ~np.isfinite(given)
        where = tuple(map(int, np.argwhere(infinite if infinite.any() else abs(given) > LARGEST_NUMBER)[0]))
        wrong = f"{name}{list(where)} is {given[where]:g}"
        if infinite.any():
            problems.append(f"{wrong}: every entry must be finite")
        else:
            problems.append(
                f"{wrong}: at most {LARGEST_NUMBER:g} in size is possible; divide all of them by one number"
            )
        given = np.zeros(shape)
    given.flags.writeable = False
    return given
