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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError
from mio_rag.formulations.numbers import LARGEST_SETTING, is_setting

FloatArray = NDArray[np.float64]
Norm = Literal["l2", "l1", "linf"]
_ORDER: dict[str, float] = {"l2": 2, "l1": 1, "linf": np.inf}
_DUAL: dict[str, float] = {"l2": 2, "l1": np.inf, "linf": 1}


class UncertaintySet(ABC):
    """rho_i K around each of n embeddings, for a shape K that is symmetric about 0."""

    #: How many of the chosen passages may deviate at once; None: all.
    deviations: int | None = None
    #: Whether the set can return a worst perturbation, which joint worst cases and attacks need.
    has_points: bool = True
    #: Whether nothing can deviate.
    is_exact: bool

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

    @abstractmethod
    def radii(self, n: int) -> FloatArray:
        """The radius of each of n passages, shape (n,)."""

    def support(self, a: ArrayLike, n: int) -> FloatArray:
        """Return h_i(a) for each passage i of n: shape (n,) for a of shape (d,), (m, n) for (m, d)."""
        return np.asarray(
            np.multiply.outer(self.unit_support(np.asarray(a, dtype=np.float64)), self.radii(n))
        )

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
    """A set with its radii rho_i >= 0, in the units of the embeddings: one number, or one for each
    passage. 0: the embedding is exact.
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
        object.__setattr__(self, "is_exact", not np.any(radius > 0))

    def _shape_problems(self) -> list[str]:
        return []

    def radii(self, n: int) -> FloatArray:
        """The radius of each of n passages, shape (n,)."""
        radius = np.asarray(self.radius)
        if radius.ndim == 1 and radius.shape != (n,):
            raise InputError(f"radius has {radius.size} values, expected one number or {n}: one per passage")
        return np.broadcast_to(radius, (n,)).astype(np.float64)

    def _data(self, name: str, **shape: Any) -> dict[str, Any]:
        return {"set": name, "radius": np.asarray(self.radius).tolist(), **shape}


@dataclass(frozen=True, eq=False)
class NormBall(ScaledSet):
    """{delta : |delta|_norm <= radius_i} around each of n embeddings; `norm` is "l2", "l1" or "linf"."""

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
            return _unit(a)
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
        return self._data(self.norm)


def _unit(a: FloatArray) -> FloatArray:
    """Rows of length 1; zeros stay."""
    length = np.linalg.norm(a, axis=1, keepdims=True)
    return np.asarray(a / np.where(length > 0, length, 1.0))


def _whole(name: str, value: Any, least: int) -> list[str]:
    number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return [] if number and value >= least else [f"{name}={value!r} must be a whole number >= {least}"]


@dataclass(frozen=True, eq=False)
class SparseBox(ScaledSet):
    """At most `k` >= 1 coordinates move, each by at most the radius; `protected` ones never."""

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
        return self._data("sparse_box", k=int(self.k), protected=[int(j) for j in self.protected])


@dataclass(frozen=True, eq=False)
class Ellipsoid(ScaledSet):
    """{radius_i L u : |u|_2 <= 1}: errors larger in some directions than in others.

    `factor` is L, shape (d, m); a square root of the covariance of the errors, for instance.
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

    @cached_property
    def _inverse(self) -> FloatArray:
        return np.asarray(np.linalg.pinv(self.factor), dtype=np.float64)

    @cached_property
    def _size(self) -> float:
        return float(np.linalg.norm(self.factor, ord=2) ** 2)

    def _checked(self, d: int) -> FloatArray:
        if d != self.factor.shape[0]:
            raise InputError(f"the ellipsoid has {self.factor.shape[0]} dimensions, the embeddings {d}")
        return self.factor

    def unit_support(self, a: FloatArray) -> FloatArray:
        """|L'a|."""
        return np.asarray(np.linalg.norm(a @ self._checked(a.shape[-1]), axis=-1))

    def unit_point(self, a: FloatArray) -> FloatArray:
        """L L'a / |L'a|."""
        return np.asarray(_unit(a @ self._checked(a.shape[1])) @ self.factor.T)

    def unit_bilinear(self, d: int) -> float:
        """The square of L's largest singular value."""
        self._checked(d)
        return self._size

    def gauge(self, u: FloatArray) -> FloatArray:
        """Length of the shortest preimage under L; infinite outside its range."""
        self._checked(u.shape[1])
        preimage = u @ self._inverse.T
        off = np.linalg.norm(preimage @ self.factor.T - u, axis=1)
        size = np.linalg.norm(u, axis=1)
        return np.where(off > 1e-9 * np.maximum(size, 1e-12), np.inf, np.linalg.norm(preimage, axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self._data("ellipsoid", factor=self.factor.tolist())


@dataclass(frozen=True, eq=False)
class OwnSet(ScaledSet):
    """A shape of your own, given by its support function.

    function: h: array (..., d) -> array (...). Must be that of a convex set K that is symmetric about 0 (so
        h(a) = h(-a) >= 0); nothing can check that, and certificates are only as good.
    bilinear_bound: at least max u . v over K.
    maximiser: array (m, d) -> array (m, d): an element of K that attains h for each row. Needed by the joint
        counterpart and by attacks.
    """

    function: Callable[[FloatArray], FloatArray]
    bilinear_bound: float
    maximiser: Callable[[FloatArray], FloatArray] | None = None

    def _shape_problems(self) -> list[str]:
        object.__setattr__(self, "has_points", self.maximiser is not None)
        problems = [] if callable(self.function) else ["function must be callable: it maps a to h(a)"]
        if not is_setting(self.bilinear_bound):
            problems.append(f"bilinear_bound={self.bilinear_bound!r} must be from 0 to {LARGEST_SETTING:g}")
        return problems

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


def _of_base(name: str) -> Callable[..., Any]:
    return lambda self, *given: getattr(self.base, name)(*given)


@dataclass(frozen=True, eq=False)
class DeviationBudget(UncertaintySet):
    """At most `gamma` >= 0 of the chosen passages deviate, each within the set `base`.

    A term has two passages at most: termwise, all gamma from 2 on are the same.
    """

    base: UncertaintySet
    gamma: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.base, UncertaintySet) or self.base.deviations is not None:
            raise InputError("a budget of deviations is over one of the other sets: DeviationBudget(base, 2)")
        if problems := _whole("gamma", self.gamma, 0):
            raise InputError(problems)
        exact = self.gamma == 0 or self.base.is_exact
        self.__dict__.update(deviations=int(self.gamma), is_exact=exact, has_points=self.base.has_points)

    unit_support, unit_point = map(_of_base, ("unit_support", "unit_point"))
    unit_bilinear, gauge = map(_of_base, ("unit_bilinear", "gauge"))

    def radii(self, n: int) -> FloatArray:
        """Those of the base; 0 where none may deviate."""
        return self.base.radii(n) * min(1, self.gamma)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"set": "deviations", "gamma": int(self.gamma), "base": self.base.to_dict()}


def uncertainty_from_dict(data: Any) -> UncertaintySet:
    """Return the set of a JSON object that `to_dict` wrote.

    ``{"set": "l2" | "l1" | "linf", "radius": ...}``, ``{"set": "sparse_box", "radius", "k", "protected"}``,
    ``{"set": "ellipsoid", "radius", "factor"}`` or ``{"set": "deviations", "gamma", "base": {...}}``.
    """

    def budget(gamma: Any, base: Any) -> UncertaintySet:
        return DeviationBudget(uncertainty_from_dict(base), gamma)

    kinds: dict[str, tuple[Callable[..., UncertaintySet], set[str]]] = {
        **{name: (partial(NormBall, norm=name), {"radius"}) for name in get_args(Norm)},
        "sparse_box": (SparseBox, {"radius", "k", "protected"}),
        "ellipsoid": (Ellipsoid, {"radius", "factor"}),
        "deviations": (budget, {"gamma", "base"}),
    }
    if not isinstance(data, dict) or data.get("set") not in kinds:
        raise InputError(f"an uncertainty set is an object whose 'set' is one of {', '.join(kinds)}")
    make, keys = kinds[data["set"]]
    given = {key: value for key, value in data.items() if key != "set"}
    if set(given) != keys and not (data["set"] == "sparse_box" and set(given) == keys - {"protected"}):
        raise InputError(f"set '{data['set']}' takes {', '.join(sorted(keys))}, given {', '.join(given)}")
    return make(**given)
