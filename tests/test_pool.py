"""Pools: rows taken, two pools merged."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mio_rag.pool import COLUMNS, Pool
from mio_rag.sentences import cut
from mio_rag.types import Line

TEXTS = {"a": "Rivers flow. Seas wait.", "b": "Bread is food.", "c": "Flour is ground.", "d": "Salt is dug."}


def full(ids: str, **changes: Any) -> Pool:
    """A pool with every column, whose values depend on the passage alone."""
    n, at = len(ids), np.array(["abcd".index(i) for i in ids])
    texts = [TEXTS[i] for i in ids]
    pairs = np.add.outer(at, at) / 10 * (1 - np.eye(n))
    columns: dict[str, Any] = {
        "ids": list(ids),
        "texts": texts,
        "relevance": 1.0 - at / 10,
        "tokens": at + 3,
        "embeddings": np.eye(4)[at],
        "query_embedding": np.ones(4) / 2,
        "titles": [f"T{i}" for i in ids],
        "sources": [f"S{i}" for i in ids],
        "clusters": [f"C{i}" for i in ids],
        "radius": at / 100,
        "scores": {"dense": at / 2 - 1},
        "question": "q",
        "links": pairs,
        "positions": at * 10,
        "similarity": pairs + np.eye(n),
        "embedder": "e",
        "spans": [(k, k + len(text)) for k, text in enumerate(texts)],
        "dates": [f"202{k}" for k in at],
        "duplicates": pairs,
        "sentences": cut(texts),
        "cut_from": [f"P{i}" for i in ids],
        "documents": [f"D{i}" for i in ids],
        "gaps": [" "] * n,
        "sections": [("H", i) for i in ids],
        "pages": [int(k) + 1 for k in at],
        "metadata": [{"tenant": i} for i in ids],
        "lines": [(Line(100, "Heading"),) for _ in ids],
    }
    assert set(columns) == {column.name for column in COLUMNS}
    return Pool(**{**columns, **changes})


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return bool(list(one) == list(other)) if isinstance(one, (list, tuple)) else bool(one == other)


def test_every_field_is_a_declared_column() -> None:
    assert [column.name for column in COLUMNS] == list(Pool.__dataclass_fields__)


def test_taken_rows_keep_every_column() -> None:
    whole = full("abcd")
    taken = whole.take([2, 0])
    assert taken.ids == ("c", "a")
    expected = full("ca")
    for column in COLUMNS:
        value, wanted = getattr(taken, column.name), getattr(expected, column.name)
        if column.name == "sentences":
            assert value.owners.tolist() == wanted.owners.tolist()
        elif column.name == "scores":
            assert value["dense"].tolist() == wanted["dense"].tolist()
        elif column.name != "spans":
            assert _same(value, wanted), column.name
    assert taken.spans is not None
    assert taken.spans.tolist() == [[2, 18], [0, 23]]


def test_merged_pools_keep_radius_clusters_and_what_each_passage_has() -> None:
    merged, expected = full("ab").merge(full("bcd"), 3, {"d"}), full("abcd")
    for column in COLUMNS:
        value, wanted = getattr(merged, column.name), getattr(expected, column.name)
        if column.axis in ("n", "one"):
            assert _same(value, wanted), column.name
    assert merged.similarity is None
    assert merged.embeddings is not None
    assert np.array_equal(merged.embeddings, np.eye(4))
    assert merged.sentences is not None
    assert merged.sentences.owners.tolist() == [0, 0, 1, 2, 3]
    assert merged.links is not None
    assert merged.links[0, 1] == pytest.approx(0.1)
    assert merged.links[0, 2] == 0
    assert full("ab").merge(full("bcd"), 2).ids == ("a", "b")


def test_merged_scores_keep_their_scale() -> None:
    one = full("ab", scores={"logit": [-3.0, -8.0], "dense": [0.1, 0.2]})
    merged = one.merge(full("bc", scores={"logit": [-5.0, 2.0]}), 3)
    assert set(merged.scores) == {"logit"}
    assert merged.scores["logit"].tolist() == [-3.0, -5.0, 2.0]


def test_pools_without_passages_are_merged() -> None:
    nothing = full("ab").take([])
    assert nothing.merge(nothing, 3).ids == ()
    for one, other in ((nothing, full("ab")), (full("ab"), nothing)):
        merged = one.merge(other, 3)
        assert merged.ids == ("a", "b")
        assert merged.spans is not None
        assert merged.spans.tolist() == full("ab").spans.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("column", [c for c in COLUMNS if c.merge in ("either", "both", "pairs")])
def test_a_column_that_one_pool_lacks(column: Any) -> None:
    lacking = {"documents": None, "spans": None} if column.name == "sources" else {}
    one = replace(full("ab"), **{column.name: None}, **lacking)
    value = getattr(one.merge(full("bc"), 3), column.name)
    if column.name == "pages":
        assert value == [None, None, 3]
    elif column.blank is None:
        assert value is None
    elif column.axis == "n,n":
        assert value[1, 2] > 0
    else:
        assert np.array_equal(value[0], column.blank)
