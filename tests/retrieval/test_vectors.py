"""Compressed vectors, and vectors, texts and links on disk: the same answers, or as near as they say."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval import index as index_module
from mio_rag.retrieval import vectors as vectors_module
from mio_rag.retrieval.links import LINKS_FILE, LinkIndex
from mio_rag.retrieval.nearest import Nearest
from mio_rag.retrieval.vectors import (
    MappedPassages,
    MappedVectors,
    PassageIds,
    make_dense,
    open_vectors,
    stored_array,
)


def unit(n: int, d: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(("kind", "size", "least"), [("8bit", 1.0, 0.95), ("pq", 0.25, 0.2)])
def test_fewer_bytes_find_nearly_the_same(kind: str, size: float, least: float) -> None:
    import faiss

    vectors = unit(1000, 32)
    exact, dense = make_dense(vectors), make_dense(vectors, kind)
    assert dense.sa_code_size() == size * 32
    nearest = [one.search(unit(50, 32, seed=1), 10)[1] for one in (exact, dense)]
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*nearest, strict=True)]) >= least
    back = dense.reconstruct_batch(np.arange(5))
    assert np.abs(back - vectors[:5]).max() <= {"8bit": 0.01, "pq": 0.5}[kind]
    again = faiss.deserialize_index(faiss.serialize_index(dense))
    assert np.array_equal(again.search(vectors[:3], 5)[1], dense.search(vectors[:3], 5)[1])


@pytest.mark.parametrize("width", [32, 49])
def test_codes_lead_to_nearly_all_of_the_nearest(tmp_path: Path, width: int) -> None:
    rng = np.random.default_rng(0)
    vectors = unit(60, width).repeat(200, axis=0) + 0.1 * rng.standard_normal(
        (12000, width), dtype=np.float32
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = Nearest.build(vectors)
    assert found is not None
    found.save(tmp_path)
    again = Nearest.load(tmp_path, found.wide)
    assert again is not None
    order = np.delete(np.arange(12010), range(100, 150))[::-1]  # without some rows, and with ten new ones
    moved = again.moved(order, 12000)
    for query in vectors[::1000]:
        rows = again.candidates(query)
        assert rows.tolist() == found.candidates(query).tolist() == sorted(set(rows.tolist()))
        assert len(rows) == found.wide == 2000
        assert len(np.intersect1d(np.argsort(-vectors @ query)[:20], rows)) >= 19
        left = [row for row in rows.tolist() if not 100 <= row < 150]
        assert sorted(order[moved.candidates(query)].tolist()) == left + list(range(12000, 12010))


def test_vectors_that_codes_do_not_fit_are_searched_exactly() -> None:
    assert Nearest.build(unit(300, 11)) is None


def test_a_large_index_answers_from_its_files_as_a_small_one(
    rivers: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = CorpusIndex.build(rivers.passages, "tfidf", rivers.name)
    monkeypatch.setattr(index_module, "LARGE", 2)
    folder = CorpusIndex.build(rivers.passages, "tfidf", rivers.name).save(tmp_path / "large")
    large = CorpusIndex.load(folder)
    assert isinstance(large.passages, MappedPassages)
    assert tuple(large.passages) == small.passages
    assert large.digest() == small.digest()
    for question in rivers.questions:
        one, other = (Retriever(index).retrieve(question.text) for index in (small, large))
        words = [dict(zip(pool.ids, pool.scores["bm25"].tolist(), strict=True)) for pool in (one, other)]
        assert words[0] == words[1]  # those that are equally far from a question may change places
        np.testing.assert_allclose(one.relevance, other.relevance, atol=1e-6)


@pytest.mark.parametrize("vectors", ["exact", "8bit"])
def test_an_index_on_disk_answers_as_the_one_in_memory(rivers: Dataset, tmp_path: Path, vectors: str) -> None:
    built = CorpusIndex.build(rivers.passages, "tfidf", rivers.name, vectors=vectors)
    folder = built.save(tmp_path / "index")
    mapped = CorpusIndex.load(folder, mapped=True)
    assert isinstance(mapped.passages, MappedPassages)
    assert isinstance(mapped._dense, MappedVectors)
    assert (tuple(mapped.ids), tuple(mapped.passages)) == (tuple(built.ids), built.passages)
    question = rivers.questions[0].text
    one, other = (Retriever(index, pool=3).retrieve(question) for index in (built, mapped))
    assert one.ids == other.ids
    assert one.texts == other.texts
    assert np.allclose(one.relevance, other.relevance)
    again = mapped.save(tmp_path / "again")
    for name in ("passages.jsonl", "dense.faiss"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_rows_are_found_whatever_stands_in_them(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = ['{"id": "a", "text": "x\\ny"}', '{"id": "b", "text": "\u00e9\u4e2d"}', '{"id": "c", "text": "z"}']
    path.write_text("\n".join(rows), encoding="utf-8")  # no end of line at the end of the file
    found = MappedPassages(path)
    assert tuple(PassageIds(found)) == ("a", "b", "c")
    ids = PassageIds(found)
    assert (ids[1], tuple(ids[1:]), "c" in ids) == ("b", ("b", "c"), True)
    assert [p.text for p in found] == ["x\ny", "\u00e9\u4e2d", "z"]
    assert (found[-1].id, [p.id for p in found[1:]]) == ("c", ["b", "c"])
    with pytest.raises(IndexError):
        found[3]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda k: found[k % 3].id, range(300))) == ["a", "b", "c"] * 100


def written(vectors: np.ndarray, kind: str, path: Path) -> object:
    import faiss

    if kind == "exact":
        MappedVectors.exact(vectors).save(path)
        return faiss.read_index(str(path))  # which reads what we write
    dense = make_dense(vectors, kind)
    path.write_bytes(faiss.serialize_index(dense).tobytes())
    return dense


@pytest.mark.parametrize("kind", ["exact", "8bit"])
def test_rows_on_disk_are_found_as_in_memory(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_module, "_BYTES_AT_ONCE", 32 * 150)  # seven pieces, the last not full
    vectors, queries = unit(1000, 32), unit(7, 32, seed=1)
    dense = written(vectors, kind, tmp_path / "dense.faiss")
    found = open_vectors(tmp_path / "dense.faiss")
    assert found is not None
    assert (found.ntotal, found.d) == (1000, 32)
    rows = np.array([0, 999, 3, 3])
    np.testing.assert_allclose(found.reconstruct_batch(rows), dense.reconstruct_batch(rows), atol=1e-6)
    for k in (1, 10, 1000):
        scores, places = found.search(queries, k)
        expected, wanted = dense.search(queries, k)
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        assert (places == wanted).mean() > 0.99  # what differs by rounding may change places
        assert all(len(set(row)) == k for row in places)
    assert found.search(queries, 5000)[0].shape == (7, 1000)


def test_what_is_no_such_file_is_left_to_faiss(tmp_path: Path) -> None:
    path = tmp_path / "dense.faiss"
    written(unit(300, 32), "pq", path)
    assert open_vectors(path) is None
    written(unit(300, 32), "8bit", path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:20], whole[:60], whole[:80], whole[:-1], whole + b"x", b"IxFI" + whole[4:]):
        path.write_bytes(damaged)
        assert open_vectors(path) is None


def test_links_stay_on_disk(demo_index: CorpusIndex, tmp_path: Path) -> None:
    links = demo_index.links
    assert links is not None
    links.save(tmp_path)
    held = stored_array(tmp_path / LINKS_FILE, "indices")
    assert isinstance(held, np.memmap)
    np.testing.assert_array_equal(held, links.matrix.indices)
    found = LinkIndex.load(tmp_path, links.passages, mapped=True)
    assert found is not None
    assert all(map(np.array_equal, found.matrix, links.matrix))
    assert (found.kind, found.names) == (links.kind, links.names)
