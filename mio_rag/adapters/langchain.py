"""LangChain: a document compressor and a retriever.

ContextualCompressionRetriever(base_retriever=..., base_compressor=SelectionCompressor(...))
SelectionRetriever(retriever=store.as_retriever(search_kwargs={"k": 50}), ...) | format | prompt | model
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mio_rag.adapters.core import NOTES, Documents, Read, SelectionFields, Vectors, label, place
from mio_rag.errors import optional

with optional("langchain_core", "langchain", "mio_rag.adapters.langchain"):
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
        Callbacks,
    )
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever, RetrieverLike
    from langchain_core.runnables.config import run_in_executor
    from langchain_core.vectorstores import VectorStoreRetriever


class _Documents(SelectionFields):
    """What both share: where a document's score and source stand."""

    score_key: str | None = "relevance_score"
    source_key: str | None = "source"
    start_key: str | None = "start_index"

    def _vectors_of(self, embedder: Any) -> Vectors:
        if isinstance(embedder, Embeddings):
            return Vectors(embedder.embed_documents, embedder.embed_query, embedder)
        return super()._vectors_of(embedder)

    def _chosen(self, found: Iterable[Document], query: str) -> list[Document]:
        documents = list(found)
        data = [one.metadata for one in documents]

        def column(key: str | None, read: Callable[[Any], Any]) -> list[Any] | None:
            return None if key is None else [read(one.get(key)) for one in data]

        columns = Documents(
            [one.page_content for one in documents],
            [one.id or "" for one in documents],
            sources=column(self.source_key, label),
            scores=column(self.score_key, lambda score: score),
            starts=column(self.start_key, place),
            metadata=data,
        )
        return [_noted(documents[read.indices[0]], read) for read in self._choose(query, columns).read]


def _noted(document: Document, read: Read) -> Document:
    """A copy with what is read and the notes; the document is the first of several."""
    update: dict[str, Any] = {"metadata": {**document.metadata, NOTES: read.notes}}
    if not read.is_whole:
        update |= {"page_content": read.text, "id": "+".join(part["id"] for part in read.notes["parts"])}
    return document.model_copy(update=update)


class SelectionCompressor(_Documents, BaseDocumentCompressor):
    """Chooses among retrieved documents under a token budget, with a proof.

    budget: largest total of what is chosen, in tokens, >= 1.
    embedder: embeds question and documents where that is needed: for relevance where documents carry no
        score, and for redundancy. Vectors are cached by text.
    score_key: where in the metadata a document's relevance stands; rerankers write "relevance_score". None,
        or no score there: relevance is the cosine of question and document.
    source_key: where its source stands, for `max_per_source`.
    start_key: where its first character stands, counted in its source (in its page, section or sheet, where
        the metadata name one); splitters write it with ``add_start_index=True``. Documents of one page or
        section that overlap or touch are read as one, with theirs in ``metadata["mio_rag"]["parts"]``, unless
        ``merge=False``.
    where, selector, counter, on_selection: see `mio_rag.adapters.core.SelectionFields`.
    **settings: any parameter of `mio_rag.Selector`.

    Raises `InputError` for settings out of range; when called, for documents without what the settings need,
    and `InfeasibleError` if no selection satisfies the constraints.
    """

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Return copies of the chosen documents in prompt order, with notes in ``metadata["mio_rag"]``."""
        return self._chosen(documents, query)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Do the same in a worker thread."""
        return await run_in_executor(None, self._chosen, documents, query)


class SelectionRetriever(_Documents, BaseRetriever):
    """A retriever that reads from another one and chooses; a Runnable like every retriever.

    retriever: should find more than fits: 30 to 50 documents.
    embedder: by default that of the vector store, where `retriever` is one's ``as_retriever()``.
    Everything else: as for `SelectionCompressor`.
    """

    retriever: RetrieverLike

    def _default_embedder(self) -> Any:
        one = self.retriever
        return one.vectorstore.embeddings if isinstance(one, VectorStoreRetriever) else None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        found = self.retriever.invoke(query, config={"callbacks": run_manager.get_child()})
        return self._chosen(found, query)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        found = await self.retriever.ainvoke(query, config={"callbacks": run_manager.get_child()})
        return await run_in_executor(None, self._chosen, found, query)
