"""Sixty processes that share one log and are killed while they learn; prints what they had finished.

A program of its own, since a process is forked in no time while it is small.
"""

import gc
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from tests.learning.bandits import TRUTH, asked, outcome, strategist


def _live(path: Path, report: int, process: int) -> None:
    """Take questions until killed; tell of each once it is certain."""
    bandit = strategist(path, cold_start=2)
    for number in range(200):
        choice = asked(bandit, 1000 * process + number)
        if bandit.record(choice, outcome(choice, TRUTH)):
            os.write(report, f"{choice.id}\n".encode())


def _drained(read: int) -> bytes:
    told = b""
    try:
        while piece := os.read(read, 1 << 16):
            told += piece
    except BlockingIOError:
        pass
    return told


def main(path: Path) -> None:
    rng = random.Random(1)
    strategist(path).log.close()
    # What is loaded at the first question is loaded here, once, and not in each of the sixty.
    first = strategist(path.with_name("first.sqlite"))
    first.record(choice := asked(first, 0), outcome(choice, TRUTH))
    first.log.close()
    # Looking for garbage among all that is loaded would make each of the sixty copy it.
    gc.freeze()
    read, write = os.pipe()
    os.set_blocking(read, False)
    for kill in range(0, 60, 4):
        children = []
        for side in range(4):
            child = os.fork()
            if child == 0:
                try:
                    _live(path, write, kill + side)
                finally:
                    os._exit(1)
            children.append(child)
        try:
            select.select([read], [], [], 3)  # at least one has come that far
            time.sleep(0.005 * rng.random())
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        sys.stdout.write(_drained(read).decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
