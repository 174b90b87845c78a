"""How many questions a second processes take that share one pacer's file."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.allocation.pacer import Pacer


def decisions_a_second(processes: int = 4, questions: int = 2000) -> dict[str, Any]:
    """Ask and settle from several processes at once, and from one alone."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        path, total = Path(folder) / "pacer.sqlite", 10**9
        start = context.Barrier(processes)
        found: Any = context.Queue()
        started = [
            context.Process(target=_work, args=(path, total, questions, start, found))
            for _ in range(processes)
        ]
        for process in started:
            process.start()
        told = [found.get() for _ in started]
        for process in started:
            process.join()
        began, ended = min(one[0] for one in told), max(one[1] for one in told)
        seconds = np.concatenate([one[2] for one in told])
        alone = _transactions(Pacer(total, questions, path=Path(folder) / "alone.sqlite"), questions)
    return {
        "processes": processes,
        "questions": processes * questions,
        "a_second": processes * questions / (ended - began),
        "median_seconds": float(np.median(seconds)),
        "p95_seconds": float(np.quantile(seconds, 0.95)),
        "alone_median_seconds": float(np.median(alone)),
    }


def _work(path: Path, total: int, questions: int, start: Any, found: Any) -> None:
    pacer = Pacer(total, questions, path=path)
    start.wait()
    began = time.time()
    seconds = _transactions(pacer, questions)
    found.put((began, time.time(), seconds))


def _transactions(pacer: Pacer, questions: int) -> list[float]:
    """Seconds of every transaction."""
    seconds = []
    for _ in range(questions):
        began = time.perf_counter()
        reservation = pacer.ask()
        asked = time.perf_counter()
        pacer.spent(reservation, 500)
        seconds += [asked - began, time.perf_counter() - asked]
    return seconds
