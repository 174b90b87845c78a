"""Given embeddings, scaled to unit length."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["unit_rows"]


def unit_rows(vectors: ArrayLike) -> NDArray[np.float32]:
    """One vector, or one a row, at length 1; read-only.

    A row of zeros stays one, a single number as it is. A row with entries that float32 cannot hold becomes
    NaN, which `Candidates` refuses: a division would silently make zeros of it.

    Parameters
    ----------
    vectors : array_like of numbers, shape (d,) or (n, d)

    Raises
    ------
    TypeError, ValueError, OverflowError
        As numpy raises them for what is no array of numbers.
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
