"""Processes on one pacer's file: together they keep to the total, also where they are killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mio_rag.allocation.pacer import Pacer

ROOT = Path(__file__).parents[2]
TOTAL, KILLS = 400_000, 24

#: Asks and spends; it says when it begins.
WORKER = """
import random, sys
from mio_rag.allocation.pacer import Pacer
path, total, count, seed = sys.argv[1], *map(int, sys.argv[2:])
pacer, rng, spent = Pacer(total, horizon=2000, path=path, most=900), random.Random(seed), 0
print("ready", flush=True)
for _ in range(count):
    reservation = pacer.ask()
    used = rng.randint(0, reservation.allowed)
    pacer.spent(reservation, used)
    spent += used
print(spent, flush=True)
"""


def worker(path: Path, count: int, seed: int, total: int = TOTAL) -> subprocess.Popen[str]:
    """A process at work on a pacer's file."""
    command = [sys.executable, "-c", WORKER, str(path), str(total), str(count), str(seed)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_processes_keep_to_the_total_together(tmp_path: Path) -> None:
    path, total = tmp_path / "pacer.sqlite", 60_000
    started = [worker(path, 400, seed, total) for seed in range(4)]
    said = [process.communicate()[0].split() for process in started]
    assert all(process.returncode == 0 for process in started)
    account = Pacer(total, horizon=2000, path=path).account()
    assert account.spent == sum(int(words[-1]) for words in said) <= total
    assert account.left < 900  # they wanted more than there was
    assert (account.asked, account.finished, account.reserved) == (1600, 1600, 0)


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_killed_process_loses_at_most_the_question_in_flight(tmp_path: Path) -> None:
    path, rng = tmp_path / "pacer.sqlite", random.Random(3)
    witness = worker(path, 2500, 99)
    for k in range(KILLS):
        process = worker(path, 10**6, k)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
    witness.communicate()
    assert witness.returncode == 0
    pacer = Pacer(TOTAL, horizon=2000, path=path)
    account = pacer.account()
    assert account.spent + account.reserved + account.left == TOTAL
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        count, held = connection.execute("SELECT count(*), total(tokens) FROM reservations").fetchone()
    assert account.asked - account.finished == count <= KILLS
    assert account.reserved == held
    assert pacer.ask().allowed <= account.left
