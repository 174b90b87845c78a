"""The one way in which functions of the kernel are compiled: by numba, without the GIL, kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

__all__ = ["VERSION", "compiled"]

VERSION = f"numba {numba.__version__}"

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile on first use.

    The machine code is cached beside the source, or in the user's cache folder. Where neither can be written
    (a read-only container) every process compiles anew.
    """
    try:
        return cast(_Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no place for its cache
        return cast(_Function, numba.njit(nogil=True)(function))
