"""What a service chooses where a request does not say it: by the room there is, or passages."""

from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag.allocation.pacer import Pacer
from mio_rag.generation import make_generator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.searching import Strategies

BODY = {
    "question": "Which tower is taller, Bell Rock Lighthouse or Skerryvore?",
    "deadline_seconds": 20,
}


def served(index: CorpusIndex, **kept: Any) -> TestClient:
    return TestClient(create_app(index, make_generator("extractive"), **kept))


@pytest.mark.parametrize("path", ["/select", "/ask"])
def test_by_itself_it_reads_what_the_budget_has_room_for(demo_index: CorpusIndex, path: str) -> None:
    with served(demo_index) as client:
        assert client.get("/health").json()["units"] == "auto"
        got = client.post(path, json=BODY).json()
        named = client.post(path, json={**BODY, "units": "auto"}).json()
        assert (got["unit"], got["objective"]) == ("sentence", named["objective"])
        for said in ({"budget_tokens": 2000}, {"units": "passages"}, {"radius": 0.02}, {"max_passages": 9}):
            assert client.post(path, json={**BODY, **said}).json()["unit"] == "passage", said


def test_paced_or_by_strategies_it_reads_passages(demo_index: CorpusIndex) -> None:
    for kept in ({"pacer": Pacer(10_000, window="day")}, {"strategies": Strategies("strategies:raw")}):
        with served(demo_index, **kept) as client:
            assert client.get("/health").json()["units"] == "passages"
            assert client.post("/select", json=BODY).json()["unit"] == "passage"
            assert client.post("/select", json={**BODY, "units": "auto"}).json()["unit"] == "sentence"


def test_more_tokens_say_what_they_would_buy_by_themselves(demo_index: CorpusIndex) -> None:
    """The gain is of what is chosen now; passages are worth something else than their sentences."""
    with served(demo_index) as client:
        for budget, more, now, then in (
            (100, 20, "sentence", "sentence"),
            (200, 400, "sentence", "passage"),
            (900, 400, "passage", "passage"),
        ):
            got = client.post("/select", json={**BODY, "budget_tokens": budget, "more_tokens": more}).json()
            assert (got["unit"], got["more"]["unit_then"]) == (now, then)
