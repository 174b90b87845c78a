"""The one way in which functions of the kernel are compiled: by numba, without the GIL, kept on disk."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba

__all__ = ["VERSION", "announced", "compiled"]

VERSION = f"numba {numba.__version__}"

# Sums may be added up in another order: their rounding is within every tolerance. Infinities and NaN keep
# their meaning.
_FLAGS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile on first use.

    The machine code is cached beside the source, or in the user's cache folder. Where neither can be written
    (a read-only container) every process compiles anew.
    """
    try:
        return cast(_Function, numba.njit(cache=True, **_FLAGS)(function))
    except RuntimeError:  # numba found no place for its cache
        return cast(_Function, numba.njit(**_FLAGS)(function))


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Say what is compiled where that takes more than a moment; from the cache it does not."""
    text = f"mio-rag: compiling {what}, once (about 12 s; `mio-rag warmup` does it ahead)\n"
    note = threading.Timer(1.5, lambda: sys.stderr.write(text))
    note.daemon = True
    note.start()
    try:
        yield
    finally:
        note.cancel()
