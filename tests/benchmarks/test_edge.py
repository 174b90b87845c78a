"""The study of small devices: a corpus of passages and their sentences, and gold that is found by either."""

import numpy as np
import pytest

from benchmarks.edge import gold_found, passages_of, table
from mio_rag.corpora.dataset import Dataset
from mio_rag.errors import InputError


def test_sentences_fill_what_passages_leave(rivers: Dataset) -> None:
    found = passages_of({"one": rivers}, 6)
    assert [p.id for p in found] == [f"one:{p.id}" for p in rivers.passages]
    more = passages_of({"one": rivers, "two": rivers}, 8)  # the second set says the same: its sentences count
    assert [p.id for p in more[6:]] == ["one:r0#0", "one:r1#0"]
    assert (more[6].title, more[6].source) == ("", "one:r0")
    with pytest.raises(InputError, match="are too many"):
        passages_of({"one": rivers}, 100)


def test_a_sentence_stands_for_its_passage() -> None:
    ids = ("a", "a#0", "b#1", "c")
    gold = [frozenset({"a", "b"}), frozenset({"c"}), frozenset[str]()]
    found = gold_found(np.array([[1, 0], [2, 1], [0, 1]]), ids, gold)
    np.testing.assert_array_equal(found, [0.5, 0.0, np.nan])


def test_the_table_names_the_forms_that_reach_the_goal() -> None:
    form = {"peak_mb": 400.0, "vectors_mb": 1.0}
    interval = {"mean": 0.0, "low": 0.0, "high": 0.0}
    kinds = {"8bit": (interval, 120.0), "pq": ({**interval, "mean": 0.02}, 110.0), "exact": (interval, 160.0)}
    forms = [{**form, "vectors": k, "mapped": True, "above_model_mb": mb} for k, (_, mb) in kinds.items()]
    text = table(
        {
            "passages": 9, "whole_passages": 5, "embedder": "minilm", "questions": 3, "sets": ["one"],
            "recall": {k: {"nearest": interval, "gold": 0.5, "gold_lost": v} for k, (v, _) in kinds.items()},
            "forms": forms,
            "seconds": {k: {"in memory": 0.01} for k in kinds}, "tiers": [],
        }
    )  # fmt: skip
    assert text.endswith("gold recall: 8bit on disk")
