"""Files of radii: an .npz archive with `ids`, `errors`, and `measured` (False: the stated default)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mio_rag.errors import DataError, InputError
from mio_rag.files import replaced
from mio_rag.retrieval.radius import MeasuredRadius

__all__ = ["read_radii", "write_radii"]


def write_radii(path: Path, found: MeasuredRadius, ids: Sequence[str], default: float) -> int:
    """Write a radius for every passage, all or nothing.

    Parameters
    ----------
    ids : sequence of str
        The passages of the index, in order.
    default : float
        Radius of those that were not measured.

    Returns
    -------
    int
        How many got it.

    Raises
    ------
    InputError
        If the errors are not those of passages, or the file cannot be written.
    """
    known = dict(zip(found.ids, found.errors.tolist(), strict=True))
    if not known.keys() <= set(ids):
        raise InputError(
            f"{found.method} measures no passages, so there is no file of radii: use one radius for all"
        )
    measured = np.array([i in known for i in ids])
    errors = np.array([known.get(i, default) for i in ids], dtype=np.float64)
    with replaced(path) as partial, partial.open("wb") as file:
        np.savez(file, ids=np.array(ids), errors=errors, measured=measured)
    return int((~measured).sum())


def read_radii(path: Path) -> dict[str, float]:
    """Id -> radius, as `write_radii` wrote them.

    Raises
    ------
    DataError
        If the file cannot be read, or holds something else.
    """
    how = f"write one with mio-rag radius INDEX --out {path.with_suffix('.npz').name}"
    try:
        stored = np.load(path, allow_pickle=False)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read as radii: {error.strerror or error}; {how}") from error
    except Exception as error:  # what is wrong with a file of another kind says nothing to its user
        raise DataError(f"'{path}' cannot be read as radii: it is not an .npz archive; {how}") from error
    try:
        if isinstance(stored, np.ndarray):
            raise DataError(f"'{path}' cannot be read as radii: it is one array without ids; {how}")
        try:
            ids, errors = stored["ids"], np.asarray(stored["errors"], dtype=np.float64)
        except Exception as error:
            raise DataError(
                f"'{path}' cannot be read as radii: it lacks the arrays 'ids' and 'errors' of numbers; {how}"
            ) from error
    finally:
        if not isinstance(stored, np.ndarray):
            stored.close()
    fine = ids.ndim == 1 and ids.shape == errors.shape and bool(np.all(np.isfinite(errors) & (errors >= 0)))
    if not fine or np.unique(ids).size < ids.size:
        raise DataError(
            f"'{path}' cannot be read as radii: it must hold one finite radius >= 0 for each id; {how}"
        )
    return dict(zip(map(str, ids.tolist()), errors.tolist(), strict=True))
