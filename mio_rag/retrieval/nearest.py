"""Lists of vectors that lie close together, so that a search looks at a few of them.

From `LARGE` passages on an index has them: below, the product with all vectors takes no longer than what else
a question needs. How many lists are looked at is measured when the index is built: as many as hold
`_RECALL` of the 50 nearest that exact search finds for vectors a little off those of passages. Where that
would be most of them, there are none, and search stays exact.

J. Sivic and A. Zisserman, Video Google, ICCV 2003; Jegou, Douze and Schmid, IEEE TPAMI 33(1), 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import IndexFormatError
from mio_rag.retrieval.vectors import load_arrays, unfit

NEAREST_FILE = "nearest.npz"
#: Passages from which on an index is not searched exactly, nor read into memory.
LARGE = 100_000
_RECALL, _NEAREST = 0.99, 50
_MOST = 0.25  # of the lists: beyond that search stays exact
_ASKED, _OFF = 128, 1.0  # vectors that recall is measured with, and how long what is added to them is
_LEARNED, _ROUNDS = 40, 6  # vectors a list that centers are learned from, and how often these move
_AT_ONCE = 1 << 13


@dataclass(frozen=True, eq=False)
class Nearest:
    """Lists of rows by the centers that they are nearest to.

    centers (c, d)
    first (c + 1,), rows (n,): where each list begins, and the rows of all, ascending in each.
    lists: how many are looked at.
    recall: share of the nearest that these held when the index was built.
    """

    centers: NDArray[np.float32]
    first: NDArray[np.int64]
    rows: NDArray[np.int32]
    lists: int
    recall: float

    @classmethod
    def build(cls, vectors: NDArray[np.float32], seed: int = 0) -> Nearest | None:
        """Find the lists of unit vectors (n, d); None where a search of a few of them would miss too much."""
        rng, n, count = np.random.default_rng(seed), len(vectors), int(len(vectors) ** 0.5)
        learned = vectors[np.sort(rng.choice(n, min(n, _LEARNED * count), replace=False))]
        centers = learned[rng.choice(len(learned), count, replace=False)]
        for _ in range(_ROUNDS):
            own = _closest(learned, centers)
            order = np.argsort(own, kind="stable")
            used, begin = np.unique(own[order], return_index=True)
            centers[used] = np.add.reduceat(learned[order], begin, axis=0)
            centers /= np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), 1e-12)
        own = _closest(vectors, centers)
        rows: NDArray[np.int32] = np.argsort(own, kind="stable").astype(np.int32)
        asked = vectors[rng.choice(n, min(n, _ASKED), replace=False)]
        more = rng.standard_normal(asked.shape, dtype=np.float32)
        asked = asked + _OFF * more / np.linalg.norm(more, axis=1, keepdims=True)
        best = np.full((len(asked), 0), 0, dtype=np.int64)
        scores = np.zeros((len(asked), 0), dtype=np.float32)
        for at in range(0, n, _AT_ONCE):  # exact search, part by part
            products = asked @ vectors[at : at + _AT_ONCE].T
            scores = np.hstack([scores, products])
            best = np.hstack([best, np.broadcast_to(at + np.arange(products.shape[1]), products.shape)])
            some = np.argpartition(-scores, min(_NEAREST, scores.shape[1]) - 1, axis=1)[:, :_NEAREST]
            best, scores = np.take_along_axis(best, some, axis=1), np.take_along_axis(scores, some, axis=1)
        ranks = np.argsort(np.argsort(-(asked @ centers.T), axis=1), axis=1)
        needed = np.take_along_axis(ranks, own[best], axis=1).ravel() + 1  # lists until each is found
        lists = max(8, int(np.quantile(needed, _RECALL, method="higher")))
        if lists > _MOST * count:
            return None
        first = np.searchsorted(own[rows], np.arange(count + 1))
        return cls(centers, first, rows, lists, float((needed <= lists).mean()))

    def moved(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> Nearest:
        """The lists of rows in another order, and of new vectors.

        rows (m,): of those here, and behind them of the new ones.
        """
        n = len(self.rows)
        own = np.repeat(np.arange(len(self.centers)), np.diff(self.first))
        own = np.concatenate([own, _closest(vectors, self.centers)])
        place = np.full(n + len(vectors), -1, dtype=np.int32)
        place[rows] = np.arange(len(rows))
        at = place[np.concatenate([self.rows, n + np.arange(len(vectors))])]
        order = np.lexsort((at, own))
        order = order[at[order] >= 0]
        first = np.searchsorted(own[order], np.arange(len(self.centers) + 1))
        return Nearest(self.centers, first, at[order], self.lists, self.recall)

    def candidates(self, query: NDArray[np.float32]) -> NDArray[np.int64]:
        """The rows of the lists that are nearest to a query, ascending."""
        chosen = np.argpartition(-(self.centers @ query), self.lists - 1)[: self.lists]
        parts = [self.rows[self.first[k] : self.first[k + 1]] for k in chosen.tolist()]
        return np.sort(np.concatenate(parts)).astype(np.int64)

    def save(self, folder: Path) -> None:
        """Write `NEAREST_FILE`."""
        told = {name: getattr(self, name) for name in _ARRAYS}
        with (folder / NEAREST_FILE).open("wb") as file:
            np.savez(file, numbers=np.array([self.lists, self.recall]), **told)

    @classmethod
    def load(cls, folder: Path, passages: int) -> Nearest | None:
        """What `save` wrote; None where search is exact.

        Raises `IndexFormatError` if it belongs to other passages, or cannot be read.
        """
        path = folder / NEAREST_FILE
        if not path.is_file():
            return None
        try:
            held: dict[str, Any] = load_arrays(path, (*_ARRAYS, "numbers"), ("rows",))
        except (OSError, ValueError, KeyError) as error:
            raise IndexFormatError(f"'{path}' cannot be read ({error}): build the index again") from error
        lists, recall = held.pop("numbers").tolist()
        if len(held["rows"]) != passages or held["first"].shape != (len(held["centers"]) + 1,):
            raise unfit(path)
        return cls(**held, lists=int(lists), recall=recall)


_ARRAYS = ("centers", "first", "rows")


def _closest(vectors: NDArray[np.float32], centers: NDArray[np.float32]) -> NDArray[np.int64]:
    """The center of largest inner product with each vector."""
    parts = [
        (vectors[begin : begin + _AT_ONCE] @ centers.T).argmax(axis=1)
        for begin in range(0, len(vectors), _AT_ONCE)
    ]
    return np.concatenate(parts)
