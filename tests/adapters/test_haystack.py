"""The Haystack adapter in Haystack's own pipeline and store, from Python and from YAML."""

import asyncio
from dataclasses import replace

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.selection.constraints import SideConstraints
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from tests.adapters.conftest import Counting, check_notes

pytest.importorskip("haystack")

from haystack import Document, Pipeline
from haystack.components.embedders import MockDocumentEmbedder, MockTextEmbedder
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever, InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from mio_rag.adapters.haystack import SelectionRanker

SETTINGS = {"preset": "raw", "redundancy_weight": 0.3, "max_per_source": 1}
TRUSTED = ["mio_rag.adapters.*"]


@pytest.fixture
def store(demo: Dataset, model: Counting) -> InMemoryDocumentStore:
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    vectors = model.many([p.text for p in demo.passages])
    store.write_documents(
        [
            Document(id=p.id, content=p.text, meta={"source_id": p.source, "title": p.title}, embedding=v)
            for p, v in zip(demo.passages, vectors, strict=True)
        ]
    )
    return store


def dense(store: InMemoryDocumentStore, ranker: SelectionRanker) -> Pipeline:
    pipeline = Pipeline()
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=20, return_embedding=True))
    pipeline.add_component("ranker", ranker)
    pipeline.connect("retriever.documents", "ranker.documents")
    return pipeline


def test_in_a_pipeline_from_python_and_from_yaml(store, demo, model, question, expected) -> None:
    pipeline = dense(store, SelectionRanker(200, **SETTINGS))
    inputs = {"retriever": {"query_embedding": model.one(question)}, "ranker": {"query": question}}
    wanted = expected(200, **SETTINGS)
    assert 1 < len(wanted.ids) < 20
    yaml = pipeline.dumps()
    loaded = Pipeline.loads(yaml, allowed_modules=TRUSTED)
    assert loaded.dumps() == yaml
    titles = {p.id: p.title for p in demo.passages}
    for run in (pipeline.run, loaded.run, lambda given: asyncio.run(loaded.run_async(given))):
        result = run(inputs)["ranker"]
        found = result["documents"]
        assert [d.id for d in found] == list(wanted.ids)
        check_notes([d.meta["mio_rag"] for d in found], wanted)
        assert [d.score for d in found] == pytest.approx(
            [wanted.decisions[i].relevance for i in wanted.chosen]
        )
        assert [d.meta["title"] for d in found] == [titles[i] for i in wanted.ids]
        assert result["report"]["tokens_used"] == wanted.tokens_used
        assert len(result["report"]["left_out"]) == 20 - len(found)
    assert all("mio_rag" not in d.meta for d in store.filter_documents())
    smaller = pipeline.run({**inputs, "ranker": {"query": question, "budget": 120}})["ranker"]
    assert smaller["report"]["budget"] == 120


def test_haystacks_own_embedders(store, question) -> None:
    """Documents without vectors: the ranker's components make them, and go into the YAML."""
    bare = InMemoryDocumentStore()
    bare.write_documents([replace(d, embedding=None) for d in store.filter_documents()])
    pipeline = Pipeline()
    pipeline.add_component("retriever", InMemoryBM25Retriever(bare, top_k=10))
    ranker = SelectionRanker(
        200,
        text_embedder=MockTextEmbedder(dimension=8),
        document_embedder=MockDocumentEmbedder(dimension=8),
        use_scores=False,
        redundancy_weight=0.5,
    )
    pipeline.add_component("ranker", ranker)
    pipeline.connect("retriever.documents", "ranker.documents")
    inputs = {"retriever": {"query": question}, "ranker": {"query": question}}
    first = pipeline.run(inputs)["ranker"]
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=TRUSTED).run(inputs)["ranker"]
    assert [d.id for d in first["documents"]] == [d.id for d in again["documents"]] != []
    assert first["report"]["certificate"]["objective"] == again["report"]["certificate"]["objective"]


def test_all_settings_survive_yaml() -> None:
    side = SideConstraints(conflicts=[("a", "b")], needs={"c": ["a"]}, prices={"conflicts": 0.5})
    selector = Selector.raw(
        must_include=["a"], max_per_source={"s": 2}, options=SolveOptions(time_limit_seconds=None), side=side
    )
    pipeline = Pipeline()
    pipeline.add_component("ranker", SelectionRanker(99, selector=selector, embedder="minilm", counter=len))
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=TRUSTED).get_component("ranker")
    assert loaded.selector.max_per_source == {"s": 2}
    assert loaded.selector.options == selector.options
    assert loaded.selector.side.needs == {"c": ("a",)}
    assert (loaded.budget, loaded.embedder, loaded.counter) == (99, "minilm", len)
    assert loaded.to_dict() == pipeline.get_component("ranker").to_dict()
    documents = [
        Document(id=i, content=i, score=1.0, embedding=[1.0], meta={"source_id": "s"}) for i in "abc"
    ]
    assert "a" in [d.id for d in loaded.run("q", documents)["documents"]]
