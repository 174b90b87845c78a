"""The pacer: its total holds whatever happens, its price follows what is spent, its state outlives it."""

from __future__ import annotations

import math
import os
import random
import signal
import sqlite3
import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from mio_rag import Candidates, InputError, Selector
from mio_rag.allocation.pacer import FIRST_PRICE, Pacer
from mio_rag.errors import SpentError, StateError

DAY, COUNT = 86400.0, 400
POSIX = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self, now: float = 1e6) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def pool(seed: int = 0, n: int = 12) -> Candidates:
    rng = np.random.default_rng(seed)
    return Candidates(
        ids=[f"p{k}" for k in range(n)],
        texts=["text"] * n,
        relevance=np.sort(rng.uniform(0, 1, n))[::-1],
        tokens=rng.integers(40, 160, n),
    )


def test_a_reservation_holds_its_tokens_until_it_is_settled() -> None:
    pacer = Pacer(1000, horizon=4, most=600)
    first = pacer.ask()
    price, allowed = first
    assert (price, allowed) == (FIRST_PRICE, 600)
    assert pacer.ask().allowed == 400
    assert pacer.ask().allowed == 0
    pacer.spent(first, 100)
    account = pacer.account()
    assert (account.spent, account.reserved, account.left) == (100, 400, 500)
    assert pacer.ask(200).allowed == 200


def test_the_price_rises_with_what_is_spent_beyond_the_share_and_falls_below_it() -> None:
    def after(used: int) -> float:
        pacer = Pacer(100_000, horizon=100, price=0.002)
        pacer.spent(pacer.ask(), used)
        return pacer.account().price

    assert after(1000) == pytest.approx(0.002)
    # exp(1.5 / sqrt(100) * (1500 - 1000) / 1000)
    assert after(1500) == pytest.approx(0.002 * math.exp(0.075))
    assert after(0) == pytest.approx(0.002 * math.exp(-0.15))


def test_refusing_says_how_much_is_left_and_when_there_is_more() -> None:
    clock = Clock(7200.0 + 600)
    pacer = Pacer(500, window="hour", when_spent="refuse", clock=clock)
    held = pacer.ask(400)
    with pytest.raises(
        SpentError, match=r"100 tokens of 500 left, 400 tokens reserved .* 200 wanted"
    ) as found:
        pacer.ask(200)
    assert found.value.retry_after == 3000
    assert pacer.account().refused == 1
    pacer.spent(held, 0)
    assert pacer.ask(200).allowed == 200
    rest = Pacer(500, horizon=3, most=500)
    held = rest.ask()
    with pytest.raises(SpentError, match="there are more in 1 s"):  # what is under way may leave some
        rest.ask(least=1)
    rest.spent(held, 500)
    with pytest.raises(SpentError, match="there will be no more") as found:
        rest.ask(10, least=1)
    assert found.value.retry_after is None


def test_a_new_window_has_the_whole_total_and_yesterdays_mean_price() -> None:
    clock = Clock(0.0)
    pacer = Pacer(10_000, horizon=10, window="day", price=0.01, clock=clock)
    prices = []
    for used in (1500, 2000, 500):
        reservation = pacer.ask()
        prices.append(reservation.price)
        pacer.spent(reservation, used)
    held = pacer.ask(100)
    prices.append(held.price)
    clock.now = 86400.0
    account = pacer.account()
    assert (account.spent, account.reserved, account.left, account.asked) == (0, 0, 10_000, 0)
    assert account.price == pytest.approx(float(np.exp(np.mean(np.log(prices)))))
    assert account.ends_in == 86400
    pacer.spent(held, 30)  # counts in its own window
    assert pacer.account().spent == 0
    clock.now = 10.0  # a clock that is put back gives nothing twice
    pacer.ask(500)
    assert pacer.account().left == 10_000 - 4030 - 500


def test_selecting_pays_the_price_and_stops_at_the_total() -> None:
    pacer = Pacer(1000, horizon=8)
    selector = Selector.raw(redundancy_weight=0.0, passage_penalty=0.0)
    used = []
    for k in range(12):
        made = pacer.select(pool(k), selector)
        used.append(made.tokens_used)
    assert sum(used) == pacer.account().spent <= 1000
    assert used[-1] == 0
    last = pacer.select(pool(), selector)
    assert last.chosen == () or last.tokens_used <= pacer.account().total
    exhausted = Pacer(50, horizon=1)
    exhausted.ask()
    empty = exhausted.select(pool(), selector)
    assert empty.chosen == ()
    assert "no tokens are left: nothing is read" in empty.notes


def test_a_failed_selection_spends_nothing() -> None:
    pacer = Pacer(1000, horizon=8)
    with pytest.raises(InputError):
        pacer.select(pool(), Selector.raw(redundancy_weight=0.5))  # without embeddings
    account = pacer.account()
    assert (account.spent, account.reserved, account.left, account.asked) == (0, 0, 1000, 0)
    assert account.price == FIRST_PRICE  # a failure says nothing about what tokens are worth
    again = pacer.ask(100)
    pacer.release(again)
    with pytest.raises(InputError, match="settled already"):
        pacer.release(again)


# --- the questions to come ----------------------------------------------------------------------------------


def test_a_forecast_sets_the_first_price_or_the_number_of_questions() -> None:
    assert Pacer(20_000, 100, price=0.001, mean_tokens=200).ask().price == pytest.approx(0.001)
    assert Pacer(20_000, 100, price=0.001, mean_tokens=400).ask().price == pytest.approx(0.001 * 2 ** (2 / 3))
    shares = []
    for mean_tokens in (None, 50):  # 100 questions, as long as nothing is known; 20,000 / 50 = 400
        pacer = Pacer(20_000, window="day", price=0.001, mean_tokens=mean_tokens, clock=Clock(0.0))
        pacer.spent(pacer.ask(), 100)
        shares.append(pacer.account().price)
    assert shares[0] < 0.001 < shares[1]


def morning(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.sort(rng.normal(10, 2.5, count) % 24) / 24


def evenly(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.sort(rng.uniform(0, 1, count))


def value_of(days: list[np.ndarray]) -> float:
    """The last day, as a share of what one price for all of it would be worth.

    A question at a price p spends 250 (.004 / p) ** .5 tokens; each token more is worth what it costs.
    """
    clock, total = Clock(days[0][0] * DAY), 250 * COUNT
    pacer, spent = Pacer(total, window="day", clock=clock), []
    for number, day in enumerate(days):
        spent = []
        for share in day:
            clock.now = (number + share) * DAY
            reservation = pacer.ask()
            spent.append(min(reservation.allowed, round(250 * (0.004 / reservation.price) ** 0.5)))
            pacer.spent(reservation, spent[-1])
        assert sum(spent) <= total
    # d value / d tokens = .004 (250 / tokens) ** 2, which is bounded where next to nothing is read
    worth = [0.004 * 250 * (2 - 250 / t) if t > 125 else 0.0 for t in spent]
    each = total / len(days[-1])
    return sum(worth) / (len(spent) * 0.004 * 250 * (2 - 250 / each))


def test_a_day_has_the_hours_of_the_days_before() -> None:
    for hours in (morning, evenly):
        rng = np.random.default_rng(1)
        assert value_of([hours(rng, COUNT) for _ in range(3)]) > 0.97
    rng = np.random.default_rng(1)
    part = evenly(rng, COUNT)  # a first day that was watched in part does not make the next one quiet
    for first in (0.5, 0.99):
        assert value_of([part[part > first], evenly(rng, COUNT)]) > 0.8


# --- files --------------------------------------------------------------------------------------------------


def test_a_file_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "pacer.sqlite"
    first = Pacer(10_000, horizon=10, path=path, price=0.003)
    first.spent(first.ask(), 2000)
    price = first.account().price
    first.close()
    second = Pacer(10_000, horizon=10, path=path, price=0.5)
    assert second.account().price == price > 0.003
    assert second.account().spent == 2000
    assert Pacer(10_000, horizon=10, path=path).ask(9000).allowed == 8000


def test_files_of_something_else_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "pacer.sqlite"
    Pacer(10_000, horizon=10, path=path).close()
    with pytest.raises(InputError, match=r"total tokens 10000 there, 20000 here.*price=0\.001"):
        Pacer(20_000, horizon=10, path=path)
    with pytest.raises(InputError, match=r"window none there, 86400 s here"):
        Pacer(10_000, horizon=10, window="day", path=path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(InputError, match="of version 7, and this is version 9"):
        Pacer(10_000, horizon=10, path=path)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE notes (text)")
    with pytest.raises(InputError, match="a database of something else"):
        Pacer(10_000, horizon=10, path=other)
    text = tmp_path / "notes.txt"
    text.write_text("not a database " * 100, encoding="utf-8")
    with pytest.raises(InputError, match="cannot be used"):
        Pacer(10_000, horizon=10, path=text)
    with pytest.raises(InputError, match="cannot be used"):
        Pacer(10_000, horizon=10, path=tmp_path)


def test_a_file_that_another_makes_meanwhile_is_no_file_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> Pacer:
        return Pacer(1000, horizon=10, path=tmp_path / "pacer.sqlite")

    class Slow(sqlite3.Connection):
        """Lets another make the file between two looks at it."""

        def execute(self, statement: str, *more: Any) -> sqlite3.Cursor:
            if statement == "PRAGMA user_version" and other.ident is None:
                monkeypatch.undo()
                other.start()
                other.join(0.3)
            return super().execute(statement, *more)

    other, connect = Thread(target=made), sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **more: connect(*given, factory=Slow, **more))
    made().spent(made().ask(10), 10)
    other.join()
    assert made().account().spent == 10


# --- clocks, full disks, threads ----------------------------------------------------------------------------


def test_what_expires_while_a_question_of_an_older_window_tells_is_counted() -> None:
    clock = Clock(0.0)
    pacer = Pacer(1000, 10, 3600, clock=clock, expires_seconds=10)
    old = pacer.ask(100)
    clock.now = 3600.0
    lost = pacer.ask(300)
    clock.now = 3620.0  # now both have expired, and the first to notice is the older one
    pacer.spent(old, 50)
    account = pacer.account()
    assert (account.spent, account.lost, account.reserved, account.left) == (300, 300, 0, 700)
    pacer.spent(lost, 120)
    account = pacer.account()
    assert (account.spent, account.lost, account.reserved, account.left) == (120, 0, 0, 880)


@pytest.mark.parametrize(
    "damage", ['{"settled": "x"}', '{"price": "dear"}', '{"usual": 7}', '{"price": 1e999}', "{"]
)
def test_damaged_state_is_refused_with_file_and_row(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "pacer.sqlite"
    pacer = Pacer(1000, horizon=8, path=path)
    with sqlite3.connect(path) as connection:
        changed = "state || '{'" if damage == "{" else f"json_patch(state, '{damage}')"
        connection.execute(f"UPDATE windows SET state = {changed}")
    for asked in (pacer.ask, pacer.account):
        with pytest.raises(StateError, match=r"pacer.sqlite' is damaged: row 1 of windows holds \w+="):
            asked()


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, -1.0, 1e13, None, "noon", True])
def test_a_clock_that_gives_no_time_is_refused_and_nothing_is_lost(now: Any) -> None:
    clock = Clock()
    pacer = Pacer(1000, horizon=8, window="day", clock=clock)
    held = pacer.ask(300)
    clock.now = now
    message = "clock\\(\\) gave .* seconds since 1970, a number from 0 to 1e\\+12"
    for asked in (pacer.ask, pacer.account, lambda: pacer.spent(held, 5)):
        with pytest.raises(InputError, match=message):
            asked()
    with pytest.raises(InputError, match=message):
        Pacer(1000, horizon=8, clock=clock)
    clock.now = 1e6
    assert pacer.account().reserved == 300
    pacer.spent(held, 5)
    assert pacer.account().spent == 5


def test_whatever_the_clock_does_each_window_keeps_to_its_total(tmp_path: Path) -> None:
    rng, clock = np.random.default_rng(5), Clock(0.0)
    pacer = Pacer(2000, 20, 100.0, path=tmp_path / "p.sqlite", most=300, expires_seconds=30, clock=clock)
    spent: dict[int, int] = {}
    open_ones = []
    for _ in range(500):
        clock.now = max(0.0, clock.now + float(rng.choice([1, 5, 40, 150, 1e9, -1, -60, -150, -1e9])))
        number = int(clock.now // 100)
        if open_ones and rng.random() < 0.5:
            reservation, of = open_ones.pop(int(rng.integers(len(open_ones))))
            used = int(rng.integers(0, reservation.allowed + 1))
            pacer.spent(reservation, used)
            spent[of] = spent.get(of, 0) + used
        elif rng.random() < 0.8:
            open_ones.append((pacer.ask(), number))
        account = pacer.account()
        assert account.left + account.spent + account.reserved == 2000
        assert min(account.left, account.reserved, account.lost) >= 0
    for reservation, of in open_ones:
        pacer.spent(reservation, reservation.allowed)
        spent[of] = spent.get(of, 0) + reservation.allowed
    for number in spent:
        clock.now = 100.0 * number
        assert pacer.account().spent == spent[number]
    assert 1000 < max(spent.values()) <= 2000


@POSIX
def test_a_full_disk_loses_nothing_and_overspends_nothing(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "pacer.sqlite"
    pacer = Pacer(100_000, horizon=200, path=path)
    first = pacer.ask(500)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    held, told = [], 0
    size = (tmp_path / "pacer.sqlite-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40_000, hard))  # a few decisions more
    try:
        failed = None
        while failed is None and len(held) < 100:
            try:
                held.append(pacer.ask(500))
            except StateError as error:
                failed = str(error)
        assert failed is not None
        assert "the count of tokens cannot be read or written" in failed
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))  # not even a small one
        for _ in range(3):
            with pytest.raises(StateError):
                pacer.spent(first, 70)
            with pytest.raises(StateError):
                pacer.ask(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert 0 < len(held) < 100
    account = pacer.account()
    assert (account.reserved, account.spent) == (500 + 500 * len(held), 0)
    pacer.spent(first, 70)  # nobody has counted it meanwhile
    for reservation in held:
        pacer.spent(reservation, 10)
        told += 10
    pacer.close()
    account = Pacer(100_000, horizon=200, path=path).account()
    assert (account.spent, account.reserved, account.finished) == (70 + told, 0, 1 + len(held))


# --- processes ----------------------------------------------------------------------------------------------


TOTAL, KILLS = 400_000, 12


class Worker:
    """A process at work on a pacer's file: it says when it begins, and what it has spent.

    A fork, since a new interpreter takes longer to start than most of these live.
    """

    def __init__(self, path: Path, count: int, seed: int, total: int = TOTAL) -> None:
        told, tell = os.pipe()
        self.number = os.fork()
        if self.number == 0:
            code = 1
            try:
                os.close(told)
                spend(path, count, seed, total, tell)
                code = 0
            finally:
                os._exit(code)
        os.close(tell)
        self.said = os.fdopen(told)

    def ended(self) -> list[str]:
        """Its words, once it has ended well."""
        words = self.said.read().split()
        self.said.close()
        assert os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1]) == 0
        return words

    def kill(self) -> None:
        """End it wherever it is."""
        os.kill(self.number, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1]) == -signal.SIGKILL
        self.said.close()


def spend(path: Path, count: int, seed: int, total: int, tell: int) -> None:
    """Ask and spend, `count` times."""
    pacer, rng, spent = Pacer(total, horizon=2000, path=path, most=900), random.Random(seed), 0
    os.write(tell, b"ready\n")
    for _ in range(count):
        reservation = pacer.ask()
        used = rng.randint(0, reservation.allowed)
        pacer.spent(reservation, used)
        spent += used
    os.write(tell, f"{spent}\n".encode())


@POSIX
def test_processes_keep_to_the_total_together(tmp_path: Path) -> None:
    path, total = tmp_path / "pacer.sqlite", 25_000
    started = [Worker(path, 150, seed, total) for seed in range(4)]
    said = [worker.ended() for worker in started]
    account = Pacer(total, horizon=2000, path=path).account()
    assert account.spent == sum(int(words[-1]) for words in said) <= total
    assert account.left < 900  # they wanted more than there was
    assert (account.asked, account.finished, account.reserved) == (600, 600, 0)


@POSIX
def test_a_killed_process_loses_at_most_the_question_in_flight(tmp_path: Path) -> None:
    path, rng = tmp_path / "pacer.sqlite", random.Random(3)
    witness = Worker(path, 800, 99)
    for k in range(KILLS):
        worker = Worker(path, 10**6, k)
        assert worker.said.readline() == "ready\n"
        time.sleep(rng.uniform(0.0, 0.05))
        worker.kill()
    witness.ended()
    pacer = Pacer(TOTAL, horizon=2000, path=path)
    account = pacer.account()
    assert account.spent + account.reserved + account.left == TOTAL
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        count, held = connection.execute("SELECT count(*), total(tokens) FROM reservations").fetchone()
    assert account.asked - account.finished == count <= KILLS
    assert account.reserved == held
    assert pacer.ask().allowed <= account.left
