"""An index of documents: built with the units of its passages, and searched by their scores."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mio_rag.errors import IndexFormatError
from mio_rag.relevance.documents import DocumentModel
from mio_rag.retrieval import CorpusIndex, Retriever, TfidfEmbedder
from mio_rag.retrieval.minilm import FINGERPRINT
from mio_rag.retrieval.retriever import score_fusion
from mio_rag.retrieval.texts import embedded_text, unit_text
from mio_rag.types import Passage
from tests.retrieval.documents import documents

NAMED = "In the lease of Alder House: who pays for the roof?"


@pytest.fixture(scope="module")
def index() -> CorpusIndex:
    return CorpusIndex.build(documents(), TfidfEmbedder(), "papers")


def test_fusion_of_scores_by_hand() -> None:
    lists = [([3, 1, 2], [0.9, 0.5, 0.1]), ([1, 4], [8.0, 2.0]), ([], [])]
    found = [(np.array(rows, dtype=np.int64), np.array(scores)) for rows, scores in lists]
    assert score_fusion(np.array([1, 2, 3, 4]), found) == pytest.approx([1.5, 0.0, 1.0, 0.0])
    equal = [(np.array([7, 8]), np.array([2.0, 2.0]))]
    assert score_fusion(np.array([7, 8]), equal).tolist() == [1.0, 1.0]


def test_a_pool_holds_what_documents_say(index: CorpusIndex) -> None:
    pool = Retriever(index).retrieve("Who pays for repairs?")
    passages = {p.id: p for p in documents()}
    assert set(pool.ids) == set(passages)
    own = [passages[i] for i in pool.ids]
    assert [*(pool.sections or ())] == [p.section for p in own]
    assert [*(pool.pages or ())] == [p.page for p in own]
    assert [*(pool.lines or ())] == [p.lines for p in own]
    assert pool.links is None
    query = index.embedder.encode([pool.question])[0]
    vectors = index.embedder.encode([embedded_text(p) for p in own])
    np.testing.assert_allclose(pool.scores["dense"], vectors @ query, atol=1e-6)
    units = [(k, p, unit) for k, p in enumerate(own) for unit in p.units]
    found = pool.sentences
    assert found is not None
    assert found.are_scored
    assert found.owners.tolist() == [k for k, *_ in units]
    assert found.spans.tolist() == [list(unit[:2]) for *_, unit in units]
    assert found.needs == [unit.needs for *_, unit in units]
    vectors = index.embedder.encode([unit_text(p, unit) for _, p, unit in units])
    np.testing.assert_allclose(found.scores["dense"], vectors @ query, atol=0.01)
    best = own[found.owners[found.scores["bm25"].argmax()]]
    assert "repairs" in best.text
    assert pool.scores["fused"].tolist() == sorted(pool.scores["fused"], reverse=True)
    assert set(pool.scores) == {"dense", "bm25", "fused", "scope"}
    assert pool.scores["scope"].tolist() == [1.0] * 5


def test_a_named_document_is_searched_by_the_rest(index: CorpusIndex) -> None:
    pool = Retriever(index).retrieve(NAMED)
    asked = "who pays for the roof?"
    assert set(pool.scores) == {"dense", "bm25", "fused", "scope", "dense_rest", "bm25_rest"}
    for k, source in enumerate(pool.sources or ()):
        assert (pool.scores["scope"][k] == 1.0) == (source == "alder-house.md")
    query = index.embedder.encode([asked])[0]
    assert pool.embeddings is not None
    np.testing.assert_allclose(pool.scores["dense_rest"], pool.embeddings @ query, atol=1e-6)
    units = pool.sentences
    assert units is not None
    assert set(units.scores) == {"dense", "bm25", "dense_rest", "bm25_rest"}
    best = int(units.scores["bm25_rest"].argmax())
    start, end = units.spans[best]
    assert pool.texts[units.owners[best]][start:end] == "The owner pays for the roof."


def test_a_question_is_embedded_once(index: CorpusIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    encode = index.embedder.encode

    def noted(texts: list[str]) -> np.ndarray:
        asked.append(list(texts))
        return encode(texts)

    monkeypatch.setattr(index.embedder, "encode", noted)
    Retriever(index).retrieve(NAMED)
    assert asked == [[NAMED, "who pays for the roof?"]]


@pytest.mark.parametrize("mapped", [False, True])
def test_it_comes_back_from_disk(index: CorpusIndex, tmp_path: Path, mapped: bool) -> None:
    read = CorpusIndex.load(index.save(tmp_path / "index"), mapped=mapped)
    assert read.digest() == index.digest()
    again = CorpusIndex.load(read.save(tmp_path / "again"), mapped=not mapped)
    for question in (NAMED, "pumps", "zebra"):
        pools = [Retriever(one).retrieve(question) for one in (index, read, again)]
        units = [pool.sentences.scores if pool.sentences else {} for pool in pools]
        for pool, found in zip(pools[1:], units[1:], strict=True):
            assert (pool.ids, pool.sections, pool.lines) == (pools[0].ids, pools[0].sections, pools[0].lines)
            for one, other in ((pool.scores, pools[0].scores), (found, units[0])):
                assert set(one) == set(other)
                assert all(np.allclose(one[name], other[name], atol=1e-6) for name in one)
    files = json.loads((tmp_path / "index" / "manifest.json").read_text())["sha256"]
    assert {"scope.npz", "sentences.npy", "sentences.npz", "bm25/terms.npz"} <= set(files)


def test_passages_without_units_join_documents() -> None:
    more = Passage("note", "The well is deep. The bucket leaks.", "Note", "note.txt")
    built = CorpusIndex.build([*documents(), more], TfidfEmbedder(), "papers")
    assert CorpusIndex.texts_to_embed(built.passages) == 6 + 9 + 2
    pool = Retriever(built).retrieve("Does the bucket leak?")
    assert pool.ids[0] == "note"
    assert pool.sentences is not None
    assert (pool.sentences.owners == 0).sum() == 2


def test_parts_that_do_not_fit_are_refused(index: CorpusIndex, tmp_path: Path) -> None:
    from mio_rag.retrieval.scope import Identities

    folder = index.save(tmp_path / "index")
    with pytest.raises(IndexFormatError, match="does not fit"):
        Identities.load(folder, 4)
    (folder / "scope.npz").write_bytes(b"damaged")
    with pytest.raises(IndexFormatError, match="cannot be read"):
        Identities.load(folder, 5)


def test_cosines_of_minilm_say_nothing_of_other_scripts(index: CorpusIndex) -> None:
    pool = Retriever(index).retrieve(NAMED)
    units = pool.sentences
    assert units is not None
    no_cosines = {name: values * (not name.startswith("dense")) for name, values in units.scores.items()}
    blind = replace(units, scores=no_cosines)
    for question, same in (("谁付钱修理屋顶？", True), ("Who pays for the roof?", False)):
        asked = replace(pool, question=question, embedder=FINGERPRINT)
        found = (
            DocumentModel().unit_relevance(asked),
            DocumentModel().unit_relevance(replace(asked, sentences=blind)),
        )
        assert np.allclose(*found) == same
