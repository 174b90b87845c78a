"""Sentences of an index: built with it, kept with it, handed out with a pool."""

import json

import numpy as np
import pytest

from mio_rag.errors import IndexFormatError
from mio_rag.retrieval import CorpusIndex, TfidfEmbedder
from mio_rag.retrieval.sentences import SentenceIndex
from mio_rag.types import Passage

PASSAGES = (
    Passage("a", "The Arno is a river. It flows through Florence.", "Arno"),
    Passage("b", "Bread needs flour.", "Bread"),
    Passage("c", "The Tiber is a river.\nRome lies on it. Ostia, too.", "Tiber"),
)


@pytest.fixture(scope="module")
def index():
    return CorpusIndex.build(PASSAGES, TfidfEmbedder(), "rivers", sentences=True)


def texts(found, passages):
    return [passages[i].text[a:b] for i, (a, b) in zip(found.owners, found.spans, strict=True)]


def test_every_sentence_has_its_own_vector(index):
    found = index.sentences.of([2, 0])
    said = texts(found, [PASSAGES[2], PASSAGES[0]])
    assert found.owners.tolist() == [0, 0, 0, 1, 1]
    assert said[0] == "The Tiber is a river."
    assert said[-1] == "It flows through Florence."
    assert np.allclose(found.embeddings, index.embedder.encode(said), atol=5e-3)


def test_sentences_that_passages_share_are_embedded_once():
    embedder, given = TfidfEmbedder(), []
    embedder.fit([p.text for p in PASSAGES])
    encode = embedder.encode
    embedder.encode = lambda texts, progress=None: given.extend(texts) or encode(texts, progress)
    told = []
    found = SentenceIndex.build([*PASSAGES, *PASSAGES], embedder, told.append)
    assert sorted(given) == sorted(set(given))
    assert len(found) == 2 * len(given) == sum(told)
    assert np.array_equal(found.of([0, 1, 2]).embeddings, found.of([3, 4, 5]).embeddings)


@pytest.mark.parametrize("mapped", [False, True])
def test_they_come_back_from_disk(index, tmp_path, mapped):
    read = CorpusIndex.load(index.save(tmp_path / "index"), mapped=mapped).sentences
    for one, other in zip(
        read.of([0, 1, 2]).__dict__.values(), index.sentences.of([0, 1, 2]).__dict__.values(), strict=True
    ):
        assert np.array_equal(one, other)


def test_sentences_of_other_passages_are_refused(index, tmp_path):
    folder = index.save(tmp_path / "index")
    with pytest.raises(IndexFormatError, match="does not fit"):
        SentenceIndex.load(folder, 2, index.dimensions)
    with pytest.raises(IndexFormatError, match="does not fit"):
        SentenceIndex.load(folder, 3, index.dimensions + 1)
    (folder / "sentences.npy").write_bytes(b"no array")
    with pytest.raises(IndexFormatError, match="cannot be read"):
        SentenceIndex.load(folder, 3, index.dimensions)
    assert "sentences.npy" in json.loads((folder / "manifest.json").read_text())["sha256"]
