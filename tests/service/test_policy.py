"""A service under a policy: the way of a question, and files that change while requests are under way."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag.errors import InputError
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.policy_files import preset_text
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.governed import policy_problems
from mio_rag.service.run import check
from mio_rag.service.settings import Pacing, ServiceSettings, excluded

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
ASKED = {"question": QUESTION, "deadline_seconds": 20}


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


def changed(file: Path, text: str) -> None:
    """Another content, and surely another time of change."""
    before = file.stat().st_mtime_ns
    file.write_text(text)
    os.utime(file, ns=(before + 10**9, before + 10**9))


def test_an_answer_tells_its_way_and_what_it_cost(client: TestClient) -> None:
    got = client.post("/ask", json=ASKED).json()
    assert got["answer"] == "Skerryvore"
    policy = got["policy"]
    assert policy["name"] == "mine"
    assert policy["token_price"] == 0.002
    assert 0 < policy["complete"] < 1
    assert [step["step"] for step in policy["steps"]] == ["retrieve", "select", "answer"]
    assert sum(step["tokens"] for step in policy["steps"]) == got["prompt_tokens"] + got["completion_tokens"]
    assert all(step["why"] for step in policy["steps"])
    health = client.get("/health").json()["policy"]
    assert health == {"name": "mine", "sha256": policy["sha256"], "problem": None}


def test_a_changed_file_is_taken_over_and_a_wrong_one_is_not(client: TestClient, file: Path) -> None:
    first = client.post("/ask", json=ASKED).json()["policy"]
    changed(file, preset_text("frugal").replace("0.002", "0.0005"))
    second = client.post("/ask", json=ASKED).json()["policy"]
    assert second["token_price"] == 0.0005
    assert second["sha256"] != first["sha256"]
    changed(file, 'colour = "red"\n[price]\ntoken = 7\n')
    third = client.post("/ask", json=ASKED).json()["policy"]
    assert third["sha256"] == second["sha256"]
    problem = client.get("/health").json()["policy"]["problem"]
    assert "'colour' is unknown" in problem
    assert "price.token must be <= 1, got 7" in problem
    changed(file, preset_text("frugal"))
    assert client.post("/ask", json=ASKED).json()["policy"]["sha256"] == first["sha256"]
    assert client.get("/health").json()["policy"]["problem"] is None


def test_a_workflow_that_reads_nothing_solves_no_program(demo_index: CorpusIndex, tmp_path: Path) -> None:
    path = tmp_path / "bare.toml"
    path.write_text('[order]\nworkflow = "no-retrieval"\n')
    with TestClient(create_app(demo_index, ScriptedGenerator(said), policy=str(path))) as client:
        got = client.post("/ask", json=ASKED).json()
    assert got["answer"] == "Skerryvore"
    assert got["selected_ids"] == got["passages"] == []
    assert (got["status"], got["objective"], got["solver"]) == ("none", None, "none")


@pytest.mark.parametrize("damage", ["bytes", "syntax", "folder", "gone", "router", "bandit"])
def test_a_damaged_file_leaves_the_old_policy_in_force(client: TestClient, file: Path, damage: str) -> None:
    first = client.post("/ask", json=ASKED).json()["policy"]
    other = file.with_name("other")
    other.write_bytes(
        b"\x08\0\0\0\0\0\0\0{}      " if damage == "router" else b"SQLite format 3\0" + b"x" * 4096
    )
    if damage in ("folder", "gone"):
        file.unlink()
    if damage == "folder":
        file.mkdir()
    texts = {
        "bytes": b"\xff\xfe\x00",
        "syntax": b"[price\ntoken = ",
        "router": b'[depth]\nby = "router"\nfile = "other"\n',
        "bandit": b'[search]\nby = "bandit"\nstrategies = ["raw", "hyde"]\nstate = "other"\n',
    }
    if damage in texts:
        file.write_bytes(texts[damage])
    for _ in range(2):
        got = client.post("/ask", json=ASKED)
        assert got.status_code == 200
        assert got.json()["policy"]["sha256"] == first["sha256"]
    health = client.get("/health")
    assert health.status_code == 200
    assert health.json()["policy"]["problem"]
    if damage == "folder":
        file.rmdir()
    file.write_text(preset_text("thorough"))
    os.utime(file, ns=(1, 1))  # an older time is a change, too
    assert client.post("/ask", json=ASKED).json()["policy"]["sha256"] != first["sha256"]
    assert client.get("/health").json()["policy"]["problem"] is None


def test_no_request_is_lost_while_a_file_changes(client: TestClient, file: Path) -> None:
    done: list[int] = []

    def ask() -> None:
        for _ in range(6):
            done.append(client.post("/ask", json=ASKED).status_code)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for k in range(8):
        changed(file, preset_text("frugal").replace("0.002", f"0.00{k + 1}"))
    for thread in threads:
        thread.join()
    assert done == [200] * 18


def test_a_total_refuses_when_it_is_spent(demo_index: CorpusIndex, tmp_path: Path) -> None:
    path = tmp_path / "total.toml"
    path.write_text(
        '[price]\ntotal = 190\nper = "day"\nstate = "count.sqlite"\n[limits]\nbudget = 100\nmax_tokens = 8\n'
    )
    with TestClient(create_app(demo_index, ScriptedGenerator(said), policy=str(path))) as client:
        codes = [client.post("/ask", json=ASKED) for _ in range(12)]
    assert codes[0].status_code == 200
    assert codes[-1].status_code == 429
    assert int(codes[-1].headers["retry-after"]) > 0
    assert codes[-1].json()["error"]["kind"] == "SpentError"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["depth.file"], []),
        (["order.file", "answers.cache"], []),
        (["search.strategies", "answers.cache"], ["search.strategies excludes answers.cache: "]),
        (["answers.refusal", "depth.file"], ["depth.file excludes answers.refusal: "]),
        (
            ["order.file", "depth.file", "search.strategies", "price.total", "models.reader"],
            [
                "order.file excludes depth.file, search.strategies, price.total, models.reader: ",
                "depth.file excludes search.strategies, price.total: ",
                "search.strategies excludes price.total, models.reader: ",
            ],
        ),
    ],
)
def test_who_decides_excludes_who_decides_the_same(given: list[str], told: list[str]) -> None:
    found = excluded(given)
    assert len(found) == len(told)
    assert all(problem.startswith(said) for problem, said in zip(found, told, strict=True))


def test_what_excludes_each_other_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "total.toml"
    path.write_text('[price]\ntotal = 9000\nper = "day"\n')
    settings = ServiceSettings("index", workers=2, pacing=Pacing(9, "day", None), policy=str(path))
    with pytest.raises(InputError) as error:
        check(settings, None, False)
    told = "\n".join(error.value.problems)
    assert "--policy excludes price.total" in told
    assert "must share the count of the policy's total" in told
    [problem] = policy_problems("nothing", 1)
    assert "'nothing' is neither a file nor a preset" in problem
