"""The one way in which functions of the kernel are compiled: by numba, without the GIL, kept on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

from mio_rag.solvers.code_cache import cached, in_cache

__all__ = ["NONE", "VERSION", "ZERO", "announced", "compiled", "compiled_beside"]

VERSION = f"numba {numba.__version__}"

# Sums may be added up in another order: their rounding is within every tolerance. Infinities and NaN keep
# their meaning.
_FLAGS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    "no_cfunc_wrapper": True,  # an entry point for C, which is not used, would add to the compile time
}

_PATIENCE_SECONDS = 15.0  # for the other interpreter, which may get little time on a busy machine

# Compiling makes millions of objects; looking for garbage among them would take a seventh of the time.
_RARELY = "import gc; gc.set_threshold(50_000, 20, 20)"

#: "No item", and nothing counted yet, where they become arguments. Of a function that may be called with a
#: plain -1 or 0, numba compiles another version, even where it is never called with one.
NONE = cast(int, np.int64(-1))
ZERO = cast(int, np.int64(0))

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile on first use.

    Functions whose names begin with an underscore can be called by compiled functions only. The machine code
    is cached beside the source, or in the user's cache folder. Where neither can be written (a read-only
    container) every process compiles anew.
    """
    flags = {**_FLAGS, "no_cpython_wrapper": function.__name__.startswith("_")}
    try:
        dispatcher = numba.njit(cache=True, **flags)(function)
    except RuntimeError:  # numba found no place for its cache
        return cast(_Function, numba.njit(**flags)(function))
    cached(dispatcher)
    return cast(_Function, dispatcher)


@contextmanager
def announced(what: str, seconds: str) -> Iterator[None]:
    """Print a message if compiling takes more than a moment; loading from the cache does not.

    The delay is measured in CPU time of this process, since on a busy machine even reading the cache may take
    seconds. `seconds` is the usual compile time.
    """
    text = f"mio-rag: compiling {what}, once ({seconds} s; `mio-rag warmup` does it in advance)\n"
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


@contextmanager
def compiled_beside(function: Callable[..., object], statement: str) -> Iterator[None]:
    """Compile a function in a second interpreter at the same time, through the shared cache.

    Numba compiles in one thread per process. Nothing is started if the cache already holds the function, if
    there is no cache or only one core, or no plain interpreter (frozen programs, servers that embed Python).
    The block waits for the second interpreter at its end. If that failed, the function is compiled here.

    Parameters
    ----------
    function
        Compiled by `compiled`, and not called yet.
    statement : str
        What the other interpreter is to execute: a call of it.
    """
    known = in_cache(function)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    plain = not getattr(sys, "frozen", False) and Path(sys.executable or "").name.startswith("python")
    other = None
    if not known and cores > 1 and plain:
        paths = os.pathsep.join(path for path in sys.path if path)
        with suppress(OSError):
            other = subprocess.Popen(
                [sys.executable, "-c", f"{_RARELY}; {statement}"],
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    try:
        yield
        if other is not None:
            other.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if other is not None and other.poll() is None:
            other.kill()
            other.wait()
