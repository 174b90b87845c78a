from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.pool import Candidates
from mio_rag.types import Passage, Question

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
        ({"radius": "wide"}, "radius is not a numeric vector"),
        ({"scores": {"bm25": [1.0]}}, r"scores\['bm25'\] has shape \(1,\)"),
    ],
)
def test_each_defect_has_its_message(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Candidates(**{**GOOD, **changes})
    assert len(caught.value.problems) == 1


def test_all_defects_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Candidates(
            ids=["a", "a"],
            texts=["x"],
            relevance=[math.inf, 1],
            tokens=[0, 1],
            embeddings=np.zeros((3, 2)),
            radius=-1,
        )
    assert len(caught.value.problems) == 6


def test_candidates_are_read_only_arrays() -> None:
    pool = Candidates(
        **GOOD, embeddings=[[1, 0], [0, 1]], query_embedding=[1, 0], radius=0.2, sources=["s", "t"]
    )
    assert len(pool) == 2
    assert (pool.tokens.dtype, pool.embeddings.dtype) == (np.int64, np.float32)
    assert pool.radius.tolist() == [0.2, 0.2]
    assert pool.passage(1) == Passage("b", "second", source="t")
    for array in (pool.relevance, pool.tokens, pool.embeddings, pool.radius):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9


def test_the_callers_arrays_are_not_shared() -> None:
    relevance = np.array([0.5, 0.1])
    pool = Candidates(**{**GOOD, "relevance": relevance})
    relevance[0] = 9.0
    assert pool.relevance[0] == 0.5


def test_another_relevance_changes_nothing_else_and_is_checked() -> None:
    pool = Candidates(**{**GOOD, "titles": ["A", "B"], "dates": ["2024", ""]})
    scores = {"dense": [0.25, 0.5]}
    changed = pool.with_relevance([0.1, 0.9], scores)
    built = dataclasses.replace(pool, relevance=[0.1, 0.9], scores=scores)
    assert changed.scores.keys() == built.scores.keys()
    assert changed.scores["dense"].tolist() == built.scores["dense"].tolist()
    for name in {field.name for field in dataclasses.fields(Candidates)} - {"scores"}:
        assert np.array_equal(getattr(changed, name), getattr(built, name)), name
    assert not changed.relevance.flags.writeable
    assert not changed.scores["dense"].flags.writeable
    with pytest.raises(InputError) as caught:
        pool.with_relevance([0.1, math.nan], {"dense": [0.25]})
    assert len(caught.value.problems) == 2


def test_an_empty_pool_is_a_pool() -> None:
    assert len(Candidates([], [], [], [], embeddings=np.zeros((0, 4)))) == 0


@pytest.mark.parametrize("date", ["2024-13-45", "2024-02-30", "2024-5-1", "yesterday", "2024-05-01T25:00"])
def test_what_is_no_date_is_refused(date: str) -> None:
    with pytest.raises(InputError, match=f"passage 'p': date '{date}' is no date in the form YYYY-MM-DD"):
        Passage("p", "text", date=date)
    with pytest.raises(InputError, match="is no date"):
        Candidates(**{**GOOD, "dates": ["", date]})


@pytest.mark.parametrize("start", [2**53, 2**63, -1, 1.0, True])
def test_a_place_is_a_whole_number_that_can_be_kept(start: object) -> None:
    with pytest.raises(InputError, match="give whole numbers >= 0 and below 2\\^53, or neither"):
        Passage("p", "text", source="s", start=start)


def test_passages_and_questions_need_text() -> None:
    with pytest.raises(InputError, match="empty id"):
        Passage("", "text")
    with pytest.raises(InputError, match="passage 'p' has no text"):
        Passage("p", " \n")
    with pytest.raises(InputError, match="question 'q' is empty"):
        Question("q", "")
