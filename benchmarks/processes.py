"""Memory and time of processes, read from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from benchmarks.runner import note
from mio_rag.errors import InputError

_NOTE_SECONDS, _POINTS = 60.0, 100


def resident_mb(process: int | None = None, peak: bool = False) -> float:
    """Return resident megabytes of a process, by default of this one, now or at its peak; 0 if unknown."""
    try:
        # Not getrusage: on Linux its peak includes that of the process that started this one.
        text = Path(f"/proc/{process or 'self'}/status").read_text(encoding="ascii")
        line = next(one for one in text.splitlines() if one.startswith("VmHWM:" if peak else "VmRSS:"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration, UnicodeDecodeError):
        return 0.0


def children(process: int) -> list[int]:
    """Return the ids of the children of a process; empty where the system does not tell."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(part) for part in task.read_text(encoding="ascii").split()]
        except OSError:
            continue
    return found


def ask_process(module: str, question: Any) -> Any:
    """Run ``python -m module QUESTION`` in a new process and return the JSON that it prints.

    Raises `InputError` if it fails, with its last line.
    """
    command = [sys.executable, "-m", module, json.dumps(question)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise InputError(f"a measured process failed: {lines[-1] if lines else 'no reason given'}")
    return json.loads(done.stdout)


class Watch:
    """Sample once a second: rows done, MB of the largest child process, MB of this one.

    path: samples are appended here, so that those of an interrupted run are kept.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self._rows = self._total = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def progress(self, kind: str, total: int, done: int) -> None:
        """Take what a batch reports."""
        if kind == "selecting":
            self._rows, self._total = self._rows + done, total

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        last = time.monotonic()
        with self.path.open("a", encoding="ascii") as file:
            print(file=file)  # after half a line of a run that was killed
            while not self._stop.wait(1.0):
                largest = max((resident_mb(child) for child in children(os.getpid())), default=0.0)
                if self._total and largest > 0:
                    print(self._rows, f"{largest:.2f} {resident_mb():.2f}", file=file, flush=True)
                if time.monotonic() - last > _NOTE_SECONDS:
                    last = time.monotonic()
                    note(f"{self.name}: {self._rows} of {self._total} rows")

    def summary(self, rows: int) -> dict[str, Any]:
        """Return sizes in the second tenth of the rows and in the last, and the curve."""
        lines = [line.split() for line in self.path.read_text(encoding="ascii").splitlines()]
        found = np.array([line for line in lines if len(line) == 3], dtype=np.float64).reshape(-1, 3)
        at = found[:, 0] / max(rows, 1)
        parts = {"second_tenth": found[(at >= 0.1) & (at <= 0.2)], "last_tenth": found[at >= 0.9]}
        curve = [found[(k <= at * _POINTS) & (at * _POINTS < k + 1)] for k in range(_POINTS)]
        summary: dict[str, Any] = {
            name: None
            if not len(part)
            else {
                "median_mb": float(np.median(part[:, 1])),
                "largest_mb": float(part[:, 1].max()),
                "parent_largest_mb": float(part[:, 2].max()),
            }
            for name, part in parts.items()
        }
        summary["curve_rows_worker_mb_parent_mb"] = [
            part.max(axis=0).round().tolist() for part in curve if len(part)
        ]
        return summary
