"""A service with so many tokens a day or an hour: a price, a limit, a refusal with a time."""

import re
import socket
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag import InputError
from mio_rag.allocation.money import Rate
from mio_rag.allocation.pacer import Pacer
from mio_rag.errors import StateError
from mio_rag.generation import ScriptedGenerator, make_generator
from mio_rag.generation.extractive import ExtractiveGenerator
from mio_rag.generation.prompts import Prompt
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.requests import held_tokens, standing
from mio_rag.service.run import check
from mio_rag.service.settings import Pacing, ServiceSettings, make_pacing
from mio_rag.types import Answer, GenerationError
from tests.cli.running import here

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
BODY = {"question": QUESTION, "budget_tokens": 256, "deadline_seconds": 20}


def served(index: CorpusIndex, pacer: Pacer | None, generator: str = "extractive") -> TestClient:
    return TestClient(create_app(index, make_generator(generator), pacer=pacer))


def test_select_pays_the_pacers_price_and_tells_what_is_left(demo_index: CorpusIndex) -> None:
    pacer = Pacer(2000, window="day", price=0.0005)
    with served(demo_index, pacer) as client, served(demo_index, None) as free:
        got = client.post("/select", json=BODY).json()
        same = free.post("/select", json={**BODY, "token_price": 0.0005, "units": "passages"}).json()
        assert got["selected_ids"] == same["selected_ids"]
        assert got["objective"] == pytest.approx(same["objective"])
        assert "pacing" not in same
        said = got["pacing"]
        assert said["token_price"] == 0.0005
        assert (said["total"], said["spent"]) == (2000, got["tokens_used"])
        assert said["left"] == 2000 - got["tokens_used"]
        assert 0 < said["ends_in"] <= 86400
        dear = client.post("/select", json={**BODY, "token_price": 0.9}).json()  # a price of one's own counts
        assert dear["selected_ids"] == []


def test_without_anything_to_read_no_model_is_asked_and_nothing_is_charged(demo_index: CorpusIndex) -> None:
    reader = ScriptedGenerator(lambda prompt: "from memory")
    with TestClient(create_app(demo_index, reader, pacer=Pacer(2000, window="day"))) as client:
        got = client.post("/ask", json={**BODY, "token_price": 0.9}).json()
        assert (got["selected_ids"], got["answer"], got["completion_tokens"]) == ([], "", 0)
        assert got["notes"][0].startswith("nothing is chosen")
        assert (reader.prompts, got["pacing"]["spent"]) == ([], 0)
        assert client.post("/ask", json=BODY).json()["answer"] == "from memory"


def test_where_the_count_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    assert make_pacing(None, None, None, index) is None
    path = str(tmp_path / "index.tokens-per-day.sqlite")
    assert make_pacing(1000, None, None, index) == Pacing(1000, "day", path)
    named = make_pacing(None, 50, tmp_path / "state", index, price=0.002, mean_tokens=300)
    assert named is not None
    assert named.path == str(tmp_path / "state" / "index.tokens-per-hour.sqlite")
    assert "at most 50 tokens each hour (UTC)" in named.explain()
    assert "expected are 300 tokens a request at a price of 0.002" in named.explain()
    other = tmp_path / "other"
    wrong: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("total tokens 1000 there, 2000 here", (2000, None, None)),
        ("exclude each other", (1, 1, None)),
        ("price.state needs", (None, None, tmp_path)),
        ("server.start_price and server.mean_tokens need price.total", (None, None, None, 0.001, 300)),
        (
            r"server.mean_tokens goes with .*: give server.start_price > 0 as well",
            (1000, None, other, None, 300),
        ),
        (r"server.start_price must be <= 1, got 2\.0", (1000, None, other, 2.0)),
        ("price.total must be >= 1, got 0", (0, None, other)),
    )
    for message, (per_day, per_hour, folder, *prices) in wrong:
        with pytest.raises(InputError, match=message):
            make_pacing(per_day, per_hour, folder, index, 1, *prices)
    monkeypatch.setattr("mio_rag.service.settings.os.access", lambda *_: False)
    memory = make_pacing(1000, None, None, index)
    assert memory is not None
    assert "in memory: a restart begins anew" in memory.explain()
    with pytest.raises(InputError, match="2 workers must share the count"):
        make_pacing(1000, None, None, index, workers=2)
    with pytest.raises(InputError, match="2 workers must share the count"):
        check(ServiceSettings(str(index), pacing=memory, workers=2), None, without_key=False)


@pytest.mark.parametrize("path", ["/select", "/ask"])
def test_what_is_spent_is_refused_with_a_time_to_come_back(demo_index: CorpusIndex, path: str) -> None:
    pacer = Pacer(1000, window="hour", price=0.0)
    with served(demo_index, pacer) as client:
        spent = 0
        for _ in range(200):  # at no price of a passage, what fits is read, until nothing does
            answer = client.post(path, json={**BODY, "preset": "thorough"})
            if answer.status_code != 200:
                break
            got = answer.json()
            assert got["pacing"]["spent"] >= spent
            spent = got["pacing"]["spent"]
            assert spent <= 1000
        assert answer.status_code == 429
        assert 0 < int(answer.headers["Retry-After"]) <= 3600
        [problem] = answer.json()["error"]["problems"]
        assert re.search(r"tokens? of 1000 left, and \d+ wanted: there are more in \d+ s", problem)
        metrics = client.get("/metrics").text
        assert f"mio_rag_pacer_spent {float(spent)}" in metrics
        assert f"mio_rag_pacer_left {float(1000 - spent)}" in metrics
        assert "mio_rag_pacer_refused 1.0" in metrics
        price = float(re.search(r"^mio_rag_pacer_price (\S+)", metrics, re.MULTILINE)[1])  # type: ignore[index]
        assert price == pytest.approx(pacer.account().price)


def test_requests_side_by_side_keep_to_the_total(demo_index: CorpusIndex) -> None:
    pacer = Pacer(1500, window="day", price=0.0)
    with served(demo_index, pacer) as client, ThreadPoolExecutor(8) as many:
        answers = list(many.map(lambda _: client.post("/select", json=BODY), range(24)))
        good = [a.json()["tokens_used"] for a in answers if a.status_code == 200]
        assert {a.status_code for a in answers} <= {200, 429}
        assert sum(good) == pacer.account().spent <= 1500
        assert pacer.account().reserved == 0


def test_dollars_and_what_they_make_of_the_price(demo_index: CorpusIndex) -> None:
    rate = Rate("extractive", 2.0, 8.0, worth=0.004)
    app = create_app(demo_index, make_generator("extractive"), rate=rate)
    with TestClient(app) as client, served(demo_index, None) as free:
        got = client.post("/ask", json=BODY).json()
        same = free.post("/ask", json={**BODY, "token_price": 0.0005}).json()
        assert got["selected_ids"] == same["selected_ids"]
        assert got["dollars"] == pytest.approx(2e-6 * got["prompt_tokens"] + 8e-6 * got["completion_tokens"])
        assert "dollars" not in same
        selected = client.post("/select", json=BODY).json()
        assert selected["dollars"] == pytest.approx(2e-6 * selected["tokens_used"])


class _Broken(ExtractiveGenerator):
    """Reads, and then does not answer."""

    error: Exception = GenerationError("the model broke", untold=True)

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        raise self.error


@pytest.mark.parametrize(("error", "status"), [(_Broken.error, 502), (OSError("the line is cut"), 500)])
def test_a_request_that_fails_pays_for_what_was_sent_to_the_reader(
    error: Exception, status: int, demo_index: CorpusIndex
) -> None:
    pacer, reader = Pacer(5000, window="day"), _Broken()
    reader.error = error
    app = create_app(demo_index, reader, pacer=pacer)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/ask", json={**BODY, "question": "  "}).status_code == 400
        assert pacer.account().spent == 0
        assert client.post("/ask", json=BODY).status_code == status
        account = pacer.account()
        assert account.spent > 50
        assert account.reserved == 0


def test_a_count_that_cannot_be_written_costs_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    pacer = Pacer(1000, window="day", path=path)
    with held_tokens(pacer, 100, 1) as held:
        held.used = 60
    assert held.report["pacing"]["spent"] == 60
    with held_tokens(pacer, 100, 1) as held:
        held.used = 60
        with sqlite3.connect(path) as connection:
            connection.execute("ALTER TABLE reservations RENAME TO away")
    assert held.report == {}
    assert standing(pacer) is None
    with pytest.raises(StateError), held_tokens(pacer, 100, 1):
        pytest.fail("nothing is held")
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE away RENAME TO reservations")
    account = pacer.account()
    assert (account.spent, account.reserved) == (60, 100)


def test_settings_of_a_service_by_keys(demo_index: CorpusIndex, tmp_path: Path) -> None:
    index = demo_index.save(tmp_path / "index")
    keys = ("price.total=5000", "price.per=day", f"price.state={tmp_path / 'state'}",
            "server.start_price=0.002", "server.mean_tokens=300")  # fmt: skip
    given = [part for key in keys for part in ("--set", key)]
    refused = here("serve", index, *given, "--port", 0)
    assert refused.returncode == 2
    assert "--port must be between" in refused.stderr
    assert not (tmp_path / "state").exists()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        refused = here("serve", index, *given, "--port", probe.getsockname()[1])
    assert "cannot listen" in refused.stderr
    [state] = (tmp_path / "state").iterdir()
    with sqlite3.connect(state) as connection:
        told = dict(connection.execute("SELECT name, value FROM settings").fetchall())
    assert told == {
        "total tokens": "5000", "horizon": "None", "window": "86400 s", "mean tokens": "300 at 0.002"
    }  # fmt: skip
    for key, wrong in (
        ("limits.budget=512", "limits.budget: each request to a service brings its own"),
        ("server.max_pol=5", "did you mean server.max_pool?"),
        ("server.start_price=0.1", "server.start_price needs price.total"),
        ("server.queue=-1", "server.queue must be >= 0"),
    ):
        refused = here("serve", index, "--set", key)
        assert refused.returncode == 2
        assert wrong in " ".join(refused.stderr.split())


def _until_ready(lines: IO[str]) -> str:
    said = ""
    while "mio-rag on http" not in said:
        line = lines.readline()
        assert line
        said += line
    return said


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="a service is one process here")
def test_workers_share_the_tokens_and_a_restart_remembers(demo_index: CorpusIndex, tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx")
    index = demo_index.save(tmp_path / "index")
    state = tmp_path / "state"
    total, spent = 3000, 0

    def started(workers: int) -> tuple["subprocess.Popen[str]", str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "mio_rag", "serve", str(index), "--port", str(port)]
        command += [
            "--set",
            f"price.total={total}",
            "--set",
            "price.per=day",
            "--set",
            f"price.state={state}",
        ]
        command += ["--workers", str(workers)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = _until_ready(process.stdout)
        assert f"at most {total} tokens each day (UTC)" in said
        return process, f"http://127.0.0.1:{port}"

    for workers, count in ((2, 6), (1, 60)):
        process, address = started(workers)
        statuses = []
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
            for _ in range(count):
                answer = client.post("/select", json={**BODY, "preset": "thorough"})
                statuses.append(answer.status_code)
                if answer.status_code == 429:
                    break
                spent += answer.json()["tokens_used"]
                assert answer.json()["pacing"]["spent"] == spent <= total
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
        assert set(statuses) <= {200, 429}
    assert statuses[0] == 200
    with sqlite3.connect(next(state.iterdir())) as connection:
        assert connection.execute("SELECT settled FROM state").fetchone() == (spent,)
