from __future__ import annotations

import math

import pytest

from mio_rag.errors import InputError
from mio_rag.formulations import fixed_values, passage_count, source_caps


def test_passage_count() -> None:
    low, high = passage_count(5, 2, 3)
    assert (low.lower, low.upper, low.name) == (2, math.inf, "at least 2 passages")
    assert (high.lower, high.upper, high.name) == (-math.inf, 3, "at most 3 passages")
    assert low.coefficients.tolist() == [1] * 5
    assert passage_count(5) == []
    assert passage_count(5, 0, 5) == []  # neither side can bind
    assert [row.upper for row in passage_count(5, maximum=0)] == [0]


@pytest.mark.parametrize(
    ("minimum", "maximum", "message"),
    [
        (-1, None, "min_passages=-1 must be a whole number"),
        (None, 1.5, "max_passages=1.5 must be a whole number"),
        (None, math.nan, "max_passages=nan must be a whole number"),
        ("2", None, "min_passages='2' must be a whole number"),
        (True, None, "min_passages=True"),
        (3, 2, "min_passages=3 is above max_passages=2"),
        (6, None, "min_passages=6 is above the 5 candidates"),
    ],
)
def test_passage_count_refuses(minimum, maximum, message: str) -> None:
    with pytest.raises(InputError, match=message):
        passage_count(5, minimum, maximum)


def test_source_caps() -> None:
    sources = ["a", "b", "a", "", "", "a"]
    (row,) = source_caps(sources, 2)
    assert row.coefficients.tolist() == [1, 0, 1, 0, 0, 1]
    assert (row.upper, row.name) == (2, "at most 2 from source 'a'")
    assert len(source_caps(sources, 0)) == 2  # passages without a source are not capped
    assert [r.upper for r in source_caps(sources, {"b": 0, "elsewhere": 1})] == [0]
    with pytest.raises(InputError, match="max_per_source for 'a'=-1"):
        source_caps(sources, -1)


def test_fixed_values() -> None:
    assert fixed_values(["x", "y", "z"], ["z"], ["x", "unknown"]).tolist() == [0, -1, 1]
    with pytest.raises(InputError) as caught:
        fixed_values(["x", "y"], ["x", "w"], ["x"])
    assert len(caught.value.problems) == 2
    assert "'x' is in both" in str(caught.value)
    assert "'w', which is not among the 2 candidates" in str(caught.value)
