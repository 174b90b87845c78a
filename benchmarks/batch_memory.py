"""Resident memory of a batch while it runs: the largest worker, and the process that started it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NOTE_SECONDS = 60.0
_POINTS = 100


class Watch:
    """Takes a sample a second: rows done, MB of the largest child process, MB of this one.

    Parameters
    ----------
    path : Path
        Samples are added here, so that those of an interrupted run are kept.
    note : callable
        Told once a minute how far the run is.
    """

    def __init__(self, name: str, path: Path, note: Callable[[str], None]) -> None:
        self.name, self.path, self.note = name, path, note
        self._rows = self._total = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def progress(self, kind: str, total: int, done: int) -> None:
        """What `select_batch` tells."""
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
        told = time.monotonic()
        with self.path.open("a", encoding="ascii") as file:
            print(file=file)  # after half a line of a run that was killed
            while not self._stop.wait(1.0):
                largest = max((_resident(child) for child in _children(os.getpid())), default=0.0)
                if self._total and largest > 0:
                    print(self._rows, f"{largest:.2f} {_resident(os.getpid()):.2f}", file=file, flush=True)
                if time.monotonic() - told > _NOTE_SECONDS:
                    told = time.monotonic()
                    self.note(f"{self.name}: {self._rows} of {self._total} rows")

    def summary(self, rows: int) -> dict[str, Any]:
        """Median and largest size in the second tenth of the rows and in the last, and the curve."""
        lines = [line.split() for line in self.path.read_text(encoding="ascii").splitlines()]
        found = np.array([line for line in lines if len(line) == 3], dtype=np.float64).reshape(-1, 3)
        at = found[:, 0] / rows
        curve = [found[(k <= at * _POINTS) & (at * _POINTS < k + 1)] for k in range(_POINTS)]
        return {
            "samples": len(found),
            "second_tenth": _of(found[(at >= 0.1) & (at <= 0.2)]),
            "last_tenth": _of(found[at >= 0.9]),
            "curve_rows_worker_mb_parent_mb": [
                [round(float(value)) for value in part.max(axis=0)] for part in curve if len(part)
            ],
        }


def _of(samples: NDArray[np.float64]) -> dict[str, float] | None:
    if not len(samples):
        return None
    worker, parent = samples[:, 1], samples[:, 2]
    return {
        "median_mb": float(np.median(worker)),
        "largest_mb": float(worker.max()),
        "parent_largest_mb": float(parent.max()),
    }


def _children(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(part) for part in task.read_text(encoding="ascii").split()]
        except OSError:
            continue
    return found


def _resident(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
