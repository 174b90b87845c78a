"""The units of an index: where they lie in its passages, and their vectors.

The units of a document are those that its reader found; they are embedded with the headings and lines that
they stand under. Other passages are cut into sentences, which are embedded alone, without the title that
their neighbours share. A number of a vector takes one byte; a cosine is off by less than .005.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.context import RegexCounter, counted, passage_tokens, text_tokens
from mio_rag.errors import IndexFormatError, InputError
from mio_rag.retrieval.cached import Progress
from mio_rag.retrieval.embedders import Embedder
from mio_rag.retrieval.texts import unit_text, units_of
from mio_rag.retrieval.vectors import LayeredRows, read_arrays, unfit
from mio_rag.sentences import Pieces, Sentences, pieces_of
from mio_rag.types import Passage

SENTENCES_FILE = "sentences.npz"
VECTORS_FILE = "sentences.npy"
_LARGEST = 127.0  # of a byte with its sign
_MOST_READ = 4096  # passages whose units are kept in memory as they are read
_AT_ONCE = 1 << 15  # texts whose vectors are in memory in full precision


@dataclass(frozen=True, eq=False)
class SentenceIndex:
    """The units of the passages of an index.

    first (n + 1,): row of the first unit of each passage, and the number of all.
    spans (m, 2): characters [start, end) in the passage's text.
    codes (m, d): a vector is its codes times its scale.
    scales (m,)
    """

    first: NDArray[np.int64]
    spans: NDArray[np.int32]
    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    _pieces: dict[int, Pieces] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def build(
        cls,
        passages: Sequence[Passage],
        embedder: Embedder,
        progress: Progress | None = None,
        old: SentenceIndex | None = None,
        kept: NDArray[np.int64] | None = None,
    ) -> SentenceIndex:
        """Find and embed the units of passages.

        embedder: that of the passages, fitted.
        progress: called with the number of units just embedded.
        old, kept (n,): by the same embedder, of an earlier state of the corpus: the row that each passage had
            there, -1 for new ones.

        Raises `InputError` if the embedder returns vectors of a wrong shape, or NaN.
        """
        if old is not None and kept is not None:
            fresh = cls.build([passages[k] for k in np.flatnonzero(kept < 0).tolist()], embedder, progress)
            return old._with(fresh, kept)
        place: dict[str, int] = {}  # windows that overlap share many
        counts, spans, at = [], [], []
        for passage in passages:
            units = units_of(passage)
            counts.append(len(units))
            for unit in units:
                text = unit_text(passage, unit) if passage.units else passage.text[unit.start : unit.end]
                at.append(place.setdefault(text, len(place)))
                spans.append(unit[:2])
        texts = list(place)
        width = 0 if texts else embedder.encode([]).shape[1]
        codes, scales = np.empty((len(texts), width), dtype=np.int8), np.empty(len(texts), dtype=np.float32)
        for begin in range(0, len(texts), _AT_ONCE):
            part = texts[begin : begin + _AT_ONCE]
            vectors = np.asarray(embedder.encode(part, progress), dtype=np.float32)
            if vectors.ndim != 2 or len(vectors) != len(part) or not np.isfinite(vectors).all():
                raise InputError(
                    f"embedder '{embedder.name}' returned shape {vectors.shape} for {len(part)} sentences, "
                    "or NaN: it must return a finite row for each"
                )
            if not begin:
                codes = np.empty((len(texts), vectors.shape[1]), dtype=np.int8)
            end = begin + len(part)
            scales[begin:end] = np.maximum(np.abs(vectors).max(axis=1, initial=0.0) / _LARGEST, 1e-12)
            codes[begin:end] = np.rint(vectors / scales[begin:end, None])
        if progress:
            progress(len(at) - len(texts))
        first = np.cumsum([0, *counts], dtype=np.int64)
        flat = np.array(spans, dtype=np.int32).reshape(-1, 2)
        if len(texts) < len(at):
            codes, scales = codes[at], scales[at]
        return cls(first, flat, codes, scales)

    def _with(self, fresh: SentenceIndex, kept: NDArray[np.int64]) -> SentenceIndex:
        """The units of passages that are kept, and those of new ones, in the order of the passages."""
        rows, first = gathered(self.first, fresh.first, kept)
        parts = (
            np.concatenate([np.asarray(getattr(self, name)), getattr(fresh, name)])[rows] for name in _PARTS
        )
        return SentenceIndex(first, *parts)

    def layered(self, fresh: SentenceIndex, kept: NDArray[np.int64]) -> SentenceIndex:
        """`_with` fresh ones, but for the vectors, which stay where they are."""
        rows, first = gathered(self.first, fresh.first, kept)
        spans, scales = (
            np.concatenate([getattr(self, name), getattr(fresh, name)])[rows] for name in ("spans", "scales")
        )
        codes: Any = LayeredRows(self.codes, fresh.codes, rows)
        return SentenceIndex(first, spans, codes, scales)

    def __len__(self) -> int:
        return len(self.spans)

    def places(self, rows: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the units of the given passages, and the place in `rows` of the passage of each."""
        chosen = np.asarray(rows, dtype=np.int64)
        counts = self.first[chosen + 1] - self.first[chosen]
        owners = np.repeat(np.arange(chosen.size), counts)
        within = np.arange(owners.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.first[chosen][owners] + within, owners

    def of(
        self,
        rows: Sequence[int],
        scores: Callable[[NDArray[np.int64], NDArray[np.float32]], Mapping[str, NDArray[np.float64]]]
        | None = None,
        **columns: Any,
    ) -> Sentences:
        """Return the units of the given passages, by their places in `rows`.

        scores: rows of the units and their vectors -> their scores.
        **columns: others of `Sentences`.
        """
        at, owners = self.places(rows)
        vectors = self.vectors(at)
        found = {} if scores is None else scores(at, vectors)
        given: dict[str, Any] = {
            "owners": owners,
            "spans": self.spans[at].astype(np.int64),
            "embeddings": vectors,
        }
        finite = all(np.isfinite(values).all() for values in found.values())
        return (Sentences.unchecked if finite else Sentences)(**given, scores=found, **columns)

    def pieces(self, rows: Sequence[int], passages: Sequence[Passage]) -> list[Pieces]:
        """Return what is read of the units of some passages of documents.

        It is worked out once for each; most questions to a collection find some of the same.
        """
        found, known = [], self._pieces
        for row, passage in zip(rows, passages, strict=True):
            if (one := known.get(row)) is None:
                if len(known) >= _MOST_READ:
                    known.clear()
                spans = self.spans[self.first[row] : self.first[row + 1]].astype(np.int64).tobytes()
                units = units_of(passage)
                one, counter = pieces_of(passage.text, spans, False), RegexCounter()
                texts = [piece.text for piece in one.units]
                sizes = counted(counter, texts).tolist()
                tokens = text_tokens(texts, [passage.title] * len(texts), counter).tolist()
                read = [
                    piece._replace(
                        section=unit.section or passage.section,
                        lines=tuple([passage.lines[n] for n in unit.needs]),
                        size=size,
                        tokens=count,
                    )
                    for piece, unit, size, count in zip(one.units, units, sizes, tokens, strict=True)
                ]
                one = known[row] = one._replace(
                    units=read,
                    needs=[unit.needs for unit in units],
                    sections=[piece.section for piece in read],
                    tokens=int(passage_tokens([passage], counter)[0]),
                    title=passage.title,
                )
            found.append(one)
        return found

    def vectors(self, at: NDArray[np.int64]) -> NDArray[np.float32]:
        """Vectors of some units, by their rows."""
        found = np.asarray(self.codes.take(at, axis=0), dtype=np.float32)
        found *= self.scales.take(at)[:, None]
        return found

    def save(self, folder: Path) -> None:
        """Write `SENTENCES_FILE` and `VECTORS_FILE`."""
        with (folder / SENTENCES_FILE).open("wb") as file:
            np.savez_compressed(file, first=self.first, spans=self.spans, scales=self.scales)
        with (folder / VECTORS_FILE).open("wb") as file:
            np.save(file, self.codes)

    @classmethod
    def load(
        cls, folder: Path, passages: int, dimensions: int, *, mapped: bool = True
    ) -> SentenceIndex | None:
        """What `save` wrote; None where the index was built without units.

        mapped: leave the vectors on disk. Windows then lets nobody replace the folder.

        Raises `IndexFormatError` if it belongs to other passages, or cannot be read.
        """
        path = folder / SENTENCES_FILE
        data = read_arrays(path, "first", "spans", "scales")
        if data is None:
            return None
        try:
            codes = np.load(folder / VECTORS_FILE, mmap_mode="r" if mapped else None, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise IndexFormatError(f"'{path}' cannot be read ({error}): build the index again") from error
        first, spans, scales = data["first"], data["spans"], data["scales"]
        m = len(spans)
        shapes = first.shape == (passages + 1,) and spans.shape == (m, 2) and codes.shape == (m, dimensions)
        fit = shapes and scales.shape == (m,) and codes.dtype == np.int8
        if not fit or first[0] != 0 or first[-1] != m or np.any(np.diff(first) < 0):
            raise unfit(path)
        return cls(first, spans, codes, scales)


_PARTS = ("spans", "codes", "scales")


def gathered(
    first: NDArray[np.int64], fresh: NDArray[np.int64], kept: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the units of kept and new passages, the new ones counted on, and where each passage begins.

    first, fresh: row of the first unit of each passage, and the number of all, before and of the new ones.
    kept (n,): row of each passage before, -1 for new ones.
    """
    new = kept < 0
    place = np.where(new, np.cumsum(new) - 1, kept)
    begin, end = (
        np.where(
            new,
            fresh[np.minimum(place + k, len(fresh) - 1)] + first[-1],
            first[np.minimum(place + k, len(first) - 1)],
        )
        for k in (0, 1)
    )
    counts = end - begin
    total = np.concatenate([[0], np.cumsum(counts)])
    return np.repeat(begin - total[:-1], counts) + np.arange(total[-1]), total
