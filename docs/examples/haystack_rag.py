"""Haystack: a pipeline whose ranker is mio-rag, saved as YAML and loaded again.

    pip install "mio-rag[haystack,retrieval]"
    python docs/examples/haystack_rag.py

Haystack sends anonymous usage statistics unless HAYSTACK_TELEMETRY_ENABLED=False is set.
"""

from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from mio_rag import load_dataset
from mio_rag.adapters.haystack import SelectionRanker
from mio_rag.retrieval import TfidfEmbedder

data = load_dataset("demo")
model = TfidfEmbedder()  # stands for your embedder components; this one needs no download
model.fit([p.text for p in data.passages])

store = InMemoryDocumentStore(embedding_similarity_function="cosine")
vectors = model.encode([p.text for p in data.passages])
store.write_documents(
    [
        Document(id=p.id, content=p.text, meta={"title": p.title, "source": p.source}, embedding=v.tolist())
        for p, v in zip(data.passages, vectors, strict=True)
    ]
)

pipeline = Pipeline()
# With return_embedding=True the ranker needs no embedder.
pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=30, return_embedding=True))
pipeline.add_component("ranker", SelectionRanker(256, source_key="source", max_per_source=3))
template = "{% for d in documents %}{{ d.content }}\n\n{% endfor %}{{ query }}"
pipeline.add_component("prompt", PromptBuilder(template, required_variables="*"))
pipeline.connect("retriever.documents", "ranker.documents")
pipeline.connect("ranker.documents", "prompt.documents")

saved = pipeline.dumps()
pipeline = Pipeline.loads(saved, allowed_modules=["mio_rag.adapters.*"])
print(saved[saved.index("  ranker:") : saved.index("  retriever:")])

question = (
    "Which suspension bridge was opened first, the Menai Suspension Bridge or the Clifton Suspension Bridge?"
)
inputs = {
    "retriever": {"query_embedding": model.encode([question])[0].tolist()},
    "ranker": {"query": question},
    "prompt": {"query": question},
}
result = pipeline.run(inputs, include_outputs_from={"ranker"})
for document in result["ranker"]["documents"]:
    notes = document.meta["mio_rag"]
    print(f"{notes['rank']}. {document.meta['title']}, score {document.score:.3f}: {notes['reason']}")
print(result["ranker"]["report"]["certificate"]["text"])
print(result["prompt"]["prompt"])
