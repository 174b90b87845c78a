"""What a service chooses where a request does not say it: by the room there is, or passages."""

from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag.allocation.pacer import Pacer
from mio_rag.generation import make_generator
from mio_rag.retrieval import CorpusIndex, TfidfEmbedder
from mio_rag.service.app import create_app
from mio_rag.service.settings import Strategies
from mio_rag.types import Passage

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


def test_sentences_are_chosen_whether_the_index_holds_them_or_not(demo_index: CorpusIndex) -> None:
    text = "The Tiber is 406 kilometres long. Bread is sold on its banks. Rome lies on the Tiber."
    index = CorpusIndex.build([Passage("tiber", text, "Tiber")], TfidfEmbedder(), "rivers", sentences=True)
    body = {"question": "How long is the Tiber?", "budget_tokens": 12, "units": "sentences"}
    with TestClient(create_app(index, make_generator("extractive"))) as rivers:
        got = rivers.post("/select", json=body).json()
        assert got["selected_ids"] == ["tiber"]
        assert [part["id"] for part in got["read"][0]["parts"]] == ["tiber#s1"]
        assert got["read"][0]["text"] == "The Tiber is 406 kilometres long."
        assert got["unit"] == "sentence"
        assert rivers.get("/health").json()["sentences"]
        both = rivers.post("/select", json={**body, "merge": False})
        assert both.status_code == 400
        assert "merge=False" in both.text
    with served(demo_index) as client:
        assert not client.get("/health").json()["sentences"]
        by_words = client.post(
            "/select", json={"question": "How tall is Skerryvore?", "units": "sentences"}
        ).json()
        assert by_words["unit"] == "sentence"
        assert by_words["tokens_used"] <= by_words["budget_tokens"]
        # Where room decides, both budgets of an answer are of the same units, at the same price.
        for budget in (60, 150, 250, 400):
            asked = {"question": "How tall is Skerryvore?", "budget_tokens": budget, "more_tokens": 200}
            told = client.post("/select", json={**asked, "units": "auto"}).json()
            same = client.post("/select", json={**asked, "units": f"{told['unit']}s"}).json()
            assert told["passage_penalty"] == same["passage_penalty"]
            assert told["more"] | {"unit_then": ""} == same["more"] | {"unit_then": ""}
            assert told["more"]["low"] <= told["more"]["gain"] + 1e-9 <= told["more"]["high"] + 2e-9
        assert client.post("/select", json={**body, "units": "words"}).status_code == 422
