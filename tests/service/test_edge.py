"""Requests at the same time, requests that cannot be read, and errors: all of them are JSON."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.generation.base import WrappedGenerator
from mio_rag.generation.extractive import ExtractiveGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.settings import ServiceLimits
from mio_rag.types import Answer

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
ASKED = {"question": QUESTION, "deadline_seconds": 25}


class Together:
    """A script that answers once two calls are inside it at the same time."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self.met = threading.Event()

    def __call__(self, prompt: Prompt) -> str:
        with self._lock:
            self._inside += 1
            if self._inside >= 2:
                self.met.set()
        assert self.met.wait(20)
        with self._lock:
            self._inside -= 1
        return "Skerryvore"


@pytest.mark.parametrize(
    "policy", ["", '[search]\nby = "bandit"\nstrategies = ["raw", "hyde"]\nstate = "b.sqlite"\n']
)
def test_asks_run_at_the_same_time(demo_index: CorpusIndex, tmp_path: Path, policy: str) -> None:
    script, file = Together(), tmp_path / "mine.toml"
    file.write_text(policy)
    app = create_app(demo_index, ScriptedGenerator(script), policy=str(file) if policy else None)
    with TestClient(app) as client, ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda body: client.post("/ask", json=body), [ASKED, ASKED]))
    assert script.met.is_set()
    assert {(answer.status_code, answer.json()["answer"]) for answer in answers} == {(200, "Skerryvore")}


class Foreign(WrappedGenerator):
    """A generator from elsewhere that does not state how many calls it takes at a time."""

    def __init__(self) -> None:
        super().__init__(ExtractiveGenerator())
        self.lock, self.most, self.inside = threading.Lock(), 0, 0

    @property
    def concurrency(self) -> int:
        raise AttributeError

    def _counted(self, call: Any, *given: Any, **named: Any) -> Any:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            return call(*given, **named)
        finally:
            with self.lock:
                self.inside -= 1

    def count(self, texts: Any) -> Any:
        return self._counted(self._inner.count, texts)

    def generate(self, prompt: Prompt, *, max_tokens: int = 64) -> Any:
        return self._counted(self._inner.generate, prompt, max_tokens=max_tokens)


def test_a_foreign_generator_gets_one_call_at_a_time(demo_index: CorpusIndex) -> None:
    generator = Foreign()
    app = create_app(demo_index, generator, ServiceLimits(concurrency=8))
    with TestClient(app) as client, ThreadPoolExecutor(8) as threads:
        bodies = [{**ASKED, "question": f"How tall is tower {k}?"} for k in range(24)]
        paths = [("/ask", "/select")[k % 2] for k in range(24)]
        answers = list(threads.map(lambda path, body: client.post(path, json=body), paths, bodies))
    assert {answer.status_code for answer in answers} == {200}
    assert generator.most == 1


class _Bug(ExtractiveGenerator):
    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        raise RuntimeError("a bug in /home/somebody/model.py")


@pytest.fixture(scope="module")
def client(demo_index: CorpusIndex) -> Iterator[TestClient]:
    with TestClient(create_app(demo_index, _Bug()), raise_server_exceptions=False) as started:
        yield started


@pytest.mark.parametrize(
    ("path", "given", "status", "kind", "words"),
    [
        ("/ask", {"json": ASKED}, 500, "InternalError", "its log has the details"),
        ("/select", {"json": ASKED, "headers": {"Host": "evil.example"}}, 400, "InvalidHost", "Host header"),
        ("/select", {"json": ASKED, "headers": {"Host": "[::1]:8000"}}, 200, "", ""),
        ("/select", {"json": ASKED, "headers": {"Host": "LOCALHOST:80"}}, 200, "", ""),
        (
            "/select",
            {"json": ASKED, "headers": {"Transfer-Encoding": "chunked", "Content-Length": "5"}},
            400,
            "InvalidRequest",
            "Content-Length or Transfer-Encoding, not both",
        ),
        ("/select", {"content": b"x" * 20_000}, 413, "TooLarge", "larger than 16,384 bytes"),
        ("/v1/chat/completions", {"content": b"x" * 1_100_000}, 413, "TooLarge", "than 1,048,576 bytes"),
        ("/select", {"content": b'{"question": "Who?"}'}, 422, "InputError", "as Content-Type: application/"),
        ("/health", {"json": {}}, 405, "HTTPError", "Method Not Allowed"),
    ],
)  # fmt: skip
def test_every_error_is_json(
    client: TestClient, path: str, given: dict[str, Any], status: int, kind: str, words: str
) -> None:
    got = client.post(path, **given)
    assert got.status_code == status
    if kind:
        assert set(got.json()) == {"error"}
        assert got.json()["error"]["kind"] == kind
        [problem] = got.json()["error"]["problems"]
        assert words in problem
        assert "somebody" not in got.text  # nothing of the machine
