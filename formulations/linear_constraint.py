"""A side row of a selection program."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import (
    LARGEST_NUMBER,
    feasibility_tolerance,
    number,
    numeric,
    size_of,
)

__all__ = ["LinearConstraint"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearConstraint:
    """A side row  lower <= coefficients . x <= upper.

    Parameters
    ----------
    coefficients : array_like, shape (n,)
    lower, upper : float
        Either may be infinite, not both; lower <= upper.
    name : str
        In the user's words; explanations quote it ("at most 2 passages from 'manual.pdf'").

    Raises
    ------
    InputError
        If a bound is NaN, both are infinite, or lower > upper.
    """

    coefficients: FloatArray
    lower: float = -math.inf
    upper: float = math.inf
    name: str = "row"

    def __post_init__(self) -> None:
        problems: list[str] = []
        label = f"row '{self.name}'"
        size = size_of(self.coefficients)
        object.__setattr__(self, "coefficients", numeric(label, self.coefficients, (size,), problems))
        for side in ("lower", "upper"):
            value = number(f"{label}: {side}", getattr(self, side), problems)
            object.__setattr__(self, side, value)
        if not problems:
            if math.isnan(self.lower) or math.isnan(self.upper):
                problems.append(f"{label}: a bound is NaN")
            elif self.lower == math.inf or self.upper == -math.inf:
                problems.append(f"{label}: lower={self.lower}, upper={self.upper} admits no value")
            elif math.isinf(self.lower) and math.isinf(self.upper):
                problems.append(f"{label} has neither a lower nor an upper bound: give at least one")
            elif self.lower > self.upper:
                problems.append(
                    f"{label}: lower={self.lower:g} is above upper={self.upper:g}: nothing can satisfy it"
                )
            else:
                problems += [
                    f"{label}: {side}={value:g} must be at most {LARGEST_NUMBER:g} in size, or infinite"
                    for side, value in (("lower", self.lower), ("upper", self.upper))
                    if math.isfinite(value) and abs(value) > LARGEST_NUMBER
                ]
        if problems:
            raise InputError(problems)

    @cached_property
    def most(self) -> float:
        """The largest activity that counts as satisfying the row: `upper` and its tolerance."""
        return self.upper + feasibility_tolerance(self.coefficients, self.upper)

    @cached_property
    def least(self) -> float:
        """The smallest activity that counts as satisfying the row: `lower` less its tolerance."""
        return self.lower - feasibility_tolerance(self.coefficients, self.lower)

    def violation(self, activity: float) -> float:
        """How far `activity` lies outside the bounds; 0 when inside, or outside within the tolerance."""
        if self.least <= activity <= self.most:
            return 0.0
        return max(activity - self.upper, self.lower - activity)
