"""Run something once per process, even if several threads ask for it at the same time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

__all__ = ["once"]


def once(load: Callable[[], None]) -> Callable[[], None]:
    """`load`, run by the first call alone; calls of other threads meanwhile wait for it."""
    lock, done = threading.Lock(), threading.Event()

    @functools.wraps(load)
    def loaded() -> None:
        if not done.is_set():
            with lock:
                if not done.is_set():
                    load()
                    done.set()

    return loaded
