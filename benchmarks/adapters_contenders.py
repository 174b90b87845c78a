"""The contenders of `benchmarks.adapters`: one pool as each framework holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mio_rag.adapters.plain import select
from mio_rag.corpora.load import load_dataset
from mio_rag.pool import Candidates
from mio_rag.retrieval.embedders import Embedder, make_embedder
from mio_rag.selection.selector import Selector

Call = Callable[[], list[str]]


@dataclass(frozen=True, eq=False)
class Pool:
    """The nearest passages of one question, best first.

    Parameters
    ----------
    embeddings : ndarray, shape (n, d)
        Unit rows.
    query : ndarray, shape (d,)
    """

    question: str
    ids: list[str]
    texts: list[str]
    sources: list[str]
    embeddings: NDArray[np.float32]
    query: NDArray[np.float32]
    embedder: Embedder

    @property
    def scores(self) -> list[float]:
        """Cosine of the question and each passage."""
        return [float(value) for value in self.embeddings @ self.query]


def pools(documents: int, questions: int, embedder: str) -> list[Pool]:
    """Pools of the bundled set's first questions."""
    data = load_dataset("demo")
    texts = [p.text for p in data.passages]
    model = make_embedder(embedder)
    model.fit(texts)
    vectors = model.encode(texts)
    asked = [q.text for q in data.questions[:questions]]
    made = []
    for question, query in zip(asked, model.encode(asked), strict=True):
        nearest = np.argsort(-(vectors @ query), kind="stable")[:documents]
        chosen = [data.passages[i] for i in nearest]
        made.append(
            Pool(
                question,
                [p.id for p in chosen],
                [p.text for p in chosen],
                [
                    p.id for p in chosen
                ],  # one each: not every framework hands sources on, and they would count
                vectors[nearest],
                query,
                model,
            )
        )
    return made


def contenders(pool: Pool, budget_tokens: int) -> dict[str, Call]:
    """Every contender as a call that chooses and returns the texts in prompt order."""
    selector = Selector()
    candidates = _candidates(pool)
    return {
        "bare": lambda: list(selector.select(candidates, budget_tokens).texts),
        "select": lambda: list(
            select(
                pool.question,
                pool.texts,
                ids=pool.ids,
                sources=pool.sources,
                embeddings=pool.embeddings,
                scores=pool.scores,
                budget_tokens=budget_tokens,
            ).texts
        ),
        "langchain": _langchain(pool, budget_tokens),
        "llama_index": _llama_index(pool, budget_tokens),
        "haystack": _haystack(pool, budget_tokens),
        "dspy": _dspy(pool, budget_tokens),
    }


def frameworks(pool: Pool) -> dict[str, Call]:
    """What a framework itself does around a part that chooses nothing, by the name of its adapter.

    LangChain and Haystack call a part as it is.
    """
    return {"llama_index": _llama_index_alone(pool), "dspy": _dspy_alone(pool)}


def _candidates(pool: Pool) -> Candidates:
    return select(
        pool.question,
        pool.texts,
        ids=pool.ids,
        sources=pool.sources,
        embeddings=pool.embeddings,
        scores=pool.scores,
        budget_tokens=10**6,
        solver="greedy",
    ).candidates


def _langchain(pool: Pool, budget_tokens: int) -> Call:
    from langchain_core.documents import Document

    from mio_rag.adapters.langchain import SelectionCompressor

    rows = zip(pool.ids, pool.texts, pool.sources, pool.scores, strict=True)
    documents = [
        Document(id=i, page_content=text, metadata={"source": source, "relevance_score": score})
        for i, text, source, score in rows
    ]
    compressor = SelectionCompressor(budget_tokens=budget_tokens, embedder=pool.embedder)
    return lambda: [d.page_content for d in compressor.compress_documents(documents, pool.question)]


def _llama_index_alone(pool: Pool) -> Call:
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    class Nothing(BaseNodePostprocessor):
        def _postprocess_nodes(
            self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
        ) -> list[NodeWithScore]:
            return []

    nodes = [NodeWithScore(node=TextNode(text=text)) for text in pool.texts]
    nothing = Nothing()
    return lambda: [found.text for found in nothing.postprocess_nodes(nodes, query_str=pool.question)]


def _llama_index(pool: Pool, budget_tokens: int) -> Call:
    from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

    from mio_rag.adapters.llama_index import SelectionPostprocessor

    rows = zip(pool.ids, pool.texts, pool.scores, strict=True)
    nodes = [NodeWithScore(node=TextNode(id_=i, text=text), score=score) for i, text, score in rows]
    postprocessor = SelectionPostprocessor(budget_tokens=budget_tokens, embedder=pool.embedder)
    return lambda: [
        found.node.get_content(MetadataMode.NONE)
        for found in postprocessor.postprocess_nodes(nodes, query_str=pool.question)
    ]


def _haystack(pool: Pool, budget_tokens: int) -> Call:
    from haystack import Document

    from mio_rag.adapters.haystack import SelectionRanker

    rows = zip(pool.ids, pool.texts, pool.sources, pool.scores, pool.embeddings.tolist(), strict=True)
    documents = [
        Document(id=i, content=text, meta={"source_id": source}, score=score, embedding=row)
        for i, text, source, score, row in rows
    ]
    ranker = SelectionRanker(budget_tokens)
    return lambda: [d.content for d in ranker.run(query=pool.question, documents=documents)["documents"]]


def _dspy(pool: Pool, budget_tokens: int) -> Call:
    from dspy import Prediction
    from dspy.retrievers import EmbeddingsWithScores

    from mio_rag.adapters.dspy import SelectionModule

    retriever = EmbeddingsWithScores(pool.texts, pool.embedder.encode)
    # All are found: the search itself is not what is measured.
    found = Prediction(passages=pool.texts, scores=pool.scores, indices=list(range(len(pool.texts))))
    retriever.forward = lambda query: found
    module = SelectionModule(retriever, budget_tokens=budget_tokens)
    return lambda: list(module(pool.question).passages)


def _dspy_alone(pool: Pool) -> Call:
    from dspy import Module, Prediction

    class Nothing(Module):  # type: ignore[misc]
        def forward(self, query: str) -> Prediction:
            return Prediction(passages=[])

    nothing = Nothing()
    return lambda: list(nothing(pool.question).passages)
