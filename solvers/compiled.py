"""The one way in which functions of the kernel are compiled: by numba, without the GIL, kept on disk."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
import numpy as np

__all__ = ["NONE", "VERSION", "announced", "compiled"]

VERSION = f"numba {numba.__version__}"

# Sums may be added up in another order: their rounding is within every tolerance. Infinities and NaN keep
# their meaning.
_FLAGS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    "no_cfunc_wrapper": True,  # a door for C, which nobody uses, would take part of the time to compile
}

#: "No item" as an argument. Of a function that is called with a plain -1, numba compiles another version.
NONE = cast(int, np.int64(-1))

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile on first use.

    Functions whose names begin with an underscore can be called by compiled functions only. The machine code
    is cached beside the source, or in the user's cache folder. Where neither can be written (a read-only
    container) every process compiles anew.
    """
    flags = {**_FLAGS, "no_cpython_wrapper": function.__name__.startswith("_")}
    try:
        return cast(_Function, numba.njit(cache=True, **flags)(function))
    except RuntimeError:  # numba found no place for its cache
        return cast(_Function, numba.njit(**flags)(function))


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Say what is compiled where that takes more than a moment; from the cache it does not.

    A moment of this process's own time: on a busy machine reading the cache may take seconds.
    """
    text = f"mio-rag: compiling {what}, once (about 15 s of one core; `mio-rag warmup` does it ahead)\n"
    done, start = threading.Event(), time.process_time()

    def watch() -> None:
        while not done.wait(0.25):
            if time.process_time() - start > 1.5:
                sys.stderr.write(text)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
