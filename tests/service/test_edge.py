"""Requests at the same time, requests that cannot be read, and errors: all of them are JSON."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.generation.extractive import ExtractiveGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.settings import ServiceLimits
from mio_rag.types import Answer
from tests.learning.files import planner_file, router_file

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


def policy_named(name: str, index: CorpusIndex, folder: Path) -> str | None:
    """The policy of a service."""
    router_file(folder / "r.safetensors", index.embedder.fingerprint, index.dimensions)
    planner_file(folder / "p.safetensors")
    texts = {
        "bandit": '[search]\nby = "bandit"\nstrategies = ["raw", "hyde"]\nstate = "b.sqlite"\n',
        "router": '[depth]\nby = "router"\nfile = "r.safetensors"\n',
        "planner": '[order]\nby = "planner"\nfile = "p.safetensors"\n',
    }
    if name not in texts:
        return None
    (folder / f"{name}.toml").write_text(texts[name])
    return str(folder / f"{name}.toml")


@pytest.mark.parametrize("name", ["alone", "bandit", "router", "planner"])
def test_asks_run_at_the_same_time(demo_index: CorpusIndex, tmp_path: Path, name: str) -> None:
    script = Together()
    policy = policy_named(name, demo_index, tmp_path)
    app = create_app(demo_index, ScriptedGenerator(script), policy=policy)
    with TestClient(app) as client, ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(client.post, "/ask", json=ASKED) for _ in range(2)]
        answers = [one.result() for one in asked]
    assert script.met.is_set()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert {answer.json()["answer"] for answer in answers} == {"Skerryvore"}


def test_a_selection_does_not_wait_for_a_model(demo_index: CorpusIndex) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(prompt: Prompt) -> str:
        inside.set()
        assert go_on.wait(20)
        return "Skerryvore"

    app = create_app(demo_index, ScriptedGenerator(slow), policy="balanced")
    with TestClient(app) as client, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.post, "/ask", json=ASKED)
        assert inside.wait(20)
        assert client.post("/select", json=ASKED).status_code == 200
        assert not answer.done()
        go_on.set()
        assert answer.result().status_code == 200


class Foreign:
    """A generator from elsewhere that does not state how many calls it takes at a time."""

    def __init__(self) -> None:
        self._inner, self._lock = ExtractiveGenerator(), threading.Lock()
        self.most = self._inside = 0
        self.context_window = None

    def __getattr__(self, name: str) -> Any:
        if name == "concurrency":
            raise AttributeError(name)
        found = getattr(self._inner, name)
        return self._alone(found) if name in ("count", "generate", "prompt_tokens") else found

    def _alone(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            with self._lock:
                self._inside += 1
                self.most = max(self.most, self._inside)
            try:
                return call(*given, **named)
            finally:
                with self._lock:
                    self._inside -= 1

        return counted


def test_a_foreign_generator_gets_one_call_at_a_time(demo_index: CorpusIndex) -> None:
    generator: Any = Foreign()
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
        ("/select", {"content": b"x" * 20_000}, 413, "TooLarge", "larger than 16384 bytes"),
        ("/select", {"content": b'{"question": "Who?"}'}, 422, "InputError", "as Content-Type: application/"),
        ("/nowhere", {"json": {}}, 404, "HTTPError", "Not Found"),
        ("/health", {"json": {}}, 405, "HTTPError", "Method Not Allowed"),
        ("/feedback", {"json": {"id": "x", "helpful": True}}, 404, "HTTPError", "Not Found"),
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
