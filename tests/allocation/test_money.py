"""Dollars: what tokens cost, what a token must be worth, and prices that say nothing."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize("price", [-1, True, "1", math.nan, math.inf])
def test_prices_that_say_nothing(price: float) -> None:
    with pytest.raises(InputError, match="dollars per million tokens are >= 0"):
        Rate("small", price, 0.6)


@pytest.mark.parametrize(
    ("worth", "wrong"),
    [(one, "must be a number of dollars > 0") for one in (0, -1.0, math.nan, math.inf, True)]
    + [(1e-300, "too small beside")],
)
def test_nothing_is_worth_nothing(worth: float, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        Rate("small", 0.15, 0.6, worth)
