"""Calls that a question makes beside its answer: by threads, and by models that workflows name."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mio_rag.batch.ask import AskedSummary, ask_many
from mio_rag.errors import InputError
from mio_rag.generation import Prompt, ScriptedGenerator
from mio_rag.policy import Policy, policy_of
from mio_rag.retrieval import CorpusIndex
from mio_rag.session.models import Models
from mio_rag.types import GenerationError, Question
from tests.cli.running import here
from tests.learning.learned import TIERS, router_file

QUESTIONS = tuple(Question(f"q{k}", f"How long is river {k}, and where does it rise?") for k in range(12))
SAID: dict[str, Any] = {"limits": {"evidence_tokens": 60, "answer_tokens": 8}, "search": {"pool": 6}}


class Stalling:
    """Never tells what came of every fifth call."""

    def __init__(self, says: str = "1. How long is it?\n2. Where does it rise?") -> None:
        self.calls = self.stalls = 0
        self._says, self._lock = says, threading.Lock()

    def __call__(self, prompt: Prompt) -> str:
        with self._lock:
            self.calls += 1
            if self.calls % 5 == 0:
                self.stalls += 1
                raise GenerationError("no answer within a second", untold=True)
        return self._says


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mio_rag.generation.base._FIRST_SECONDS", 0.0)


def run(
    index: CorpusIndex, out: Path, policy: Policy, says: Callable[[Prompt], str], **more: Any
) -> AskedSummary:
    return ask_many(QUESTIONS, index, ScriptedGenerator(says), policy, out, concurrency=3, **more)


@pytest.mark.parametrize(
    "more",
    [
        {"search": {"pool": 6, "strategies": ["raw", "hyde"]}},
        {"order": {"workflow": "decompose-parallel"}},
    ],
)
def test_a_call_of_a_thread_that_never_told_is_its_question_s(
    more: dict[str, Any], river_index: CorpusIndex, tmp_path: Path
) -> None:
    says = Stalling()
    done = run(river_index, tmp_path, policy_of(SAID | more, "beside"), says)
    assert done.answered == len(QUESTIONS)
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [row["error"] for row in rows] == [None] * len(QUESTIONS)  # nothing was dropped
    assert sum(row["lm_calls"] for row in rows) == says.calls - says.stalls
    assert says.stalls > 0
    assert done.lost > 20 * says.stalls  # each at least its prompt


def test_calls_of_a_model_that_a_workflow_names_are_repeated_and_counted(
    river_index: CorpusIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap, opened = Stalling("rivers of Austria"), list[str]()

    def make(spec: str, replies: Any = None) -> ScriptedGenerator:
        opened.append(spec)
        return ScriptedGenerator(cheap)

    monkeypatch.setattr("mio_rag.batch.ask.make_reader", make)
    nodes = {
        "w": {"do": "rewrite", "model": "cheap"},
        "f": {"do": "retrieve", "from": ["w"]},
        "r": {"do": "select", "from": ["f"]},
        "a": {"do": "answer", "from": ["r"]},
    }
    workflow = {"nodes": nodes, "answer": "a"}
    (tmp_path / "worded.json").write_text(json.dumps(workflow))
    prices = {
        "reader": {"input": 1.0, "output": 1.0},
        "cheap": {"input": 3.0, "output": 3.0, "spec": "extractive"},
    }
    policy = policy_of(SAID | {"order": {"workflow": "worded.json"}, "models": prices}, "named", tmp_path)
    done = run(river_index, tmp_path / "out", policy, lambda prompt: "241 kilometres", total_dollars=10.0)
    assert done.answered == len(QUESTIONS)
    assert opened == ["extractive"]  # once for all questions
    assert cheap.calls - cheap.stalls == len(QUESTIONS)  # none was dropped: each was asked again
    assert cheap.stalls > 0
    assert done.lost > cheap.stalls * 20 * 3e-6


def test_a_model_is_opened_once_by_threads() -> None:
    opened: list[str] = []
    begun = threading.Barrier(4)

    def make(spec: str) -> ScriptedGenerator:
        opened.append(spec)
        threading.Event().wait(0.05)
        return ScriptedGenerator(lambda prompt: "yes")

    models = Models({"cheap": "extractive"}, make)
    found: list[Any] = []

    def ask() -> None:
        begun.wait()
        found.append(models.get("cheap"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == ["extractive"]
    assert len(set(map(id, found))) == 1


def test_a_batch_with_a_bandit_goes_on(river_index: CorpusIndex, tmp_path: Path) -> None:
    search = {"by": "bandit", "strategies": ["raw", "hyde"], "state": "arms.sqlite", "pool": 6}
    stop = threading.Event()

    def policy() -> Policy:
        return policy_of(SAID | {"search": search}, "learning", tmp_path)

    def progress(more: int, count: int) -> None:
        stop.set()

    first = run(river_index, tmp_path / "out", policy(), Stalling("yes"), stop=stop, progress=progress)
    assert 0 < first.answered < len(QUESTIONS)
    more = run(river_index, tmp_path / "out", policy(), Stalling("yes"))  # the log is there by now
    assert (more.done_before, more.answered) == (first.answered, len(QUESTIONS))


@pytest.mark.parametrize("total", [None, 9000])
def test_another_router_under_the_same_name_does_not_mix(
    total: int | None, river_index: CorpusIndex, tmp_path: Path
) -> None:
    embedder = river_index.embedder.fingerprint
    width = river_index.embedder.encode(["x"]).shape[1]
    router_file(tmp_path / "r.safetensors", embedder, width)
    limits = {"evidence_tokens": 90, "answer_tokens": 16}
    amount = {"by": "router", "file": "r.safetensors"}
    policy = policy_of(SAID | {"limits": limits, "amount": amount}, "routed", tmp_path)
    out = tmp_path / "out"
    run(river_index, out, policy, lambda prompt: "yes", total_tokens=total)
    run(river_index, out, policy, lambda prompt: "yes", total_tokens=total)
    less = replace(TIERS[0], context=20)
    router_file(tmp_path / "r.safetensors", embedder, width, (less, *TIERS[1:]))
    with pytest.raises(InputError, match="another policy"):
        run(river_index, out, policy, lambda prompt: "yes", total_tokens=total)


def test_the_command_tells_all_problems_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('colour = "red"\n')
    out = tmp_path / "out"
    told = here(
        *("answer-batch", str(tmp_path / "none.jsonl"), str(tmp_path / "INDEX"), "--out", str(out)),
        *("--policy", str(tmp_path / "wrong.toml"), "--generator", "gguf:none.gguf", "--limit", "0"),
        *("--total-tokens", "5", "--total-dollars", "-1", "--concurrency", "0"),
    ).stderr
    for said in (
        "'colour' is unknown",
        "none.jsonl",
        "INDEX",
        "none.gguf",
        "exclude each other",
        "-1.0 dollars",
        "concurrency=0",
        "--limit=0",
    ):
        assert said in told
    assert not out.exists()


def test_the_total_of_a_policy_is_that_of_all_runs(river_index: CorpusIndex, tmp_path: Path) -> None:
    def says(prompt: Prompt) -> str:
        return "241 kilometres"

    own = policy_of(SAID | {"price": {"total": 500, "questions": 12}}, "own")
    first = run(river_index, tmp_path / "a", own, says)
    assert 0 < first.answered < len(QUESTIONS)
    again = run(river_index, tmp_path / "a", own, says)
    assert again.spent + again.lost <= 500
    assert again.total == 500
    daily = policy_of(SAID | {"price": {"total": 500, "per": "day"}}, "daily")
    priced = policy_of(
        SAID
        | {"price": {"total": 500, "questions": 12}}
        | {"models": {"reader": {"input": 1.0, "output": 1.0}}},
        "priced",
    )
    with pytest.raises(InputError, match="would begin anew"):
        run(river_index, tmp_path / "b", daily, says)
    with pytest.raises(InputError, match="would begin anew"):
        run(river_index, tmp_path / "b", priced, says, total_dollars=1.0)
    kept = policy_of(SAID | {"price": {"total": 500, "per": "day", "state": "p.sqlite"}}, "kept", tmp_path)
    run(river_index, tmp_path / "c", kept, says)
    more = run(river_index, tmp_path / "c", kept, says)
    assert more.spent <= 500
