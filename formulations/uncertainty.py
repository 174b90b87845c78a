"""Uncertainty sets for embeddings, and their support functions.

A set U_i = rho_i K holds the possible perturbations delta_i of the embedding mu_i: one shape K for all
passages, a radius rho_i for each. A robust counterpart needs the support function
h_i(a) = max {a . delta : delta in U_i} = rho_i h(a), a perturbation that attains it, and a bound on the
bilinear term, max {delta_i . delta_j} <= rho_i rho_j max {u . v : u, v in K}:

    set                                          h(a)                                 max u . v
    l2 ball                                      |a|_2                                1
    l1 ball                                      |a|_inf                              1
    linf ball                                    |a|_1                                d
    at most k coordinates move, each by <= 1     the k largest |a_j|, summed          min(k, free coordinates)
    ellipsoid {L u : |u|_2 <= 1}                 |L'a|_2                              |L|_2 squared
    user-defined                                 given                                given

and a budget of deviations (Bertsimas and Sim) lets at most Gamma of the chosen passages deviate.

Sources: Ben-Tal, El Ghaoui and Nemirovski, Robust Optimization (2009), chapter 1; Bertsimas and Sim, The
Price of Robustness, Operations Research 52 (2004).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING

__all__ = ["Norm", "NormBall", "ScaledSet", "UncertaintySet"]

FloatArray = NDArray[np.float64]
Norm = Literal["l2", "l1", "linf"]

_ORDER: dict[str, float] = {"l2": 2, "l1": 1, "linf": np.inf}
_DUAL: dict[str, float] = {"l2": 2, "l1": np.inf, "linf": 1}


class UncertaintySet(ABC):
    """rho_i K around each of n embeddings, for a shape K that is symmetric about 0."""

    @abstractmethod
    def unit_support(self, a: FloatArray) -> FloatArray:
        """h of K along the last axis of `a`."""

    @abstractmethod
    def unit_point(self, a: FloatArray) -> FloatArray:
        """For each row of `a`, shape (m, d), an element u of K with a . u = h(a)."""

    @abstractmethod
    def unit_bilinear(self, d: int) -> float:
        """max u . v over K, or more."""

    @abstractmethod
    def gauge(self, u: FloatArray) -> FloatArray:
        """For each row of `u`, shape (m, d), the smallest t >= 0 with u in t K."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; see `uncertainty_from_dict`."""

    @property
    def deviations(self) -> int | None:
        """How many of the chosen passages may deviate at once; None: all."""
        return None

    @property
    def has_points(self) -> bool:
        """Whether the set can return a worst perturbation, which joint worst cases and attacks need."""
        return True

    @property
    @abstractmethod
    def is_exact(self) -> bool:
        """Whether nothing can deviate."""

    @abstractmethod
    def radii(self, n: int) -> FloatArray:
        """The radius of each of n passages, shape (n,)."""

    def support(self, a: ArrayLike, n: int) -> FloatArray:
        """h_i(a) for every passage i and every row of `a`.

        Parameters
        ----------
        a : array_like, shape (d,) or (m, d)
        n : int
            Number of passages.

        Returns
        -------
        ndarray, shape (n,) or (m, n)
        """
        return np.asarray(
            np.multiply.outer(self.unit_support(np.asarray(a, dtype=np.float64)), self.radii(n))
        )

    def support_each(self, a: FloatArray) -> FloatArray:
        """h_i(a_i) for the row a_i of each passage, shape (n,)."""
        return self.unit_support(a) * self.radii(a.shape[0])

    def points(self, a: FloatArray) -> FloatArray:
        """The perturbation of each passage that goes farthest along its row of `a`, shape (n, d)."""
        return self.unit_point(a) * self.radii(a.shape[0])[:, None]

    def bilinear(self, n: int, d: int) -> FloatArray:
        """max delta_i . delta_j for every pair of passages in d dimensions, shape (n, n)."""
        radii = self.radii(n)
        return np.outer(radii, radii) * self.unit_bilinear(d)

    def contains(self, delta: FloatArray, tolerance: float = 1e-9) -> bool:
        """Whether perturbations, shape (n, d), all lie in their sets (`deviations` apart)."""
        radii = self.radii(delta.shape[0])
        moved = np.any(delta != 0, axis=1)
        if np.any(moved & (radii == 0)):
            return False
        return bool(np.all(self.gauge(delta[moved] / radii[moved, None]) <= 1 + tolerance))


@dataclass(frozen=True, eq=False)
class ScaledSet(UncertaintySet):
    """A set with its radii.

    Parameters
    ----------
    radius : float or array_like of shape (n,)
        rho_i >= 0, in the units of the embeddings. 0 means that the embedding is exact.

    Raises
    ------
    InputError
        If the radius is negative or not finite, or the shape is malformed.
    """

    radius: float | FloatArray

    def __post_init__(self) -> None:
        problems = self._shape_problems()
        try:
            radius = np.array(self.radius, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            radius = np.array(np.nan)
        if radius.ndim > 1:
            problems.append(f"radius has shape {radius.shape}, expected a number or one value per passage")
        elif not np.all((radius >= 0) & (radius <= LARGEST_SETTING)):
            problems.append(
                f"radius={self.radius!r} must be from 0 to {LARGEST_SETTING:g}: it is the norm of an "
                "embedding error"
            )
        if problems:
            raise InputError(problems)
        radius.flags.writeable = False
        object.__setattr__(self, "radius", radius)

    def _shape_problems(self) -> list[str]:
        """What is wrong with the shape."""
        return []

    @property
    def is_exact(self) -> bool:
        """Whether all radii are 0."""
        return not np.any(np.asarray(self.radius) > 0)

    def radii(self, n: int) -> FloatArray:
        """The radius of each of n passages, shape (n,)."""
        radius = np.asarray(self.radius)
        if radius.ndim == 1 and radius.shape != (n,):
            raise InputError(f"radius has {radius.size} values, expected one number or {n}: one per passage")
        return np.broadcast_to(radius, (n,)).astype(np.float64)

    def _radius_data(self) -> Any:
        return np.asarray(self.radius).tolist()


@dataclass(frozen=True, eq=False)
class NormBall(ScaledSet):
    """{delta : |delta|_norm <= radius_i} around each of n embeddings.

    Parameters
    ----------
    radius : float or array_like of shape (n,)
        In the units of the embedding's norm, >= 0. 0 means the embedding is exact.
    norm : {"l2", "l1", "linf"}

    Raises
    ------
    InputError
        For an unknown norm, or a radius that is negative or not finite.
    """

    norm: Norm = "l2"

    def _shape_problems(self) -> list[str]:
        known = self.norm in get_args(Norm)
        return [] if known else [f"norm={self.norm!r} is unknown: choose l2, l1 or linf"]

    def unit_support(self, a: FloatArray) -> FloatArray:
        """The dual norm."""
        return np.asarray(np.linalg.norm(a, ord=_DUAL[self.norm], axis=-1))

    def unit_point(self, a: FloatArray) -> FloatArray:
        """a / |a|; for linf its signs; for l1 the sign of its largest entry alone."""
        if self.norm == "linf":
            return np.sign(a)
        if self.norm == "l2":
            length = np.linalg.norm(a, axis=1, keepdims=True)
            return np.asarray(a / np.where(length > 0, length, 1.0))
        point = np.zeros_like(a)
        rows, largest = np.arange(a.shape[0]), np.argmax(np.abs(a), axis=1)
        point[rows, largest] = np.sign(a[rows, largest])
        return point

    def unit_bilinear(self, d: int) -> float:
        """d for linf (all coordinates at once), else 1."""
        return float(d) if self.norm == "linf" else 1.0

    def gauge(self, u: FloatArray) -> FloatArray:
        """The norm."""
        return np.asarray(np.linalg.norm(u, ord=_ORDER[self.norm], axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"set": self.norm, "radius": self._radius_data()}
