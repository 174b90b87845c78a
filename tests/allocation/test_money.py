"""Dollars: what tokens cost, what a token must be worth, and lists of prices that say nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mio_rag import InputError
from mio_rag.allocation.money import Money, Rate, read_money

LIST = """
["openai:large"]
input = 2.5
output = 10

[small]
input = 0.15
output = 0.60
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(LIST, encoding="utf-8")
    return path


def test_the_price_of_a_token_is_its_dollars_over_what_a_passage_is_worth(file: Path) -> None:
    rate = read_money(file, worth=0.002).rate("openai:large")
    # 2.5 dollars a million tokens = .0000025 a token; over .002: .00125 of a needed passage
    assert rate.token_price == pytest.approx(0.00125)
    assert rate.cost(1000, 100) == pytest.approx(0.0035)
    assert rate.explain(1000, 100) == (
        "$0.00350 for these tokens of openai:large; at $0.00200 for a needed passage, 100 tokens "
        "must add more than 12.5 % of one"
    )
    assert read_money(file).rate("openai:large").token_price == 0.0


def test_whose_prices_count(file: Path) -> None:
    money = read_money(file)
    assert money.rate("gguf:small").model == "small"
    assert read_money(file, model="small").rate("anything").into == 0.15
    with pytest.raises(InputError, match=r"model 'hf:other' has no price: prices are given for openai:"):
        money.rate("hf:other")
    with pytest.raises(InputError, match="2 models have prices: say whose"):
        money.rate()
    assert Money({"one": (1.0, 2.0)}).rate() == Rate("one", 1.0, 2.0)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "the list of prices is empty"),
        ("small = 0.15", "'small' must be a table with input and output"),
        ("[small]\ninput = 0.15", "'small' must be a table"),
        ("[small]\ninput = 0.15\noutput = 0.6\ncached = 0.1", "'small' must be a table"),
        ("[small]\ninput = -1\noutput = 0.6", "dollars per million tokens are >= 0"),
        ("[small]\ninput = true\noutput = 0.6", "dollars per million tokens are >= 0"),
        ('[small]\ninput = "1"\noutput = 0.6', "dollars per million tokens are >= 0"),
        ("[small\n", "prices.toml"),
    ],
)
def test_lists_that_say_nothing(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=wrong):
        read_money(path)


@pytest.mark.parametrize("worth", [0, -1.0, math.nan, math.inf, True])
def test_nothing_is_worth_nothing(file: Path, worth: float) -> None:
    with pytest.raises(InputError, match="must be a number of dollars > 0"):
        read_money(file, worth)


def test_a_model_that_is_not_listed(file: Path) -> None:
    with pytest.raises(InputError, match="model 'tiny' has no price"):
        read_money(file, model="tiny")
    with pytest.raises(InputError, match="too small beside"):
        read_money(file, worth=1e-300)
