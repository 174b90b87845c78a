"""Names of passages by a spaCy pipeline: a blank one with an entity ruler needs no trained weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from mio_rag.retrieval import CorpusIndex
from mio_rag.retrieval.links import entity_names
from mio_rag.types import Passage

PASSAGES = (
    Passage("a", "In 1931 the band of Ray Noble recorded a song by Harry Woods.", "", "s1"),
    Passage("b", "Born in Massachusetts, Harry Woods wrote songs for the stage.", "", "s2"),
    Passage("c", "Bread is baked from flour, water and yeast.", "Bread", "s3"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("entity_ruler")
    names = [("PERSON", "Harry Woods"), ("PERSON", "Ray Noble"), ("DATE", "1931")]
    ruler.add_patterns([{"label": label, "pattern": text} for label, text in names])
    path = tmp_path_factory.mktemp("spacy") / "pipeline"
    pipeline.to_disk(path)
    return path


def test_the_first_entity_names_a_passage_and_links_follow(folder: Path) -> None:
    name_of = entity_names(f"spacy:{folder}")
    assert [name_of(p) for p in PASSAGES] == ["Ray Noble", "Harry Woods", "Bread"]  # a date names nothing
    index = CorpusIndex.build(PASSAGES, "tfidf", "songs", name_of=name_of)
    assert index.links is not None
    assert index.links.kind == "entities"
    rows, weights = index.links.mentioned_by(0)
    assert rows.tolist() == [1]  # the song's passage mentions who wrote it
    assert 0 < weights[0] <= 1
    # Without the model a text is named by what it opens with, which nobody mentions.
    plain = CorpusIndex.build(PASSAGES, "tfidf", "songs").links
    assert plain is not None
    assert len(plain) == 0
