"""The one way in which functions of the kernel are compiled: by numba, without the GIL, kept on disk."""

from __future__ import annotations

import hashlib
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
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys

__all__ = ["NONE", "VERSION", "announced", "compiled", "compiled_beside"]

VERSION = f"numba {numba.__version__}"

# Sums may be added up in another order: their rounding is within every tolerance. Infinities and NaN keep
# their meaning.
_FLAGS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    "no_cfunc_wrapper": True,  # a door for C, which nobody uses, would take part of the time to compile
}

_PATIENCE_SECONDS = 15.0  # with the other interpreter, which a busy machine may starve

#: "No item" as an argument. Of a function that is called with a plain -1, numba compiles another version.
NONE = cast(int, np.int64(-1))

# What `_Cache` takes of numba.
_KNOWN = {"_load_overload", "_index_key", "_guard_against_spurious_io_errors"}

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
    # A numba that reads its cache in another way is left to it.
    if type(getattr(dispatcher, "_cache", None)) is FunctionCache and set(dir(FunctionCache)) >= _KNOWN:
        dispatcher._cache = _Cache(function)
    return cast(_Function, dispatcher)


def _digest_of_sources() -> str:
    """Of every file whose functions can be part of one another's machine code, and of the flags here."""
    files = sorted([*Path(__file__).parent.glob("*kernel*.py"), Path(__file__)])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files if path.exists())).hexdigest()


_SOURCES = _digest_of_sources()


class _Cache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """Numba's cache on disk, read without what only compiling needs, and never when it is out of date.

    Before numba reads its cache, it loads its implementations of Python, NumPy and SciPy's linear algebra:
    more than half of the time to a process's first solve. Finished machine code calls none of them. What is
    not in the cache is compiled as ever, and loads them then.

    Numba compiles anew what stands in a changed file. A caller in another file, which holds the changed
    function's machine code, it would go on using.
    """

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), _SOURCES)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for a signature; None where there is none, or the file is damaged."""
        rtsys.initialize(target_context)  # this it does call: memory for arrays
        try:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except Exception:  # a file cut short fails in any way there is; without it, the next one is whole
            with suppress(OSError):
                self.flush()
        return None


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Say what is compiled where that takes more than a moment; from the cache it does not.

    A moment of this process's own time: on a busy machine reading the cache may take seconds.
    """
    text = f"mio-rag: compiling {what}, once (10 to 20 s; `mio-rag warmup` does it ahead)\n"
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
    """Compile a function in another interpreter meanwhile, which leaves it in the cache that both use.

    Numba compiles in one thread of a process. Nothing happens where the cache knows the function by name,
    where there is no cache or one core, or no plain interpreter to start (frozen programs, servers that
    embed Python). At the end the other one is waited for. Whatever becomes of it, a function that is not in
    the cache then is compiled here.

    Parameters
    ----------
    function
        Compiled by `compiled`, and not called yet.
    statement : str
        What the other interpreter is to execute: a call of it.
    """
    stats = getattr(function, "stats", None)  # with NUMBA_DISABLE_JIT it is a plain function
    folder = stats and stats.cache_path
    known = folder is None or any(Path(folder).glob(f"*.{function.__name__}-*.nbi"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    plain = not getattr(sys, "frozen", False) and Path(sys.executable or "").name.startswith("python")
    other = None
    if not known and cores > 1 and plain:
        paths = os.pathsep.join(path for path in sys.path if path)
        with suppress(OSError):
            other = subprocess.Popen(
                [sys.executable, "-c", statement],
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
