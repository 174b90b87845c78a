"""LangChain: retrieve with a vector store, choose with mio-rag, answer.

pip install "mio-rag[langchain,retrieval]"
python docs/examples/langchain_rag.py
"""

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from mio_rag import Passage, Question, load_dataset, make_generator
from mio_rag.adapters.langchain import SelectionRetriever
from mio_rag.generation import build_prompt
from mio_rag.retrieval import TfidfEmbedder

data = load_dataset("demo")


class LocalEmbeddings(Embeddings):
    """Stands for your embedding model; this one needs no download."""

    def __init__(self):
        self.model = TfidfEmbedder()
        self.model.fit([p.text for p in data.passages])

    def embed_documents(self, texts):
        return self.model.encode(texts).tolist()

    def embed_query(self, text):
        return self.model.encode([text])[0].tolist()


store = InMemoryVectorStore(LocalEmbeddings())
store.add_documents(
    [
        Document(id=p.id, page_content=p.text, metadata={"source": p.source, "title": p.title})
        for p in data.passages
    ]
)

# The only new step. It compares the documents with the embedder of the vector store.
chosen = SelectionRetriever(
    retriever=store.as_retriever(search_kwargs={"k": 30}),
    budget=256,
    max_per_source=3,
)

reader = make_generator("extractive")  # stands for your chat model


def answer(found):
    passages = [Passage(d.id, d.page_content, d.metadata["title"]) for d in found["context"]]
    return reader.generate(build_prompt(Question("q", found["question"]), passages), max_tokens=32).text


chain = {"context": chosen, "question": RunnablePassthrough()} | RunnableLambda(answer)

question = (
    "Which suspension bridge was opened first, the Menai Suspension Bridge or the Clifton Suspension Bridge?"
)
for document in chosen.invoke(question):
    notes = document.metadata["mio_rag"]
    print(f"{notes['rank']}. {document.metadata['title']} ({notes['tokens']} tokens): {notes['reason']}")
print(notes["certificate"]["text"])
print(question, "->", chain.invoke(question))
