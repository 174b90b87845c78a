"""The service: the same choices as the library, refusals with reasons, room for so many and no more."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag import InputError, Retriever, Selector
from mio_rag.allocation.money import Rate
from mio_rag.defaults import DEFAULTS
from mio_rag.generation import ScriptedGenerator, make_generator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.session.cache import AnswerCache

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"

KEY = "a key of more than sixteen characters"


@pytest.fixture(scope="module")
def client(demo_index: CorpusIndex) -> Iterator[TestClient]:
    with TestClient(create_app(demo_index, make_generator("extractive"))) as started:
        yield started


def test_select_returns_what_the_library_selects(client: TestClient, demo_index: CorpusIndex) -> None:
    body = {"question": QUESTION, "budget_tokens": 200, "redundancy_weight": 0.2, "radius": 0.02, "pool": 30}
    answer = client.post("/select", json={**body, "units": "passages", "why": True, "proof": True})
    assert answer.status_code == 200
    got = answer.json()
    generator = make_generator("extractive")
    pool = Retriever(demo_index, pool=30, counter=generator).retrieve(QUESTION)
    one = Selector(redundancy_weight=0.2, radius=0.02, units="passages").select(pool, 200, generator)
    told = json.loads(json.dumps(one.to_dict(question=QUESTION, why=True, proof=True)))
    for data in (got, told):  # the same form at every door
        data.pop("seconds")
        for name in [name for name in data["certificate"] if "seconds" in name or name == "text"]:
            data["certificate"].pop(name)
    assert got == told
    assert client.post("/select", json=body).json().keys() >= {"context", "parts", "tokens"}
    assert "reasons" not in client.post("/select", json=body).json()


def test_an_answer_has_citations_and_usage(client: TestClient) -> None:
    got = client.post("/ask", json={"question": "How tall is Skerryvore?"}).json()
    assert got["answer"] == "48 metres"
    assert got["usage"]["prompt_tokens"] > got["tokens"]
    assert got["usage"]["completion_tokens"] == 2
    assert got["citations"]
    cited = [part for part in got["parts"] if part["n"] in got["citations"]]
    assert any("Skerryvore" in part["section"][0] for part in cited)
    assert (got["model"], got["budget"]) == ("extractive", DEFAULTS.budget)


def test_what_more_tokens_buy_is_the_difference_of_two_proofs(client: TestClient) -> None:
    body = {"question": QUESTION, "budget_tokens": 120, "passage_penalty": 0.05, "pool": 40, "proof": True}
    body |= {"units": "passages"}
    now = client.post("/select", json={**body, "more_tokens": 100}).json()
    then = client.post("/select", json={**body, "budget_tokens": 220}).json()
    more = now["more"]
    assert more["gain"] == pytest.approx(then["certificate"]["objective"] - now["certificate"]["objective"])
    assert more["gain"] > 0
    assert more["low"] <= more["gain"] + 1e-9 <= more["high"] + 2e-9
    read = [{i for part in one["parts"] for i in part["ids"]} for one in (now, then)]
    assert (set(more["added"]), set(more["removed"])) == (read[1] - read[0], read[0] - read[1])
    assert more["certified"]


class _SlowToCount(ScriptedGenerator):
    """Counts slowly, as an endpoint may."""

    def _count(self, texts: list[str]) -> list[int]:
        time.sleep(0.05)
        return super()._count(texts)


@pytest.mark.parametrize("policy", [None, "frugal"])
@pytest.mark.parametrize("path", ["/select", "/ask"])
def test_what_is_read_is_chosen_even_when_the_deadline_is_over(
    path: str, policy: str | None, demo_index: CorpusIndex
) -> None:
    reader = _SlowToCount(lambda prompt: "48 metres")
    with TestClient(create_app(demo_index, reader, policy=policy)) as client:
        body = {"question": QUESTION, "budget_tokens": 1000, "deadline_seconds": 0.02, "proof": True}
        got = client.post(path, json={**body, "passage_penalty": 0.0}).json()
    assert got["parts"], got
    assert all(prompt.passages for prompt in reader.prompts)
    assert got["status"] in ("optimal", "feasible")
    assert got["certificate"]["bound"] >= got["certificate"]["objective"]
    assert got["tokens"] == sum(part["tokens"] for part in got["parts"]) <= 1000
    lowered = [note["text"] for note in got["notes"] if note["code"] == "budget_lowered"]
    assert lowered == ["At most 512 tokens were read: the policy 'frugal' allows no more."] * bool(policy)


def test_dollars_and_what_they_make_of_the_price(client: TestClient, demo_index: CorpusIndex) -> None:
    rates = {"extractive": Rate("extractive", 2.0, 8.0, worth=0.004)}
    body = {"question": QUESTION, "budget_tokens": 256}
    with TestClient(create_app(demo_index, make_generator("extractive"), rates=rates)) as priced:
        got = priced.post("/ask", json=body).json()
        same = client.post("/ask", json={**body, "token_price": 0.0005}).json()
        assert got["parts"] == same["parts"]
        usage = got["usage"]
        paid = 2e-6 * usage["prompt_tokens"] + 8e-6 * usage["completion_tokens"]
        assert usage["dollars"] == pytest.approx(paid)
        assert "dollars" not in same["usage"]
        selected = priced.post("/select", json=body).json()
        assert selected["dollars"] == pytest.approx(2e-6 * selected["tokens"])


def test_without_anything_to_read_no_model_is_asked(demo_index: CorpusIndex) -> None:
    reader = ScriptedGenerator(lambda prompt: "from memory")
    with TestClient(create_app(demo_index, reader)) as client:
        got = client.post("/ask", json={"question": QUESTION, "token_price": 0.9}).json()
        assert (got["parts"], got["answer"], got["usage"]["completion_tokens"]) == ([], "", 0)
        assert got["notes"]
        assert reader.prompts == []
        assert client.post("/ask", json={"question": QUESTION}).json()["answer"] == "from memory"


def test_the_same_question_is_answered_from_the_file(demo_index: CorpusIndex, tmp_path: Path) -> None:
    body = {"question": QUESTION, "budget_tokens": 256, "deadline_seconds": 20}
    cache = AnswerCache.of(tmp_path / "a.sqlite", demo_index)
    with TestClient(create_app(demo_index, make_generator("extractive"), cache=cache)) as client:
        first = client.post("/ask", json=body).json()
        assert first["cached"] is None
        again = client.post("/ask", json={**body, "question": QUESTION.upper() + " "}).json()
        assert again.pop("cached")["question"] == QUESTION
        for name in ("answer", "parts", "usage", "context"):
            assert again[name] == first[name]
        for other in ({"budget_tokens": 255}, {"where": "title=*"}, {"model": "frugal/extractive"}):
            assert client.post("/ask", json={**body, **other}).json()["cached"] is None
        metrics = client.get("/metrics").text
        assert 'mio_rag_cached_answers_total{question="new"} 4.0' in metrics
        assert 'mio_rag_cached_answers_total{question="same"} 1.0' in metrics
        hasty = {"pool": 200, "budget_tokens": 2000, "redundancy_weight": 0.6, "passage_penalty": 0.0}
        hasty |= {"question": QUESTION, "deadline_seconds": 1e-6, "radius": 0.2, "units": "passages"}
        first, again = (client.post("/ask", json=hasty).json() for _ in range(2))
        assert (again["cached"] is None) == (first["status"] != "optimal")
    with pytest.raises(InputError, match="a cache and a policy exclude each other"):
        create_app(demo_index, make_generator("extractive"), cache=cache, policy="balanced")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"question": "   "}, 400, "the question is empty"),
        ({"question": "x" * 2001}, 422, "at most 2000"),
        ({"deadline_seconds": 31}, 422, "30"),
        ({"pool": 0, "where": "colour=red"}, 422, "no passage has 'colour' to filter by"),
        ({"pool": 0, "model": "gpt"}, 422, "the model 'gpt' is unknown"),
        ({"model": "gpt"}, 404, "the model 'gpt' is unknown: choose extract, frugal/extract"),
        (b"", 422, "send a JSON object"),
        (b'{"question": ', 422, "the body is not valid JSON (character 13"),
        (b'{"question": "a", "question": "b"}', 422, "'question' is given twice"),
        (b'{"question": "a", "radius": NaN}', 422, "NaN is not a JSON number"),
        (b'{"question": "\\ud800"}', 422, "half of a surrogate pair"),
        (b'{"question": ' + b"[" * 5000 + b"]" * 5000 + b"}", 422, "nested more than 64 levels"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(
    client: TestClient, body: dict[str, Any] | bytes, status: int, words: str
) -> None:
    raw = body if isinstance(body, bytes) else json.dumps({"question": QUESTION, **body}).encode()
    answer = client.post("/select", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert words in "; ".join(answer.json()["error"]["problems"])


def test_the_key_is_asked_for_where_the_index_could_be_read(demo_index: CorpusIndex) -> None:
    with TestClient(create_app(demo_index, make_generator("extractive"), api_key=KEY)) as client:
        for path in ("/", "/page.js", "/page.css", "/health", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200
        wrong: list[dict[str, str]] = [{}, {"X-API-Key": KEY[:-1]}, {"Authorization": f"Basic {KEY}"}]
        for headers in wrong:
            answer = client.post("/select", json={"question": QUESTION}, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            for path in ("/metrics", "/examples", "/v1/models"):
                assert client.get(path, headers=headers).status_code == 401
        for headers in ({"X-API-Key": KEY}, {"Authorization": f"bearer {KEY}"}):
            assert client.post("/select", json={"question": QUESTION}, headers=headers).status_code == 200


def test_pages_need_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/page.js", "/page.css", "/docs"):
        answer = client.get(path)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert not re.search(r"(src|href)=\"(https?:)?//|url\(|@import", answer.text)
    reference = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert f"</b> {path}</h2>" in reference
