"""What the passages of a pool share, as segments: a document's title and pieces of its text, each paid once.

A document's texts are cut where one of its passages begins or ends; a passage needs the pieces that it
covers, and its document's heading. What only one passage needs is that passage's own cost. So the costs of a
choice add up to what `mio_rag.merging` makes of it, as far as a tokenizer counts a whole like the sum of its
parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mio_rag.candidates import Candidates
from mio_rag.context import SEPARATOR, TokenCounter, counted
from mio_rag.formulations.program import Segments
from mio_rag.merging import APART, documents, runs
from mio_rag.text import clean

__all__ = ["SharedCosts", "shared_costs"]


class SharedCosts(NamedTuple):
    """Token costs of a pool whose passages share text.

    Parameters
    ----------
    own : ndarray of shape (n,)
        What each passage costs by itself, whatever else is read.
    segments : Segments
        What several passages need, in tokens.
    """

    own: NDArray[np.float64]
    segments: Segments


def shared_costs(candidates: Candidates, counter: TokenCounter) -> SharedCosts | None:
    """Costs of the passages and of what they share; None where no two are of one document.

    Parameters
    ----------
    counter : TokenCounter
        The reader's tokenizer.
    """
    number = documents(candidates)
    pieces: list[str] = []
    needed: list[list[int]] = []  # by which passages
    marks: dict[int, int] = {}  # heading -> the mark before the first of its runs, which nobody reads
    own = candidates.tokens.astype(np.float64)
    for k in range(int(number.max(initial=-1)) + 1):
        rows = np.flatnonzero(number == k).tolist()
        if len(rows) < 2:
            continue
        own[rows] = 0.0
        title = "" if candidates.titles is None else clean(candidates.titles[rows[0]]).strip()
        heading = len(pieces)
        pieces.append(f"{SEPARATOR}{title}\n" if title else SEPARATOR)
        needed.append(rows)
        found = runs(candidates, rows)
        for run in found:
            if len(found) > 1:
                marks.setdefault(heading, len(pieces))
                pieces.append(APART)
                needed.append(list(run.rows))
            _cut(candidates, run.start, run.text, run.rows, pieces, needed)
    if not pieces:
        return None
    costs = counted(counter, pieces).astype(np.float64)
    for heading, mark in marks.items():
        costs[heading] = max(0.0, costs[heading] - costs[mark])
    needs = np.zeros((len(candidates), len(pieces)), dtype=bool)
    for s, rows in enumerate(needed):
        needs[rows, s] = True
    single = needs.sum(axis=0) == 1
    own += needs[:, single] @ costs[single]
    own[own + needs @ np.where(single, 0.0, costs) < 1] = 1.0  # as alone: nothing is read at no cost
    kept = ~single & (costs > 0)
    return SharedCosts(own, Segments(costs[kept], needs[:, kept]))


def _cut(
    candidates: Candidates,
    start: int,
    text: str,
    rows: tuple[int, ...],
    pieces: list[str],
    needed: list[list[int]],
) -> None:
    """Add the pieces of a run, and the passages that need each of them."""
    spans = candidates.spans
    assert spans is not None
    borders = np.unique(spans[list(rows)])
    for low, high in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        inside = [i for i in rows if spans[i, 0] <= low and high <= spans[i, 1]]
        pieces.append(text[low - start : high - start])
        needed.append(inside)
