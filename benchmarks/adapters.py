"""Adapters to other frameworks: what each adds to the bare selector, on the same pools.

*bare* is `Selector.select` on a finished `Candidates`; *select* is the plain-Python `select()`. The
adapters get documents as their framework's store hands them out: LangChain's and LlamaIndex's without
vectors, Haystack's with them as lists, DSPy's from its own retriever's array. All must choose the same
passages.

The overhead of a call is its CPU time less what it spends in `Selector.select`, measured in the same call.
What a framework itself does around any part of its pipeline is measured alone, with a part that chooses
nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import Measured, at_least, note, text_table
from mio_rag.collection import select
from mio_rag.corpora.load import load_dataset
from mio_rag.retrieval.embedders import Embedder, make_embedder
from mio_rag.selection.result import Selection
from mio_rag.selection.selector import Selector

_BUDGET = 512
_TARGET_MS = 1.0  # of an adapter beyond the bare selector and its framework, for 50 documents
Call = Callable[[], list[str]]


def measure(given: argparse.Namespace) -> Measured:
    """Let every contender take its turn in every round; another choice than the bare selector's is wrong."""
    at_least(given, documents=1, questions=1, rounds=1)
    extra: dict[str, list[float]] = {}
    alone: dict[str, list[float]] = {}
    wrong = []
    for pool in _pools(given.documents, given.questions, given.embedder):
        calls, empty = _contenders(pool), _frameworks(pool)
        wanted = calls["bare"]()  # the first, cold call of each is not counted
        wrong += [f"{pool.question}: {name}" for name, call in calls.items() if call() != wanted]
        for _ in range(given.rounds):
            for name, call in calls.items():
                extra.setdefault(name, []).append(_overhead(call))
                if name in empty:
                    alone.setdefault(name, []).append(_overhead(empty[name]))
        note(pool.question)
    found = {
        name: {
            "overhead_ms": 1e3 * float(np.median(times)),
            "best_ms": 1e3 * min(times),
            "p90_ms": 1e3 * float(np.quantile(times, 0.9)),
            "framework_ms": 1e3 * float(np.median(alone.get(name, [0.0]))),
        }
        for name, times in extra.items()
    }
    late = [name for name, one in found.items() if one["overhead_ms"] - one["framework_ms"] >= _TARGET_MS]
    rows = [(name, *(f"{value:.3f}" for value in one.values())) for name, one in found.items()]
    lines = [text_table(("ms", "overhead", "best", "90 %", "the framework alone"), rows)]
    lines += [f"{_TARGET_MS:g} ms or more beyond the framework's own: {', '.join(late) or 'none'}"]
    report = {"contenders": found, "wrong": wrong, "documents": given.documents, "rounds": given.rounds}
    return Measured(
        report, "\n".join([*lines, *(f"chose otherwise: {name}" for name in wrong)]), wrong=len(wrong)
    )


def _overhead(call: Call) -> float:
    """Return the CPU seconds of a call outside `Selector.select`."""
    inner, inside = Selector.select, [0.0]

    def timed(self: Selector, *given: Any, **named: Any) -> Selection:
        start = time.thread_time()
        chosen = inner(self, *given, **named)
        inside[0] += time.thread_time() - start
        return chosen

    with mock.patch.object(Selector, "select", timed):
        start = time.thread_time()
        call()
        return time.thread_time() - start - inside[0]


@dataclass(frozen=True, eq=False)
class Pool:
    """The nearest passages of one question, best first; embeddings (n, d) with unit rows, query (d,)."""

    question: str
    ids: list[str]
    texts: list[str]
    embeddings: NDArray[np.float32]
    query: NDArray[np.float32]
    embedder: Embedder

    @property
    def scores(self) -> list[float]:
        """Return the cosine of the question and each passage."""
        return [float(value) for value in self.embeddings @ self.query]

    def given(self) -> dict[str, Any]:
        """Return the arguments of `select`; a source each, since not every framework hands sources on."""
        rows = zip(self.ids, self.texts, strict=True)
        passages = [{"id": name, "text": text, "source": name} for name, text in rows]
        return {"passages": passages, "embeddings": self.embeddings, "scores": self.scores}


def _pools(documents: int, questions: int, embedder: str) -> Iterator[Pool]:
    data, model = load_dataset("demo"), make_embedder(embedder)
    texts = [p.text for p in data.passages]
    model.fit(texts)
    vectors, asked = model.encode(texts), [q.text for q in data.questions[:questions]]
    for question, query in zip(asked, model.encode(asked), strict=True):
        nearest = np.argsort(-(vectors @ query), kind="stable")[:documents]
        ids, read = [data.passages[i].id for i in nearest], [texts[i] for i in nearest]
        yield Pool(question, ids, read, vectors[nearest], query, model)


def _contenders(pool: Pool) -> dict[str, Call]:
    """Return every contender as a call that returns the chosen texts in prompt order."""
    selector = Selector()
    candidates = select(pool.question, **pool.given(), budget=10**6, solver="greedy").candidates
    return {
        "bare": lambda: list(selector.select(candidates, _BUDGET).texts),
        "select": lambda: list(select(pool.question, **pool.given(), budget=_BUDGET).texts),
        "langchain": _langchain(pool),
        "llama_index": _llama_index(pool),
        "haystack": _haystack(pool),
        "dspy": _dspy(pool),
    }


def _langchain(pool: Pool) -> Call:
    from langchain_core.documents import Document

    from mio_rag.adapters.langchain import SelectionCompressor

    documents = [
        Document(id=i, page_content=text, metadata={"source": i, "relevance_score": score})
        for i, text, score in zip(pool.ids, pool.texts, pool.scores, strict=True)
    ]
    compressor = SelectionCompressor(budget=_BUDGET, embedder=pool.embedder)
    return lambda: [d.page_content for d in compressor.compress_documents(documents, pool.question)]


def _llama_index(pool: Pool) -> Call:
    from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

    from mio_rag.adapters.llama_index import SelectionPostprocessor

    rows = zip(pool.ids, pool.texts, pool.scores, strict=True)
    nodes = [NodeWithScore(node=TextNode(id_=i, text=text), score=score) for i, text, score in rows]
    postprocessor = SelectionPostprocessor(budget=_BUDGET, embedder=pool.embedder)
    return lambda: [
        found.node.get_content(MetadataMode.NONE)
        for found in postprocessor.postprocess_nodes(nodes, query_str=pool.question)
    ]


def _haystack(pool: Pool) -> Call:
    from haystack import Document

    from mio_rag.adapters.haystack import SelectionRanker

    rows = zip(pool.ids, pool.texts, pool.scores, pool.embeddings.tolist(), strict=True)
    documents = [
        Document(id=i, content=text, meta={"source_id": i}, score=score, embedding=row)
        for i, text, score, row in rows
    ]
    ranker = SelectionRanker(_BUDGET)
    return lambda: [d.content for d in ranker.run(query=pool.question, documents=documents)["documents"]]


def _dspy(pool: Pool) -> Call:
    from dspy import Prediction
    from dspy.retrievers import EmbeddingsWithScores

    from mio_rag.adapters.dspy import SelectionModule

    retriever = EmbeddingsWithScores(pool.texts, pool.embedder.encode)
    # All are found: the search itself is not what is measured.
    found = Prediction(passages=pool.texts, scores=pool.scores, indices=list(range(len(pool.texts))))
    retriever.forward = lambda query: found
    module = SelectionModule(retriever, budget=_BUDGET)
    return lambda: list(module(pool.question).passages)


def _frameworks(pool: Pool) -> dict[str, Call]:
    """Return frameworks around a part that chooses nothing; LangChain and Haystack call a part as it is."""
    from dspy import Module, Prediction
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    class NoNodes(BaseNodePostprocessor):
        def _postprocess_nodes(
            self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
        ) -> list[NodeWithScore]:
            return []

    class NoPassages(Module):  # type: ignore[misc]
        def forward(self, query: str) -> Prediction:
            return Prediction(passages=[])

    nodes = [NodeWithScore(node=TextNode(text=text)) for text in pool.texts]
    without, module = NoNodes(), NoPassages()
    return {
        "llama_index": lambda: [n.text for n in without.postprocess_nodes(nodes, query_str=pool.question)],
        "dspy": lambda: list(module(pool.question).passages),
    }
