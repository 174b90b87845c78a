"""What one solve of the kernel leaves for the next program of the same pool."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mio_rag.solvers.presolve import FloatArray, IntArray, Problem
from mio_rag.solvers.reformulation import shifted

__all__ = ["WarmStart"]


@dataclass(eq=False)
class WarmStart:
    """Selection and relaxation matrix of the last solve; filled and updated by the kernel.

    Nothing in it can make a result wrong: the selection is only a start for local search, and the matrix is
    cut to what the next program allows and made positive semidefinite again.
    """

    x: NDArray[np.int8] | None = None
    items: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    penalties: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    matrix: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))

    def point(self, problem: Problem) -> FloatArray:
        """The selection on the items of a problem, as a point to round; empty where there is none."""
        return np.zeros(0) if self.x is None else self.x[problem.items].astype(np.float64)

    def matrix_for(self, problem: Problem) -> FloatArray | None:
        """The matrix, scaled by how much penalties have grown and cut to them; None where it does not fit."""
        known = {int(item): k for k, item in enumerate(self.items)}
        here = np.array([t for t, item in enumerate(problem.items) if int(item) in known], dtype=np.int64)
        if here.size < 3:
            return None
        there = np.array([known[int(problem.items[t])] for t in here])
        before, now = self.penalties[np.ix_(there, there)], problem.A[np.ix_(here, here)]
        size = float((before * before).sum())
        growth = float((before * now).sum()) / size if size > 0 else 0.0
        if growth <= 0:
            return None
        M = problem.A.copy()
        # Items that the matrix does not know stay apart: their penalties with the others are left out.
        others = np.setdiff1d(np.arange(problem.m), here)
        M[np.ix_(others, here)] = np.minimum(M[np.ix_(others, here)], 0.0)
        M[np.ix_(here, others)] = M[np.ix_(others, here)].T
        block = np.minimum(growth * self.matrix[np.ix_(there, there)], now)
        np.fill_diagonal(block, growth * np.diagonal(self.matrix)[there])
        M[np.ix_(here, here)] = block
        return shifted(M)

    def keep(self, problem: Problem, matrix: FloatArray) -> None:
        """Remember the matrix of a problem, with the penalties that it was made for."""
        self.items, self.penalties, self.matrix = problem.items, problem.A, matrix
