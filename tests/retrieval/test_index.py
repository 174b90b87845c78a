"""The index on disk: what comes back, what is refused, what is left behind when writing fails."""

import errno
import hashlib
import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import DataError, IndexFormatError, InputError
from mio_rag.retrieval import CorpusIndex, Retriever, TfidfEmbedder
from mio_rag.types import Passage

FILES = {
    "passages.jsonl", "dense.faiss", "tfidf.npz", "tfidf_vocabulary.json", "manifest.json", "links.npz",
    "repetition.npz", "passages.npy", "bm25/terms.npz", "bm25/params.json",
}  # fmt: skip


@pytest.fixture
def saved(demo_index: CorpusIndex, tmp_path: Path) -> Path:
    return demo_index.save(tmp_path / "deep" / "index")


def rewrite(folder: Path, **changes: Any) -> None:
    """A manifest with other entries and a checksum that fits them."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    del manifest["checksum"]
    manifest["checksum"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_round_trip_searches_alike(demo: Dataset, demo_index: CorpusIndex, saved: Path) -> None:
    loaded = CorpusIndex.load(saved)
    assert loaded.passages == demo.passages
    assert (loaded.name, loaded.dimensions, len(loaded)) == ("demo", demo_index.dimensions, 205)
    for question in demo.questions:
        before, after = (Retriever(i, pool=20).retrieve(question.text) for i in (demo_index, loaded))
        assert before.ids == after.ids
        np.testing.assert_array_equal(before.relevance, after.relevance)
        np.testing.assert_array_equal(before.scores["bm25"], after.scores["bm25"])
    assert {p.relative_to(saved).as_posix() for p in saved.rglob("*") if p.is_file()} == FILES


def test_words_find_the_best_rows_first_and_no_row_without_one(river_index: CorpusIndex) -> None:
    question = "Which river flows through Florence?"
    every = river_index.scores_bm25(question)
    rows, scores = river_index.search_bm25(question, 3)
    assert scores.tolist() == sorted(every, reverse=True)[: len(rows)]
    np.testing.assert_array_equal(every[rows], scores)
    assert river_index.search_bm25("xylophone", 3)[0].size == 0


@pytest.mark.parametrize("name", sorted(FILES))
def test_one_flipped_byte_is_noticed_anywhere(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    for position in (0, len(content) // 2, len(content) - 2):
        damaged = bytearray(content)
        damaged[position] ^= 1
        (saved / name).write_bytes(damaged)
        with pytest.raises(IndexFormatError) as raised:
            CorpusIndex.load(saved)
        assert Path(name).name in str(raised.value)


def test_every_missing_file_is_named(saved: Path) -> None:
    for name in ("passages.jsonl", "bm25/terms.npz"):
        (saved / name).unlink()
    with pytest.raises(IndexFormatError) as raised:
        CorpusIndex.load(saved)
    assert [p.split("'")[1] for p in raised.value.problems[:2]] == [
        str(saved / "bm25/terms.npz"), str(saved / "passages.jsonl"),
    ]  # fmt: skip


def test_other_version(saved: Path) -> None:
    rewrite(saved, version=99)
    with pytest.raises(IndexFormatError, match="format version 99, this release reads 3"):
        CorpusIndex.load(saved)


def test_contradicting_counts(saved: Path) -> None:
    rewrite(saved, passages=83)
    with pytest.raises(IndexFormatError, match="205 texts, 205 vectors"):
        CorpusIndex.load(saved)


def test_other_embedder(saved: Path, rivers: Dataset) -> None:
    other = TfidfEmbedder()
    other.fit([p.text for p in rivers.passages])
    with pytest.raises(IndexFormatError, match="built by 'tfidf'"):
        CorpusIndex.load(saved, embedder=other)


@pytest.mark.parametrize("content", [None, "[]", "not json", '{"format": "something else"}'])
def test_foreign_folder(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(IndexFormatError, match="not a mio-rag index"):
        CorpusIndex.load(tmp_path)
    with pytest.raises(IndexFormatError, match="no such folder"):
        CorpusIndex.load(tmp_path / "absent")


def test_overwriting(saved: Path, river_index: CorpusIndex, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--overwrite"):
        river_index.save(saved)
    assert len(CorpusIndex.load(saved)) == 205
    river_index.save(saved, overwrite=True)
    assert len(CorpusIndex.load(saved)) == 6
    assert [p.name for p in saved.parent.iterdir()] == ["index"]
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter.txt").write_text("years of work")
    for target in (precious, precious / "chapter.txt"):
        with pytest.raises(InputError, match="choose another path"):
            river_index.save(target, overwrite=True)
    assert (precious / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize("part", ["embedder", "rename"])
def test_a_failing_disk_leaves_the_old_index_and_no_rest(
    saved: Path, river_index: CorpusIndex, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = {p: p.read_bytes() for p in saved.rglob("*") if p.is_file()}
    if part == "embedder":
        monkeypatch.setattr(TfidfEmbedder, "save", full)
    else:
        rename = os.rename

        def all_but_the_new_one(old: Path, new: Path) -> None:
            full() if ".partial" in old.name else rename(old, new)

        monkeypatch.setattr("os.rename", all_but_the_new_one)
    for target, overwrite in ((saved, True), (saved.parent / "new", False)):
        with pytest.raises(InputError, match="No space left"):
            river_index.save(target, overwrite=overwrite)
    assert [p.name for p in saved.parent.iterdir()] == ["index"]
    assert {p: p.read_bytes() for p in saved.rglob("*") if p.is_file()} == before


def test_a_disk_that_fills_with_the_last_bytes(rivers: Dataset, tmp_path: Path) -> None:
    """The vectors are the largest file, and all but its end can be written."""

    class Wide(Odd):
        def save(self, folder: Path) -> None:
            pass

    index = CorpusIndex.build(rivers.passages, Wide(np.ones((6, 600), dtype=np.float32)))
    size = (index.save(tmp_path / "fits") / "dense.faiss").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 10, before[1]))
    try:
        with pytest.raises(InputError, match="could not be written"):
            index.save(tmp_path / "cut")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in tmp_path.iterdir()] == ["fits"]


def test_passages_of_stop_words_only(tmp_path: Path) -> None:
    index = CorpusIndex.build(
        [Passage("a", "to be or not to be"), Passage("b", "granite lighthouse")], "tfidf"
    )
    loaded = CorpusIndex.load(index.save(tmp_path / "stop"))
    for question in ("What is to be?", "a granite lighthouse"):
        pool = Retriever(loaded).retrieve(question)
        assert set(pool.ids) == {"a", "b"}
        assert pool.scores["bm25"][pool.ids.index("a")] == 0
    with pytest.raises(InputError, match="no words"):
        CorpusIndex.build([Passage("a", "to be or not to be")], "tfidf")


def test_duplicate_ids_and_empty_corpus() -> None:
    with pytest.raises(DataError, match="'x' occurs more than once"):
        CorpusIndex.build([Passage("x", "one"), Passage("x", "two")], "tfidf")
    with pytest.raises(DataError, match="is empty"):
        CorpusIndex.build([], "tfidf")
    with pytest.raises(DataError, match="surrogate"):
        CorpusIndex.build([Passage("x", "half \ud800 of a pair")], "tfidf")


def test_bad_vectors_are_refused(rivers: Dataset) -> None:
    with pytest.raises(InputError, match=r"returned shape \(5, 4\), expected \(6, d\)"):
        CorpusIndex.build(rivers.passages, Odd(np.ones((5, 4))))
    spoilt = np.ones((6, 4))
    spoilt[2, 1] = np.nan
    with pytest.raises(InputError, match="NaN or infinity for passage 'r2'"):
        CorpusIndex.build(rivers.passages, Odd(spoilt))


class Odd(TfidfEmbedder):
    """An embedder with a defect."""

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__()
        self.vectors = vectors

    def encode(self, texts: Any, progress: Any = None) -> Any:
        return self.vectors
