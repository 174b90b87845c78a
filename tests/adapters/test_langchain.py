"""The LangChain adapter in LangChain's own store, retrievers and chains."""

import asyncio
import json

import pytest

from mio_rag.context import RegexCounter
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InfeasibleError
from tests.adapters.conftest import Counting, check_notes

pytest.importorskip("langchain_core")

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from mio_rag.adapters.langchain import SelectionCompressor, SelectionRetriever

SETTINGS = {"preset": "raw", "redundancy_weight": 0.3, "max_per_source": 1}


class Local(Embeddings):
    def __init__(self, model: Counting) -> None:
        self.embed_documents, self.embed_query = model.many, model.one

    def embed_documents(self, texts): ...

    def embed_query(self, text): ...


@pytest.fixture
def store(demo: Dataset, model: Counting) -> InMemoryVectorStore:
    store = InMemoryVectorStore(Local(model))
    store.add_documents(
        [
            Document(id=p.id, page_content=p.text, metadata={"source": p.source, "n": k})
            for k, p in enumerate(demo.passages)
        ]
    )
    return store


def notes_of(documents: list[Document]) -> list[dict]:
    return [d.metadata["mio_rag"] for d in documents]


def test_compressor_in_langchains_own_retriever(store, demo, model, question, expected) -> None:
    classic = pytest.importorskip("langchain_classic.retrievers")
    compressor = SelectionCompressor(budget=200, embedder=Local(model), **SETTINGS)
    retriever = classic.ContextualCompressionRetriever(
        base_retriever=store.as_retriever(search_kwargs={"k": 20}), base_compressor=compressor
    )
    wanted = expected(200, **SETTINGS)
    assert 1 < len(wanted.ids) < 20
    found = retriever.invoke(question)
    assert [d.id for d in found] == list(wanted.ids)
    check_notes(notes_of(found), wanted)
    assert [demo.passages[d.metadata["n"]].text for d in found] == [d.page_content for d in found]
    again = asyncio.run(retriever.ainvoke(question))
    assert [d.id for d in again] == list(wanted.ids)


def test_retriever_in_a_chain_uses_the_stores_embedder(store, model, question, expected) -> None:
    seen = []
    retriever = SelectionRetriever(
        retriever=store.as_retriever(search_kwargs={"k": 20}),
        budget=200,
        on_selection=seen.append,
        **SETTINGS,
    )
    wanted = expected(200, **SETTINGS)
    prompt = ChatPromptTemplate.from_template("{context}\n{question}")
    joined = retriever | RunnableLambda(lambda found: "\n".join(d.page_content for d in found))
    chain = {"context": joined, "question": RunnablePassthrough()} | prompt
    text = "\n".join([*wanted.texts, question])
    assert chain.invoke(question).to_messages()[0].content == text
    before = model.texts
    assert asyncio.run(chain.ainvoke(question)).to_messages()[0].content == text
    assert model.texts - before == 2  # the question, by the store and here: passages are remembered
    assert [s.ids for s in seen] == [wanted.ids] * 2
    assert "relevance" in seen[0].explain()
    assert [[d.id for d in found] for found in retriever.batch([question] * 2)] == [list(wanted.ids)] * 2


def test_scores_of_a_reranker_are_relevance_and_nothing_is_changed(question) -> None:
    documents = [
        Document(page_content=t, metadata={"relevance_score": s, "page": k})
        for k, (t, s) in enumerate([("one", 0.2), ("two", 0.9), ("three four", 0.8)])
    ]
    compressor = SelectionCompressor(budget=2, redundancy_weight=0)
    found = compressor.compress_documents(documents, question)
    assert [d.page_content for d in found] == ["two", "one"]
    assert [d.metadata["page"] for d in found] == [1, 0]
    assert [d.metadata["relevance_score"] for d in found] == [0.9, 0.2]
    assert [sorted(d.metadata) for d in documents] == [["page", "relevance_score"]] * 3
    assert json.dumps(notes_of(found))
    assert compressor.compress_documents([], question) == []
    with pytest.raises(InfeasibleError):
        SelectionCompressor(budget=2, redundancy_weight=0, min_passages=3).compress_documents(documents, "q")
    bare = [Document(page_content=text) for text in ("Grouse live on moors.", question)]
    (found,) = SelectionCompressor(budget=20).compress_documents(bare, question)  # by the packaged embedder
    assert found.page_content == question


def test_what_is_read_of_two_pages_is_two_documents_with_the_header_of_their_table() -> None:
    head = "Formulary\nDrug\nAdult\nChild\n"
    pages = [
        f"{head}Amoxicillin\n200 mg\n50 mg\nNystatin\n356 mg\n134 mg\nIron\n9 mg\n4 mg",
        "Aciclovir\n642 mg\n288 mg\nMidazolam\n668 mg\n302 mg\nZinc\n7 mg\n3 mg",
    ]
    given = [Document(page_content=t, metadata={"source": "f.pdf", "page": k}) for k, t in enumerate(pages)]
    found = SelectionCompressor(budget=90).compress_documents(
        given, "What is the dose of Midazolam for a child?"
    )
    texts = {one.metadata["page"]: one.page_content for one in found}
    assert "Midazolam|668 mg|302 mg" in texts[1]
    assert "Midazolam" not in texts.get(0, "")
    for budget in (5, 20, 35, 50):  # the header stands twice, and the budget holds
        read = SelectionCompressor(budget=budget).compress_documents(
            given, "Midazolam and Nystatin for a child?"
        )
        assert RegexCounter().count(["\n\n".join(one.page_content for one in read)])[0] <= budget
