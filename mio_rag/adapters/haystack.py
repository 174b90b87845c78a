"""Haystack: a ranker.

retriever -> SelectionRanker -> prompt builder; `Pipeline.loads(..., allowed_modules=["mio_rag.adapters.*"])`
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.adapters.core import (
    NOTES,
    Documents,
    Read,
    Vectors,
    checked_settings,
    choose,
    label,
    place,
    takes_scores,
)
from mio_rag.adapters.plain import Counter, to_plain
from mio_rag.defaults import DEFAULTS
from mio_rag.errors import InputError, optional
from mio_rag.retrieval.embedders import Embedder
from mio_rag.selection.selector import Selector

with optional("haystack", "haystack", "mio_rag.adapters.haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.components.embedders.types import DocumentEmbedder, TextEmbedder
    from haystack.core.serialization import component_to_dict
    from haystack.utils import deserialize_callable, serialize_callable


@component
class SelectionRanker:
    """Chooses among retrieved documents under a token budget, with a proof.

    budget: largest total of what is chosen, in tokens, >= 1.
    where: only documents whose ``meta`` meet it; see `mio_rag.filters`.
    selector: settings to start from.
    embedder: embeds question and documents where that is needed; saved only where it is a name.
    text_embedder, document_embedder: instead of `embedder`: Haystack's own components for question and
        documents. Neither is needed where documents come with embeddings (``return_embedding=True``) and
        `run` is given the query's.
    use_scores: take a document's score for its relevance; False: documents are ranked anew, by vectors and
        words. By default scores are taken unless documents have several lines, and an embedder is there.
    source_key: where in ``meta`` a document's source stands, for `max_per_source`; splitters write
        "source_id". Documents of one page or section that overlap or touch (by ``split_idx_start``, which
        splitters write, or by their texts) are read as one, with theirs in ``meta["mio_rag"]["parts"]``,
        unless ``merge=False``.
    counter: the reader's tokenizer, or a function from a text to its tokens; a named function is saved. By
        default an approximation.
    **settings: any parameter of `mio_rag.Selector`.

    Raises `InputError` for settings out of range.
    """

    def __init__(
        self,
        budget: int = DEFAULTS.budget,
        *,
        where: Any = None,
        selector: Selector | Mapping[str, Any] | None = None,
        embedder: Embedder | str | None = None,
        text_embedder: TextEmbedder | None = None,
        document_embedder: DocumentEmbedder | None = None,
        use_scores: bool | None = None,
        source_key: str | None = "source_id",
        counter: Counter | None = None,
        **settings: Any,
    ) -> None:
        if (text_embedder is None) != (document_embedder is None):
            raise InputError("text_embedder and document_embedder go together: give both, of one model")
        if embedder is not None and text_embedder is not None:
            raise InputError("embedder and text_embedder/document_embedder exclude each other: keep one")
        self.budget, self.selector = checked_settings(budget, where, selector, counter, settings)
        self.where, self.use_scores, self.source_key, self.counter = where, use_scores, source_key, counter
        self.embedder, self.text_embedder, self.document_embedder = embedder, text_embedder, document_embedder
        self._vectors = None if embedder is None else Vectors.of(embedder)
        if text_embedder is not None:
            self._vectors = Vectors(self._embed_documents, self._embed_query)

    def warm_up(self) -> None:
        """Load the embedders' models."""
        for part in (self.text_embedder, self.document_embedder):
            if load := getattr(part, "warm_up", None):
                load()

    @component.output_types(documents=list[Document], report=dict[str, Any])
    def run(
        self,
        query: str,
        documents: list[Document],
        query_embedding: list[float] | None = None,
        budget: int | None = None,
    ) -> dict[str, Any]:
        """Choose.

        query_embedding: the question's vector, of the model that embedded the documents.
        budget: for this run.

        Returns: ``documents``: copies of those chosen, in prompt order, with their notes in
        ``meta["mio_rag"]``; ``report``: the certificate, tokens used, and why each of the others was left
        out.
        Raises `InputError` for documents without what the settings need; `InfeasibleError` if no selection
        satisfies the constraints.
        """
        given, source = list(documents), self.source_key
        texts = [d.content or "" for d in given]
        scored = takes_scores(self.use_scores, texts, self.selector, lambda: self._vectors)
        columns = Documents(
            texts,
            [d.id for d in given],
            None if source is None else [label(d.meta.get(source)) for d in given],
            [d.score for d in given] if scored else None,
            [d.embedding for d in given],
            starts=[place(d.meta.get("split_idx_start")) for d in given],
            metadata=[d.meta for d in given],
        )
        choice = choose(
            query,
            columns,
            budget=self.budget if budget is None else budget,
            selector=self.selector,
            vectors=lambda: self._vectors,
            counter=self.counter,
            query_embedding=query_embedding,
            where=self.where,
        )
        chosen = [_noted(given[read.indices[0]], read) for read in choice.read]
        return {"documents": chosen, "report": choice.report()}

    @component.output_types(documents=list[Document], report=dict[str, Any])
    async def run_async(
        self,
        query: str,
        documents: list[Document],
        query_embedding: list[float] | None = None,
        budget: int | None = None,
    ) -> dict[str, Any]:
        """Do `run` in a worker thread."""
        return await asyncio.to_thread(self.run, query, documents, query_embedding, budget)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for YAML.

        Raises `InputError` if the embedder or counter is an object, which cannot be saved.
        """
        for name, is_saved, advice in (
            ("embedder", isinstance(self.embedder, str), "its name or folder, or Haystack embedders"),
            ("counter", inspect.isroutine(self.counter), "a function of a module"),
        ):
            if (value := getattr(self, name)) is not None and not is_saved:
                kind = type(value).__qualname__
                raise InputError(f"{name} is an object ({kind}), which cannot be saved: give {advice}")
        embedders = {name: getattr(self, name) for name in ("text_embedder", "document_embedder")}
        data: dict[str, Any] = default_to_dict(
            self,
            budget=int(self.budget),
            where=self.where,
            selector=to_plain(self.selector),
            embedder=self.embedder,
            **{name: part and component_to_dict(part, name) for name, part in embedders.items()},
            use_scores=self.use_scores,
            source_key=self.source_key,
            counter=serialize_callable(self.counter) if inspect.isroutine(self.counter) else None,
        )
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SelectionRanker:
        """Make the ranker that `to_dict` wrote."""
        given = dict(data["init_parameters"])
        if given.get("counter") is not None:
            given["counter"] = deserialize_callable(given["counter"])
        made: SelectionRanker = default_from_dict(cls, {**data, "init_parameters": given})
        return made

    def _embed_documents(self, texts: list[str]) -> list[Any]:
        assert self.document_embedder is not None
        found = self.document_embedder.run(documents=[Document(content=text) for text in texts])["documents"]
        return [document.embedding for document in found]

    def _embed_query(self, text: str) -> NDArray[np.float32]:
        assert self.text_embedder is not None
        return np.asarray(self.text_embedder.run(text=text)["embedding"], dtype=np.float32)


def _noted(document: Document, read: Read) -> Document:
    """A copy with the notes in its metadata; `dataclasses.replace` would check every field of it again."""
    noted = copy(document)
    object.__setattr__(noted, "meta", {**document.meta, NOTES: read.notes})  # plain setting warns: no copy's
    if not read.is_whole:
        object.__setattr__(noted, "content", read.text)
        object.__setattr__(noted, "id", "+".join(part["id"] for part in read.notes["parts"]))
    return noted
