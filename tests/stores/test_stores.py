"""What mio-rag adds to the hits of any store, and what it notices about them."""

from dataclasses import replace

import numpy as np
import pytest

from mio_rag import Collection, InputError, MioRagError
from mio_rag.errors import Notice
from mio_rag.retrieval import CorpusIndex, TfidfEmbedder
from mio_rag.stores import shown_url
from mio_rag.stores.rows import Fields
from mio_rag.testing import check_store
from tests.stores.memory import Memory

QUESTION = "Which suspension bridge was opened first, the Menai or the Clifton Suspension Bridge?"


@pytest.fixture
def made(demo_index: CorpusIndex):
    def collection(change=lambda passages: passages, **options) -> Collection:
        return Collection(Memory(demo_index, change), **{"embedder": demo_index.embedder, **options})

    return collection


def test_a_store_reads_what_the_index_reads(made, demo_index) -> None:
    wanted = Collection(demo_index).select(QUESTION, budget=256)
    found = made().select(QUESTION, budget=256)
    assert set(wanted.ids) & set(found.ids)
    assert {"dense", "bm25", "fused"} <= set(found.pool.scores)
    assert made().ask(QUESTION).text == Collection(demo_index).ask(QUESTION).text


def test_texts_without_vectors_are_embedded(made) -> None:
    bare = made(lambda hits: [replace(one, vector=None) for one in hits])
    assert bare.select(QUESTION, budget=256).ids == made().select(QUESTION, budget=256).ids


def test_names_of_the_best_hits_are_searched_for(demo_index) -> None:
    store = Memory(demo_index)
    Collection(store, embedder=demo_index.embedder).select("Who designed the Clifton Suspension Bridge?")
    assert len(store.asked) > 1
    assert all(k == 2 for _, k, _ in store.asked[1:])
    store.by_title = lambda names: []
    store.asked.clear()
    Collection(store, embedder=demo_index.embedder).select("Who designed the Clifton Suspension Bridge?")
    assert len(store.asked) == 1


def test_hits_are_filtered_again_and_more_are_fetched(demo_index) -> None:
    store = Memory(demo_index)
    docs = Collection(store, embedder=demo_index.embedder)
    found = docs.select(QUESTION, where={"source": "travel*"})
    assert {part["source"] for part in found.parts} <= {"travel-guide"}
    assert [k for _, k, _ in store.asked][:2] == [50, 200]
    assert store.asked[0][2] == {"source": "travel*"}
    with pytest.raises(InputError, match="no passage of 'Memory' meets the filter"):
        docs.select(QUESTION, where={"source": "nobody"})


def test_what_does_not_fit_is_noticed(made, demo_index) -> None:
    def shifted(hits):
        return [replace(one, vector=np.roll(one.vector, 7)) for one in hits]

    for change, message in (
        (lambda hits: [replace(one, score=1 - one.score) for one in hits], "grow with the distance"),
        (shifted, "embedded by another model"),
        (lambda hits: [replace(one, vector=one.vector[:3]) for one in hits], "holds vectors of 3 dimensions"),
        (lambda hits: [{"text": "x"}], "returned a dict, expected Passage"),
    ):
        with pytest.raises(InputError, match=message):
            made(change).select(QUESTION)
    with pytest.raises(MioRagError, match="'Memory' failed: KeyError: 'tenant'"):
        made(lambda hits: {}["tenant"]).select(QUESTION)
    with pytest.raises(InputError, match="is not a store: it needs search"):
        Collection(object())


def test_an_id_of_a_whole_document_does_not_hide_its_passages(demo_index) -> None:
    apart = Memory(demo_index)
    shared = Memory(demo_index, lambda hits: [replace(one, id="one") for one in hits])
    wanted, found = (
        Collection(one, embedder=demo_index.embedder).select(QUESTION, budget=256) for one in (apart, shared)
    )
    assert found.context == wanted.context
    assert all(name.startswith("one#") for name in found.ids)


def test_a_key_that_no_hit_has_is_refused_where_the_store_lists_none(demo_index) -> None:
    docs = Collection(Memory(demo_index), embedder=demo_index.embedder)
    with pytest.raises(InputError, match="no passage has 'sorce' to filter by: did you mean 'source'"):
        docs.select(QUESTION, where={"sorce": "travel*"})


def test_too_few_hits_under_a_filter_are_noticed(demo_index) -> None:
    class Approximate(Memory):
        def search(self, question, vector, k, where):
            return super().search(question, vector, 5, where)

        def count(self, where):
            return 200

    docs = Collection(Approximate(demo_index), embedder=demo_index.embedder)
    with pytest.warns(Notice, match="may hold more"):
        docs.select(QUESTION, where={"source": "*"})


def test_several_queries_are_one_pool(made) -> None:
    docs = made()
    docs.policy = docs.policy.replace(search=docs.policy.search.replace(strategies=("raw", "hyde")))
    assert docs.ask(QUESTION, budget=256).text


def test_check_store_lists_what_fails(demo_index) -> None:
    check_store(Memory(demo_index), demo_index.embedder, where={"source": "travel*"})
    with pytest.raises(AssertionError, match="scores do not descend"):
        check_store(Memory(demo_index, lambda hits: hits[::-1]), demo_index.embedder, question=QUESTION)
    other = TfidfEmbedder(dimensions=60)
    other.fit([one.text[::-1] for one in demo_index.passages])
    with pytest.raises(AssertionError, match="by another model"):
        check_store(Memory(demo_index), other)


def test_rows_are_passages_whatever_their_names_are() -> None:
    nested = {"page_content": "Text.", "metadata": {"source": "a.md", "tenant": "x", "date": None}}
    found = Fields().passage(nested, 7, [1, 0], 0.5)
    assert (found.id, found.text, found.source, found.date) == ("7", "Text.", "a.md", "")
    assert found.metadata == {"tenant": "x"}
    node = {"_node_content": '{"text": "Node.", "metadata": {"file_name": "b.md"}}', "doc_id": "n1"}
    assert (Fields().passage(node, 7).source, Fields().passage(node, 7).id) == ("b.md", "7")
    assert Fields(text="body").passage({"body": "B", "text": "T"}, 1).text == "B"
    for given, fields in (({"x": "T"}, Fields()), ({"text": "T"}, Fields(title="name"))):
        with pytest.raises(InputError, match="no field"):
            fields.passage(given, 1)
    assert shown_url("postgresql://me:secret@host/db/table") == "postgresql://me@host/db/table"


@pytest.mark.parametrize(
    ("given", "day"),
    [
        ("2024-05-01", "2024-05-01"),
        ("3 May 2024", "2024-05-03"),
        ("2024/05/03", "2024-05-03"),
        (1714550400, "2024-05-01"),
        (1714550400000, "2024-05-01"),
        ("", ""),
        (None, ""),
    ],
)
def test_days_of_rows_are_read_in_the_forms_that_stores_have(given, day: str) -> None:
    assert Fields().passage({"text": "T", "date": given}, 1).date == day
