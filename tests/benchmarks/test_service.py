"""The benchmark of the service: a real service under a few clients, and one that fails is noticed."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from benchmarks.__main__ import main
from benchmarks.service import Phase, _phase
from mio_rag.retrieval import CorpusIndex


def test_a_short_load_on_a_real_service(demo_index: CorpusIndex, tmp_path: Path) -> None:
    index, out = tmp_path / "index", tmp_path / "service.json"
    demo_index.save(index)
    options = ["--seconds", "0.8", "--clients", "3", "--overload", "5", "--workers", "1"]
    assert main(["service", "--index", str(index), *options, "--out", str(out)]) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    load, over = report["phases"]
    assert (load["name"], load["clients"], over["clients"]) == ("load", 3, 5)
    assert set(load["statuses"]) == {"200"}
    assert load["answered_per_second"] == pytest.approx(load["statuses"]["200"] / load["seconds"])
    spent = load["latency_seconds"]
    assert 0 < spent["p50"] <= spent["p90"] <= spent["p99"] <= spent["largest"] <= load["seconds"]
    assert load["not_proven_optimal"] == 0
    assert report["stopped_seconds"] < 30


class _Bad(BaseHTTPRequestHandler):
    """Says 200 to the first request, 503 without Retry-After to the second, and breaks off the others."""

    asked = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        _Bad.asked += 1
        if _Bad.asked > 2:
            self.close_connection = True
            return
        body = b'{"status": "feasible"}' if _Bad.asked == 1 else b"{}"
        self.send_response(200 if _Bad.asked == 1 else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture
def bad() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Bad)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_refusals_without_a_time_and_broken_connections_are_counted(bad: str) -> None:
    phase = Phase("load", 1)
    asyncio.run(_phase(phase, bad, ["a?", "b?"], 1.6))
    assert phase.statuses["200"] == phase.statuses["503"] == 1
    assert sum(phase.statuses.values()) > 2, "a broken connection is an error, not nothing"
    assert phase.unproven == 1
    assert phase.without_retry_after == 1
    assert len(phase.latencies) == 1


def test_options_out_of_range_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["service", "--clients", "0", "--out", str(tmp_path / "x.json")]) == 2
    assert "--clients" in capsys.readouterr().err
    assert main(["service", "--seconds", "0", "--out", str(tmp_path / "x.json")]) == 2
