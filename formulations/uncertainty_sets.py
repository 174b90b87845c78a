"""More uncertainty sets: sparse boxes, ellipsoids, a budget of deviations, user-defined sets.

See `mio_rag.formulations.uncertainty` for what a set must provide, and the table of support functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting
from mio_rag.formulations.uncertainty import FloatArray, ScaledSet, UncertaintySet

__all__ = ["DeviationBudget", "Ellipsoid", "OwnSet", "SparseBox"]


def _whole(name: str, value: Any, least: int) -> list[str]:
    number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return [] if number and value >= least else [f"{name}={value!r} must be a whole number >= {least}"]


@dataclass(frozen=True, eq=False)
class SparseBox(ScaledSet):
    """At most `k` coordinates of an embedding move, each by at most its radius.

    Parameters
    ----------
    k : int
        >= 1.
    protected : tuple of int
        Coordinates that never move.
    """

    k: int = 1
    protected: tuple[int, ...] = ()

    def _shape_problems(self) -> list[str]:
        object.__setattr__(self, "protected", tuple(self.protected))
        problems = _whole("k", self.k, 1)
        for j in self.protected:
            problems += _whole("protected coordinate", j, 0)
        return problems

    def _free(self, d: int) -> NDArray[np.bool_]:
        if self.protected and max(self.protected) >= d:
            raise InputError(f"protected coordinate {max(self.protected)}: the embeddings have only {d}")
        free = np.ones(d, dtype=np.bool_)
        free[list(self.protected)] = False
        return free

    def unit_support(self, a: FloatArray) -> FloatArray:
        """Sum of the k largest |a_j| that may move."""
        size = np.abs(a[..., self._free(a.shape[-1])])
        k = min(self.k, size.shape[-1])
        return np.asarray(np.sort(size, axis=-1)[..., size.shape[-1] - k :].sum(axis=-1))

    def unit_point(self, a: FloatArray) -> FloatArray:
        """The signs of those k entries."""
        free = self._free(a.shape[1])
        size = np.where(free, np.abs(a), -1.0)
        k = min(self.k, int(free.sum()))
        at = np.argsort(size, axis=1)[:, size.shape[1] - k :]
        point = np.zeros_like(a)
        np.put_along_axis(point, at, np.sign(np.take_along_axis(a, at, axis=1)), axis=1)
        return point

    def unit_bilinear(self, d: int) -> float:
        """min(k, coordinates that may move): both move the same ones."""
        return float(min(self.k, int(self._free(d).sum())))

    def gauge(self, u: FloatArray) -> FloatArray:
        """The largest entry; infinite where too many, or protected ones, move."""
        moved = u != 0
        broken = (moved.sum(axis=1) > self.k) | moved[:, ~self._free(u.shape[1])].any(axis=1)
        return np.where(broken, np.inf, np.abs(u).max(axis=1, initial=0.0))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "set": "sparse_box",
            "radius": self._radius_data(),
            "k": int(self.k),
            "protected": [int(j) for j in self.protected],
        }


@dataclass(frozen=True, eq=False)
class Ellipsoid(ScaledSet):
    """{radius_i L u : |u|_2 <= 1}: errors larger in some directions than in others.

    Parameters
    ----------
    factor : array_like, shape (d, m)
        L; a square root of the covariance of the errors, for instance.
    """

    factor: FloatArray

    def _shape_problems(self) -> list[str]:
        try:
            factor = np.array(self.factor, dtype=np.float64)
        except (TypeError, ValueError):
            factor = np.zeros(0)
        if factor.ndim != 2 or not factor.size or not np.all(np.isfinite(factor)):
            return [f"factor has shape {factor.shape}, expected finite numbers of shape (d, m)"]
        factor.flags.writeable = False
        object.__setattr__(self, "factor", factor)
        return []

    @functools.cached_property
    def _inverse(self) -> FloatArray:
        return np.asarray(np.linalg.pinv(self.factor), dtype=np.float64)

    @functools.cached_property
    def _size(self) -> float:
        return float(np.linalg.norm(self.factor, ord=2) ** 2)

    def _check(self, d: int) -> None:
        if d != self.factor.shape[0]:
            raise InputError(f"the ellipsoid has {self.factor.shape[0]} dimensions, the embeddings {d}")

    def unit_support(self, a: FloatArray) -> FloatArray:
        """|L'a|."""
        self._check(a.shape[-1])
        return np.asarray(np.linalg.norm(a @ self.factor, axis=-1))

    def unit_point(self, a: FloatArray) -> FloatArray:
        """L L'a / |L'a|."""
        self._check(a.shape[1])
        inner = a @ self.factor
        length = np.linalg.norm(inner, axis=1, keepdims=True)
        return np.asarray((inner / np.where(length > 0, length, 1.0)) @ self.factor.T)

    def unit_bilinear(self, d: int) -> float:
        """The square of L's largest singular value."""
        self._check(d)
        return self._size

    def gauge(self, u: FloatArray) -> FloatArray:
        """Length of the shortest preimage under L; infinite outside its range."""
        self._check(u.shape[1])
        preimage = u @ self._inverse.T
        off = np.linalg.norm(preimage @ self.factor.T - u, axis=1)
        size = np.linalg.norm(u, axis=1)
        return np.where(off > 1e-9 * np.maximum(size, 1e-12), np.inf, np.linalg.norm(preimage, axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"set": "ellipsoid", "radius": self._radius_data(), "factor": self.factor.tolist()}


@dataclass(frozen=True, eq=False)
class OwnSet(ScaledSet):
    """A shape of your own, given by its support function.

    Parameters
    ----------
    function : callable
        h: array (..., d) -> array (...). Must be that of a convex set K that is symmetric about 0 (so
        h(a) = h(-a) >= 0); nothing can check that, and certificates are only as good.
    bilinear_bound : float
        At least max u . v over K.
    maximiser : callable, optional
        array (m, d) -> array (m, d): an element of K that attains h for each row. Needed by the joint
        counterpart and by attacks.
    """

    function: Callable[[FloatArray], FloatArray]
    bilinear_bound: float
    maximiser: Callable[[FloatArray], FloatArray] | None = None

    def _shape_problems(self) -> list[str]:
        problems = [] if callable(self.function) else ["function must be callable: it maps a to h(a)"]
        if not is_setting(self.bilinear_bound):
            problems.append(f"bilinear_bound={self.bilinear_bound!r} must be from 0 to {LARGEST_SETTING:g}")
        return problems

    @property
    def has_points(self) -> bool:
        """Whether there is a maximiser."""
        return self.maximiser is not None

    def unit_support(self, a: FloatArray) -> FloatArray:
        """Your function, its shape and sign checked."""
        value = np.asarray(self.function(a), dtype=np.float64)
        if value.shape != a.shape[:-1] or not np.all(value >= 0):
            raise InputError(
                f"the support function gave shape {value.shape} for a of shape {a.shape}, expected "
                f"{a.shape[:-1]} without negative values"
            )
        return value

    def unit_point(self, a: FloatArray) -> FloatArray:
        """The given maximiser, checked against the function; 0 where the function is 0."""
        if self.maximiser is None:
            raise InputError("this set has no maximiser: give OwnSet one, or use the termwise counterpart")
        support, point = self.unit_support(a), np.zeros_like(a)
        rows = np.flatnonzero(support > 0)
        if rows.size:
            given = np.asarray(self.maximiser(a[rows]), dtype=np.float64)
            reached = np.einsum("ij,ij->i", a[rows], given) if given.shape == a[rows].shape else np.inf
            if not np.allclose(reached, support[rows], rtol=1e-6, atol=1e-9):
                raise InputError("the maximiser does not attain the support function")
            point[rows] = given
        return point

    def unit_bilinear(self, d: int) -> float:
        """Your bound."""
        return float(self.bilinear_bound)

    def gauge(self, u: FloatArray) -> FloatArray:
        """A lower bound: the largest a . u / h(a) over the rows themselves and 200 fixed directions."""
        directions = np.vstack([np.random.default_rng(0).normal(size=(200, u.shape[1])), u])
        reach = np.maximum(self.unit_support(directions), 1e-300)
        return np.asarray((u @ directions.T / reach).max(axis=1, initial=0.0))

    def to_dict(self) -> dict[str, Any]:
        """Raises: a function cannot be written as JSON."""
        raise InputError("an uncertainty set with a custom support function cannot be written as JSON")


@dataclass(frozen=True, eq=False)
class DeviationBudget(UncertaintySet):
    """At most `gamma` of the chosen passages deviate, each within `base`.

    Parameters
    ----------
    base : UncertaintySet
        The set that each deviation lies in.
    gamma : int
        >= 0.
    """

    base: UncertaintySet
    gamma: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.base, UncertaintySet) or self.base.deviations is not None:
            raise InputError("a budget of deviations is over one of the other sets: DeviationBudget(base, 2)")
        if problems := _whole("gamma", self.gamma, 0):
            raise InputError(problems)

    @property
    def deviations(self) -> int | None:
        """gamma."""
        return int(self.gamma)

    @property
    def is_exact(self) -> bool:
        """Whether nothing can deviate."""
        return self.gamma == 0 or self.base.is_exact

    @property
    def has_points(self) -> bool:
        """Whether the base set has."""
        return self.base.has_points

    def radii(self, n: int) -> FloatArray:
        """Those of the base set."""
        return self.base.radii(n)

    def unit_support(self, a: FloatArray) -> FloatArray:
        """That of the base set."""
        return self.base.unit_support(a)

    def unit_point(self, a: FloatArray) -> FloatArray:
        """That of the base set."""
        return self.base.unit_point(a)

    def unit_bilinear(self, d: int) -> float:
        """That of the base set."""
        return self.base.unit_bilinear(d)

    def gauge(self, u: FloatArray) -> FloatArray:
        """That of the base set."""
        return self.base.gauge(u)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"set": "deviations", "gamma": int(self.gamma), "base": self.base.to_dict()}
