"""A service whose policy searches by a bandit: ids, ratings, metrics, and files that change meanwhile."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.learning.bandit_log import EventLog
from mio_rag.policy_files import preset_text
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
ASKED = {"question": QUESTION, "deadline_seconds": 20}
SELECTED = {"question": "How tall is Skerryvore?", "deadline_seconds": 20}
KEY = "a key of more than sixteen characters"


def said(prompt: Prompt) -> str:
    return "Skerryvore is a lighthouse of 48 metres."


def bandit(state: str, price: float = 0.0001) -> str:
    search = f'[search]\nby = "bandit"\nstrategies = ["raw", "hyde"]\nstate = "{state}"\n'
    return f"[price]\ntoken = {price}\n{search}"


def changed(file: Path, text: str) -> None:
    """Another content, and surely another time of change."""
    before = file.stat().st_mtime_ns
    file.write_text(text)
    os.utime(file, ns=(before + 10**9, before + 10**9))


def ratings(log: Path) -> list[str]:
    """Ids that were rated in a log."""
    opened = EventLog(log)
    with opened.reading() as events:
        found = [event.id for event in events.after(0) if event.kind == "feedback"]
    opened.close()
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(bandit("a.sqlite"))
    return path


@pytest.fixture
def client(demo_index: CorpusIndex, file: Path) -> Iterator[TestClient]:
    app = create_app(demo_index, ScriptedGenerator(said), policy=str(file), api_key=KEY)
    with TestClient(app, headers={"Authorization": f"Bearer {KEY}"}) as started:
        yield started


def asked_id(client: TestClient, path: str = "/ask") -> str:
    got = client.post(path, json=ASKED)
    assert got.status_code == 200, got.text
    identity = got.json()["search"]["id"]
    assert isinstance(identity, str)
    assert identity
    return identity


def test_an_answer_tells_its_id_and_can_be_rated_once(client: TestClient, tmp_path: Path) -> None:
    got = client.post("/ask", json=ASKED).json()
    search = got["search"]
    assert got["policy"]["name"] == "mine"
    assert search["strategies"][0] == "raw"
    assert search["why"]
    assert set(search["found_by"]) == set(got["selected_ids"])
    assert all("raw" in ranks for ranks in search["found_by"].values())
    asked = [step["tokens"] for step in got["policy"]["steps"] if step["step"] == "retrieve"]
    assert search["prompt_tokens"] + search["completion_tokens"] == sum(asked)
    rating = {"id": search["id"], "helpful": True}
    wrong_key = {"Authorization": "Bearer no"}
    assert client.post("/feedback", json=rating, headers=wrong_key).status_code == 401
    assert ratings(tmp_path / "a.sqlite") == []
    assert client.post("/feedback", json=rating).json() == {"noted": True}
    assert client.post("/feedback", json=rating).json() == {"noted": False}
    assert ratings(tmp_path / "a.sqlite") == [search["id"]]
    unknown = client.post("/feedback", json={"id": "nobody", "helpful": True})
    assert unknown.status_code == 400
    assert "'nobody' is not in the log" in unknown.json()["error"]["problems"][0]
    assert client.post("/feedback", json={"id": search["id"], "helpful": "yes"}).status_code == 422


def test_a_selection_is_searched_for_by_the_bandit_too(client: TestClient, tmp_path: Path) -> None:
    first = client.post("/select", json=SELECTED).json()
    again = client.post("/select", json={**SELECTED, "budget_tokens": 100}).json()
    assert first["search"]["id"] == again["search"]["id"]  # nobody pays twice for moving a slider
    assert set(first["search"]["found_by"]) == {p["id"] for p in first["passages"]}
    assert client.post("/feedback", json={"id": first["search"]["id"], "helpful": False}).json() == {
        "noted": True
    }
    assert ratings(tmp_path / "a.sqlite") == [first["search"]["id"]]


def test_metrics_show_what_the_bandit_of_the_policy_learned(client: TestClient, file: Path) -> None:
    def learned() -> float:
        found = re.search(r"^mio_rag_strategies_questions (\S+)", client.get("/metrics").text, re.M)
        return -1.0 if found is None else float(found[1])

    assert learned() == 0
    asked_id(client)
    asked_id(client, "/select")
    assert learned() == 2
    assert 'mio_rag_strategy_ran{strategy="hyde"}' in client.get("/metrics").text
    changed(file, preset_text("frugal"))
    assert learned() == -1


def test_a_rating_goes_to_the_log_that_gave_the_id(client: TestClient, file: Path, tmp_path: Path) -> None:
    first = [asked_id(client), asked_id(client, "/select")]
    changed(file, bandit("b.sqlite"))
    second = [asked_id(client), asked_id(client, "/select")]
    assert not set(first) & set(second)  # the pool that the other policy found is not taken for this one's
    for identity in (first[0], second[0]):
        assert client.post("/feedback", json={"id": identity, "helpful": True}).json() == {"noted": True}
    changed(file, preset_text("frugal"))
    assert client.post("/ask", json=ASKED).json().get("search") is None
    assert client.post("/select", json=ASKED).json().get("search") is None
    for identity in (first[1], second[1]):
        assert client.post("/feedback", json={"id": identity, "helpful": False}).json() == {"noted": True}
    assert ratings(tmp_path / "a.sqlite") == first
    assert ratings(tmp_path / "b.sqlite") == second


def test_what_a_selection_asks_the_model_counts_in_the_total(demo_index: CorpusIndex, file: Path) -> None:
    limits = "[limits]\nbudget = 100\nmax_tokens = 8\n"
    file.write_text(
        '[price]\ntotal = 900\nper = "day"\nstate = "count.sqlite"\n[search]\n'
        f'strategies = ["raw", "hyde"]\n{limits}'
    )
    with TestClient(create_app(demo_index, ScriptedGenerator(said), policy=str(file))) as client:
        told = []
        for k in range(20):
            question = {**SELECTED, "question": f"How tall is number {k}?"}
            told.append(client.post("/select", json=question).json()["search"])
        spent = [one["prompt_tokens"] + one["completion_tokens"] for one in told]
        assert told[0]["id"] == ""  # fixed strategies: nobody learns
        assert spent[0] > 0
        assert sum(spent) <= 900
        assert spent[-1] == 0  # what is left is less than a reply may take, and the question is searched for
        assert any("hyde: left out, the limit of" in note for note in told[-1]["notes"])
        assert client.post("/ask", json=ASKED).status_code == 429


@pytest.mark.parametrize("path", ["/ask", "/select"])
def test_a_strategy_has_no_more_time_than_the_request(
    demo_index: CorpusIndex, tmp_path: Path, path: str
) -> None:
    asked, go_on = Event(), Event()

    def slow(prompt: Prompt) -> str:
        if not asked.is_set():  # the first is the strategy's; the answer comes at once
            asked.set()
            assert go_on.wait(25)
        return said(prompt)

    file = tmp_path / "slow.toml"
    file.write_text('[search]\nstrategies = ["raw", "hyde"]\n')
    app = create_app(demo_index, ScriptedGenerator(slow), policy=str(file))
    with TestClient(app) as client:
        try:
            began = time.monotonic()
            got = client.post(path, json={"question": QUESTION, "deadline_seconds": 3}).json()
            took = time.monotonic() - began
        finally:
            go_on.set()
    assert asked.is_set()
    assert took < 8  # of the 30 seconds that a strategy has otherwise
    assert any("hyde: left out, it took longer than" in note for note in got["search"]["notes"])
    assert got["selected_ids"]  # time was left to read what the others found
    assert all(set(ranks) == {"raw"} for ranks in got["search"]["found_by"].values())
