"""Vectors that stay on disk give what FAISS gives from memory."""

from pathlib import Path

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval import vectors as mapped
from mio_rag.retrieval.links import LINKS_FILE, LinkIndex
from mio_rag.retrieval.vectors import MappedVectors, make_dense, open_vectors, stored_array
from tests.retrieval.test_compact import unit


def written(vectors: np.ndarray, kind: str, path: Path) -> object:
    import faiss

    dense = make_dense(vectors, kind)
    path.write_bytes(faiss.serialize_index(dense).tobytes())
    return dense


@pytest.mark.parametrize("kind", ["exact", "8bit"])
def test_rows_on_disk_are_found_as_in_memory(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "_BYTES_AT_ONCE", 32 * 150)  # seven pieces, the last not full
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


def test_equal_rows_come_in_their_order(tmp_path: Path) -> None:
    written(np.repeat(unit(1, 32), 20, axis=0), "exact", tmp_path / "dense.faiss")
    found = open_vectors(tmp_path / "dense.faiss")
    assert found is not None
    assert found.search(unit(1, 32), 20)[1].tolist() == [list(range(20))]


def test_what_is_no_such_file_is_left_to_faiss(tmp_path: Path) -> None:
    path = tmp_path / "dense.faiss"
    written(unit(300, 32), "pq", path)
    assert open_vectors(path) is None
    written(unit(300, 32), "8bit", path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:20], whole[:60], whole[:80], whole[:-1], whole + b"x", b"IxFI" + whole[4:]):
        path.write_bytes(damaged)
        assert open_vectors(path) is None


@pytest.mark.parametrize("vectors", ["exact", "8bit"])
def test_an_index_on_disk_loads_no_faiss(rivers: Dataset, tmp_path: Path, vectors: str) -> None:
    built = CorpusIndex.build(rivers.passages, "tfidf", rivers.name, vectors=vectors)
    folder = built.save(tmp_path / "index")
    found = CorpusIndex.load(folder, mapped=True)
    assert isinstance(found._dense, MappedVectors)
    for question in rivers.questions:
        one, other = (Retriever(index).retrieve(question.text) for index in (built, found))
        for name in ("dense", "bm25"):  # passages without a common word differ by rounding, and so may places
            scores = (dict(zip(pool.ids, pool.scores[name], strict=True)) for pool in (one, other))
            assert next(scores) == pytest.approx(next(scores), abs=1e-6)
    assert (found.save(tmp_path / "again") / "dense.faiss").read_bytes() == (
        folder / "dense.faiss"
    ).read_bytes()


def test_links_stay_on_disk(demo_index: CorpusIndex, tmp_path: Path) -> None:
    links = demo_index.links
    assert links is not None
    links.save(tmp_path)
    held = stored_array(tmp_path / LINKS_FILE, "indices")
    assert isinstance(held, np.memmap)
    np.testing.assert_array_equal(held, links.matrix.indices)
    found = LinkIndex.load(tmp_path, links.passages, mapped=True)
    assert found is not None
    assert (found.matrix != links.matrix).nnz == 0
    assert (found.kind, found.names) == (links.kind, links.names)
    with np.load(tmp_path / LINKS_FILE) as data:
        arrays = {name: data[name] for name in data}
    with (tmp_path / LINKS_FILE).open("wb") as file:
        np.savez_compressed(file, **arrays)  # as older releases wrote it
    assert stored_array(tmp_path / LINKS_FILE, "indices") is None
    older = LinkIndex.load(tmp_path, links.passages, mapped=True)
    assert older is not None
    assert (older.matrix != links.matrix).nnz == 0
