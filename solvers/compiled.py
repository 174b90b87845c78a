"""Compiled functions: taken from the extension that `build` makes, or compiled by numba on first use.

The extension is used if it was made from the kernels' sources as they are (MIO_RAG_KERNEL=numba: never).
Arithmetic is strict (no sums in another order, no fused operations), so both ways, on any processor, give the
same results bit for bit. Types come from annotations: names below, `int`, `float`, `bool`, tuples of them.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Matrix = NDArray[np.float64]
Ints = NDArray[np.int64]
Places = NDArray[np.int32]
Bits = NDArray[np.int8]
IntMatrix = NDArray[np.int64]
Bools = NDArray[np.bool_]
BoolMatrix = NDArray[np.bool_]

#: Element type and number of dimensions of the arrays above; all are contiguous.
ARRAYS = {
    "Floats": ("float64", 1),
    "Matrix": ("float64", 2),
    "Ints": ("int64", 1),
    "IntMatrix": ("int64", 2),
    "Places": ("int32", 1),
    "Bits": ("int8", 1),
    "Bools": ("bool_", 1),
    "BoolMatrix": ("bool_", 2),
}
KERNELS = ("kernel", "bounds", "incumbents", "mdp_kernel")

FLAGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

_Function = TypeVar("_Function", bound=Callable[..., object])


class Needs(NamedTuple):
    """Segments that items share: item i needs segment[start[i] : start[i + 1]]; all None where none are.

    A version of each function is compiled for each of the two cases, and leaves out what stands under ``if
    start is not None``: programs without segments pay nothing for it.
    """

    start: Any = None
    segment: Any = None
    cost: Any = None
    price: Any = None


Shared = Needs  # of a function that is compiled for programs with segments alone

#: The fields of `Needs` where there are segments.
SEGMENTS = ("Ints", "Ints", "Floats", "Floats")


@cache
def digest() -> int:
    """A number that identifies the sources of all that is compiled."""
    content = hashlib.sha256()
    for name in (*KERNELS, "compiled"):
        content.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return int.from_bytes(content.digest()[:6], "big")


#: The extension is for this level of processors, a tenth faster than for all; "" for all of other machines.
PROCESSOR = "x86-64-v3" if platform.machine() in ("x86_64", "AMD64") else ""


def _extension() -> Any:
    """The extension, or None where there is none, it is of other sources, or it is not for this processor."""
    if os.environ.get("MIO_RAG_KERNEL", "") == "numba" or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return None
    # What `numpy.show_runtime` prints.
    has = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    if PROCESSOR and not (has.get("AVX2") and has.get("FMA3")):
        return None
    try:
        found = importlib.import_module("mio_rag.solvers._compiled")
    except ImportError:
        return None
    return found if found.source() == digest() else None


_ahead = _extension()
IS_AHEAD = _ahead is not None
VERSION = f"kernel {digest():012x}"


def compiled(function: _Function) -> _Function:
    """Compile a function, without the GIL; where its name begins with `_`, for compiled functions alone."""
    name = function.__name__
    if _ahead is None:
        return cast(_Function, _by_numba(function, name.startswith("_")))
    if not hasattr(_ahead, name) and not hasattr(_ahead, f"{name}_shared"):
        return function
    return cast(_Function, _checked(function, name))


def inlined(function: _Function) -> _Function:
    """Compile a tiny function into each of its callers: a call would pass every field of every array."""
    return cast(_Function, _by_numba(function, True, forceinline=True)) if _ahead is None else function


def _checked(function: Callable[..., object], name: str) -> Callable[..., object]:
    """The extension's function, which itself does not check what arrays it gets."""
    plain: Any = getattr(_ahead, name, None)
    shared: Any = getattr(_ahead, f"{name}_shared", None)
    kinds = [item for item in function.__annotations__.items() if item[0] != "return"]
    at = next((k for k, (_, kind) in enumerate(kinds) if kind in ("Needs", "Shared")), None)
    arrays = [(k, label, *ARRAYS[kind]) for k, (label, kind) in enumerate(kinds) if kind in ARRAYS]
    types = [(k, label, np.dtype(kind), dimensions) for k, label, kind, dimensions in arrays]

    def call(*args: Any) -> Any:
        for k, label, kind, dimensions in types:
            given = args[k]
            if given.dtype != kind or given.ndim != dimensions or not given.flags.c_contiguous:
                raise TypeError(
                    f"{name}: {label} must be a contiguous array of {kind} with {dimensions} dimensions, "
                    f"got {given.dtype} with {given.ndim}"
                )
        of = plain if at is None or args[at].start is None else shared
        return of(*args)

    return call


def _by_numba(function: Callable[..., object], inner: bool, **more: Any) -> Any:
    """Compile on first use; entry points are cached on disk where numba finds a place for them."""
    import numba

    flags = {**FLAGS, "no_cpython_wrapper": inner, **more}
    try:
        dispatcher = numba.njit(cache=not inner, **flags)(function)
    except RuntimeError:  # numba found no place for its cache
        dispatcher = numba.njit(**flags)(function)
    # A change of any of the kernels' files makes machine code on disk stale, not only one of its own file.
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if file is not None:
        file._source_stamp = (file._source_stamp, digest())
    return dispatcher


def types_of(function: Callable[..., object], shared: bool) -> tuple[Any, ...] | None:
    """numba's types of the arguments, with or without segments; None where there is no such version."""
    import numba

    def type_of(kind: str) -> Any:
        if kind in ARRAYS:
            element, dimensions = ARRAYS[kind]
            return numba.types.Array(getattr(numba.types, element), dimensions, "C")
        if kind in ("int", "float", "bool"):
            return {"int": numba.int64, "float": numba.float64, "bool": numba.boolean}[kind]
        if kind in ("Needs", "Shared"):
            made, parts = Needs, [type_of(part) if shared else numba.types.none for part in SEGMENTS]
        else:
            made = function.__globals__[kind]
            parts = [type_of(part.__forward_arg__) for part in made.__annotations__.values()]
        if all(part == parts[0] for part in parts):
            return numba.types.NamedUniTuple(parts[0], len(parts), made)
        return numba.types.NamedTuple(parts, made)

    kinds = [kind for name, kind in function.__annotations__.items() if name != "return"]
    has_versions = not {"Needs", "Shared"}.isdisjoint(kinds)
    if (shared and not has_versions) or (not shared and "Shared" in kinds):
        return None
    return tuple(map(type_of, kinds))


def entries(module: Any) -> dict[str, Any]:
    """Functions of a module that Python may call, with their numba dispatchers; empty where numba is off."""
    return {
        name: one
        for name, one in vars(module).items()
        if hasattr(one, "py_func") and one.py_func.__module__ == module.__name__ and not name.startswith("_")
    }


def warm(modules: Iterable[Any], what: str, seconds: str, shared: bool = False) -> None:
    """Load or compile what modules export, with or without segments; print a message where that takes more
    than a moment (`seconds` is the usual time).
    """
    if IS_AHEAD:
        return
    text = f"mio-rag: compiling {what}, once ({seconds} s; `mio-rag lab warmup` does it in advance)\n"
    functions = [one for module in modules for one in entries(module).values()]

    def tell() -> None:
        if any(one.stats.cache_misses for one in functions):  # on a busy machine loading takes as long
            sys.stderr.write(text)

    notice = threading.Timer(1.5, tell)
    notice.daemon = True
    notice.start()
    try:
        for dispatcher in functions:
            types = types_of(dispatcher.py_func, shared)
            if types is not None:
                dispatcher.compile(types)
    finally:
        notice.cancel()
