"""Every reply is counted once, whatever a server sends: by the generator, a batch and a service."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2")
pytest.importorskip("transformers")

from benchmarks.faults import (
    BEFORE,
    DURING,
    INTO,
    OUT,
    STREAMED,
    WHOLE,
    Fault,
    FaultyServer,
    dollars,
    faulty_server,
    refused,
)
from mio_rag.batch.ask import ask_many
from mio_rag.generation import OpenAIGenerator, build_prompt, make_generator
from mio_rag.generation.base import telling
from mio_rag.policy import policy_of
from mio_rag.retrieval import CorpusIndex
from mio_rag.retrieval.minilm import packaged_minilm
from mio_rag.types import GenerationError, Passage, Question

PROMPT = build_prompt(
    Question("q", "Where is the tower? (no. 5)"), [Passage("p", "The tower stands in Paris.")]
)
QUESTIONS = tuple(Question(f"q{k}", f"How long is the river number {k}?") for k in range(24))
MODEL = {"input": 100.0, "output": 100.0 * OUT / INTO}
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


@pytest.fixture(scope="module")
def running() -> Iterator[FaultyServer]:
    with faulty_server(share=0.0, late=1.0) as server:
        yield server


@pytest.fixture
def server(running: FaultyServer) -> FaultyServer:
    """A server that is well, and has billed nothing."""
    running.share = 0.0
    running.bill.clear()
    running.planned.clear()
    return running


@pytest.fixture(scope="module")
def model(running: FaultyServer) -> Iterator[OpenAIGenerator]:
    with made(running, retries=1) as generator:
        yield generator


def made(server: FaultyServer, **more: Any) -> OpenAIGenerator:
    options = {"tokenizer": str(packaged_minilm()), "timeout_seconds": 0.3} | more
    return OpenAIGenerator(server.url, "m", **options)


def asked(generator: OpenAIGenerator, tell: Callable[[str], object] | None = None) -> tuple[int, int, str]:
    """Tokens counted for one question, and the answer, or why there is none."""
    try:
        with nullcontext() if tell is None else telling(tell):
            reply = generator.generate(PROMPT, max_tokens=9)
        return reply.prompt_tokens, reply.completion_tokens, reply.text
    except GenerationError as error:
        spent = error.spent
        return (
            (0, 0, str(error))
            if spent is None
            else (spent.prompt_tokens, spent.completion_tokens, str(error))
        )


def billed(server: FaultyServer) -> list[int]:
    return [server.bill["prompt_tokens"], server.bill["completion_tokens"]]


@pytest.mark.parametrize("fault", [*WHOLE, *(f"stream: {name}" for name in STREAMED)])
def test_no_reply_costs_more_than_is_counted(
    fault: str, server: FaultyServer, model: OpenAIGenerator
) -> None:
    streams, name = "stream: " in fault, fault.removeprefix("stream: ")
    table, told = STREAMED if streams else WHOLE, list[str]()
    server.planned = [table[name]] * 50
    into, out, said = asked(model, told.append if streams else None)
    paid = server.bill["charged"]
    most = max(1, paid, 2 * (table[name].status == 307 or name == "closed"))  # nobody can know
    assert billed(server)[0] <= into <= most * 73
    assert billed(server)[1] <= out <= max(most * 9, billed(server)[1])
    if name in DURING or table[name].charges == "most":
        assert [into, out] == billed(server), said  # once
        assert said != "no. 5"
    elif name not in BEFORE:
        assert said == "no. 5"
    if told:
        assert paid == 1  # nothing is written twice
        assert "no. 5".startswith("".join(told))


def test_no_question_is_answered_by_the_reply_to_another(server: FaultyServer) -> None:
    with made(server, retries=1) as generator:
        for k in range(6):
            server.planned = [WHOLE["the reply twice"]] * (k % 2)
            prompt = build_prompt(Question("q", f"How long is the river? (no. {k})"))
            assert generator.generate(prompt, max_tokens=9).text == f"no. {k}"


@pytest.mark.parametrize("fault", ["504", "reset", "late", "cut"])
def test_attempts_before_the_answer_are_part_of_its_cost(fault: str, server: FaultyServer) -> None:
    server.planned = [WHOLE[fault]] * 2
    with made(server, retries=3) as generator:
        into, out, text = asked(generator)
        assert [into, out] == billed(server)
    if fault == "late":  # twice: no more is asked
        assert ("did not answer within 0.3 s" in text, server.bill["asked"]) == (True, 2)
    else:
        assert (text, server.bill["asked"]) == ("no. 5", 3)


def test_only_overload_is_asked_again(server: FaultyServer, model: OpenAIGenerator) -> None:
    for name, times in {"429": 2, "503": 2, "409": 2, "400": 1, "404": 1}.items():
        server.bill.clear()
        server.planned = [WHOLE[name]] * 3
        assert asked(model)[:2] == (0, 0)
        assert server.bill["asked"] == times


def test_a_server_that_is_not_there_costs_nothing() -> None:
    with faulty_server() as server:
        pass
    with made(server, retries=1) as generator:
        into, out, why = asked(generator)
    assert (into, out) == (0, 0)
    assert "cannot be reached" in why


def test_retry_after_is_kept(server: FaultyServer, model: OpenAIGenerator) -> None:
    begun = time.monotonic()
    server.planned = [refused(**{"Retry-After": "0.4"})]
    assert asked(model)[2] == "no. 5"
    assert time.monotonic() - begun >= 0.4
    server.planned = [refused(**{"Retry-After": "86400"})]
    assert "429" in asked(model)[2]  # nobody waits a day


def spec(server: FaultyServer, retries: int) -> str:
    return f"openai:{server.url}#m?timeout_seconds=5&retries={retries}&tokenizer={packaged_minilm()}"


@pytest.fixture
def mixed(server: FaultyServer) -> FaultyServer:
    """Every quick fault in turn, and a good reply after each."""
    quick = [f for name, f in WHOLE.items() if f.how not in ("late", "drip") and name not in ("400", "404")]
    server.planned = [one for fault in quick for one in (fault, Fault())] * 9
    return server


def test_a_batch_counts_at_least_what_it_is_billed_and_ends(
    mixed: FaultyServer, river_index: CorpusIndex, tmp_path: Path
) -> None:
    reader = spec(mixed, 0)
    for _ in range(2):  # and a rerun goes on
        done = ask_many(QUESTIONS, river_index, reader, POLICY, tmp_path, total_dollars=9.0, concurrency=4)
    bill = dollars(mixed.bill) * MODEL["input"] / INTO
    assert bill <= done.spent + done.lost + 1e-9
    assert done.spent + done.lost <= 1.5 * bill  # once
    assert done.answered + done.failed == len(QUESTIONS)
    assert done.answered > 15


def test_a_question_that_is_asked_again_pays_no_reply_twice(
    server: FaultyServer, river_index: CorpusIndex, tmp_path: Path
) -> None:
    server.planned = [WHOLE["a number"]]  # the question fails, and its fallback brings an answer
    for _ in range(3):
        done = ask_many(QUESTIONS[:1], river_index, spec(server, 0), POLICY, tmp_path, total_dollars=9.0)
    assert (done.answered, server.bill["asked"]) == (1, 2)
    assert done.spent + done.lost == pytest.approx(dollars(server.bill) * MODEL["input"] / INTO, rel=0.01)


@pytest.mark.parametrize("policy", [None, "total"])
def test_a_service_counts_at_least_what_it_is_billed(
    mixed: FaultyServer, policy: str | None, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    with (
        make_generator(spec(mixed, 1)) as generator,
        asking(generator, demo_index, tmp_path, policy, 10**6) as ask,
    ):
        for k in range(40):
            assert ask(k) in (200, 502)
        spent = ask.spent()
    assert sum(billed(mixed)) <= spent
    assert spent <= 1.5 * sum(billed(mixed))


@pytest.mark.parametrize("policy", [None, "total"])
def test_repetitions_never_exceed_the_total_of_a_service(
    policy: str | None, server: FaultyServer, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    server.planned = [WHOLE["504"]] * 99
    with (
        make_generator(spec(server, 9)) as generator,
        asking(generator, demo_index, tmp_path, policy, 900) as ask,
    ):
        codes = [ask(0) for _ in range(8)]
    assert codes[0] == 502
    assert codes[-1] in (429, 200)  # spent, or nothing is worth its price any more
    assert 0 < sum(billed(server)) <= 900


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
