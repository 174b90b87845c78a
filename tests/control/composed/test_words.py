"""What sentences of a trace say: prices, shares, and what was read."""

import re

import numpy as np
import pytest
from mio_rag.control.composed.trace import per_token, share

from mio_rag.retrieval import CorpusIndex
from mio_rag.types import Passage
from tests.control.composed.test_controller import asked, composed, whys


def test_shares_are_written_as_sentences_hold_them() -> None:
    assert [share(x) for x in (0.214, 1.0, 0.0, -0.05, 12.5)] == [".21", "1.00", ".00", "-.05", "12.50"]
    prices = (0.0007, 0.002, 0.00002, 0.0000213, 9.99e-7, 0.0, 1.0, 1e-4)
    told = [".0007", ".0020", ".000020", ".000021", ".00000100", ".0000", "1.0000", ".0001"]
    assert [per_token(price) for price in prices] == told
    prices = (0.00015, 0.00014, 0.00025, 0.000303, 0.000123, 0.00125, 0.0000105, 0.0005, 0.002)
    told = [".00015", ".00014", ".00025", ".0003", ".000123", ".00125", ".0000105", ".0005", ".0020"]
    assert [per_token(price) for price in prices] == told


def test_a_price_is_told_so_that_it_can_be_reckoned_with() -> None:
    for price in np.geomspace(1e-9, 1, 2000):
        assert float(per_token(price)) == pytest.approx(price, rel=0.02)
        assert len(per_token(price).lstrip(".0")) <= 3 or price >= 0.01


def test_sentences_are_counted_as_sentences_of_their_passages() -> None:
    passages = (
        Passage(
            "a", "The Arno is 241 kilometres long. The Arno rises on Falterona. It ends in the sea.", "Arno"
        ),
        Passage("t", "The Tiber is 406 kilometres long. The river Tiber crosses Rome.", "Tiber"),
        Passage("p", "The Po is the longest river of Italy.", "Po"),
    )
    index = CorpusIndex.build(passages, "tfidf", "short", sentences=True)
    counts = set()
    for price in (0.0, 0.002, 0.01, 0.02, 0.03, 0.035, 0.04, 0.045, 0.05):
        data = {"price": {"token": price}, "reading": {"units": "sentences", "preset": "thorough"}}
        found = asked(composed(data, index))
        assert found.selection is not None
        sentences, of = len(found.selection.chosen), len(found.selection.ids)
        told = f"{sentences} sentence{'s' * (sentences != 1)} of {of} passage{'s' * (of != 1)}"
        assert whys(found)[1].startswith(f"read {told}, {found.selection.tokens_used} tokens: ")
        counts.add((sentences, of))
    assert any(sentences > of > 1 for sentences, of in counts)
    assert (1, 1) in counts
    assert re.match(r"read (1 passage|\d passages), ", whys(asked(composed({}, index)))[1])
