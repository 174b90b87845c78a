"""Every reply is counted once, whatever a server sends: by the generator, a batch and a service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2")

from mio_rag.allocation.pacer import Pacer
from mio_rag.batch.ask import ask_many
from mio_rag.generation import OpenAIGenerator, build_prompt, make_generator
from mio_rag.policy_files import policy_of
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


@pytest.mark.parametrize("policy", [None, "frugal"])
def test_a_service_counts_at_least_what_it_is_billed(
    mixed: Bill, policy: str | None, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from mio_rag.service.app import create_app

    pacer, given = Pacer(10**6, window="day", price=1e-4), None
    if policy is not None:
        given = tmp_path / "paced.toml"
        state = tmp_path / "s.sqlite"
        given.write_text(
            f'[price]\ntotal = 1000000\nquestions = 50\nstate = "{state}"\n[limits]\nbudget = 100\n'
        )
        pacer = Pacer(10**6, 50, path=state, most=20_000)
    spec = f"openai:{mixed.url}#m?timeout_seconds=5&retries=1"
    with make_generator(spec) as generator:
        made = create_app(
            demo_index,
            generator,
            pacer=None if given else pacer,
            policy=None if given is None else str(given),
        )
        with TestClient(made, raise_server_exceptions=False) as client:
            for k in range(16):
                body = {
                    "question": f"Which tower is taller, Bell Rock or Skerryvore? {k}",
                    "budget_tokens": 99,
                }
                got = client.post("/ask", json=body)
                assert got.status_code in (200, 502), got.text
            account = pacer.account()
    assert sum(mixed.charged) <= account.spent
    assert account.spent <= 1.5 * sum(mixed.charged)


@pytest.mark.parametrize("policy", [False, True])
def test_repetitions_never_exceed_the_total_of_a_service(
    policy: bool, demo_index: CorpusIndex, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from mio_rag.service.app import create_app

    total, file, state = 700, tmp_path / "paced.toml", tmp_path / "s.sqlite"
    file.write_text(f'[price]\ntotal = {total}\nquestions = 5\nstate = "{state}"\n[limits]\nbudget = 60\n')
    with served(lambda k: "504") as server, make_generator(f"openai:{server.url}#m?retries=9") as generator:
        pacer = None if policy else Pacer(total, window="day", price=1e-4)
        made = create_app(demo_index, generator, pacer=pacer, policy=str(file) if policy else None)
        with TestClient(made, raise_server_exceptions=False) as client:
            body = {"question": "Which tower is taller, Bell Rock or Skerryvore?", "budget_tokens": 60}
            codes = [client.post("/ask", json=body).status_code for _ in range(8)]
        assert codes[0] == 502
        assert codes[-1] == 429
        assert 0 < sum(server.charged) <= total
