"""Names in text: what counts as a mention, and what an untitled passage is about."""

from __future__ import annotations

import pytest

from mio_rag.names import NameDictionary, leading_name, name_key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Avatar (2009 film)", "avatar"),
        ("Payment on Demand", "payment on demand"),
        ("Pál Gábor", "pál gábor"),
        ("(500) Days of Summer", "500 days of summer"),
        ("(untitled)", "untitled"),  # nothing but a qualifier is the name
        ("--", ""),
    ],
)
def test_keys(name: str, key: str) -> None:
    assert name_key(name) == key


def test_the_longest_name_wins_and_is_consumed() -> None:
    names = NameDictionary(["New York", "New York City", "City", "York"])
    assert list(names.mentions("She left New York City for York.")) == ["new york city", "york"]


def test_a_mention_needs_a_capital_or_a_digit() -> None:
    names = NameDictionary(["Water", "Apollo 11", "Steve Carver", "It"])
    assert list(names.mentions("it was water that apollo 11 carried")) == ["apollo 11"]
    assert list(names.mentions("In Water by STEVE CARVER, It rains.")) == ["water", "steve carver"]


def test_names_shared_and_left_out() -> None:
    names = NameDictionary(["Paulus", "", "Paulus (singer)", "The", " ".join(["Long"] * 13)])
    assert names.bearers == {"paulus": [0, 2]}
    assert len(names) == 1


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
        ("", ""),
    ],
)
def test_leading_name(text: str, name: str) -> None:
    assert leading_name(text) == name
