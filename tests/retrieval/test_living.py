"""An index whose documents change: only what changed is read and embedded, and it answers as a fresh one."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mio_rag import sources
from mio_rag.corpora.dataset import load_folder
from mio_rag.documents import files
from mio_rag.documents.files import Read, read_folder
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.cached import CachedEmbedder
from mio_rag.sources import Building, open_source
from mio_rag.types import Passage

QUESTIONS = ("Who pays for the roof?", "In the lease of house 2: what does the zebra cost?", "It is so.", "x")


class ByHash(CachedEmbedder):
    """Any vector for a text, always the same."""

    fingerprint, dimensions = "by-hash", 16  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("minilm", cache=False, batch_size=8)
        self.embedded = 0

    def _embed(self, texts: Sequence[str]) -> Any:
        self.embedded += len(texts)
        seeds = (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts)
        return np.stack([np.random.default_rng(seed).standard_normal(16) for seed in seeds])


def assert_same(index: CorpusIndex, fresh: CorpusIndex) -> None:
    assert [p.to_dict() for p in index.passages] == [p.to_dict() for p in fresh.passages]
    assert index.digest() == fresh.digest()
    for question in QUESTIONS:
        one, other = (Retriever(each).retrieve(question) for each in (index, fresh))
        assert one.ids == other.ids
        assert one.scores.keys() == other.scores.keys()
        for name, scores in one.scores.items():
            np.testing.assert_allclose(scores, other.scores[name], rtol=1e-6)
        assert one.sentences is not None
        assert other.sentences is not None
        np.testing.assert_array_equal(one.sentences.embeddings, other.sentences.embeddings)
        for name, scores in one.sentences.scores.items():
            np.testing.assert_allclose(scores, other.sentences.scores[name], rtol=1e-9)


def text(kind: int) -> str:
    body = f"# House {kind % 5}\n\n## Rent\n\nThe tenant of house {kind % 5} pays {kind} euros. It is so.\n\n"
    return body + (
        "| Month | Rent |\n|---|---|\n| May | 12 |\n\n" if kind % 2 else "The owner pays for the roof.\n"
    )


@given(st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(0, 9)), min_size=1, max_size=12))
@settings(max_examples=15, deadline=None)
def test_an_index_that_grew_step_by_step_is_that_of_the_end(steps: list[tuple[int, int | None]]) -> None:
    from mio_rag.documents.markdown import read_markdown
    from mio_rag.documents.passages import passages_of

    def of(name: str, kind: int) -> list[Passage]:
        return passages_of(read_markdown(text(kind)), name, 12)

    state = {"always.md": of("always.md", 3)}
    index = CorpusIndex.build(state["always.md"], ByHash())
    for place, kind in steps:
        name = f"{place}.md"
        state.pop(name, None)
        if kind is not None:
            state[name] = of(name, kind)
        passages = [p for _, own in sorted(state.items()) for p in own]
        index = CorpusIndex.build(passages, ByHash(), old=index)
    assert_same(index, CorpusIndex.build(passages, ByHash()))


def test_only_changed_files_are_read_and_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents, out = tmp_path / "documents", tmp_path / "index"
    documents.mkdir()
    for k in range(6):
        (documents / f"{k}.md").write_text(text(k))
    (documents / "broken.pdf").write_bytes(b"%PDF-1.4")
    made: list[ByHash] = []

    def make(name: str, folder: Path | None = None) -> ByHash:
        made.append(ByHash())
        return made[-1]

    read: list[str] = []
    reader = files.read_file

    def noted(path: Path, *rest: Any, name: str = "", **more: Any) -> Read:
        read.append(name)
        return reader(path, *rest, name=name, **more)

    monkeypatch.setattr(sources, "make_embedder", make)
    monkeypatch.setattr("mio_rag.retrieval.index.make_embedder", make)
    first = open_source(documents, Building(), out=out)
    before = CorpusIndex.load(out, mapped=True)
    monkeypatch.setattr(files, "read_file", noted)
    (documents / "2.md").write_text(text(2) + "\nThe zebra costs 7 euros.\n")
    (documents / "4.md").unlink()
    (documents / "new.md").write_text("# New\n\nIt is new.\n")
    made.clear()
    opened = open_source(documents, Building(), out=out)
    assert sorted(read) == ["2.md", "new.md"]
    assert (opened.changes.changed, opened.changes.added, opened.changes.removed) == (
        ("2.md",),
        ("new.md",),
        ("4.md",),
    )
    assert 0 < sum(one.embedded for one in made) < 12
    assert [one.path for one in opened.left_out] == [one.path for one in first.left_out] == ["broken.pdf"]
    assert_same(CorpusIndex.load(out), CorpusIndex.build(load_folder(documents).passages, ByHash()))
    # Who had opened it goes on with what was there.
    pool = Retriever(before).retrieve("What does the tenant pay?")
    assert "4.md" in (pool.sources or ())


def test_what_is_known_of_a_file_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("It is so.")
    (tmp_path / "b.md").write_text("It is not so.")
    read = read_folder(tmp_path)
    kept = Read(read.passages[:1], ())
    (tmp_path / "a.md").write_text("It was changed.")
    again = read_folder(tmp_path, known={"a.md": kept, "gone.md": kept})
    assert [p.text for p in again.passages] == ["It is so.", "It is not so."]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of a few passages are large."""
    for module in ("index", "layers"):
        monkeypatch.setattr(f"mio_rag.retrieval.{module}.LARGE", 4)
    monkeypatch.setattr(sources, "_FEW", 1.0)
    monkeypatch.setattr("mio_rag.retrieval.layers._MOST", 0.9)
    monkeypatch.setattr(sources, "make_embedder", lambda name, folder=None: ByHash())
    monkeypatch.setattr("mio_rag.retrieval.index.make_embedder", lambda name, folder=None: ByHash())


@pytest.mark.usefixtures("large")
@pytest.mark.skipif(os.name == "nt", reason="open files are not replaced there")
def test_a_large_index_takes_changes_without_being_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, out = tmp_path / "documents", tmp_path / "index"
    documents.mkdir()
    for k in range(20):
        (documents / f"{k:02}.md").write_text(text(k))
    before = open_source(documents, Building(), out=out).index
    reader, passages = CorpusIndex.load(out), list(before.passages)
    written = (out / "dense.faiss").stat().st_ino
    steps: list[dict[str, str | None]] = [
        {"03.md": None},
        {"07.md": text(7) + "\nThe zebra costs 7 euros.\n", "zz.md": "# New\n\nIt is new. A zebra asks.\n"},
        {"07.md": text(8), "00.md": None, "aa.md": text(11), "03.md": text(4)},
        {"07.md": text(7), "zz.md": None},
    ]
    for step in steps:
        for name, body in step.items():
            (documents / name).unlink() if body is None else (documents / name).write_text(body)
        opened = open_source(documents, Building(), out=out)
        assert set(opened.changes.all) == set(step)
        assert (out / "base" / "dense.faiss").stat().st_ino == written
        fresh = CorpusIndex.build(load_folder(documents).passages, ByHash())
        for index in (
            opened.index,
            CorpusIndex.load(out),
            CorpusIndex.load(opened.index.save(tmp_path / "x")),
        ):
            assert index.layers is not None
            assert_same(index, fresh)
            assert index.repetition is not None
            assert fresh.repetition is not None
            assert index.repetition.copies == fresh.repetition.copies
        shutil.rmtree(tmp_path / "x")
    monkeypatch.setattr("mio_rag.retrieval.layers._MOST", 0)  # all is written anew
    (documents / "05.md").write_text(text(4) + "\nThe zebra costs 3 euros.\n")
    whole = open_source(documents, Building(), out=out).index
    assert whole.layers is None
    assert_same(whole, CorpusIndex.build(load_folder(documents).passages, ByHash()))
    assert list(reader.passages) == passages
    assert not open_source(documents, Building(), out=out).built
