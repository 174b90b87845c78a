"""Pools: what they refuse, rows taken, two pools merged; passages and questions; names in texts."""

import dataclasses
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.pool import COLUMNS, Pool
from mio_rag.sentences import cut, leading_name
from mio_rag.types import Line, Passage, Question

GOOD = {"ids": ["a", "b"], "texts": ["first", "second"], "relevance": [0.5, 0.1], "tokens": [3, 4]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ["a", "a"]}, r"ids repeat \(a\)"),
        ({"texts": ["first"]}, "texts has 1 entries, expected 2"),
        ({"texts": ["first", " "]}, r"passages without text \(b\)"),
        ({"titles": ["x"]}, "titles has 1 entries"),
        ({"relevance": [0.5, math.nan]}, r"relevance\[1\] is nan"),
        ({"relevance": [0.5, "high"]}, "relevance holds strings: give numbers"),
        ({"relevance": [[0.5, 0.1]]}, r"relevance has shape \(1, 2\), expected \(2,\)"),
        ({"tokens": [3, 0]}, "tokens must be whole numbers >= 1"),
        ({"tokens": [3, 1.5]}, "tokens must be whole numbers >= 1"),
        ({"embeddings": [[1.0, 0.0]]}, r"embeddings has shape \(1, 2\), expected \(2, d\)"),
        ({"embeddings": [1.0, 0.0]}, r"embeddings has shape \(2,\)"),
        ({"embeddings": [[1.0, 0.0], [1.0]]}, "embeddings is not an array of numbers"),
        ({"embeddings": [[1.0], [math.inf]]}, r"embeddings row 1 \(passage 'b'\) holds NaN or infinity"),
        ({"similarity": [[1.0, 0.5]]}, r"similarity has shape \(1, 2\), expected \(2, 2\)"),
        ({"similarity": [[1.0, 0.5], [0.4, 1.0]]}, "similarity is not symmetric"),
        ({"similarity": [[1.0, math.nan], [math.nan, 1.0]]}, r"similarity\[0, 1\] is nan"),
        ({"similarity": [[1.0, 0.5], [0.5]]}, "similarity is not an array of numbers"),
        ({"query_embedding": [[1.0]]}, r"query_embedding has shape \(1, 1\)"),
        ({"query_embedding": "who?"}, "query_embedding is not an array of numbers"),
        ({"embeddings": [[1.0], [1.0]], "query_embedding": [1.0, 2.0]}, "has 2 dimensions, the passages 1"),
        ({"radius": -0.1}, "radius must be >= 0"),
        ({"radius": [0.1]}, r"radius has shape \(1,\)"),
        ({"radius": "wide"}, "radius is not an array of numbers"),
        ({"scores": {"bm25": [1.0]}}, r"scores\['bm25'\] has shape \(1,\)"),
        ({"duplicates": [[0, 0.9], [0, 0]]}, "duplicates is not symmetric"),
        ({"links": [[0, 1.5], [0, 0]]}, r"links must lie in \[0, 1\]"),
        ({"dates": ["", "2024-02-30"]}, "is no date"),
        ({"spans": [(0, 5), (0, 6)]}, "spans need sources"),
        ({"spans": [(0, 5), (0, 6)], "sources": ["d", ""]}, "spans need sources"),
        ({"spans": [(0, 5)], "sources": ["d", "d"]}, r"spans has shape \(1, 2\), expected \(2, 2\)"),
        (
            {"spans": [(0, 4), (0, 6)], "sources": ["d", "d"]},
            r"spans\[0\] is \(0, 4\), and .* has 5 characters",
        ),
        ({"spans": [(0.5, 5.5), (0, 6)], "sources": ["d", "d"]}, r"spans\[0\] is \(0.5, 5.5\)"),
        ({"spans": [(0, math.nan), (0, 6)], "sources": ["d", "d"]}, r"spans\[0\]"),
        ({"spans": "ab", "sources": ["d", "d"]}, "spans is not an array of numbers"),
    ],
)
def test_each_defect_has_its_message(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Pool(**{**GOOD, **changes})
    assert len(caught.value.problems) == 1


def test_a_pool_has_read_only_arrays_of_its_own() -> None:
    relevance = np.array([0.5, 0.1])
    pool = Pool(
        **{**GOOD, "relevance": relevance},
        embeddings=[[1, 0], [0, 1]],
        query_embedding=[1, 0],
        radius=0.2,
        sources=["s", "t"],
    )
    relevance[0] = 9.0
    assert pool.relevance[0] == 0.5
    assert (pool.tokens.dtype, pool.embeddings.dtype) == (np.int64, np.float32)
    assert pool.radius.tolist() == [0.2, 0.2]
    assert pool.passage(1) == Passage("b", "second", source="t")
    for array in (pool.relevance, pool.tokens, pool.embeddings, pool.radius):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9
    assert len(Pool([], [], [], [], embeddings=np.zeros((0, 4)))) == 0


def test_another_relevance_changes_nothing_else_and_is_checked() -> None:
    pool = Pool(**{**GOOD, "titles": ["A", "B"], "dates": ["2024", ""]})
    scores = {"dense": [0.25, 0.5]}
    changed = pool.with_relevance([0.1, 0.9], scores)
    built = dataclasses.replace(pool, relevance=[0.1, 0.9], scores=scores)
    assert {k: v.tolist() for k, v in changed.scores.items()} == scores
    for column in COLUMNS:
        if column.name != "scores":
            assert np.array_equal(getattr(changed, column.name), getattr(built, column.name)), column.name
    assert not changed.relevance.flags.writeable
    with pytest.raises(InputError) as caught:
        pool.with_relevance([0.1, math.nan], {"dense": [0.25]})
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": ""}, "empty id"),
        ({"text": " \n"}, "passage 'p' has no text"),
        ({"start": 0, "end": 9}, "has 3 characters, but lies from start=0 to end=9"),
        ({"start": 0, "source": ""}, "no source"),
        *(
            ({"start": wrong}, "give whole numbers >= 0 and below 2^53")
            for wrong in (-1, 1.5, True, "0", 2**53)
        ),
        ({"end": 3}, "give whole numbers >= 0"),
        *(
            ({"date": wrong}, "is no date in the form YYYY-MM-DD")
            for wrong in ("yesterday", "2024-1-1", "2024-13-45", "20240101", "2024-05-01T25:00", 2024)
        ),
    ],
)
def test_malformed_passages_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Passage(**{"id": "p", "text": "abc", "source": "d", **given})
    assert Passage("p", "abc", source="d", start=4).end == 7
    with pytest.raises(InputError, match="question 'q' is empty"):
        Question("q", "")


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


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Port Blair (pronunciation) is the capital of the Andaman Islands.", "Port Blair"),
        ("The Arno rises on Mount Falterona.", ""),
        ("The Arno is 241 km long.", "Arno"),
        ("Lima, the capital of Peru", "Lima"),
        ("American painters of the century", ""),
        ("University of Turin and its history", "University of Turin"),
        ("bread is baked from flour", ""),
    ],
)
def test_leading_name(text: str, name: str) -> None:
    assert leading_name(text) == name
