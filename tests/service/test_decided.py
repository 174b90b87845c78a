"""Services in which a planner, strategies or stored answers decide."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag.allocation.pacer import Pacer
from mio_rag.errors import InputError
from mio_rag.generation import ExtractiveGenerator, Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.settings import Planning, Strategies
from mio_rag.session.cache import AnswerCache
from tests.learning.files import planner_file

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
KEY = "a key of more than sixteen characters"
ASKED = {"question": QUESTION, "deadline_seconds": 20}


def count_read(prompt: Prompt) -> str:
    return f"Skerryvore ({len(prompt.passages)} read)"


# -- a planner --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.05, 50.0])
def test_a_planner_chooses_the_workflow(demo_index: CorpusIndex, tmp_path: Path, alpha: float) -> None:
    file = planner_file(tmp_path / "p.safetensors")
    planning = Planning({"planner": {"file": str(file), "alpha": alpha}})
    with TestClient(create_app(demo_index, ScriptedGenerator(count_read), planning=planning)) as client:
        got = client.post("/ask", json={**ASKED, "budget_tokens": 200}).json()
        plan = got["plan"]
        assert re.fullmatch(r"Skerryvore \(\d read\)", got["answer"])
        assert plan["workflow"] == max(plan["worth"], key=plan["worth"].get)
        spent = got["prompt_tokens"] + got["completion_tokens"]
        assert sum(step["tokens"] for step in plan["steps"] if "/" not in step["node"]) == spent
        if alpha > 1:  # tokens are too expensive to read: no program is solved
            assert (got["status"], got["objective"], got["bound"]) == ("none", None, None)
            assert got["passages"] == got["selected_ids"] == []
            assert got["notes"] == ["Nothing was read: the workflow searches for nothing."]
        else:
            assert got["status"] == "optimal"
            assert got["selected_ids"]
        assert 'mio_rag_certificates_total{status="none"}' not in client.get("/metrics").text
        assert client.post("/select", json={"question": QUESTION}).status_code == 200  # /select plans nothing


def test_a_planner_that_cannot_be_used_is_refused(demo_index: CorpusIndex, tmp_path: Path) -> None:
    file = planner_file(tmp_path / "p.safetensors")
    planning = Planning({"planner": {"file": str(file), "alpha": -1.0}})
    with pytest.raises(InputError, match="must be finite and >= 0"):
        create_app(demo_index, ScriptedGenerator(count_read), planning=planning)


# -- strategies -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(demo_index: CorpusIndex, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    state = tmp_path_factory.mktemp("state") / "s.sqlite"
    settings = {"state": str(state), "bandit": {"cold_share": 1.0}}  # at first all strategies run
    given = Strategies("strategies:bandit", {"strategies": settings})
    reader = ScriptedGenerator(lambda prompt: "Skerryvore is a lighthouse of 48 metres.\nHow tall is it?")
    with TestClient(create_app(demo_index, reader, api_key=KEY, strategies=given)) as started:
        started.headers["Authorization"] = f"Bearer {KEY}"
        yield started


def test_a_response_reports_which_strategy_found_what(client: TestClient) -> None:
    got = client.post("/ask", json={**ASKED, "budget_tokens": 200}).json()
    assert got["answer"].startswith("Skerryvore")
    search = got["search"]
    assert search["strategies"] == ["raw", "hyde", "query2doc", "grounded", "multi-query"]
    assert set(search["found_by"]) == {p["id"] for p in got["passages"]}
    assert all(search["found_by"][i] for i in got["selected_ids"])
    assert search["completion_tokens"] > 0
    again = client.post("/select", json={**ASKED, "budget_tokens": 100}).json()
    assert again["search"]["id"] == search["id"]  # the pool is cached: the strategies are not asked again
    text = client.get("/metrics").text
    assert re.search(r"^mio_rag_strategies_questions [1-9]", text, re.M)
    assert 'mio_rag_strategy_selection_rate{strategy="hyde"} 1.0' in text


def test_a_rating_counts_once(client: TestClient) -> None:
    body = {**ASKED, "question": "How tall is Skerryvore?"}
    rating = {"id": client.post("/select", json=body).json()["search"]["id"], "helpful": True}
    assert client.post("/feedback", json=rating).json() == {"noted": True}
    assert client.post("/feedback", json=rating).json() == {"noted": False}
    unknown = client.post("/feedback", json={"id": "nobody", "helpful": True})
    assert unknown.status_code == 400
    assert "'nobody' is not in the log" in unknown.json()["error"]["problems"][0]
    assert client.post("/feedback", json={**rating, "how": 1}).status_code == 422


def test_nothing_can_be_rated_without_a_bandit(demo_index: CorpusIndex) -> None:
    app = create_app(demo_index, ExtractiveGenerator(), strategies=Strategies("strategies:raw"))
    with TestClient(app) as raw:
        assert "search" not in raw.post("/select", json=ASKED).json()  # as without strategies
        assert raw.post("/feedback", json={"id": "x", "helpful": True}).status_code == 404


# -- stored answers ---------------------------------------------------------------------------------------


def test_the_same_question_is_answered_from_the_file(demo_index: CorpusIndex, tmp_path: Path) -> None:
    # With a pacer passages are the default, without one what the budget has room for.
    body = {**ASKED, "budget_tokens": 256, "units": "passages"}

    def stored(pacer: Pacer | None = None) -> TestClient:
        cache = AnswerCache.of(tmp_path / "a.sqlite", demo_index)
        return TestClient(create_app(demo_index, ExtractiveGenerator(), pacer=pacer, cache=cache))

    with stored() as client:
        first = client.post("/ask", json=body).json()
        assert first["cached"] is None
        again = client.post("/ask", json={**body, "question": QUESTION.upper() + " "}).json()
        cached = again.pop("cached")
        assert cached["question"] == QUESTION
        assert cached["age_seconds"] >= 0
        for name in ("answer", "selected_ids", "prompt_tokens", "objective", "passages"):
            assert again[name] == first[name]
        assert client.post("/ask", json={**body, "budget_tokens": 255}).json()["cached"] is None
        metrics = client.get("/metrics").text
        assert 'mio_rag_cached_answers_total{question="new"} 2.0' in metrics
        assert 'mio_rag_cached_answers_total{question="same"} 1.0' in metrics
        assert "cached" not in client.post("/select", json=body).json()
    pacer = Pacer(2000, window="day")
    with stored(pacer) as client:  # another process, the same file
        assert client.post("/ask", json=body).json()["cached"] is not None
        assert pacer.account().spent == 0  # nothing was asked
        for _ in range(2):  # what a total has shaped is not stored
            assert client.post("/ask", json={**body, "budget_tokens": 200}).json()["cached"] is None


def test_an_answer_made_in_haste_is_not_stored(demo_index: CorpusIndex, tmp_path: Path) -> None:
    body = {"question": QUESTION, "pool": 200, "budget_tokens": 2000, "redundancy_weight": 0.6}
    body |= {"passage_penalty": 0.0, "deadline_seconds": 1e-6, "radius": 0.2}
    cache = AnswerCache.of(tmp_path / "a.sqlite", demo_index)
    with TestClient(create_app(demo_index, ExtractiveGenerator(), cache=cache)) as client:
        first, again = (client.post("/ask", json=body).json() for _ in range(2))
    assert (again["cached"] is None) == (first["status"] != "optimal")
    with pytest.raises(InputError, match="a cache and a policy exclude each other"):
        create_app(demo_index, ExtractiveGenerator(), cache=cache, policy="balanced")
