"""Keys: what they may read and spend, in windows of the calendar, whatever clocks, threads and kills do."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from mio_rag import InputError
from mio_rag.allocation.money import Rate
from mio_rag.errors import SpentError
from mio_rag.generation import ScriptedGenerator, make_generator
from mio_rag.generation.extractive import ExtractiveGenerator
from mio_rag.generation.protocol import Prompt
from mio_rag.retrieval import CorpusIndex
from mio_rag.service.app import create_app
from mio_rag.service.keys import (
    WINDOWS,
    Accounts,
    BudgetHeldError,
    BudgetSpentError,
    Key,
    Keys,
    begins,
    ends,
    midnight,
    new_key,
    read_keys,
)
from mio_rag.service.run import check
from mio_rag.service.settings import ServiceSettings
from mio_rag.types import Answer, GenerationError

QUESTION = "Which tower is taller, Bell Rock Lighthouse or Skerryvore?"
BODY = {"question": QUESTION, "budget_tokens": 256, "deadline_seconds": 20}
SHA = "0" * 64
BERLIN = ZoneInfo("Europe/Berlin")


class Clock:
    """A clock that is set by hand."""

    def __init__(self, zone: ZoneInfo, *when: int) -> None:
        self.now = datetime(*when, tzinfo=zone).timestamp()  # type: ignore[arg-type, misc]

    def __call__(self) -> float:
        return self.now


def accounts(clock: Clock, zone: ZoneInfo = BERLIN, file: Path | None = None) -> Accounts:
    return Accounts(file, zone, clock)


# -- the calendar


@settings(max_examples=300, deadline=None)
@given(
    st.dates(date(1990, 1, 1), date(2037, 12, 1)),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]),
    st.sampled_from(WINDOWS),
    st.integers(0, 86_399),
)
def test_every_moment_is_in_one_window_that_ends_where_the_next_begins(
    day: date, name: str, window: Any, second: int
) -> None:
    zone = ZoneInfo(name)
    now = midnight(day, zone) + min(second, midnight(day + timedelta(days=1), zone) - midnight(day, zone) - 1)
    today = datetime.fromtimestamp(now, zone).date()
    assert today == day
    first, after = begins(window, today), ends(window, today)
    assert first <= today < after
    assert begins(window, after) == after
    assert midnight(first, zone) <= now < midnight(after, zone)
    assert first.weekday() == 0 if window == "week" else window != "month" or first.day == 1
    start = datetime.fromtimestamp(midnight(first, zone), zone)
    assert (start.hour, start.minute) == (0, 0)


def ends_at(spent: Any) -> float:
    """The end of the window that blocks, in seconds since 1970."""
    return datetime.fromisoformat(spent.value.resets_at).timestamp()


@pytest.mark.parametrize(("day", "hours"), [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 7, 1), 24)])
def test_a_day_of_any_length_has_one_budget(day: tuple[int, int, int], hours: int) -> None:
    key, clock = Key(sha256=SHA, tokens={"day": 100}), Clock(BERLIN, *day)
    book = accounts(clock)
    begin = clock.now
    for hour in (0, 2, hours / 2, hours - 0.001):
        clock.now = begin + 3600 * hour
        book.reserve(key, "", (25, 0), 25, None).settle(25)
    with pytest.raises(BudgetSpentError, match=r"is 100 tokens a day: 0 tokens are left.*again at") as spent:
        book.reserve(key, "", (1, 0), 1, None)
    assert ends_at(spent) == begin + 3600 * hours
    clock.now = begin + 3600 * hours
    assert book.reserve(key, "", (100, 0), 100, None).allowed == 100


def test_all_limits_hold_together_and_the_last_to_end_says_when() -> None:
    clock = Clock(BERLIN, 2026, 11, 25, 12)  # a Wednesday
    limits = {"tokens": {"day": 100, "month": 250}, "dollars": {"week": 0.0002}}
    key, rate, book = Key(sha256=SHA, **limits), Rate("m", 1.0, 1.0), accounts(clock)
    assert book.reserve(key, "", (90, 90), 1, rate).allowed == 100  # not settled: it counts in full
    with pytest.raises(BudgetHeldError, match=r"requests in progress hold more.*again in a second") as held:
        book.reserve(key, "", (5, 0), 5, rate)
    assert held.value.retry_after == 1
    clock.now += 3600  # it is of a process that was killed
    with pytest.raises(BudgetSpentError) as spent:
        book.reserve(key, "", (5, 0), 5, rate)
    assert spent.value.window == "day"
    clock.now += 86_400
    book.reserve(key, "", (100, 0), 1, rate).settle(95, 0.000095)
    assert book.reserve(key, "", (100, 0), 1, rate).allowed == 5  # 5 of the day, and of the week's dollars
    clock.now += 3600
    with pytest.raises(BudgetSpentError) as spent:
        book.reserve(key, "", (1, 0), 1, rate)
    assert (spent.value.window, ends_at(spent)) == ("week", midnight(date(2026, 11, 30), BERLIN))
    clock.now = ends_at(spent)
    assert book.reserve(key, "", (100, 0), 1, rate).allowed == 50  # of the month
    clock.now += 3600
    with pytest.raises(BudgetSpentError) as spent:
        book.reserve(key, "", (1, 0), 1, rate)
    assert (spent.value.window, ends_at(spent)) == ("month", midnight(date(2026, 12, 1), BERLIN))
    assert book.spent(key)["tokens", "month"] == (250, 250)


def test_dollars_are_reserved_at_their_highest_and_settled_as_they_are() -> None:
    key, rate = Key(sha256=SHA, dollars={"day": 0.001}), Rate("m", 1.0, 10.0)
    book = accounts(Clock(BERLIN, 2026, 11, 25))
    held = book.reserve(key, "", (400, 60), 10, rate)
    assert held.allowed == 460
    held.settle(100, 0.0001)
    held.settle(999, 9.0)  # once
    assert book.spent(key) == {("dollars", "day"): (0.0001, 0.001)}
    assert book.reserve(key, "", (2000, 60), 10, rate).allowed == 360  # 60 of 10, 300 of 1 dollar a million


def test_a_shrinking_key_reads_less_as_the_window_runs_out() -> None:
    clock = Clock(BERLIN, 2026, 11, 25, 0)
    key, book = Key(sha256=SHA, tokens={"day": 1000}, when_spent="shrink"), accounts(clock)
    assert book.share(key, "") == 1
    book.reserve(key, "", (500, 0), 1, None).settle(500)
    clock.now += 6 * 3600
    assert book.share(key, "") == pytest.approx(0.5 / 0.75)
    clock.now += 17 * 3600
    assert book.share(key, "") == 1  # enough for the rest of the day
    assert book.share(key.replace(when_spent="refuse"), "") == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 60), st.integers(0, 60), st.booleans()), max_size=30
    ),
    st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe"]),
)
def test_no_order_of_questions_exceeds_a_limit(steps: list[tuple[int, int, int, bool]], zone: str) -> None:
    clock = Clock(ZoneInfo(zone), 2026, 10, 23)
    key = Key(sha256=SHA, tokens={"day": 100, "week": 220}, per_user={"tokens": {"day": 60}})
    book, told = accounts(clock, ZoneInfo(zone)), list[tuple[date, str, int]]()
    for hours, wanted, used, settles in steps:
        clock.now += 3600 * hours
        day, user = datetime.fromtimestamp(clock.now, ZoneInfo(zone)).date(), "ab"[wanted % 2]
        try:
            held = book.reserve(key, user, (wanted, 0), 1, None)
        except SpentError:
            continue
        spent = min(used, held.allowed) if settles else held.allowed
        if settles:
            held.settle(spent)
        told.append((day, user, spent))
    for window, most in (("day", 100), ("week", 220)):
        sums: dict[date, int] = {}
        for day, _, spent in told:
            first = begins(window, day)  # type: ignore[arg-type]
            sums[first] = sums.get(first, 0) + spent
        assert all(total <= most for total in sums.values())
    for one in {(day, user) for day, user, _ in told}:
        assert sum(spent for day, user, spent in told if (day, user) == one) <= 60


_KILLED = """
import os, sys, time
from zoneinfo import ZoneInfo
from pathlib import Path
from mio_rag.service.keys import Accounts, Key
book = Accounts(Path(sys.argv[1]), ZoneInfo("UTC"))
book.reserve(Key(sha256="0" * 64, tokens={"day": 100}), "", (70, 0), 1, None)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_had_reserved_counts_in_full(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "k.sqlite")], check=False)
    assert done.returncode == -9
    book = Accounts(tmp_path / "k.sqlite", ZoneInfo("UTC"))
    assert book.reserve(Key(sha256=SHA, tokens={"day": 100}), "", (70, 0), 1, None).allowed == 30


# -- the file


def key_file(folder: Path, text: str) -> tuple[Path, str]:
    """A file with one key and further settings of it, and the key."""
    key, table = new_key("support")
    file = folder / "keys.toml"
    file.write_text(f'timezone = "Europe/Berlin"\n{table}{text}')
    return file, key


def test_a_file_of_keys_is_checked_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(
        f'timezone = "Europe/Atlantis"\n[keys.a]\nsha256 = "12"\n[keys.b]\nsha256 = "{SHA}"\n'
        "tokens = { day = 0, year = 1 }\n"
    )
    with pytest.raises(InputError) as wrong:
        read_keys(file)
    told = "\n".join(wrong.value.problems)
    for words in ("a name of the IANA database", "keys.a.sha256", "tokens.day must be >= 1", "year"):
        assert words in told, words
    file.write_text(f'[keys.a]\nsha256 = "{SHA}"\nwhere = "tenant"\n[keys.b]\nsha256 = "{SHA}"\n')
    with pytest.raises(InputError, match=r"keys.a.where: 'tenant' is no condition.*the same sha256"):
        read_keys(file)
    file.write_text(f'[keys.a]\nsha256 = "{SHA}"\ndollars = {{ week = 5.0 }}\n')
    with pytest.raises(InputError, match="limits dollars, and the reader 'extractive' has no price"):
        check(ServiceSettings("index", keys=str(file)), None, False)
    with pytest.raises(InputError, match="can be reached from other machines, and no key is set"):
        check(ServiceSettings("index", host="0.0.0.0"), None, without_key=False)
    with pytest.raises(InputError, match="16 or more"):
        check(ServiceSettings("index"), "short", without_key=False)


def test_a_changed_file_is_taken_over_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    file, key = key_file(tmp_path, "tokens = { day = 10 }\n")
    keys, (other, table) = Keys(file), new_key("other")
    assert keys.caller(other) is keys.caller(key[:-1]) is None
    file.write_text(table)
    assert keys.caller(other) is not None
    assert keys.caller(key) is None
    file.write_text("[keys")
    assert keys.caller(other) is not None


# -- the service


@pytest.fixture
def asking(demo_index: CorpusIndex, tmp_path: Path) -> Iterator[Any]:
    """Makes a client of a service with one key."""
    with ExitStack() as stack:

        def made(text: str, reader: Any = None, **more: Any) -> tuple[TestClient, Callable[[], float]]:
            file, key = key_file(tmp_path, text)
            keys = Keys(file, **({"clock": more.pop("clock")} if "clock" in more else {}))
            app = create_app(demo_index, reader or make_generator("extractive"), keys=keys, **more)
            headers = {"Authorization": f"Bearer {key}"}
            client = TestClient(app, raise_server_exceptions=False, headers=headers)

            def spent() -> float:
                assert keys.accounts is not None
                return keys.accounts.spent(dict(keys)["support"])["tokens", "day"][0]

            return stack.enter_context(client), spent

        yield made


def test_a_spent_key_is_refused_until_the_window_ends(asking: Any, tmp_path: Path) -> None:
    client, _ = asking("tokens = { day = 700, month = 100_000 }\n")
    with ThreadPoolExecutor(8) as many:
        answers = list(many.map(lambda _: client.post("/ask", json=BODY), range(16)))
    good = [a.json()["usage"] for a in answers if a.status_code == 200]
    assert 0 < sum(a["prompt_tokens"] + a["completion_tokens"] for a in good) <= 700
    for _ in range(9):
        last = client.post("/ask", json=BODY)
    assert last.status_code == 429
    assert 0 < int(last.headers["Retry-After"]) <= 25 * 3600
    error = last.json()["error"]
    assert (error["code"], error["window"]) == ("budget_spent", "day")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:00:00Z", error["resets_at"])
    text = client.get("/metrics").text
    assert 'mio_rag_key_limit{key="support",unit="tokens",window="month"} 100000.0' in text
    assert re.search(r'mio_rag_key_spent\{key="support",unit="tokens",window="day"\} [1-9]', text)
    held = asking('tokens = { day = 9 }\nwhere = "source=*"\n[keys.other]\nsha256 = "' + "0" * 64 + '"\n')[0]
    assert 'key="other"' not in held.get("/metrics").text
    with sqlite3.connect(tmp_path / "keys.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM reserved").fetchone() == (0,)


def test_a_context_that_fills_its_budget_fits_what_is_reserved(asking: Any, demo_index: CorpusIndex) -> None:
    whole = " ".join(demo_index.passages[0].text.split()[:60])
    client, _ = asking("tokens = { day = 200_000 }\n", ScriptedGenerator(lambda prompt: whole))
    body = {**BODY, "passage_penalty": 0, "redundancy_weight": 0, "merge": False}
    unused = []
    for tokens in (*range(60, 64), *range(200, 206)):
        answer = client.post("/ask", json={**body, "budget_tokens": tokens})
        assert answer.status_code == 200, answer.text
        unused.append(tokens - answer.json()["tokens"])
        chat = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
        chat |= {"mio_rag": {"budget_tokens": tokens}}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
    assert min(unused) <= 3  # some context filled its budget


def test_near_its_end_a_key_that_refuses_reads_no_less_than_was_asked(asking: Any) -> None:
    client, _ = asking("tokens = { day = 900 }\n")
    answers = [client.post("/ask", json=BODY) for _ in range(6)]
    assert {a.json()["budget"] for a in answers if a.status_code == 200} == {BODY["budget_tokens"]}
    assert answers[-1].status_code == 429
    assert "ask for less (budget_tokens, max_tokens)" in answers[-1].json()["error"]["message"]
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}]}
    refused = client.post("/v1/chat/completions", json=chat)
    assert refused.status_code == 429
    assert (
        'ask for less ("mio_rag": {"budget_tokens": ...}, max_tokens)' in refused.json()["error"]["message"]
    )
    chat |= {"mio_rag": {"budget_tokens": 20}, "max_tokens": 8}
    assert client.post("/v1/chat/completions", json=chat).status_code == 200
    assert client.post("/ask", json={**BODY, "budget_tokens": 40, "max_tokens": 8}).status_code == 200


@pytest.mark.parametrize(
    ("path", "tokens"), [("/v1/chat/completions", 1650), ("/ask", 1200), ("/select", 1024)]
)
def test_the_guide_names_what_one_question_needs(asking: Any, path: str, tokens: int) -> None:
    asked = (
        {"messages": [{"role": "user", "content": QUESTION}]} if "chat" in path else {"question": QUESTION}
    )
    for day, status in ((tokens, 200), (tokens - 100, 429)):
        client, _ = asking(f"tokens = {{ day = {day} }}\n", ScriptedGenerator(lambda prompt: "48"))
        assert client.post(path, json=asked).status_code == status


def test_a_wrong_key_is_told_from_none(asking: Any) -> None:
    client, _ = asking("")
    said = [
        client.post("/ask", json=BODY, headers={"Authorization": given}).json()["error"]["message"]
        for given in ("Bearer mio-wrong", "")
    ]
    assert ["this key is not known" in one for one in said] == [True, False]


def test_a_key_reads_only_what_its_filter_allows(asking: Any) -> None:
    client, _ = asking("where = \"title = 'Skerry*'\"\n")
    for where in (None, "title!=nothing", {"title": {"!=": "Bell Rock Lighthouse"}}):
        got = client.post("/select", json={**BODY, "where": where, "why": True}).json()
        assert {one["title"] for one in got["reasons"]} == {"Skerryvore Lighthouse"}
    nothing = client.post("/select", json={**BODY, "where": "title=Bell*"})
    assert nothing.status_code == 400
    assert "meets the filter" in nothing.json()["error"]["message"]


class _Broken(ExtractiveGenerator):
    """Reads, and then does not answer."""

    error: Exception = GenerationError("the model broke", untold=True)

    def _generate(self, prompt: Prompt, max_tokens: int) -> Answer:
        raise self.error


@pytest.mark.parametrize(("error", "status"), [(_Broken.error, 502), (OSError("the line is cut"), 500)])
def test_a_request_that_fails_pays_for_what_was_sent_to_the_reader(
    error: Exception, status: int, asking: Any
) -> None:
    reader = _Broken()
    reader.error = error
    client, spent = asking("tokens = { day = 100_000 }\n", reader)
    assert client.post("/ask", json={**BODY, "question": "  "}).status_code == 400
    assert spent() == 0
    assert client.post("/ask", json=BODY).status_code == status
    assert 50 < spent() < 1000


def test_a_shrunk_budget_reads_less(asking: Any) -> None:
    reader, month_begins = ScriptedGenerator(lambda prompt: "Skerryvore"), Clock(BERLIN, 2026, 11, 1, 1)
    rates = {"scripted": Rate("scripted", 1.0, 1.0)}
    client, _ = asking(
        'tokens = { month = 5000 }\nwhen_spent = "shrink"\n', reader, clock=month_begins, rates=rates
    )
    budgets = [client.post("/ask", json=BODY).json()["budget"] for _ in range(3)]
    assert budgets[0] == 256
    assert budgets[0] > budgets[1] > budgets[2]
