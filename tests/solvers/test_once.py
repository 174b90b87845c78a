"""Loading once, however many threads ask."""

import threading
import time

import pytest

from mio_rag.solvers.once import once


def test_threads_that_ask_at_once_wait_for_one_of_them() -> None:
    ran: list[int] = []
    together = threading.Barrier(8)

    @once
    def load() -> None:
        """What is loaded."""
        time.sleep(0.05)
        ran.append(threading.get_ident())

    seen: list[int] = []

    def ask() -> None:
        together.wait()
        load()
        seen.append(len(ran))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 1
    assert seen == [1] * 8  # nobody goes on before it is there
    assert load.__doc__ == "What is loaded."


def test_what_failed_is_tried_again() -> None:
    left = [RuntimeError("full disk")]

    @once
    def load() -> None:
        if left:
            raise left.pop()

    with pytest.raises(RuntimeError, match="full disk"):
        load()
    load()
