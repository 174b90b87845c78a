"""Many questions under a policy: each answered once and charged once, and no total ever exceeded."""

import json
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mio_rag.batch.answering import Answered, Died, Workers
from mio_rag.batch.ask import AskedSummary, ask_many
from mio_rag.batch.ledger import Claim, Ledger
from mio_rag.batch.retrying import Retrying
from mio_rag.context import passage_tokens
from mio_rag.errors import InputError, StateError
from mio_rag.generation import Generator, Prompt, ScriptedGenerator, build_prompt
from mio_rag.policies.compose import compose
from mio_rag.policies.setup import Setup
from mio_rag.policy import Policy, Total, policy_of
from mio_rag.retrieval import CorpusIndex, Retriever
from mio_rag.types import Answer, GenerationError, Question
from tests.cli.running import here

QUESTIONS = tuple(Question(f"q{k}", f"How long is the river number {k}?") for k in range(24))
LIMITS = {"evidence_tokens": 60, "answer_tokens": 8}
POLICY = policy_of({"limits": LIMITS, "search": {"pool": 6}}, "small")


class Shaky:
    """Fails on a fixed share of its calls, some of them without a word whether they were done."""

    def __init__(self, fails: int = 0, stalls: int = 0) -> None:
        self.calls: list[str] = []
        self._fails, self._stalls, self._lock = fails, stalls, threading.Lock()

    def __call__(self, prompt: Prompt) -> str:
        with self._lock:
            self.calls.append(prompt.question.id)
            count = len(self.calls)
        if self._stalls and count % self._stalls == 0:
            raise GenerationError("no answer within a second", untold=True)
        if self._fails and count % self._fails == 0:
            raise GenerationError("HTTP 500")
        return "241 kilometres"


def run(
    index: CorpusIndex, out: Path, says: Any = None, policy: Policy = POLICY, **more: Any
) -> AskedSummary:
    questions = more.pop("questions", QUESTIONS)
    given = {"concurrency": 3, "retries": 4} | more
    return ask_many(questions, index, ScriptedGenerator(says or Shaky()), policy, out, **given)


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mio_rag.generation.base._FIRST_SECONDS", 0.0)


def test_every_question_is_answered_in_its_place(river_index: CorpusIndex, tmp_path: Path) -> None:
    done = run(river_index, tmp_path)
    assert (done.answered, done.failed, done.left) == (24, 0, 0)
    found = rows(tmp_path)
    assert [row["query_id"] for row in found] == [q.id for q in QUESTIONS]
    assert {row["answer"] for row in found} == {"241 kilometres"}
    assert all(row["way"] and 0 <= row["complete"] <= 1 for row in found)
    assert done.spent == sum(row["prompt_tokens"] + row["completion_tokens"] for row in found)
    assert json.loads((tmp_path / "summary.json").read_text())["answered"] == 24


def test_a_run_that_is_stopped_goes_on_and_asks_nothing_twice(
    river_index: CorpusIndex, tmp_path: Path
) -> None:
    stop, says = threading.Event(), Shaky()

    def progress(more: int, count: int) -> None:
        if len(says.calls) >= 7:
            stop.set()

    first = run(river_index, tmp_path, says, stop=stop, progress=progress)
    assert 7 <= first.answered < 24
    assert first.left == 24 - first.answered
    second = run(river_index, tmp_path, says)
    assert second.done_before == first.answered
    assert second.answered == 24
    assert sorted(says.calls) == sorted(q.id for q in QUESTIONS)  # each once
    third = run(river_index, tmp_path, says)
    assert (third.done_before, len(says.calls)) == (24, 24)
    assert third.spent == second.spent


def test_a_server_that_fails_and_stalls_costs_no_question(river_index: CorpusIndex, tmp_path: Path) -> None:
    says = Shaky(fails=3, stalls=7)
    done = run(river_index, tmp_path, says)
    assert done.answered == 24
    assert all(row["attempts"] == 1 for row in rows(tmp_path))
    stalled = len(says.calls) // 7
    assert done.lost > 0
    assert done.lost <= stalled * 200  # what the longest prompt and answer may take


def test_what_fails_for_good_is_told_and_tried_again(river_index: CorpusIndex, tmp_path: Path) -> None:
    def broken(prompt: Prompt) -> str:
        if prompt.question.id in ("q3", "q9"):
            raise GenerationError("HTTP 500")
        return "yes"

    done = run(river_index, tmp_path, broken, retries=1)
    assert (done.answered, done.failed) == (22, 2)
    failed = [row for row in rows(tmp_path) if row["state"] == "failed"]
    assert [row["query_id"] for row in failed] == ["q3", "q9"]
    assert all("HTTP 500" in row["error"] for row in failed)
    again = run(river_index, tmp_path, retries=1)
    assert (again.answered, again.failed, again.done_before) == (24, 0, 22)


def test_a_dead_server_ends_the_run(river_index: CorpusIndex, tmp_path: Path) -> None:
    def dead(prompt: Prompt) -> str:
        raise GenerationError("connection refused")

    with pytest.raises(GenerationError, match="20 questions in a row failed"):
        run(river_index, tmp_path, dead, retries=0)


@pytest.mark.parametrize("total", [1, 150, 900, 2000])
def test_a_total_of_tokens_is_never_exceeded(total: int, river_index: CorpusIndex, tmp_path: Path) -> None:
    if total < 70:
        with pytest.raises(InputError, match="below one question"):
            run(river_index, tmp_path, total_tokens=total)
        return
    done = run(river_index, tmp_path, Shaky(fails=4, stalls=5), total_tokens=total)
    assert done.spent + done.lost <= total
    assert done.answered + done.failed + done.unread + done.left == 24
    assert done.left or done.failed or done.unread or done.spent <= total
    if total == 2000:
        assert done.answered > 2


@pytest.mark.parametrize("total", [700, 1500, 2500, 3000])
def test_what_is_left_of_a_total_is_spent_on_reading_less(
    total: int, river_index: CorpusIndex, tmp_path: Path
) -> None:
    limits = {"evidence_tokens": 400, "answer_tokens": 8}
    policy = policy_of({"limits": limits, "search": {"pool": 6}, "price": {"token": 0.0}}, "much")
    done = run(river_index, tmp_path, total_tokens=total, policy=policy)
    left = total - done.spent
    assert done.failed == 0
    assert left >= 0
    assert all(row["selected_ids"] for row in rows(tmp_path) if row["state"] == "answered")
    reader = ScriptedGenerator(Shaky())
    paced = policy.replace(price=Total(total=total, questions=24))
    controller = compose(paced, Setup(retriever=Retriever(river_index, counter=reader)))
    most = sum(controller.most_tokens(QUESTIONS[0], reader))
    least = controller.least_tokens(QUESTIONS[0], reader)  # with one token of evidence
    controller.close()
    assert least is not None
    assert most - least >= 399  # and with what is still asked for where an answer came to nothing
    passages = list(river_index.passages)
    shortest = min(passage_tokens(passages, reader))
    # Not even one passage could be read any more.
    assert done.answered == 24 or left < least - 1 + shortest


def test_a_total_of_dollars_is_never_exceeded(river_index: CorpusIndex, tmp_path: Path) -> None:
    priced = policy_of(
        {"limits": LIMITS, "search": {"pool": 6}, "models": {"reader": {"input": 100.0, "output": 400.0}}},
        "p",
    )
    done = run(river_index, tmp_path / "a", Shaky(stalls=5), policy=priced, total_dollars=0.2)
    assert done.unit == "dollars"
    assert 0 < done.spent <= done.spent + done.lost <= 0.2
    assert 0 < done.answered < 24
    more = run(river_index, tmp_path / "a", policy=priced, total_dollars=9.0)
    assert more.answered == 24  # the total may be raised
    with pytest.raises(InputError, match="needs the price of reader"):
        run(river_index, tmp_path / "b", total_dollars=1.0)
    with pytest.raises(InputError, match="exclude each other"):
        run(river_index, tmp_path / "b", total_dollars=1.0, total_tokens=1000)


@pytest.mark.parametrize("untold", [False, True])
@pytest.mark.parametrize("dollars", [0.034, 0.036, 0.11, 0.2, 0.4])
def test_what_is_asked_again_without_an_answer_is_within_the_total(
    untold: bool, dollars: float, river_index: CorpusIndex, tmp_path: Path
) -> None:
    models = {"reader": {"input": 100.0, "output": 400.0}}
    policy = policy_of({"limits": LIMITS, "search": {"pool": 6}, "models": models}, "p")
    billed = []

    class Useless(ScriptedGenerator):
        """Takes the most that it may, and says nothing of use."""

        def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
            said = Answer("?", self.prompt_tokens(prompt), max_tokens, 0.0, self.name)
            billed.append(said.prompt_tokens * 1e-4 + said.completion_tokens * 4e-4)
            raise GenerationError("no letter", None if untold else said, untold=untold)

    done = ask_many(
        QUESTIONS[:6], river_index, Useless({}), policy, tmp_path, total_dollars=dollars, retries=2
    )
    assert done.answered == 0
    assert sum(billed) <= done.spent + done.lost + 1e-9 <= dollars + 2e-9


def test_what_a_killed_run_held_is_lost_and_asked_again(river_index: CorpusIndex, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    run(river_index, tmp_path, stop=stop)  # begins the ledger, and asks nothing
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert ledger.hold(0, 500, None)
    ledger.close()  # as a kill leaves it
    done = run(river_index, tmp_path)
    assert (done.answered, done.lost) == (24, 500)
    assert rows(tmp_path)[0]["attempts"] == 2


class Mortal:
    """Dies with some questions, as a worker elsewhere may."""

    def __init__(self, deaths: dict[str, int]) -> None:
        self.deaths, self.asked = deaths, Counter[str]()

    def most(self, question: Question) -> int:
        return 100

    def least(self, question: Question) -> int | None:
        return None

    def answer(self, claim: Claim) -> Answered:
        self.asked[claim.question.id] += 1
        if self.asked[claim.question.id] <= self.deaths.get(claim.question.id, 0):
            raise Died("the worker died")
        return Answered(60, {"answer": "a", "token_price": 0.001})


@pytest.mark.parametrize(("total", "answered"), [(None, 23), (700, 4)])
def test_what_a_dead_worker_held_is_lost_and_its_question_is_asked_again(
    total: int | None, answered: int, tmp_path: Path
) -> None:
    ledger, team = Ledger(tmp_path / "l.sqlite"), Mortal({"q1": 1, "q2": 99})
    ledger.begin({"policy": "x"}, QUESTIONS)
    Workers(ledger, team, total, threading.Event(), None, len(QUESTIONS)).work(1)
    account = ledger.account()
    assert account.states["answered"] == answered
    assert account.states["failed"] == 1  # the one that no worker survived
    assert (account.spent, account.held, account.lost) == (60 * answered, 0, 400)
    assert (team.asked["q1"], team.asked["q2"]) == (2, 3)
    assert ledger.last_price() == 0.001
    ledger.close()


def test_a_total_of_tokens_may_be_raised_and_the_price_goes_on(
    river_index: CorpusIndex, tmp_path: Path
) -> None:
    first = run(river_index, tmp_path, total_tokens=800, concurrency=1)
    assert 0 < first.answered < 24
    left = [row["token_price"] for row in rows(tmp_path) if row["state"] == "answered"][-1]
    more = run(river_index, tmp_path, total_tokens=9000, concurrency=1)
    assert more.answered == 24
    assert first.spent < more.spent <= 9000
    assert rows(tmp_path)[first.answered]["token_price"] == pytest.approx(left)


def test_ray_is_refused_what_it_cannot_do_all_at_once(river_index: CorpusIndex, tmp_path: Path) -> None:
    bandit = policy_of(
        {"search": {"by": "bandit", "strategies": ["raw", "hyde"], "state": "b.sqlite"}}, "b", tmp_path
    )
    with pytest.raises(InputError) as error:
        run(river_index, tmp_path / "o", policy=bandit, engine="ray", workers=0)
    told = "; ".join(error.value.problems)
    for said in ("a bandit learns in one file", "workers=0", "folder of an index", "name of a generator"):
        assert said in told
    with pytest.raises(InputError, match="engine='spark' is unknown"):
        run(river_index, tmp_path / "o", engine="spark")
    assert not (tmp_path / "o").exists()  # nothing was made


def test_nobody_is_charged_twice(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.begin({"policy": "x"}, QUESTIONS)
    claim = Claim(0, QUESTIONS[0])
    assert ledger.hold(0, 100, 150)
    assert not ledger.hold(1, 100, 150)
    ledger.settle(claim, 60, {"answer": "a"})
    with pytest.raises(StateError, match="settled already"):
        ledger.settle(claim, 60, {"answer": "a"})
    account = ledger.account()
    assert (account.spent, account.held, account.lost) == (60, 0, 0)
    assert account.states == {"answered": 1, "open": 23}
    assert ledger.hold(1, 90, 150)
    # 60 + 90 are taken: a lost call of 50 comes out of what is held, and no other may be made.
    assert not ledger.lose(Claim(1, QUESTIONS[1]), 50, 150)
    account = ledger.account()
    assert (account.spent, account.held, account.lost) == (60, 40, 50)
    ledger.close()
    (tmp_path / "other.sqlite").write_bytes(b"something else, and long enough to be no database at all")
    with pytest.raises(InputError, match="cannot be used as a ledger"):
        Ledger(tmp_path / "other.sqlite")


@pytest.mark.parametrize(
    ("damage", "row"),
    [
        ("questions SET choices = '{'", "row 0 of questions"),
        ("questions SET choices = '[1]'", "row 0 of questions"),
        ("questions SET question = ' '", "row 0 of questions"),
        ("questions SET told = '7', state = 'answered'", "row 23 of questions"),
        ("account SET spent = 'much'", "row 1 of account"),
    ],
)
def test_a_damaged_ledger_is_refused_with_file_and_row(
    damage: str, row: str, river_index: CorpusIndex, tmp_path: Path
) -> None:
    stop = threading.Event()
    stop.set()
    run(river_index, tmp_path, stop=stop)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection, connection:
        connection.execute(f"UPDATE {damage}")
    with pytest.raises(StateError, match=f"ledger.sqlite' is damaged: {row} holds"):
        run(river_index, tmp_path)


def test_other_questions_or_another_policy_do_not_mix(river_index: CorpusIndex, tmp_path: Path) -> None:
    run(river_index, tmp_path)
    with pytest.raises(InputError, match="another questions"):
        run(river_index, tmp_path, questions=QUESTIONS[:3])
    with pytest.raises(InputError, match="another policy"):
        run(river_index, tmp_path, policy=policy_of({"price": {"token": 0.5}, "limits": LIMITS}, "other"))
    with pytest.raises(InputError, match="there are no questions"):
        run(river_index, tmp_path / "none", questions=())


def test_retrying_waits_longer_each_time_and_passes_on_what_was_said() -> None:
    waits: list[float] = []
    told: list[tuple[int, int]] = []

    def untold(into: int, out: int) -> bool:
        told.append((into, out))
        return len(told) < 2

    def wrapped(says: Any, retries: int = 5) -> Generator:
        return Retrying(ScriptedGenerator(says), retries, untold, waits.append)

    prompt = build_prompt(QUESTIONS[0])
    assert wrapped(Shaky(fails=2)).generate(prompt).text == "241 kilometres"

    def never(asked: Prompt) -> str:
        raise GenerationError("HTTP 500")

    with pytest.raises(GenerationError, match="HTTP 500"):
        wrapped(never, 3).generate(prompt)
    assert len(waits) == 3
    with pytest.raises(GenerationError, match="no answer within"):
        wrapped(Shaky(stalls=1)).generate(prompt, max_tokens=9)
    assert told == [(wrapped(never).prompt_tokens(prompt), 9)] * 2  # the second was the last one allowed


def test_counts_of_a_server_are_tried_again_and_asked_for_once() -> None:
    asked: list[str] = []

    class Remote(ScriptedGenerator):
        def prompt_tokens(self, prompt: Prompt) -> int:
            asked.append(prompt.user)
            if len(asked) == 1:
                raise GenerationError("HTTP 500")
            return 7

    reader = Retrying(Remote(lambda prompt: ""), 2, lambda into, out: True, lambda seconds: None)
    assert [reader.prompt_tokens(build_prompt(QUESTIONS[0])) for _ in range(3)] == [7, 7, 7]
    assert len(asked) == 2


def test_the_command_resumes(river_index: CorpusIndex, tmp_path: Path) -> None:
    index, asked, out = (tmp_path / name for name in ("INDEX", "q.jsonl", "out"))
    river_index.save(index)
    asked.write_text('{"id": "a", "question": "How long is the Tiber?"}\n')
    done = here("answer-batch", asked, index, "--out", out, "--policy", "frugal", "--json")
    assert (done.returncode, json.loads(done.stdout)["answered"]) == (0, 1), done.stderr
    again = here("answer-batch", asked, index, "--out", out, "--policy", "frugal")
    assert "1 were answered before" in again.stdout
    wrong = here("answer-batch", asked, index, "--out", out, "--policy", "nobody", "--generator", "gguf:none")
    assert wrong.returncode == 2
    assert "neither a file nor a preset" in wrong.stderr
    assert "gguf:none: no such file" in wrong.stderr
