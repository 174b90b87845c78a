"""LangChain: a document compressor and a retriever.

ContextualCompressionRetriever(base_retriever=..., base_compressor=SelectionCompressor(...))
SelectionRetriever(retriever=store.as_retriever(search_kwargs={"k": 50}), ...) | format | prompt | model
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """What both share: where a document's score and source stand.

    score_key: where in the metadata a document's relevance stands; rerankers write "relevance_score". None,
        or no score there: relevance is the cosine of question and document.
    source_key: where in the metadata its source stands, for `max_per_source`.
    start_key: where in the metadata stands at which character of its source a document begins (of its page,
        section, sheet or the like, where the metadata name one); splitters write it with
        ``add_start_index=True``. Documents of one page or section that overlap or touch are read as one, with
        theirs in ``metadata["mio_rag"]["parts"]``, unless ``merge=False``.
    """

    score_key: str | None = "relevance_score"
    source_key: str | None = "source"
    start_key: str | None = "start_index"

    def _vectors_of(self, embedder: Any) -> Vectors:
        if isinstance(embedder, Embeddings):
            return Vectors(embedder.embed_documents, embedder.embed_query, embedder)
        return super()._vectors_of(embedder)

    def _chosen(self, found: Iterable[Document], query: str) -> list[Document]:
        documents = list(found)
        choice = self._choose(query, self._columns(documents))
        return [_noted([documents[i] for i in read.indices], read) for read in choice.read]

    def _columns(self, documents: Sequence[Document]) -> Documents:
        score, source = self.score_key, self.source_key
        data = [d.metadata for d in documents]
        scores = None if score is None else [found.get(score) for found in data]
        return Documents(
            [d.page_content for d in documents],
            [d.id or "" for d in documents],
            None if source is None else [label(found.get(source)) for found in data],
            scores,
            starts=None if self.start_key is None else [place(found.get(self.start_key)) for found in data],
            metadata=data,
        )


def _noted(documents: Sequence[Document], read: Read) -> Document:
    """A copy of the document, or of the first of several, with what is read of them and the notes."""
    first = documents[0]
    noted = {"metadata": {**first.metadata, NOTES: read.notes}}
    if read.is_whole:
        return first.model_copy(update=noted)
    names = "+".join(part["id"] for part in read.notes["parts"])
    return first.model_copy(update={**noted, "page_content": read.text, "id": names})


class SelectionCompressor(_Documents, BaseDocumentCompressor):
    """Chooses among retrieved documents under a token budget, with a proof.

    budget: largest total of what is chosen, in tokens, >= 1.
    embedder: embeds question and documents where that is needed: for relevance where documents carry no
        score, and for redundancy. A vector is remembered by its text.
    score_key, source_key, start_key: where in the metadata relevance, source and place in the source stand.
    where, selector, counter, on_selection: see `mio_rag.adapters.core.SelectionFields`.
    **settings: any parameter of `mio_rag.Selector`.

    Raises `InputError` for settings out of range; when called, for documents without what the settings need.
    Raises `InfeasibleError` when called, if no selection satisfies the constraints.
    """

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Copies of the chosen documents in prompt order, with their notes in ``metadata["mio_rag"]``."""
        return self._chosen(documents, query)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """The same in a worker thread."""
        return await run_in_executor(None, self._chosen, documents, query)


class SelectionRetriever(_Documents, BaseRetriever):
    """A retriever that reads from another one and chooses; a Runnable like every retriever.

    retriever: should find more than fits: 30 to 50 documents.
    embedder: by default that of the vector store, where `retriever` is one's ``as_retriever()``.
    budget, score_key, source_key, start_key, where, selector, counter, on_selection, **settings: as for
        `SelectionCompressor`.
    """

    retriever: RetrieverLike

    def _default_embedder(self) -> Any:
        return (
            self.retriever.vectorstore.embeddings
            if isinstance(self.retriever, VectorStoreRetriever)
            else None
        )

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
