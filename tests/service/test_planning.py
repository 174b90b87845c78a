"""A service whose planner chooses a workflow for each question."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag import InputError
from mio_rag.control.planner.policy import write_planner
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.run import check
from mio_rag.service.settings import Planning, ServiceSettings, Strategies
from tests.control.planner.synthetic import sure_planner

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"


def said(prompt: Prompt) -> str:
    return f"Skerryvore ({len(prompt.passages)} read)"


def planner(path: Path) -> Path:
    names = ("no-retrieval", "plain", "rewrite-first")
    quality, cost = (dict(zip(names, values, strict=True)) for values in ((0.2, 0.6, 0.7), (0.3, 1.0, 2.0)))
    write_planner(sure_planner(quality, cost), path)
    return path


@pytest.fixture
def served(demo_index: CorpusIndex, tmp_path: Path) -> Iterator[TestClient]:
    file = planner(tmp_path / "p.safetensors")
    planning = Planning({"planner": {"file": str(file), "alpha": 0.05}})
    with TestClient(create_app(demo_index, ScriptedGenerator(said), planning=planning)) as client:
        yield client


def test_the_planner_chooses_and_the_response_tells_the_way(served: TestClient) -> None:
    got = served.post("/ask", json={"question": QUESTION, "budget_tokens": 200}).json()
    assert got["plan"]["workflow"] == "rewrite-first"
    assert got["plan"]["worth"]["rewrite-first"] == pytest.approx(0.7 - 0.05 * 2)
    assert [step["executor"] for step in got["plan"]["steps"]] == ["rewrite", "retrieve", "select", "answer"]
    assert got["answer"] == f"Skerryvore ({len(got['selected_ids'])} read)"
    assert got["status"] == "optimal"
    spent = got["prompt_tokens"] + got["completion_tokens"]
    assert sum(step["tokens"] for step in got["plan"]["steps"]) == spent  # the rewriting is charged too
    assert served.post("/select", json={"question": QUESTION}).status_code == 200  # /select plans nothing
    assert "plan" in served.get("/openapi.json").text


def test_a_workflow_that_reads_nothing_says_so(demo_index: CorpusIndex, tmp_path: Path) -> None:
    file = planner(tmp_path / "p.safetensors")
    planning = Planning({"planner": {"file": str(file), "alpha": 5.0}})
    with TestClient(create_app(demo_index, ScriptedGenerator(said), planning=planning)) as client:
        got = client.post("/ask", json={"question": QUESTION}).json()
    assert got["plan"]["workflow"] == "no-retrieval"
    assert got["answer"] == "Skerryvore (0 read)"
    assert got["selected_ids"] == []
    assert got["passages"] == []
    assert got["notes"] == ["Nothing was read: the workflow searches for nothing."]


def test_what_does_not_fit_is_refused_before_it_serves(demo_index: CorpusIndex, tmp_path: Path) -> None:
    settings = ServiceSettings("INDEX", planning=Planning({"planner": {"file": "x"}}))
    check(settings, None, without_key=True)
    with pytest.raises(InputError, match="--planner excludes --strategies: its workflows decide"):
        check(replace(settings, strategies=Strategies("strategies:raw")), None, without_key=True)
    file = str(planner(tmp_path / "p.safetensors"))
    planning = Planning({"planner": {"file": file, "alpha": -1.0}})
    with pytest.raises(InputError, match="must be finite and >= 0"):
        create_app(demo_index, ScriptedGenerator(said), planning=planning)
    with TestClient(
        create_app(demo_index, ScriptedGenerator(said), planning=Planning({"planner": {"file": file}}))
    ) as client:  # without a price: that of .1
        got = client.post("/ask", json={"question": QUESTION, "budget_tokens": 200}).json()
    assert got["plan"]["worth"]["plain"] == pytest.approx(0.6 - 0.1)
