"""Uncertainty sets for embeddings, and their support functions.

A set U_i holds the perturbations delta_i that the embedding mu_i may suffer. What a robust counterpart needs
of it is the support function  h_i(a) = max {a . delta : delta in U_i}  and a bound on the bilinear term
max {delta_i . delta_j}. For the norm ball of radius rho_i the support function is rho_i times the dual norm:

    l2:   h_i(a) = rho_i |a|_2        delta_i . delta_j <= rho_i rho_j
    l1:   h_i(a) = rho_i |a|_inf      delta_i . delta_j <= rho_i rho_j
    linf: h_i(a) = rho_i |a|_1        delta_i . delta_j <= d rho_i rho_j

Source: Ben-Tal, El Ghaoui and Nemirovski, Robust Optimization (2009), chapter 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError

__all__ = ["Norm", "NormBall"]

FloatArray = NDArray[np.float64]
Norm = Literal["l2", "l1", "linf"]


@dataclass(frozen=True, eq=False)
class NormBall:
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

    radius: float | FloatArray
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        problems: list[str] = []
        if self.norm not in get_args(Norm):
            problems.append(f"norm={self.norm!r} is unknown: choose l2, l1 or linf")
        radius = np.array(self.radius, dtype=np.float64)
        if radius.ndim > 1:
            problems.append(f"radius has shape {radius.shape}, expected a number or one value per passage")
        elif not np.all(np.isfinite(radius)) or np.any(radius < 0):
            problems.append(
                f"radius={self.radius!r} must be finite and >= 0: it is the norm of an embedding error"
            )
        if problems:
            raise InputError(problems)
        radius.flags.writeable = False
        object.__setattr__(self, "radius", radius)

    def radii(self, n: int) -> FloatArray:
        """The radius of each of n passages, shape (n,)."""
        radius = np.asarray(self.radius)
        if radius.ndim == 1 and radius.shape != (n,):
            raise InputError(f"radius has {radius.size} values, expected one number or {n}: one per passage")
        return np.broadcast_to(radius, (n,)).astype(np.float64)

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
        order = {"l2": 2, "l1": np.inf, "linf": 1}[self.norm]
        dual = np.linalg.norm(np.asarray(a, dtype=np.float64), ord=order, axis=-1)
        return np.asarray(np.multiply.outer(dual, self.radii(n)))

    def bilinear(self, n: int, d: int) -> FloatArray:
        """max delta_i . delta_j for every pair of passages in d dimensions, shape (n, n)."""
        radii = self.radii(n)
        return np.outer(radii, radii) * (d if self.norm == "linf" else 1)
