"""A large index of documents with what changed since it was written.

    base/         the index as it was written; its files are links to those of the folder before
    more/         an index of the passages that are new since
    gone/         the words of passages that are no longer there; see `mio_rag.retrieval.unit_terms`
    layers.npz    for each passage its row in the base, or behind that in the other

What a question needs is joined when it is asked for, so that one changed file costs what its passages cost,
and open readers keep their files. Pools are those of an index that is built anew, but for languages: new
passages are cut into words as the others are. A passage that several resemble nearly may be in another's
group.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from mio_rag.errors import IndexFormatError
from mio_rag.retrieval.cached import CachedEmbedder, Progress
from mio_rag.retrieval.embedders import Embedder
from mio_rag.retrieval.nearest import LARGE
from mio_rag.retrieval.scope import Identities
from mio_rag.retrieval.unit_terms import LayeredTerms, UnitTerms
from mio_rag.retrieval.vectors import LayeredRows, MappedVectors, vectors_kind
from mio_rag.types import Passage

if TYPE_CHECKING:
    from mio_rag.retrieval.index import CorpusIndex

LAYERS_FILE = "layers.npz"
_MOST = 0.1  # of the base's passages that are gone or new: beyond that all is written anew
_ALIKE = 20  # nearest passages that a new one is compared with


@dataclass(frozen=True, eq=False)
class Layers:
    """What a layered index is made of.

    folder: of the base, or of a layered index with it.
    rows (n,): of each passage in the base, or behind that in `more`.
    """

    base: CorpusIndex
    folder: Path
    more: CorpusIndex
    gone: UnitTerms | None
    rows: NDArray[np.int64]

    @property
    def kept(self) -> NDArray[np.int64]:
        """The row of each passage in the base, -1 for new ones."""
        return np.where(self.rows < len(self.base), self.rows, -1)

    def joined(self, **parts: Any) -> CorpusIndex:
        """The index of all; parts: those that are not joined here."""
        base, more, rows, kept = self.base, self.more, self.rows, self.kept
        first, second = base.sentences, more.sentences
        if base.terms is None or more.terms is None or first is None or second is None:
            raise ValueError("only documents have layers")
        return type(base)(
            _Passages(base.passages, more.passages, rows),
            base.embedder,
            base.name,
            MappedVectors.exact(LayeredRows(base.vectors, more.vectors, rows)),
            LayeredTerms(base.terms, more.terms, self.gone, kept),
            sentences=first.layered(second, kept),
            nearest=base.nearest and base.nearest.moved(rows, len(base)),
            layers=self,
            **parts,
        )

    def save(self, folder: Path) -> None:
        """Write everything but the parts that are not joined here."""
        base = self.folder / "base"  # once it was written with layers
        base = base if base.is_dir() else self.folder
        shutil.copytree(base, folder / "base", copy_function=_linked, ignore=_foreign)
        self.more.save(folder / "more")
        if self.gone is not None:
            self.gone.save(folder / "gone")
        with (folder / LAYERS_FILE).open("wb") as file:
            np.savez(file, rows=self.rows)

    @classmethod
    def load(cls, folder: Path, embedder: Embedder, kind: type[CorpusIndex]) -> Layers:
        """What `save` wrote, of indexes of this kind.

        Raises `IndexFormatError` where it cannot be read.
        """
        base = kind.load(folder / "base", embedder, mapped=True)
        more = kind.load(folder / "more", embedder)
        try:
            gone = UnitTerms.load(folder / "gone") if (folder / "gone").is_dir() else None
            with np.load(folder / LAYERS_FILE, allow_pickle=False) as data:
                return cls(base, folder / "base", more, gone, data["rows"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IndexFormatError(f"'{folder}' cannot be read ({error}): build the index again") from error


def changed(
    index: CorpusIndex,
    folder: Path,
    names: Sequence[str],
    passages: Sequence[Passage],
    embedder: Embedder,
    progress: Progress | None = None,
) -> CorpusIndex | None:
    """An index whose documents changed, without writing it all anew; None where that is called for.

    folder: of the index.
    names: sources that changed, or are gone or new; passages of the index are in their order.
    passages: what these hold now.
    """
    is_same = isinstance(embedder, CachedEmbedder) and embedder.fingerprint == index.embedder.fingerprint
    plain = index.links is None and index.allowed is None and vectors_kind(index._dense) == "exact"
    if len(index) < LARGE or index.terms is None or not (is_same and plain) or os.name == "nt":
        return None
    old = index.layers
    base, before = (index, []) if old is None else (old.base, list(old.more.passages))
    rows = np.arange(len(index)) if old is None else old.rows
    assert base.identities is not None
    assert base.repetition is not None
    assert index.identities is not None
    firsts = np.flatnonzero(np.diff(index.identities.documents, prepend=-1)).tolist()
    ends = [*firsts[1:], len(index)]

    def source(row: int) -> str:
        return index.passages[row].source

    new: dict[str, list[Passage]] = {name: [] for name in sorted({*names, *(p.source for p in passages)})}
    for passage in passages:
        new[passage.source].append(passage)
    if not before and not passages:  # there is no layer without passages
        k = next(k for k, row in enumerate(firsts) if source(row) not in new)
        new[source(firsts[k])] = list(index.passages[firsts[k] : ends[k]])
    known, pieces, at = [*before], list[NDArray[np.int64]](), 0
    for name in sorted(new):
        k = bisect_left(firsts, name, key=source)
        start = firsts[k] if k < len(firsts) else len(index)
        end = ends[k] if start < len(index) and source(start) == name else start
        pieces += [rows[at:start], len(base) + len(known) + np.arange(len(new[name]))]
        known, at = known + new[name], end
    rows = np.concatenate([*pieces, rows[at:]])
    fresh = rows >= len(base)
    own = [known[k] for k in (rows[fresh] - len(base)).tolist()]
    rows[fresh] = len(base) + np.arange(len(own))
    is_gone = np.ones(len(base), dtype=bool)
    is_gone[rows[~fresh]] = False
    if len(own) + is_gone.sum() > _MOST * len(base) or not own:
        return None
    words = base.terms.words  # type: ignore[union-attr]
    more = type(base).build(own, embedder, base.name, progress, old=None if old is None else old.more)
    if more.terms is None or more.sentences is None:
        return None
    terms = UnitTerms.build(own, words)
    more = replace(more, _bm25=terms, identities=Identities.build(own, terms))
    assert more.identities is not None
    assert more.repetition is not None
    lost = np.flatnonzero(is_gone)
    gone = UnitTerms.build([base.passages[k] for k in lost.tolist()], words) if lost.size else None
    made = Layers(base, folder if old is None else old.folder, more, gone, rows)
    identities = base.identities.changed(base.terms, made.kept, more.identities, terms, gone, lost)  # type: ignore[arg-type]
    found = made.joined(identities=identities)

    def near(row: int) -> list[int]:
        return list(map(int, found.search_dense(found.embeddings([row])[0], _ALIKE)[0]))

    repetition = base.repetition.changed(made.kept, more.repetition, found.passages, near)
    return replace(found, repetition=repetition)


class _Passages(Sequence[Passage]):
    """Passages of two indexes in an order of their own."""

    def __init__(self, first: Sequence[Passage], second: Sequence[Passage], rows: NDArray[np.int64]) -> None:
        self._first, self._second, self._rows = first, second, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, k: int) -> Passage: ...

    @overload
    def __getitem__(self, k: slice) -> tuple[Passage, ...]: ...

    def __getitem__(self, k: int | slice) -> Passage | tuple[Passage, ...]:
        if isinstance(k, slice):
            return tuple(self[i] for i in range(*k.indices(len(self))))
        row, size = int(self._rows[k]), len(self._first)
        return self._first[row] if row < size else self._second[row - size]

    def __iter__(self) -> Iterator[Passage]:
        return (self[k] for k in range(len(self)))


def _linked(source: str, target: str) -> None:
    """A second name of a file that nobody changes; a copy where the disk has no such names."""
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)


def _foreign(folder: str, names: list[str]) -> set[str]:
    """What is no part of an index."""
    return {name for name in names if name.startswith((".", "source.json"))}
