"""A service that keeps its answers."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag.allocation.pacer import Pacer
from mio_rag.answer_cache import AnswerCache
from mio_rag.errors import InputError
from mio_rag.generation.extractive import ExtractiveGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.settings import Kept

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
# With a pacer passages are the default, without one what the budget has room for.
BODY = {"question": QUESTION, "budget_tokens": 256, "deadline_seconds": 20, "units": "passages"}


def served(index: CorpusIndex, path: Path, pacer: Pacer | None = None) -> TestClient:
    cache = AnswerCache.of(path / "a.sqlite", index)
    return TestClient(create_app(index, ExtractiveGenerator(), pacer=pacer, cache=cache))


def test_the_same_question_is_answered_from_the_file(demo_index: CorpusIndex, tmp_path: Path) -> None:
    with served(demo_index, tmp_path) as client:
        first = client.post("/ask", json=BODY).json()
        assert first["cached"] is None
        again = client.post("/ask", json={**BODY, "question": QUESTION.upper() + " "}).json()
        cached = again.pop("cached")
        assert cached["question"] == QUESTION
        assert cached["age_seconds"] >= 0
        for name in ("answer", "selected_ids", "prompt_tokens", "objective", "passages"):
            assert again[name] == first[name]
        other = client.post("/ask", json={**BODY, "budget_tokens": 255}).json()
        assert other["cached"] is None
        metrics = client.get("/metrics").text
        assert 'mio_rag_cached_answers_total{question="new"} 2.0' in metrics
        assert 'mio_rag_cached_answers_total{question="same"} 1.0' in metrics
        assert "cached" not in client.post("/select", json=BODY).json()
    pacer = Pacer(2000, window="day")
    with served(demo_index, tmp_path, pacer) as client:  # another process, the same file
        assert client.post("/ask", json=BODY).json()["cached"] is not None
        assert pacer.account().spent == 0  # nothing was asked
        # What a total's price has shaped is not kept for others.
        for _ in range(2):
            assert client.post("/ask", json={**BODY, "budget_tokens": 200}).json()["cached"] is None


def test_what_was_not_proven_is_not_kept(
    demo_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mio_rag.service.answering import Answering

    answer = Answering._answer
    monkeypatch.setattr(Answering, "_answer", lambda *a: {**answer(*a), "status": "feasible"})
    with served(demo_index, tmp_path) as client:
        for _ in range(2):
            assert client.post("/ask", json=BODY).json()["cached"] is None
    assert not (tmp_path / "a.sqlite").exists()


def test_a_service_without_a_cache_says_nothing_of_one(demo_index: CorpusIndex) -> None:
    with TestClient(create_app(demo_index, ExtractiveGenerator())) as client:
        assert "cached" not in client.post("/ask", json=BODY).json()


def test_a_foreign_file_is_refused_before_serving(demo_index: CorpusIndex, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="no answer cache"):
        Kept(str(tmp_path / "thesis.txt"), 10, 1.0).opened(demo_index)
