"""What a passage repeats of those that are read, in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from mio_rag.candidates import Candidates
from mio_rag.merging import documents
from mio_rag.types import moment

__all__ = ["Repeats"]

_NEARLY = 0.1  # of a text, within which its half is a half


class Repeats:
    """Of one pool and what is chosen of it.

    Parameters
    ----------
    chosen : sequence of int
        Candidates that are read.
    """

    def __init__(self, candidates: Candidates, chosen: Sequence[int]) -> None:
        self._candidates, self._chosen = candidates, list(chosen)
        self._document = documents(candidates)

    def read(self, i: int) -> str:
        """Which part of a passage's text is read with others; or "".

        "its second half is read with 'b'"; of a passage that is left out, "is already read with 'b'".
        """
        candidates, spans = self._candidates, self._candidates.spans
        if spans is None or self._document[i] < 0:
            return ""
        low, high = map(int, spans[i])
        held = np.zeros(high - low, dtype=bool)
        common: dict[str, int] = {}  # passages that hold some of it, and how much
        for j in self._chosen:
            if j == i or self._document[j] != self._document[i]:
                continue
            start, end = max(low, int(spans[j, 0])), min(high, int(spans[j, 1]))
            if end > start:
                held[start - low : end - low] = True
                common[f"'{candidates.ids[j]}'"] = end - start
        if not common:
            return ""
        said = np.array([not letter.isspace() for letter in candidates.texts[i]], dtype=bool)
        if not held[said].any():
            return ""
        most, *others = sorted(common, key=lambda name: -common[name])
        more = "" if not others else f" and {others[0] if len(others) == 1 else f'{len(others)} others'}"
        part, several = _part(held[said])
        verb = "are" if several else "is"
        already = "" if i in self._chosen else " already"
        return f"{part} {verb}{already} read with {most}{more}"

    def newer(self, i: int, barred: Collection[int] = ()) -> str:
        """Which passage of the pool is the newest version of one that is outdated.

        Parameters
        ----------
        barred : collection of int
            Candidates that must not be read, and so replace nothing.
        """
        alike, dates = self._candidates.duplicates, self._candidates.dates
        assert alike is not None
        assert dates is not None
        others = (k for k in np.flatnonzero(alike[i]).tolist() if k not in barred)
        j = max(others, key=lambda k: moment(dates[k]))
        told = f"({dates[j]}; {_alike(alike[i, j])})"
        return f"not read: '{self._candidates.ids[j]}' is a newer version of it {told}"

    def copied(self, i: int) -> str:
        """Which passage that is read it is nearly a copy of: "a near-duplicate of 'b' ..."; or ""."""
        alike, dates = self._candidates.duplicates, self._candidates.dates
        others = [j for j in self._chosen if alike is not None and j != i and alike[i, j] > 0]
        if alike is None or not others:
            return ""
        j = max(others, key=lambda k: float(alike[i, k]))
        what = "a near-duplicate"
        if dates is not None and moment(dates[i]) > moment(dates[j]) != "":
            what = f"a newer version ({dates[i]})"
        return f"{what} of '{self._candidates.ids[j]}' ({_alike(alike[i, j])})"


def _alike(similarity: float) -> str:
    return f"Jaccard similarity {similarity:.2f}"


def _part(held: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[str, bool]:
    """The part of a text that is marked, in words; and whether these are plural."""
    share = float(held.mean())
    if share > 1 - 1e-9:
        return "all of it", False
    size = f"{max(1, min(99, round(100 * share)))} %"
    first, last = bool(held[0]), bool(held[-1])
    whole = int(np.count_nonzero(np.diff(held.astype(np.int8)))) == 1
    if whole and abs(share - 0.5) <= _NEARLY:
        return "its first half" if first else "its second half", False
    if whole:
        return f"its beginning ({size})" if first else f"its end ({size})", False
    if first and last:
        return f"its beginning and its end ({size})", True
    return f"{size} of it", False
