"""A service under a policy: the way of a question, and files that change while requests are under way."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag.errors import InputError
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.learning.bandit_log import EventLog
from mio_rag.policy import Policy, preset_text
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.selection.selector import Selector
from mio_rag.service.app import create_app
from mio_rag.service.governed import compared
from mio_rag.service.settings import Split

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
ASKED = {"question": QUESTION, "deadline_seconds": 20}
SELECTED = {"question": "How tall is Skerryvore?", "deadline_seconds": 20}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(preset_text("frugal"))
    return path


@pytest.fixture
def client(demo_index: CorpusIndex, file: Path) -> Iterator[TestClient]:
    app = create_app(demo_index, ScriptedGenerator(said), policy=str(file))
    with TestClient(app) as started:
        yield started


def said(prompt: Prompt) -> str:
    return "Skerryvore"


def hypothetical(prompt: Prompt) -> str:
    return "Skerryvore is a lighthouse of 48 metres."


def read(got: dict[str, Any]) -> set[str]:
    """Passages that were read."""
    return {name for part in got["parts"] for name in part["ids"]}


def bandit(state: str, price: float = 0.0001) -> str:
    search = f'[search]\nby = "bandit"\nstrategies = ["raw", "hyde"]\nstate = "{state}"\n'
    return f"[price]\ntoken = {price}\n{search}"


def changed(file: Path, text: str) -> None:
    """Another content, and surely another time of change."""
    before = file.stat().st_mtime_ns
    file.write_text(text)
    os.utime(file, ns=(before + 10**9, before + 10**9))


def test_an_answer_tells_its_way_and_what_it_cost(client: TestClient) -> None:
    got = client.post("/ask", json=ASKED).json()
    policy, usage = got["policy"], got["usage"]
    assert (got["answer"], policy["name"], policy["token_price"]) == ("Skerryvore", "mine", 0.002)
    assert 0 < policy["complete"] < 1
    assert [step["step"] for step in policy["steps"] if step["why"]] == ["retrieve", "select", "answer"]
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    assert sum(step["tokens"] for step in policy["steps"]) == tokens
    health = client.get("/health").json()["policy"]
    assert health == {"name": "mine", "sha256": policy["sha256"], "problem": None}


def test_a_change_of_a_file_that_a_policy_names_is_taken_over(
    demo_index: CorpusIndex, tmp_path: Path
) -> None:
    own, path = tmp_path / "own.toml", tmp_path / "mine.toml"
    own.write_text("horizon = 2\n")
    path.write_text('[price]\ntoken = 0.001\n[repeat]\nby = "mdp"\nprocess = "own.toml"\n')
    with TestClient(create_app(demo_index, ScriptedGenerator(said), policy=str(path))) as client:
        first = client.get("/health").json()["policy"]
        assert client.get("/health").json()["policy"] == first
        changed(own, "horizon = 2\n\n")
        second = client.get("/health").json()["policy"]
    assert first["problem"] is second["problem"] is None
    assert first["sha256"] != second["sha256"]


@pytest.mark.parametrize("damage", ["bytes", "gone", "wrong", "router", "bandit"])
def test_a_damaged_file_leaves_the_old_policy_in_force(client: TestClient, file: Path, damage: str) -> None:
    first = client.post("/ask", json=ASKED).json()["policy"]
    other = file.with_name("other")
    other.write_bytes(
        b"\x08\0\0\0\0\0\0\0{}      " if damage == "router" else b"SQLite format 3\0" + b"x" * 4096
    )
    texts = {
        "bytes": b"\xff\xfe\x00",
        "wrong": b'colour = "red"\n',
        "router": b'[depth]\nby = "router"\nfile = "other"\n',
        "bandit": b'[search]\nby = "bandit"\nstrategies = ["raw", "hyde"]\nstate = "other"\n',
    }
    file.write_bytes(texts.get(damage, b""))
    if damage == "gone":
        file.unlink()
    got = client.post("/ask", json=ASKED)
    assert (got.status_code, got.json()["policy"]["sha256"]) == (200, first["sha256"])
    assert client.get("/health").json()["policy"]["problem"]
    file.write_text(preset_text("thorough"))
    os.utime(file, ns=(1, 1))  # an older time is a change, too
    assert client.post("/ask", json=ASKED).json()["policy"]["sha256"] != first["sha256"]
    assert client.get("/health").json()["policy"]["problem"] is None


def test_no_request_is_lost_while_a_file_changes(client: TestClient, file: Path) -> None:
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(client.post, "/ask", json=ASKED) for _ in range(18)]
        for k in range(8):
            changed(file, preset_text("frugal").replace("0.002", f"0.00{k + 1}"))
    assert [one.result().status_code for one in asked] == [200] * 18


def test_a_total_refuses_when_it_is_spent(demo_index: CorpusIndex, tmp_path: Path) -> None:
    path = tmp_path / "total.toml"
    path.write_text(
        '[price]\ntotal = 190\nper = "day"\nstate = "count.sqlite"\n[limits]\nbudget = 100\nmax_tokens = 8\n'
    )
    with TestClient(create_app(demo_index, ScriptedGenerator(said), policy=str(path))) as client:
        codes = [client.post("/ask", json=ASKED) for _ in range(12)]
    assert (codes[0].status_code, codes[-1].status_code) == (200, 429)
    assert int(codes[-1].headers["retry-after"]) > 0
    assert codes[-1].json()["error"]["kind"] == "SpentError"


def test_the_limits_of_a_policy_hold_and_a_request_asks_for_less(demo_index: CorpusIndex, file: Path) -> None:
    file.write_text("[limits]\nbudget = 150\nmax_tokens = 20\n")
    with TestClient(create_app(demo_index, ScriptedGenerator(said), policy=str(file))) as client:
        for path in ("/select", "/ask"):
            for asked, budget in ((None, 150), (100, 100), (900, 150)):
                got = client.post(path, json={**ASKED, "budget_tokens": asked}).json()
                assert got["budget"] == budget
                assert got["tokens"] <= budget
        other = client.post("/ask", json={**ASKED, "model": "thorough/scripted"})
        assert other.status_code == 404  # presets would evade the limits
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["scripted"]


def test_a_request_changes_only_the_settings_that_it_names(demo_index: CorpusIndex, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[price]\ntoken = 0\n[selection]\nunits = "passages"\nmerge = false\nradius = 0.05\n')
    program = Policy.load(file).selector(0.0, Selector())
    with TestClient(create_app(demo_index, ScriptedGenerator(said), policy=str(file))) as client:
        for given in ({}, {"radius": 0.0}, {"merge": True, "max_passages": 2}):
            got = client.post("/select", json={**SELECTED, "proof": True, **given}).json()
            counter = ScriptedGenerator(said)
            pool = Retriever(demo_index, counter=counter).retrieve(SELECTED["question"])
            wanted = program.replace(**given).select(pool, 1024, counter)
            assert got["certificate"]["objective"] == wanted.to_dict(proof=True)["certificate"]["objective"]
            assert got["tokens"] == wanted.tokens_used


# -- ratings


def ratings(log: Path) -> list[str]:
    """Ids that were rated in a log."""
    opened = EventLog(log)
    with opened.reading() as events:
        found = [event.id for event in events.after(0) if event.kind == "feedback"]
    opened.close()
    return found


@pytest.fixture
def rated(demo_index: CorpusIndex, file: Path) -> Iterator[TestClient]:
    """A service whose policy searches by a bandit."""
    file.write_text(bandit("a.sqlite"))
    app = create_app(demo_index, ScriptedGenerator(hypothetical), policy=str(file))
    with TestClient(app) as started:
        yield started


def asked_id(rated: TestClient, path: str = "/ask") -> str:
    identity = rated.post(path, json=ASKED).json()["search"]["id"]
    assert identity
    return str(identity)


def test_an_answer_tells_its_id_and_can_be_rated_once(rated: TestClient, tmp_path: Path) -> None:
    got = rated.post("/ask", json=ASKED).json()
    search = got["search"]
    assert got["policy"]["name"] == "mine"
    assert search["strategies"][0] == "raw"
    assert search["why"]
    assert set(search["found_by"]) == read(got)
    assert all("raw" in ranks for ranks in search["found_by"].values())
    asked = [step["tokens"] for step in got["policy"]["steps"] if step["step"] == "retrieve"]
    assert search["prompt_tokens"] + search["completion_tokens"] == sum(asked)
    rating = {"id": search["id"], "helpful": True}
    assert rated.post("/feedback", json=rating).json() == {"noted": True}
    assert rated.post("/feedback", json=rating).json() == {"noted": False}
    assert ratings(tmp_path / "a.sqlite") == [search["id"]]
    unknown = rated.post("/feedback", json={"id": "nobody", "helpful": True})
    assert unknown.status_code == 400
    assert "'nobody' is not in the log" in unknown.json()["error"]["problems"][0]
    assert rated.post("/feedback", json={"id": search["id"], "helpful": "yes"}).status_code == 422


def test_a_rating_goes_to_the_log_that_gave_the_id(rated: TestClient, file: Path, tmp_path: Path) -> None:
    first = [asked_id(rated), asked_id(rated, "/select")]
    again = rated.post("/select", json={**ASKED, "budget_tokens": 100}).json()
    assert again["search"]["id"] == first[1]  # moving a slider asks no model again
    changed(file, bandit("b.sqlite"))
    second = [asked_id(rated), asked_id(rated, "/select")]
    assert not set(first) & set(second)  # the pool that the other policy found is not taken for this one's
    for identity in (first[0], second[0]):
        assert rated.post("/feedback", json={"id": identity, "helpful": True}).json() == {"noted": True}
    changed(file, preset_text("frugal"))
    assert rated.post("/ask", json=ASKED).json().get("search") is None
    assert rated.post("/select", json=ASKED).json().get("search") is None
    for identity in (first[1], second[1]):
        assert rated.post("/feedback", json={"id": identity, "helpful": False}).json() == {"noted": True}
    assert ratings(tmp_path / "a.sqlite") == first
    assert ratings(tmp_path / "b.sqlite") == second


def test_what_a_selection_asks_the_model_counts_in_the_total(demo_index: CorpusIndex, file: Path) -> None:
    limits = "[limits]\nbudget = 100\nmax_tokens = 8\n"
    file.write_text(
        '[price]\ntotal = 900\nper = "day"\nstate = "count.sqlite"\n[search]\n'
        f'strategies = ["raw", "hyde"]\n{limits}'
    )
    with TestClient(create_app(demo_index, ScriptedGenerator(hypothetical), policy=str(file))) as rated:
        told = []
        for k in range(20):
            question = {**SELECTED, "question": f"How tall is number {k}?"}
            told.append(rated.post("/select", json=question).json()["search"])
        spent = [one["prompt_tokens"] + one["completion_tokens"] for one in told]
        assert told[0]["id"] == ""  # fixed strategies: nobody learns
        assert spent[0] > 0
        assert sum(spent) <= 900
        assert spent[-1] == 0  # what is left is less than a reply may take, and the question is searched for
        assert any("hyde: left out, the limit of" in note for note in told[-1]["notes"])
        assert rated.post("/ask", json=ASKED).status_code == 429


def test_a_strategy_has_no_more_time_than_the_request(demo_index: CorpusIndex, tmp_path: Path) -> None:
    asked, go_on = Event(), Event()

    def slow(prompt: Prompt) -> str:
        if not asked.is_set():  # the first is the strategy's; the answer comes at once
            asked.set()
            assert go_on.wait(25)
        return hypothetical(prompt)

    file = tmp_path / "slow.toml"
    file.write_text('[search]\nstrategies = ["raw", "hyde"]\n')
    app = create_app(demo_index, ScriptedGenerator(slow), policy=str(file))
    with TestClient(app) as rated:
        try:
            got = rated.post("/ask", json={"question": QUESTION, "deadline_seconds": 2}).json()
        finally:
            go_on.set()
    assert asked.is_set()
    assert any("hyde: left out, it took longer than" in note for note in got["search"]["notes"])
    assert read(got)  # time was left to read what the others found
    assert all(set(ranks) == {"raw"} for ranks in got["search"]["found_by"].values())


def test_two_policies_share_questions_and_ratings_tell_them_apart(
    demo_index: CorpusIndex, file: Path, tmp_path: Path
) -> None:
    split = Split(policy="thorough", share=0.5, ratings=str(tmp_path / "ratings.sqlite"))
    app = create_app(demo_index, ScriptedGenerator(said), policy=str(file), split=split)
    with TestClient(app) as client:
        seen: dict[str, list[str]] = {}
        for k in range(24):
            got = client.post("/ask", json={**ASKED, "question": f"How tall is tower {k}?"}).json()
            assert got["split"]["share"] == 0.5
            assert got["policy"]["name"] == {"thorough": "thorough"}.get(got["split"]["policy"], "mine")
            seen.setdefault(got["split"]["policy"], []).append(got["split"]["id"])
        assert set(seen) == {str(file), "thorough"}
        for policy, ids in seen.items():
            for identity in ids:
                rating = {"id": identity, "helpful": policy == "thorough"}
                assert client.post("/feedback", json=rating).json() == {"noted": True}
        assert client.post("/feedback", json=rating).json() == {"noted": False}
        assert client.post("/feedback", json={"id": "nobody", "helpful": True}).status_code == 400
        shown = dict(re.findall(r"^mio_rag_split_(\S+) (\S+)$", client.get("/metrics").text, re.M))
    assert float(shown['questions{policy="thorough"}']) == len(seen["thorough"])
    assert float(shown['helpful{policy="thorough"}']) == float(shown['rated{policy="thorough"}'])
    assert float(shown["difference"]) == 1.0
    assert 0 < float(shown["low"]) < 1 == float(shown["high"])
    assert float(shown["p_value"]) < 0.001
    with pytest.raises(InputError, match="has this policy already"):
        create_app(demo_index, ScriptedGenerator(said), policy="thorough", split=split)


def test_the_test_of_two_policies_is_newcombes_and_fishers() -> None:
    found = compared((48, 29), (56, 54))  # Newcombe's example has 56/70 against 48/80
    assert compared((80, 48), (70, 56)) == {
        "difference": pytest.approx(0.2), "low": pytest.approx(0.0524, abs=5e-5),
        "high": pytest.approx(0.3339, abs=5e-5), "p_value": pytest.approx(0.0085, abs=5e-3),
    }  # fmt: skip
    assert found["low"] > 0
    assert compared((0, 0), (5, 3)) == {}
