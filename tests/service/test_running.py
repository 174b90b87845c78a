"""The service as it runs: so many at a time, a key where others could ask, fuzzed, started and stopped."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag import InputError
from mio_rag.generation import make_generator
from mio_rag.generation.extractive import ExtractiveGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.run import serve
from mio_rag.service.settings import ServiceLimits, ServiceSettings

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"


class _Stuck(ExtractiveGenerator):
    """Counts tokens once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.entered = threading.Event(), threading.Semaphore(0)

    def count(self, texts: Sequence[str]) -> list[int]:
        self.entered.release()
        assert self.let.wait(30)
        return super().count(texts)


def test_overload_is_turned_away_at_once_and_says_when_to_come_back(demo_index: CorpusIndex) -> None:
    generator = _Stuck()
    app = create_app(demo_index, generator, ServiceLimits(concurrency=1, queue=1))
    with TestClient(app) as client, ThreadPoolExecutor(8) as pool:
        first = pool.submit(client.post, "/select", json={"question": QUESTION})
        assert generator.entered.acquire(timeout=30)
        second = pool.submit(client.post, "/select", json={"question": "Another?"})
        while app.state.gate.waiting < 1:
            pass
        third = client.post("/select", json={"question": "A third?"})
        assert third.status_code == 503
        assert int(third.headers["retry-after"]) >= 1
        assert "busy" in third.json()["error"]["problems"][0]
        assert "connection" not in third.headers  # few wait: no need to look for another worker
        assert client.get("/health").status_code == 200
        generator.let.set()
        assert [first.result().status_code, second.result().status_code] == [200, 200]
        assert client.post("/select", json={"question": "A third?"}).status_code == 200


def test_metrics_count_requests_and_certificates(demo_index: CorpusIndex) -> None:
    with TestClient(create_app(demo_index, make_generator("extractive"))) as client:
        client.post("/select", json={"question": QUESTION})
        client.post("/select", json={"question": QUESTION, "pool": 0})
        client.get("/nowhere/at/all")
        text = client.get("/metrics").text
    for line in (
        'requests_total{path="/select",status="200"} 1.0', 'requests_total{path="/select",status="422"} 1.0',
        'requests_total{path="other",status="404"} 1.0', 'certificates_total{status="optimal"} 1.0',
        'request_seconds_count{path="/select"} 2.0',
    ):  # fmt: skip
        assert f"mio_rag_{line}" in text


def test_the_service_survives_a_fuzzer_fed_by_its_own_description(demo_index: CorpusIndex) -> None:
    schemathesis: Any = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    with TestClient(create_app(demo_index, make_generator("extractive"))) as client:
        schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
        seen: set[int] = set()
        for operation in ("/select", "/ask", "/v1/chat/completions"):
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

                @settings(
                    max_examples=10, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )  # fmt: skip
                @given(case=schema[operation]["POST"].as_strategy(generation_mode=mode))
                def fuzz(case: Any) -> None:
                    response = case.call()
                    seen.add(response.status_code)
                    assert response.status_code < 500, response.text
                    # A budget may be too small for the passages, which no schema says.
                    excluded = [positive_data_acceptance]
                    if response.status_code == 413:  # a rejection, too, which that check does not know
                        excluded.append(negative_data_rejection)
                    case.validate_response(response, excluded_checks=excluded)

                fuzz()
    assert {200, 422} <= seen


def test_an_address_is_taken_before_anything_is_loaded(demo_index: CorpusIndex, tmp_path: Path) -> None:
    index = str(demo_index.save(tmp_path / "index"))
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = ServiceSettings(index, port=other.getsockname()[1])
        with pytest.raises(InputError, match="cannot listen on"):
            serve(settings, ready=lambda: told.append("ready"), loading=lambda: told.append("loading"))
        port = settings.port
    assert told == []

    def interrupted() -> None:  # while it loads: another service finds the address taken, and this one ends
        with pytest.raises(InputError, match="cannot listen on"):
            serve(ServiceSettings(index, port=port))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(ServiceSettings(index, port=port), loading=interrupted)
    with socket.create_server(("127.0.0.1", port)):
        pass  # given back


def test_the_command_serves_and_ends_gracefully(demo_index: CorpusIndex, tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx")
    index = demo_index.save(tmp_path / "index")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "mio_rag", "serve", str(index), "--port", url.rpartition(":")[2]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "loading" in process.stdout.readline()
        assert url in process.stdout.readline()  # not before it answers
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(1) as pool:
            assert client.get("/health").json()["passages"] == len(demo_index)
            body = {"question": QUESTION, "pool": 200, "budget_tokens": 2000, "passage_penalty": 0.0}
            asked = pool.submit(client.post, "/select", json={**body, "redundancy_weight": 0.5})
            while "mio_rag_active_requests 2.0" not in client.get("/metrics").text and not asked.done():
                time.sleep(0.005)
            process.terminate()
            assert asked.result().status_code == 200
        assert process.wait(30) in (0, -signal.SIGTERM)
