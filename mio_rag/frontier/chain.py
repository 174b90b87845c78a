"""A warm-started path whose next program depends on the last result, and what is better than what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import SolverError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.solvers.paths import solve_path
from mio_rag.solvers.result import SolveOptions, SolveResult, Status


class Chain:
    """Solves programs of one pool one after another, each started from the one before.

    Parameters
    ----------
    solver, options
        As in `mio_rag.solvers.solve`; the time limit holds for each program.

    Raises
    ------
    InputError
        For an unknown solver.
    """

    def __init__(self, solver: str = "auto", options: SolveOptions | None = None) -> None:
        self.options = options or SolveOptions()
        self.solves = 0
        self.seconds = 0.0
        self._waiting: SelectionProgram | None = None
        self._scale = 0.0  # of the values of all programs so far
        self._results = solve_path(self._programs(), solver, self.options)

    def _programs(self) -> Iterator[SelectionProgram]:
        while self._waiting is not None:
            yield self._waiting

    def solve(self, program: SelectionProgram) -> SolveResult:
        """The result for a program; a broken solver raises `SolverError`."""
        self._waiting = program
        self._scale = max(self._scale, program.value_scale)
        result = next(self._results)
        self.solves += 1
        self.seconds += result.wall_seconds
        if result.status is Status.ERROR:
            raise SolverError(result.message)
        return result

    def certifies(self, value: float, bound: float | None) -> bool:
        """Whether nothing can be better than `value` by more than the stated tolerance."""
        return bound is not None and bound - value <= self.options.tolerance(value, self._scale)


def dominated(criteria: ArrayLike) -> NDArray[np.bool_]:
    """Which points another one beats: at least as good in everything, and better in something.

    Parameters
    ----------
    criteria : array_like, shape (m, c)
        Larger is better. NaN: unknown, and then as bad as can be.

    Returns
    -------
    ndarray of bool, shape (m,)
        Points that are equal in everything do not beat each other. Differences up to 1e-9 count as none.
    """
    values = np.asarray(criteria, dtype=np.float64)
    values = np.where(np.isnan(values), -np.inf, values)
    found = np.zeros(len(values), dtype=bool)
    for k, point in enumerate(values):
        slack = 1e-9 * np.where(np.isfinite(point), np.maximum(1.0, np.abs(point)), 0.0)
        with np.errstate(invalid="ignore"):
            better = (values >= point - slack).all(axis=1) & (values > point + slack).any(axis=1)
        found[k] = better.any()
    return found


def supported(tokens: Sequence[float], values: Sequence[float]) -> list[bool]:
    """Which points of a rising staircase lie on its upper concave hull.

    Those are what a price per token can single out; the others need the budget.

    Parameters
    ----------
    tokens, values : sequences of numbers
        Both strictly increasing.
    """
    hull: list[int] = []
    for k in range(len(tokens)):
        while len(hull) >= 2:
            i, j = hull[-2], hull[-1]
            here = (values[j] - values[i]) * (tokens[k] - tokens[i])
            over = (values[k] - values[i]) * (tokens[j] - tokens[i])
            if here > over:
                break
            hull.pop()
        hull.append(k)
    kept = set(hull)
    return [k in kept for k in range(len(tokens))]
