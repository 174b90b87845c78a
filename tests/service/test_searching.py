"""A service that searches by strategies: who found what, ratings, metrics."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag import InputError
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.run import check
from mio_rag.service.settings import Pacing, ServiceSettings, Strategies

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
KEY = "a key of more than sixteen characters"


def said(prompt: Prompt) -> str:
    return "Skerryvore is a lighthouse of 48 metres.\nHow tall is Skerryvore?"


@pytest.fixture(scope="module")
def client(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    state = tmp_path_factory.mktemp("state") / "s.sqlite"
    settings = {"state": str(state), "bandit": {"cold_share": 1.0}}  # at first all strategies run
    given = Strategies("strategies:bandit", {"strategies": settings})
    app = create_app(demo_index, ScriptedGenerator(said), api_key=KEY, strategies=given)
    with TestClient(app, headers={"Authorization": f"Bearer {KEY}"}) as started:
        yield started


def test_a_response_tells_who_found_what(client: TestClient) -> None:
    got = client.post(
        "/ask", json={"question": QUESTION, "budget_tokens": 200, "deadline_seconds": 20}
    ).json()
    assert got["answer"].startswith("Skerryvore")
    search = got["search"]
    assert search["strategies"] == ["raw", "hyde", "query2doc", "grounded", "multi-query"]
    assert set(search["found_by"]) == {p["id"] for p in got["passages"]}
    assert all(search["found_by"][i] for i in got["selected_ids"])
    assert search["completion_tokens"] > 0
    again = client.post("/select", json={"question": QUESTION, "budget_tokens": 100}).json()
    assert again["search"]["id"] == search["id"]  # the pool is kept: nobody pays twice for moving a slider


def test_a_rating_counts_once_and_needs_the_key(client: TestClient) -> None:
    body = {"question": "How tall is Skerryvore?", "deadline_seconds": 20}
    identity = client.post("/select", json=body).json()["search"]["id"]
    rating = {"id": identity, "helpful": True}
    assert client.post("/feedback", json=rating).json() == {"noted": True}
    assert client.post("/feedback", json=rating).json() == {"noted": False}
    unknown = client.post("/feedback", json={"id": "nobody", "helpful": True})
    assert unknown.status_code == 400
    assert "'nobody' is not in the log" in unknown.json()["error"]["problems"][0]
    wrong = client.post("/feedback", json={"id": identity, "helpful": "yes", "how": 1})
    assert wrong.status_code == 422
    assert client.post("/feedback", json=rating, headers={"Authorization": "Bearer no"}).status_code == 401


def test_metrics_show_what_was_learned(client: TestClient) -> None:
    client.post("/select", json={"question": "Where is it?", "deadline_seconds": 20})
    text = client.get("/metrics").text
    questions = re.search(r"^mio_rag_strategies_questions (\S+)", text, re.M)
    assert questions is not None
    assert float(questions[1]) >= 1
    assert 'mio_rag_strategy_selection_rate{strategy="hyde"} 1.0' in text
    assert "/feedback" in client.get("/docs").text


def test_what_was_learned_is_told_while_a_model_is_asked(demo_index: CorpusIndex, tmp_path: Path) -> None:
    asked, go_on = Event(), Event()

    def slow(prompt: Prompt) -> str:
        asked.set()
        assert go_on.wait(20)
        return said(prompt)

    given = Strategies(
        "strategies:bandit",
        {"strategies": {"state": str(tmp_path / "s.sqlite"), "bandit": {"cold_share": 1.0}}},
    )
    app = create_app(demo_index, ScriptedGenerator(slow), strategies=given)
    with TestClient(app, base_url="http://127.0.0.1") as client, ThreadPoolExecutor(1) as threads:
        question = {"question": QUESTION, "budget_tokens": 200, "deadline_seconds": 25}
        answer = threads.submit(client.post, "/select", json=question)
        try:
            assert asked.wait(20)
            told = [client.get(path).text for path in ("/metrics", "/health")]
            assert not answer.done()
        finally:
            go_on.set()
        assert "mio_rag_strategies_questions 0.0" in told[0]
        assert answer.result().status_code == 200


def test_without_a_bandit_nothing_can_be_rated(demo_index: CorpusIndex) -> None:
    with TestClient(
        create_app(demo_index, ScriptedGenerator(said), strategies=Strategies("strategies:raw"))
    ) as raw:
        got = raw.post("/select", json={"question": QUESTION}).json()
        assert got["search"]["strategies"] == ["raw"]
        assert got["search"]["id"] == ""
        assert raw.post("/feedback", json={"id": "x", "helpful": True}).status_code == 404
    with TestClient(create_app(demo_index, ScriptedGenerator(said))) as plain:
        assert plain.post("/select", json={"question": QUESTION}).json().get("search") is None


def test_what_is_not_counted_is_refused(tmp_path: Path) -> None:
    settings = ServiceSettings(
        "INDEX", strategies=Strategies("strategies:raw"), pacing=Pacing(1000, "day", tmp_path / "p.sqlite")
    )
    with pytest.raises(InputError, match="--strategies excludes --tokens-per-day: no total counts"):
        check(settings, None, False)
