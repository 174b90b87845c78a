"""The pacer where clocks jump, disks are full, processes fork and threads share it."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag import InputError
from mio_rag.allocation.pacer import Pacer
from mio_rag.errors import StateError
from tests.allocation.pacing import Clock


def test_a_file_that_can_no_longer_be_written_is_no_fault_of_the_question(tmp_path: Path) -> None:
    path = tmp_path / "pacer.sqlite"
    pacer = Pacer(1000, horizon=8, path=path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE reservations")
    with pytest.raises(StateError, match="no such table"):
        pacer.ask()


@pytest.mark.parametrize("damage", ["settled = 'x'", "price = 'dear'", "usually = 7", "window = 1.5"])
def test_damaged_state_is_refused_with_file_and_row(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "pacer.sqlite"
    pacer = Pacer(1000, horizon=8, path=path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE state SET {damage}")
    for asked in (pacer.ask, pacer.account):
        with pytest.raises(StateError, match=r"pacer.sqlite' is damaged: row 1 of state holds \w+="):
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


@pytest.mark.parametrize("expires", [60, 1e9])
def test_a_clock_that_jumps_ahead_and_back_gives_no_window_its_total_twice(expires: float) -> None:
    day = 86400.0
    clock = Clock(10 * day)
    pacer = Pacer(1000, window="day", clock=clock, most=400, expires_seconds=expires)
    pacer.spent(pacer.ask(), 250)
    here = pacer.ask(100)
    clock.now = 4000 * day  # years ahead
    there = pacer.ask()
    assert pacer.account().left == 600
    clock.now = 10 * day + 30  # and back: what is left of today is there at once
    account = pacer.account()
    assert (account.spent - account.lost, account.reserved + account.lost, account.left) == (250, 100, 650)
    assert (account.lost > 0) == (expires == 60)  # ahead its time was over
    assert account.asked - account.finished == 1
    assert account.ends_in == pytest.approx(day - 30)
    pacer.spent(here, 60)
    pacer.spent(there, 350)
    assert pacer.account().spent == 310
    clock.now = 4000 * day + 30  # what was spent there is spent
    account = pacer.account()
    assert (account.spent, account.reserved, account.lost, account.finished) == (350, 0, 0, 1)


def test_whatever_the_clock_does_each_window_keeps_to_its_total(tmp_path: Path) -> None:
    rng, clock = np.random.default_rng(5), Clock(0.0)
    pacer = Pacer(2000, 20, 100.0, path=tmp_path / "p.sqlite", most=300, expires_seconds=30, clock=clock)
    spent: dict[int, int] = {}
    open_ones = []
    for _ in range(900):
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
    told = {row["window"]: row["spent"] for row in pacer.windows()}
    told[int(clock.now // 100)] = pacer.account().spent
    assert {k: v for k, v in told.items() if v} == {k: v for k, v in spent.items() if v}
    assert 1000 < max(spent.values()) <= 2000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no limits on files")
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_opens_the_file_again(tmp_path: Path) -> None:
    pacer = Pacer(1000, horizon=8, path=tmp_path / "pacer.sqlite")
    pacer.spent(pacer.ask(), 10)
    child = os.fork()
    if child == 0:
        pacer.spent(pacer.ask(), 20)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pacer.spent(pacer.ask(), 30)
    assert pacer.account().spent == 60


@pytest.mark.parametrize("stored", [False, True])
def test_threads_share_one_pacer(tmp_path: Path, stored: bool) -> None:
    pacer = Pacer(20_000, horizon=200, path=tmp_path / "p.sqlite" if stored else None, most=300)
    spent: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            reservation = pacer.ask()
            used = int(rng.integers(0, reservation.allowed + 1))
            pacer.spent(reservation, used)
            spent.append(used)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    account = pacer.account()
    assert len(spent) == 200 == account.finished
    assert account.spent == sum(spent) <= 20_000
    assert account.reserved == 0
