"""Vectors for documents that frameworks return without them: computed once and cached by text."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mio_rag.errors import InputError

if TYPE_CHECKING:
    from mio_rag.retrieval.embedders import Embedder

__all__ = ["REMEMBERED", "Vectors", "matrix"]

_FLOAT = np.dtype(np.float32)

#: Vectors that a `Vectors` remembers at most; the oldest are forgotten first.
REMEMBERED = 20_000


class Vectors:
    """Embeds passages and questions; passage vectors are cached in memory by text.

    Frameworks return documents without their vectors, and the same documents come up again and again.

    Parameters
    ----------
    passages : callable
        Texts -> one row each.
    query : callable
        Question -> its vector.
    owner : object
        What these belong to, for comparison.
    """

    def __init__(
        self,
        passages: Callable[[list[str]], ArrayLike],
        query: Callable[[str], ArrayLike],
        owner: object = None,
    ) -> None:
        self._passages, self._query, self.owner = passages, query, owner
        self._places: dict[str, int] = {}  # text -> its row, oldest first
        self._rows = np.empty((0, 0), dtype=np.float32)
        self._lock = Lock()  # frameworks call from many threads, and a row may be taken for another text

    @classmethod
    def of(cls, embedder: Embedder | str) -> Vectors:
        """Those of an embedder of mio-rag, or of its name: "minilm", or a sentence-transformers id or folder.

        A model that is named is loaded when it is first needed.

        Raises
        ------
        InputError
            For "tfidf", which has to be fitted on a corpus.
        """
        if embedder == "tfidf":
            raise InputError(
                "embedder 'tfidf' must be fitted on a corpus: fit a TfidfEmbedder and give that, or 'minilm'"
            )
        loaded: list[Embedder] = [] if isinstance(embedder, str) else [embedder]

        def encode(texts: list[str]) -> NDArray[np.float32]:
            from mio_rag.retrieval.embedders import make_embedder

            if not loaded:
                loaded.append(make_embedder(str(embedder)))
            return loaded[0].encode(texts)

        return cls(encode, lambda text: encode([text])[0], embedder)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what is remembered, for pickling."""
        return {"_passages": self._passages, "_query": self._query, "owner": self.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Vectors.__init__(self, state["_passages"], state["_query"], state["owner"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Vectors:
        return self  # DSPy's optimizers copy whole programs; a model and what it made are not settings

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vector of each text, a row each."""
        with self._lock:
            try:
                return self._rows[list(map(self._places.__getitem__, texts))]
            except KeyError:
                pass  # some are new
            new = list(dict.fromkeys(text for text in texts if text not in self._places))
            kept = [text for text in dict.fromkeys(texts) if text in self._places]
            known = self._rows[[self._places[text] for text in kept]]
        made = matrix("the embedder", self._passages(new))
        if len(made) != len(new):
            raise InputError(f"the embedder returned {len(made)} vectors for {len(new)} texts")
        if kept and made.shape[1] != known.shape[1]:
            raise InputError(
                f"the embedder made vectors of {made.shape[1]} dimensions, earlier of {known.shape[1]}"
            )
        with self._lock:
            self._remember(new, made)
        rows = np.concatenate([known, made]) if kept else made
        place = {text: k for k, text in enumerate([*kept, *new])}
        return rows[[place[text] for text in texts]]

    def _remember(self, texts: list[str], rows: NDArray[np.float32]) -> None:
        if self._rows.shape[1] != rows.shape[1]:  # another model's
            self._places, self._rows = {}, np.empty((0, rows.shape[1]), dtype=np.float32)
        recent = rows[-REMEMBERED:]
        sound = np.atleast_1d(np.isfinite(recent).all(axis=1))  # an embedder may fail once only
        for text, row, good in zip(texts[-REMEMBERED:], recent, sound, strict=True):
            if text in self._places or not good:  # or another thread was faster
                continue
            place = len(self._places)
            if place >= REMEMBERED:
                place = self._places.pop(next(iter(self._places)))
            elif place == len(self._rows):
                grown = np.empty((min(REMEMBERED, max(64, 2 * place)), rows.shape[1]), dtype=np.float32)
                grown[:place] = self._rows
                self._rows = grown
            self._places[text] = place
            self._rows[place] = row

    def query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question."""
        made = self._query(text)
        try:
            return np.asarray(made, dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the embedder returned no vector for the question ({error})") from error


def matrix(whose: str, rows: ArrayLike | Sequence[Any]) -> NDArray[np.float32]:
    """Rows of one length as an array.

    Raises
    ------
    InputError
        If they are not.
    """
    try:
        found = _packed(rows) if isinstance(rows, list) else np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{whose}: vectors are not rows of numbers of one length ({error})") from error
    if found.ndim != 2:
        raise InputError(f"{whose}: vectors have shape {found.shape}, expected one row for each text")
    return found


def _packed(rows: list[Any]) -> NDArray[np.float32]:
    """Rows as an array.

    Arrays are joined and lists of floats packed, which takes a quarter of what NumPy takes to look at
    each.
    """
    kinds = set(map(type, rows))
    if kinds == {np.ndarray} and {(row.dtype, row.shape) for row in rows} == {(_FLOAT, rows[0].shape)}:
        return np.concatenate(rows).reshape(len(rows), *rows[0].shape)
    if kinds != {list} or len(set(map(len, rows))) > 1:
        return np.asarray(rows, dtype=np.float32)
    form = struct.Struct(f"{len(rows[0])}f")
    try:
        packed = b"".join(form.pack(*row) for row in rows)
    except (struct.error, OverflowError):  # no numbers, or too large ones: NumPy says which
        return np.asarray(rows, dtype=np.float32)
    return np.frombuffer(packed, dtype=np.float32).reshape(len(rows), -1)
