"""LlamaIndex: a query engine that reads what mio-rag chose.

pip install "mio-rag[llama-index,retrieval]"
python docs/examples/llama_index_rag.py
"""

from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode

from mio_rag import load_dataset
from mio_rag.adapters.llama_index import SelectionPostprocessor
from mio_rag.retrieval import TfidfEmbedder

data = load_dataset("demo")
model = TfidfEmbedder()
model.fit([p.text for p in data.passages])


class LocalEmbedding(BaseEmbedding):
    """Stands for your embedding model; this one needs no download."""

    def _get_text_embedding(self, text):
        return model.encode([text])[0].tolist()

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


embedding = LocalEmbedding()
nodes = [
    TextNode(id_=p.id, text=p.text, metadata={"title": p.title, "source": p.source}) for p in data.passages
]
index = VectorStoreIndex(nodes, embed_model=embedding)

engine = index.as_query_engine(
    similarity_top_k=30,
    node_postprocessors=[
        SelectionPostprocessor(
            budget=256,
            embedder=embedding,  # not needed if Settings.embed_model is set
            source_key="source",
            max_per_source=3,
        )
    ],
    llm=MockLLM(),  # stands for your model: it returns its prompt, so you can see the chosen context
)

response = engine.query(
    "Which suspension bridge was opened first, the Menai Suspension Bridge or the Clifton Suspension Bridge?"
)
for found in response.source_nodes:
    notes = found.node.metadata["mio_rag"]
    print(f"{notes['rank']}. {found.node_id}, score {found.score:.3f}: {notes['reason']}")
print(notes["certificate"]["text"])
print(response)
