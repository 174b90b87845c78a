"""Evidence links: what is found, what it weighs, how a pool grows along them, and what old indexes say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mio_rag.errors import IndexFormatError, InputError
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.retrieval.links import LINKS_FILE, LinkIndex
from mio_rag.types import Passage

FILMS = (
    Passage("f", "Lone Wolf is a film directed by Steve Carver.", "Lone Wolf (film)"),
    Passage("c", "Steve Carver was born in Brooklyn.", "Steve Carver"),
    Passage("b", "Brooklyn is a borough.", "Brooklyn"),
    Passage("x", "Nothing is named here, nor anywhere.", "Void"),
    Passage("y", "Brooklyn and Steve Carver and Void.", "List"),
)


def links(index: LinkIndex) -> dict[tuple[int, int], float]:
    matrix = index.among(range(index.passages))
    return {(int(i), int(j)): float(matrix[i, j]) for i, j in np.argwhere(matrix > 0)}


def write(folder: Path, *, indptr: object, indices: object, weights: object) -> None:
    """A file of links, as all versions write it."""
    np.savez_compressed(
        folder / LINKS_FILE,
        indptr=np.array(indptr, dtype=np.int64),
        indices=np.array(indices, dtype=np.int32),
        weights=np.array(weights, dtype=np.float32),
        kind=np.array("titles"),
        names=np.array(3),
    )


def test_links_and_their_weights() -> None:
    found = LinkIndex.build(FILMS)
    assert found.kind == "titles"
    weight = {count: 1 - np.log(count) / np.log(5) for count in (1, 3)}
    assert set(links(found)) == {(0, 1), (1, 2), (4, 1), (4, 2), (4, 3)}  # none to itself
    assert links(found)[4, 3] == pytest.approx(weight[1])
    # Naming oneself counts for rarity: three passages name the borough, and three the director.
    assert links(found)[1, 2] == pytest.approx(weight[3])
    assert links(found)[0, 1] == pytest.approx(weight[3])


def test_several_bearers_share_the_weight() -> None:
    passages = (*FILMS[:2], Passage("c2", "More of him.", "Steve Carver"), *FILMS[3:])
    found = links(LinkIndex.build(passages))
    assert found[0, 1] == found[0, 2]
    assert found[0, 1] == pytest.approx((1 - np.log(3) / np.log(5)) / 2)
    assert (1, 2) not in found  # siblings


def test_reached_follows_hops_and_multiplies() -> None:
    found = LinkIndex.build(FILMS)
    one, two = found.reached([0]), found.reached([0], hops=2)
    assert set(one) == {1}
    assert set(two) == {1, 2}
    assert two[2] == pytest.approx(links(found)[0, 1] * links(found)[1, 2])
    assert 0 not in found.reached([0, 1], hops=3)
    with pytest.raises(InputError, match="hops=0"):
        found.reached([0], hops=0)


def test_pool_grows_along_links_and_carries_them(tmp_path: Path) -> None:
    index = CorpusIndex.build(FILMS, "tfidf", "films")
    question = "Where was the director of the film Lone Wolf born?"
    plain = Retriever(index, pool=1, link_hops=0).retrieve(question)
    grown = Retriever(index, pool=1, link_hops=1).retrieve(question)
    assert Retriever(index, pool=1).retrieve(question).ids == grown.ids  # where there are links
    without = dataclasses.replace(index, links=None)
    assert Retriever(without, pool=1).link_hops == 0
    assert plain.ids == ("f",)
    assert grown.ids == ("f", "c")
    assert grown.links is not None
    assert grown.links[0, 1] > 0
    assert grown.links[1, 0] == 0
    assert Retriever(index, pool=1, link_hops=2).retrieve(question).ids == ("f", "c", "b")
    assert [int(p) for p in grown.positions] == [0, 1]  # type: ignore[union-attr]
    loaded = CorpusIndex.load(index.save(tmp_path / "index"))
    again = Retriever(loaded, pool=1, link_hops=1).retrieve(question)
    assert again.ids == grown.ids
    np.testing.assert_array_equal(again.links, grown.links)


def test_an_index_without_links_opens_and_says_how_to_get_them(tmp_path: Path) -> None:
    built = CorpusIndex.build(FILMS, "tfidf", "films")
    folder = dataclasses.replace(built, links=None).save(tmp_path / "old")
    assert not (folder / LINKS_FILE).exists()
    old = CorpusIndex.load(folder)
    assert old.links is None
    assert Retriever(old, pool=2).retrieve("who?").links is None
    with pytest.raises(InputError, match="mio-rag index DATA --out INDEX"):
        Retriever(old, link_hops=1)


def test_foreign_links_are_refused(tmp_path: Path) -> None:
    LinkIndex.build(FILMS).save(tmp_path)
    assert LinkIndex.load(tmp_path, 5) is not None
    with pytest.raises(IndexFormatError, match="does not fit"):
        LinkIndex.load(tmp_path, 4)
    whole = {"indptr": [0, 1, 2, 2, 2, 5], "indices": [1, 2, 1, 2, 3], "weights": [0.5] * 5}
    write(tmp_path, **whole)
    assert LinkIndex.load(tmp_path, 5) is not None
    for damage in (
        {"weights": [0.5] * 4},
        {"indptr": [0, 3, 1, 2, 2, 5]},
        {"indices": [1, 2]},
        {"indices": [1, 2, 1, 2, 5]},
        {"indices": [1, 2, 1, 2, -1]},
        {"indices": [1, 2, 3, 2, 3]},  # a link twice
        {"indices": [[1, 2, 1, 2, 3]]},
    ):
        write(tmp_path, **{**whole, **damage})
        with pytest.raises(IndexFormatError, match="does not fit"):
            LinkIndex.load(tmp_path, 5)
    (tmp_path / LINKS_FILE).write_bytes(b"no archive")
    with pytest.raises(IndexFormatError, match="cannot be read"):
        LinkIndex.load(tmp_path, 5)
