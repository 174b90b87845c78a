"""Dollars: what tokens cost, what a token must be worth, and prices that say nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mio_rag import InputError
from mio_rag.allocation.money import Rate


def test_the_price_of_a_token_is_its_dollars_over_what_a_passage_is_worth() -> None:
    rate = Rate("openai:large", 2.5, 10, worth=0.002)
    # 2.5 dollars a million tokens = .0000025 a token; over .002: .00125 of a needed passage
    assert rate.token_price == pytest.approx(0.00125)
    assert rate.cost(1000, 100) == pytest.approx(0.0035)
    assert rate.explain(1000, 100) == (
        "$0.00350 for these tokens of openai:large; at $0.00200 for a needed passage, 100 tokens "
        "must add more than 12.5 % of one"
    )
    assert Rate("openai:large", 2.5, 10).token_price == 0.0


@pytest.mark.parametrize("wrong", [-1, True, "1", math.nan, math.inf, 0, 1e-300])
def test_prices_and_values_that_mean_nothing_are_refused(wrong: Any) -> None:
    if wrong not in (0, 1e-300):
        with pytest.raises(InputError, match="dollars per million tokens are >= 0"):
            Rate("small", wrong, 0.6)
    with pytest.raises(InputError, match=r"must be a number of dollars > 0|too small beside"):
        Rate("small", 0.15, 0.6, wrong)
