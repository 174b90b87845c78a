"""Attacks on a selection: worst-case and random perturbations of its embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import InputError, SolverError
from mio_rag.formulations.robust import JointProblem

__all__ = ["Attack", "attack"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Attack:
    """What perturbations did to a selection.

    Parameters
    ----------
    nominal : float
        Value of the selection as embedded.
    certified : float
        Value that no perturbation of the set can push it below.
    worst : float
        Smallest value that was reached; never below `certified`.
    delta : ndarray, shape (n, d)
        The perturbations that reached it.
    random : ndarray, shape (k,)
        Values under random perturbations.
    """

    nominal: float
    certified: float
    worst: float
    delta: FloatArray
    random: FloatArray

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the perturbations."""
        return {
            "nominal": self.nominal,
            "certified": self.certified,
            "worst": self.worst,
            "random_mean": float(self.random.mean()) if self.random.size else None,
            "random_least": float(self.random.min()) if self.random.size else None,
        }


def attack(
    problem: JointProblem, x: NDArray[np.int8], *, restarts: int = 8, random: int = 100, seed: int = 0
) -> Attack:
    """Attack a decision: block-coordinate descent with restarts, and random perturbations.

    Parameters
    ----------
    x : ndarray
        0/1 decision of the problem's program.
    restarts, random : int
        >= 0.

    Raises
    ------
    SolverError
        If an attack leaves the set or beats the certificate: one of them is then wrong.
    """
    for name, count in (("restarts", restarts), ("random", random)):
        if not isinstance(count, (int, np.integer)) or count < 0:
            raise InputError(f"{name}={count!r} must be a whole number >= 0")
    rng = np.random.default_rng(seed)
    chosen = np.flatnonzero(x[: problem.n])
    added = problem.added(x)
    certified = problem.lower(chosen) + added
    delta, worst = problem.worst(chosen, rng=rng, restarts=restarts)
    values = np.zeros(random)
    for k in range(random):
        candidate = problem.random(rng, chosen)
        values[k] = problem.objective(chosen, candidate)
        if values[k] < worst:
            delta, worst = candidate, float(values[k])
    tolerance = 1e-7 * max(1.0, abs(certified))
    if worst + added < certified - tolerance or not problem.uncertainty.contains(delta, 1e-7):
        raise SolverError(
            f"an attack reached {worst + added:.9g}, below the certified {certified:.9g}, or left its set: "
            "a custom support function or maximiser may be wrong"
        )
    return Attack(problem.objective(chosen) + added, certified, worst + added, delta, values + added)
