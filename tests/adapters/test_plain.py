"""`select()` refuses with a clear message what would otherwise fail or give a wrong answer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mio_rag import InputError, select

TEXTS = ["a b c", "d e", "f"]


class Wrong:
    """A counter whose counts are none."""

    name = "wrong"

    def __init__(self, *counts: Any) -> None:
        self.counts = counts

    def count(self, texts: Sequence[str]) -> Any:
        return list(self.counts) if len(texts) > 1 else [self.counts[0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": None}, "texts is None: give a list"),
        ({"texts": "abc"}, "texts is one string: give a list of strings"),
        ({"texts": b"abc"}, "texts is one string"),
        ({"texts": {"a", "b", "c"}}, "texts is a set, which has no order"),
        ({"texts": {"a": 1, "b": 2, "c": 3}}, "texts is a dict, which has no order"),
        ({"texts": (t for t in TEXTS)}, "texts is a generator: give a list"),
        ({"texts": np.array("abc")}, "texts is a ndarray: give a list"),
        ({"texts": 3}, "texts is a int: give a list"),
        ({"query": None}, "query is None, expected a string"),
        ({"ids": "abc"}, "ids is one string"),
        ({"ids": {"x", "y", "z"}}, "ids is a set"),
        ({"titles": "abc"}, "titles is one string"),
        ({"titles": ["a", None, "c"]}, r"titles\[1\] is None, expected a string"),
        ({"sources": "abc"}, "sources is one string"),
        ({"sources": [["a"], ["b"], ["c"]]}, r"sources\[0\] is \['a'\], expected a string"),
        ({"clusters": ["a", {"b"}, "c"]}, r"clusters\[1\] is \{'b'\}, expected a string"),
        ({"sources": (s for s in TEXTS)}, "sources is a generator"),
        ({"scores": [True, False, True]}, "holds truth values: give numbers"),
        ({"scores": np.array([True, False, True])}, "holds truth values"),
        ({"scores": [0.5, True, 0.1]}, "holds truth values"),
        ({"scores": {0.1, 0.2, 0.3}}, "not an array of numbers"),
        ({"scores": [[], 0.2, 0.3]}, "scores is not an array of numbers"),
        ({"scores": (s for s in (1, 2, 3))}, "not an array of numbers"),
        ({"tokens": [True, True, True]}, "tokens holds truth values"),
        ({"scores": ["0.5", "0.2", "0.1"]}, "scores holds strings: give numbers"),
        (
            {"scores": np.array(["2026-01-01", "2026-01-02", "2026-01-03"], dtype="datetime64[D]")},
            "holds dates",
        ),
        ({"scores": np.array([np.datetime64("2026-01-01")] * 3, dtype=object)}, "holds dates"),
        ({"ids": ["a", None, "c"]}, r"ids\[1\] is None"),
        ({"counter": Wrong(-3, 2, 2)}, "'wrong' counts -3 tokens"),
        ({"counter": Wrong(1.5, 2, 2)}, r"'wrong' counts 1\.5 tokens"),
        ({"counter": Wrong(float("nan"), 2, 2)}, "'wrong' counts nan tokens"),
        ({"counter": Wrong(1, 2)}, r"shape \(2,\) for 3 texts"),
        ({"counter": Wrong("many", "few", "none")}, "'wrong' gives strings"),
        ({"counter": Wrong(True, True, True)}, "'wrong' gives truth values"),
    ],
)
def test_what_is_no_list_or_no_number_is_refused(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"query": "q", "texts": TEXTS, "scores": [0.9, 0.8, 0.1], "budget_tokens": 4}
    given |= changes
    with pytest.raises(InputError, match=message):
        select(
            **given, redundancy_weight=0, passage_penalty=0, max_per_source=1 if "sources" in given else None
        )


class Later(Wrong):
    """Prices passages well, and the block that they make below zero."""

    def count(self, texts: Sequence[str]) -> Any:
        return [2] * len(texts) if len(texts) > 1 else [-1]


def test_a_block_of_negative_size_is_refused() -> None:
    with pytest.raises(InputError, match="'wrong' counts -1 tokens"):
        select("q", TEXTS, scores=[0.9, 0.8, 0.1], budget_tokens=4, redundancy_weight=0, counter=Later())


@pytest.mark.parametrize("embedder", [{}, 3, object()])
def test_what_is_no_embedder_is_refused(embedder) -> None:
    with pytest.raises(InputError, match="is not an Embedder"):
        select("q", ["a text"], budget_tokens=20, embedder=embedder)


class _Says:
    """An embedder that gives the same for everything."""

    name = "says"

    def __init__(self, given: object) -> None:
        self.given = given

    def encode(self, texts: list[str]) -> object:
        return self.given


@pytest.mark.parametrize("given", [None, [], ["a"], np.ones((7, 2)), np.ones(2), [[1.0, 0.0]]])
def test_an_embedder_that_gives_no_rows_is_refused(given: object) -> None:
    with pytest.raises(InputError, match="embedder 'says' gives"):
        select("q", ["a", "b"], embedder=_Says(given), budget_tokens=5)


def test_scores_of_another_length_are_called_scores() -> None:
    with pytest.raises(InputError, match="scores has 2 values, texts 3: give one score for each text"):
        select("q", ["a", "b", "c"], scores=[1, 2], budget_tokens=9)


def test_equal_texts_are_read_once() -> None:
    texts = ["The bridge is long.", "It opened in 1981.", "The bridge is long. "]
    chosen = select("How long?", texts, scores=[3, 1, 3], tokens=[5, 5, 5], budget_tokens=60)
    assert chosen.ids == ("0", "1")
    assert "near-duplicate of '0'" in chosen.decisions[2].reason
    every = select(
        "How long?", texts, scores=[3, 1, 3], tokens=[5, 5, 5], budget_tokens=60, near_duplicates="all"
    )
    assert set(every.ids) == {"0", "1", "2"}
