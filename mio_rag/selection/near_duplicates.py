"""Of near-duplicates at most one is read: the newest, where they are dated."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.types import moment

__all__ = ["duplicate_pairs", "outdated"]


def outdated(candidates: Candidates, fixed: NDArray[np.int8]) -> list[int]:
    """Candidates of which a newer near-duplicate is in the pool.

    Parameters
    ----------
    fixed : ndarray of shape (n,)
        1 for what must be read, which is never outdated; 0 for what must not, which replaces nothing.
    """
    alike, dates = candidates.duplicates, candidates.dates
    if alike is None or dates is None:
        return []
    found, when = list[int](), [moment(each) for each in dates]
    for i in sorted(range(len(candidates)), key=lambda k: when[k], reverse=True):
        newer = [j for j in np.flatnonzero(alike[i]).tolist() if fixed[j] != 0 and when[j] > when[i]]
        if dates[i] and fixed[i] < 0 and not set(newer) <= set(found):
            found.append(i)
    return found


def duplicate_pairs(candidates: Candidates, required: Collection[str]) -> list[tuple[int, int]]:
    """Pairs of near-duplicates, each once; not where both are required."""
    if candidates.duplicates is None:
        return []
    must = {k for k, name in enumerate(candidates.ids) if name in required}
    pairs = np.argwhere(np.triu(candidates.duplicates > 0, 1)).tolist()
    return [(i, j) for i, j in pairs if not {i, j} <= must]
