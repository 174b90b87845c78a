"""Every reply is counted once, whatever a server sends: by the generator, a batch and a service."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2")

from mio_rag.batch.ask import ask_many
from mio_rag.generation import OpenAIGenerator, build_prompt, make_generator
from mio_rag.policy import policy_of
from mio_rag.retrieval import CorpusIndex
from mio_rag.types import GenerationError, Passage, Question
from tests.generation.faults import CHARGED, FREE, USAGES, Bill, served

PROMPT = build_prompt(Question("q", "Where is the tower?"), [Passage("p", "The tower stands in Paris.")])
QUESTIONS = tuple(Question(f"q{k}", f"How long is the river number {k}?") for k in range(24))
SECONDS = 0.2  # of a reply that never comes
MODEL = {"input": 100.0, "output": 400.0}
POLICY = policy_of(
    {
        "limits": {"budget": 60, "max_tokens": 8},
        "search": {"pool": 6},
        "models": {"reader": MODEL},
    },
    "small",
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mio_rag.generation.base._FIRST_SECONDS", 0.0)


def asked(server: Bill, **more: Any) -> tuple[int, int, str]:
    """Tokens counted for one question, and the answer, or why there is none."""
    with OpenAIGenerator(server.url, "m", timeout_seconds=SECONDS, **more) as generator:
        try:
            reply = generator.generate(PROMPT, max_tokens=9)
            return reply.prompt_tokens, reply.completion_tokens, reply.text
        except GenerationError as error:
            spent = error.spent
            return (0, 0, str(error)) if spent is None else (*_tokens(spent), str(error))


def _tokens(spent: Any) -> tuple[int, int]:
    return spent.prompt_tokens, spent.completion_tokens


@pytest.mark.parametrize("fault", CHARGED)
def test_a_reply_without_use_counts_with_the_longest_completion(fault: str) -> None:
    with served(lambda k: fault) as server:
        into, out, why = asked(server, retries=1)
        assert [into, out] == server.charged
        assert server.asked in (1, 2)
        assert server.url in why


@pytest.mark.parametrize("fault", ["504", "reset", "timeout", "cut short"])
def test_attempts_before_the_answer_are_part_of_its_cost(fault: str) -> None:
    with served(lambda k: fault if k < 2 else None) as server:
        into, out, text = asked(server, retries=3)
        assert (text, server.asked, [into, out]) == ("241 kilometres", 3, server.charged)


@pytest.mark.parametrize("fault", FREE)
def test_what_is_refused_costs_nothing_and_only_overload_is_repeated(fault: str) -> None:
    with served(lambda k: fault) as server:
        assert asked(server, retries=2)[:2] == (0, 0)
        assert server.asked == (3 if fault in ("429", "503") else 1)


def test_a_server_that_is_not_there_costs_nothing() -> None:
    with served(lambda k: None) as server:
        pass
    into, out, why = asked(server, retries=1)
    assert (into, out) == (0, 0)
    assert "cannot be reached" in why


@pytest.mark.parametrize("usage", USAGES)
def test_usage_that_cannot_be_true_is_not_believed(usage: str) -> None:
    with served(lambda k: usage) as server:
        into, out, text = asked(server)
        assert text == "241 kilometres"
        assert into == server.charged[0]
        assert 2 <= out <= 9


def test_retry_after_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(lambda k: "429" if k == 0 else None, retry_after="0.4") as server:
        assert asked(server)[2] == "241 kilometres"
        assert server.times[1] - server.times[0] >= 0.4
    with served(lambda k: "429", retry_after="86400") as server:
        assert "429" in asked(server)[2]
        assert server.asked == 1  # nobody waits a day


@pytest.fixture
def mixed() -> Iterator[Bill]:
    """Every fault in turn, and a good reply after each."""
    names = [name for name in (*CHARGED, *FREE, *USAGES) if name not in ("401", "404", "400", "timeout")]
    with served(lambda k: names[k // 2 % len(names)] if k % 2 == 0 else None) as server:
        yield server


def test_a_batch_counts_at_least_what_it_is_billed_and_ends(
    mixed: Bill, river_index: CorpusIndex, tmp_path: Path
) -> None:
    spec = f"openai:{mixed.url}#m?timeout_seconds=5"
    for _ in range(2):  # and a rerun goes on
        done = ask_many(QUESTIONS, river_index, spec, POLICY, tmp_path, total_dollars=9.0, concurrency=4)
    billed = (mixed.charged[0] * MODEL["input"] + mixed.charged[1] * MODEL["output"]) / 1e6
    assert billed <= done.spent + done.lost + 1e-9
    assert done.spent + done.lost <= 1.5 * billed  # once
    assert done.answered + done.failed == len(QUESTIONS)
    assert done.answered > 15


@pytest.mark.parametrize("policy", [None, "total"])
def test_a_service_counts_at_least_what_it_is_billed(
    mixed: Bill, policy: str | None, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    spec = f"openai:{mixed.url}#m?timeout_seconds=5&retries=1"
    with make_generator(spec) as generator, asking(generator, demo_index, tmp_path, policy, 10**6) as ask:
        for k in range(16):
            assert ask(k) in (200, 502)
        spent = ask.spent()
    assert sum(mixed.charged) <= spent
    assert spent <= 1.5 * sum(mixed.charged)


@pytest.mark.parametrize("policy", [None, "total"])
def test_repetitions_never_exceed_the_total_of_a_service(
    policy: str | None, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    with served(lambda k: "504") as server, make_generator(f"openai:{server.url}#m?retries=9") as generator:
        with asking(generator, demo_index, tmp_path, policy, 700) as ask:
            codes = [ask(0) for _ in range(8)]
        assert codes[0] == 502
        assert codes[-1] == 429
        assert 0 < sum(server.charged) <= 700


class Asking:
    """Asks a service whose tokens are limited, by a key or by its policy."""

    def __init__(self, client: Any, spent: Callable[[], int]) -> None:
        self._client, self.spent = client, spent

    def __call__(self, k: int) -> int:
        body = {"question": f"Which tower is taller, Bell Rock or Skerryvore? {k}", "budget_tokens": 60}
        return int(self._client.post("/ask", json=body).status_code)


@contextmanager
def asking(
    generator: Any, index: CorpusIndex, folder: Path, policy: str | None, total: int
) -> Iterator[Asking]:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from mio_rag.service.app import create_app
    from mio_rag.service.keys import Keys, new_key

    key, table = new_key("one")
    (folder / "keys.toml").write_text(f"{table}tokens = {{ day = {total} }}\n")
    file, state = folder / "total.toml", folder / "s.sqlite"
    file.write_text(f'[price]\ntotal = {total}\nquestions = 20\nstate = "{state}"\n[limits]\nbudget = 60\n')
    keys = None if policy else Keys(folder / "keys.toml")
    app = create_app(index, generator, keys=keys, policy=str(file) if policy else None)

    def spent() -> int:
        if keys is not None:
            assert keys.accounts is not None
            return int(keys.accounts.spent(dict(keys)["one"])["tokens", "day"][0])
        with sqlite3.connect(state) as connection:
            return int(json.loads(connection.execute("SELECT state FROM windows").fetchone()[0])["settled"])

    headers = {"Authorization": f"Bearer {key}"}
    with TestClient(app, raise_server_exceptions=False, headers=headers) as client:
        yield Asking(client, spent)
