"""The LlamaIndex adapter in a vector index's own retriever and query engine."""

import asyncio
import json
import pickle

import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError
from mio_rag.selection.selector import Selector
from mio_rag.solvers import SolveOptions
from tests.adapters.conftest import Counting, check_notes

pytest.importorskip("llama_index.core")

from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode

from mio_rag.adapters.llama_index import SelectionPostprocessor

SETTINGS = {"preset": "raw", "redundancy_weight": 0.3, "max_per_source": 1}


class Local(BaseEmbedding):
    model: Counting

    def _get_text_embedding(self, text):
        return self.model.one(text)

    def _get_query_embedding(self, query):
        return self.model.one(query)

    async def _aget_query_embedding(self, query):
        return self.model.one(query)


@pytest.fixture
def local(model: Counting) -> Local:
    return Local(model=model)


@pytest.fixture
def index(demo: Dataset, local: Local) -> VectorStoreIndex:
    nodes = [
        TextNode(
            id_=p.id,
            text=p.text,
            metadata={"source": p.source, "title": p.title},
            excluded_embed_metadata_keys=["source", "title"],
        )
        for p in demo.passages
    ]
    return VectorStoreIndex(nodes, embed_model=local)


def shown(passage) -> str:
    """What LlamaIndex shows a model of a node."""
    return f"source: {passage.source}\ntitle: {passage.title}\n\n{passage.text}"


def test_in_a_query_engine(index, local, demo, question, expected) -> None:
    postprocessor = SelectionPostprocessor(budget=220, embedder=local, source_key="source", **SETTINGS)
    # MockLLM returns its prompt: what a model would have read.
    engine = index.as_query_engine(similarity_top_k=20, node_postprocessors=[postprocessor], llm=MockLLM())
    wanted = expected(220, shown, **SETTINGS)
    assert 1 < len(wanted.ids) < 20
    for response in (engine.query(question), asyncio.run(engine.aquery(question))):
        nodes = response.source_nodes
        assert [n.node_id for n in nodes] == list(wanted.ids)
        check_notes([n.node.metadata["mio_rag"] for n in nodes], wanted)
        assert [n.score for n in nodes] == pytest.approx(
            [wanted.decisions[i].relevance for i in wanted.chosen]
        )
        titles = {p.id: p.title for p in demo.passages}
        assert [n.node.metadata["title"] for n in nodes] == [titles[i] for i in wanted.ids]
        assert all(text in str(response) for text in wanted.texts)
        assert "mio_rag" not in str(response)
        assert "certificate" not in nodes[0].node.get_content(MetadataMode.EMBED)


def test_settings_embed_model_is_the_default(index, local, question, expected, monkeypatch) -> None:
    monkeypatch.setattr(Settings, "_embed_model", local)
    nodes = index.as_retriever(similarity_top_k=20).retrieve(question)
    postprocessor = SelectionPostprocessor(budget=200, redundancy_weight=0.3, use_scores=False)
    before = local.model.texts
    found = postprocessor.postprocess_nodes(nodes, query_str=question)
    assert [n.node_id for n in found] == list(expected(200, shown, redundancy_weight=0.3).ids)
    made = local.model.texts
    postprocessor.postprocess_nodes(nodes, query_str=question)
    assert local.model.texts == made + 1 > before  # the question: nodes are remembered
    assert all("mio_rag" not in n.node.metadata for n in nodes)


def test_vectors_that_come_with_the_nodes_need_no_embedder() -> None:
    nodes = [
        NodeWithScore(node=TextNode(text=t, embedding=v))
        for t, v in (("one", [1.0, 0.0]), ("two", [0.0, 1.0]), ("three", [0.9, 0.1]))
    ]
    postprocessor = SelectionPostprocessor(budget=2, preset="raw", redundancy_weight=1)
    bundle = QueryBundle("q", embedding=[0.8, 0.6])
    assert [n.text for n in postprocessor.postprocess_nodes(nodes, bundle)] == ["one", "two"]
    with pytest.raises(InputError, match="the question is missing"):
        postprocessor.postprocess_nodes(nodes)


def test_it_is_saved_and_loaded() -> None:
    made = SelectionPostprocessor(
        budget=99,
        embedder="minilm",
        passage_penalty="auto",
        preset="raw",
        options=SolveOptions(relative_gap=0.01),
    )
    data = json.loads(made.to_json())
    assert data["selector"] == {
        "redundancy_weight": 0.1,
        "passage_penalty": "auto",
        "relevance_model": "given",
        "link_benefit": 0.0,
        "options": data["selector"]["options"],
    }
    assert data["selector"]["options"]["relative_gap"] == 0.01
    for copy in (SelectionPostprocessor.from_json(made.to_json()), pickle.loads(pickle.dumps(made))):
        assert copy.selector == Selector.raw(passage_penalty="auto", options=SolveOptions(relative_gap=0.01))
        assert (copy.budget, copy.embedder) == (99, "minilm")
    object_given = SelectionPostprocessor(budget=9, counter=len).to_dict()
    with pytest.raises(InputError, match="the counter was an object"):
        SelectionPostprocessor.from_dict(dict(object_given))
    assert SelectionPostprocessor.from_dict(dict(object_given), counter=len).counter is len
