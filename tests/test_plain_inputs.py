"""The plain-Python door refuses in words what it would otherwise break on, or answer wrongly."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mio_rag import Candidates, InputError, select

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
        ({"scores": {0.1, 0.2, 0.3}}, "not a numeric vector"),
        ({"scores": (s for s in (1, 2, 3))}, "not a numeric vector"),
        ({"tokens": [True, True, True]}, "tokens holds truth values"),
        ({"counter": Wrong(-3, 2, 2)}, "'wrong' counts -3 tokens"),
        ({"counter": Wrong(1.5, 2, 2)}, r"'wrong' counts 1\.5 tokens"),
        ({"counter": Wrong(float("nan"), 2, 2)}, "'wrong' counts nan tokens"),
        ({"counter": Wrong(1, 2)}, r"shape \(2,\) for 3 texts"),
        ({"counter": Wrong("many", "few", "none")}, "'wrong' gives no numbers"),
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


def test_tuples_arrays_and_numbered_sources_are_lists() -> None:
    chosen = select(
        "q", np.array(TEXTS), scores=(0.9, 0.8, 0.1), budget_tokens=4, redundancy_weight=0, passage_penalty=0,
        ids=np.arange(3), sources=[1, 1, 2], max_per_source=1,
    )  # fmt: skip
    assert chosen.ids == ("0", "2")


def test_a_pool_refuses_the_same() -> None:
    for texts, message in (
        ("ab", "texts is one string"),
        ({"a", "b"}, "texts is a set"),
        ([1, "b"], r"texts\[0\]"),
    ):
        with pytest.raises(InputError, match=message):
            Candidates(["x", "y"], texts, [0.5, 0.4], [1, 1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ids\[1\] is \['y'\]"):
        Candidates(["x", ["y"]], ["a", "b"], [0.5, 0.4], [1, 1])  # type: ignore[arg-type, list-item]
