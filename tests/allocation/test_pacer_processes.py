"""Processes on one pacer's file: together they keep to the total, also where they are killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from mio_rag.allocation.pacer import Pacer

TOTAL, KILLS = 400_000, 24

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


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


def test_processes_keep_to_the_total_together(tmp_path: Path) -> None:
    path, total = tmp_path / "pacer.sqlite", 60_000
    started = [Worker(path, 400, seed, total) for seed in range(4)]
    said = [worker.ended() for worker in started]
    account = Pacer(total, horizon=2000, path=path).account()
    assert account.spent == sum(int(words[-1]) for words in said) <= total
    assert account.left < 900  # they wanted more than there was
    assert (account.asked, account.finished, account.reserved) == (1600, 1600, 0)


def test_a_killed_process_loses_at_most_the_question_in_flight(tmp_path: Path) -> None:
    path, rng = tmp_path / "pacer.sqlite", random.Random(3)
    witness = Worker(path, 2500, 99)
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
