"""DSPy: a module that reads from a retriever and chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mio_rag.adapters.core import Documents, Vectors, checked_settings, choose, label
from mio_rag.adapters.plain import Counter
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, optional
from mio_rag.selection.selector import Selector

with optional("dspy", "dspy", "mio_rag.adapters.dspy"):
    import dspy

if TYPE_CHECKING:
    from mio_rag.retrieval.embedders import Embedder


class SelectionModule(dspy.Module):
    """Chooses among a retriever's passages under a token budget, with a proof.

    retriever: question -> a `dspy.Prediction` with ``passages`` (and ``scores``, where it has them), or a
        list of passages: `dspy.Embeddings`, `dspy.Retrieve`, a module or function of yours. Should find more
        than fits: 30 to 50 passages. Without one, give the call its passages.
    budget: largest total of what is chosen, in tokens, >= 1.
    where: only passages that meet it, where they are mappings or objects with metadata; see
        `mio_rag.filters`.
    selector: settings to start from.
    embedder: embeds question and passages where that is needed. By default the retriever's own: the passages'
        vectors that `dspy.Embeddings` keeps are taken as they are.
    counter: the reader's tokenizer, or a function from a text to its tokens. By default an approximation.
    **settings: any parameter of `mio_rag.Selector`. Ids are the passages' places in what was retrieved, from
        "0".

    Raises `InputError` for settings out of range.
    """

    def __init__(
        self,
        retriever: Callable[..., Any] | None = None,
        *,
        budget: int = DEFAULTS.budget,
        where: Any = None,
        selector: Selector | None = None,
        embedder: Callable[[list[str]], ArrayLike] | Embedder | str | None = None,
        counter: Counter | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.budget, self.selector = checked_settings(budget, where, selector, counter, settings)
        self.retriever, self.where, self.counter = retriever, where, counter
        self._stored = embedder is None  # another model's question would not fit the retriever's vectors
        given: Any = getattr(retriever, "embedder", None) if embedder is None else embedder
        if given is None:
            self._vectors = None
        elif callable(given) and not hasattr(given, "encode"):
            self._vectors = Vectors(given, lambda text: given([text])[0], given)
        else:
            self._vectors = Vectors.of(given)

    def forward(self, query: str, passages: Sequence[Any] | None = None, **fields: Any) -> dspy.Prediction:
        """Choose.

        passages: instead of what the retriever finds: texts, or what holds one as ``long_text`` or ``text``.
        **fields: with `passages`: lists that go with them, ``scores`` among them. Without: for the retriever.

        Returns: ``passages`` in prompt order, every list that came with them in the same order, ``notes``
        (rank, reason and certificate of each) and ``report`` (certificate, tokens used, why others were left
        out).
        Raises `InputError` for passages without what the settings need; `InfeasibleError` if no selection
        satisfies the constraints.
        """
        if passages is not None:
            return self._chosen(query, dspy.Prediction(passages=list(passages), **fields))
        return self._chosen(query, self._needed()(query, **fields))

    async def aforward(
        self, query: str, passages: Sequence[Any] | None = None, **fields: Any
    ) -> dspy.Prediction:
        """Do `forward`; the retriever is awaited where it can be, the rest runs in a worker thread."""
        if passages is not None:
            return await asyncio.to_thread(self.forward, query, passages, **fields)
        retriever = self._needed()
        if acall := getattr(retriever, "acall", None):
            found = await acall(query, **fields)
        else:
            found = await asyncio.to_thread(retriever, query, **fields)
        return await asyncio.to_thread(self._chosen, query, found)

    def _needed(self) -> Callable[..., Any]:
        if self.retriever is None:
            raise InputError("there is nothing to choose from: give a retriever, or passages=")
        return self.retriever

    def _chosen(self, query: str, found: Any) -> dspy.Prediction:
        prediction = found if hasattr(found, "passages") else dspy.Prediction(passages=list(found))
        passages, scores = list(prediction.passages), prediction.get("scores", None)
        n, rows = len(passages), self._stored_rows(prediction.get("indices", None))
        for name, column in (("scores", scores), ("indices", rows)):
            if column is not None and not _goes_along(column, n):
                held = len(column) if hasattr(column, "__len__") else repr(column)
                raise InputError(f"{name} has {held} entries, expected {n}: one per passage")
        metadata = list(map(_metadata, passages))
        sources = [label(one.get("source")) for one in metadata]
        documents = Documents(
            list(map(_text, passages)),
            sources=sources if any(sources) else None,
            scores=None if scores is None else list(scores),
            embeddings=rows,
            metadata=metadata,
        )
        choice = choose(
            query,
            documents,
            budget=self.budget,
            selector=self.selector,
            vectors=lambda: self._vectors,
            counter=self.counter,
            where=self.where,
        )
        indices, notes, own = choice.indices, choice.notes, {}
        if choice.selection is not None and choice.selection.unit == "sentence":
            indices = tuple(read.indices[0] for read in choice.read)
            notes = tuple(read.notes for read in choice.read)
            own = {"passages": [read.text for read in choice.read]}
        kept = {
            name: [value[i] for i in indices] if _goes_along(value, n) else value
            for name, value in prediction.items()
        }
        return dspy.Prediction(**kept | own, notes=list(notes), report=choice.report())

    def _stored_rows(self, indices: Sequence[int] | None) -> Any:
        """Return the vectors that `dspy.Embeddings` keeps of its corpus."""
        if not self._stored or indices is None or not isinstance(self.retriever, dspy.Embeddings):
            return None
        return np.asarray(self.retriever.corpus_embeddings)[list(indices)]


def _goes_along(value: Any, n: int) -> bool:
    return isinstance(value, (list, tuple, np.ndarray)) and len(value) == n


def _metadata(passage: Any) -> Mapping[str, Any]:
    """A mapping's other entries, or an object's metadata."""
    if isinstance(passage, Mapping):
        return {**passage.get("metadata", {}), **{k: v for k, v in passage.items() if k != "metadata"}}
    found = getattr(passage, "metadata", None)
    return found if isinstance(found, Mapping) else {}


def _text(passage: Any) -> str:
    if isinstance(passage, str):
        return passage
    for name in ("long_text", "text"):
        text = passage.get(name) if isinstance(passage, dict) else getattr(passage, name, None)
        if isinstance(text, str):
            return text
    raise InputError(f"a passage is a {type(passage).__name__} without text: give a string, or long_text")
