"""What is particular to CP-SAT."""

import os
import signal
import threading

import numpy as np
import pytest

from mio_rag.solvers import SolveOptions, solve
from mio_rag.testing.programs import hard_program

pytest.importorskip("ortools")


@pytest.fixture
def interruptible():
    """Python's own handler, also where the tests run in the background of a shell that ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_not_swallowed() -> None:
    """Otherwise Ctrl-C in a long run would end one solve, record it as out of time, and go on."""
    program = hard_program(np.random.default_rng(0), 60)
    solve(program, "cpsat", SolveOptions(time_limit_seconds=0.2))  # the import is not what is interrupted
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        solve(program, "cpsat", SolveOptions(time_limit_seconds=2))
    timer.join()
