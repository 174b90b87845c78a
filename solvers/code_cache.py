"""Numba's on-disk cache of machine code, with a faster and safer reader.

Faster: before numba reads its cache, it loads its implementations of Python, NumPy and SciPy's linear
algebra. This takes nearly half of the time to a process's first solve, and finished machine code calls none
of them. Functions that are not in the cache are compiled as usual, which loads them then.

Safer: numba recompiles functions of a changed file, but keeps using cached callers in other files, which
contain the old machine code of the changed function. A process that dies between writing the index and the
data, or two that write at once, can leave an index that refers to the code of something else. A truncated
file fails every process that reads it. Here each file records what it contains; a file that does not match,
or is damaged, is treated as missing.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.runtime import rtsys

__all__ = ["KNOWN", "cached", "in_cache"]

#: Versions of numba whose inside this file knows: from the first one on, and below the second.
KNOWN = ((0, 60), (0, 69))

# What is taken of numba beyond its documentation.
_TAKEN = {"_load_overload", "_guard_against_spurious_io_errors", "flush"}
_TAKEN_OF_FILES = {"save", "load", "_load_index", "_source_stamp"}


def cached(dispatcher: Any) -> None:
    """Let a function that numba compiles with ``cache=True`` use this cache.

    A function of a numba version with other internals keeps numba's own cache, with a warning that says what
    to install; with compilation disabled it is left unchanged.
    """
    cache = getattr(dispatcher, "_cache", None)
    if cache is None or isinstance(cache, NullCache):
        return
    files = getattr(cache, "_cache_file", None)
    known = set(dir(cache)) >= _TAKEN and set(dir(files)) >= _TAKEN_OF_FILES
    fits = known and type(cache) is FunctionCache and type(files) is IndexDataCacheFile
    if fits and KNOWN[0] <= numba.version_info.short < KNOWN[1]:
        dispatcher._cache = _Cache(cache)
    else:
        _warn_of_numba()


@functools.cache
def _warn_of_numba() -> None:
    """Once a process: forty functions are compiled."""
    least, below = (".".join(map(str, version)) for version in KNOWN)
    warnings.warn(
        f"mio-rag: how numba {numba.__version__} keeps machine code is not known here. Results are the same; "
        "processes start slower, and after an update of mio-rag the cache must be deleted by hand (*.nbi and "
        f'*.nbc beside its files, or in NUMBA_CACHE_DIR). Better: pip install "numba>={least},<{below}"',
        RuntimeWarning,
        stacklevel=3,
    )


def in_cache(dispatcher: Any) -> bool:
    """Whether a function's machine code, as it is now, is in the cache on disk; True where there is none."""
    cache = getattr(dispatcher, "_cache", None)
    if isinstance(cache, _Cache):
        try:
            return bool(cache._cache_file._load_index())
        except Exception as error:  # as in load_overload
            _warn(cache, error)
            return False
    stats = getattr(dispatcher, "stats", None)  # with NUMBA_DISABLE_JIT it is a plain function
    folder = stats and stats.cache_path
    return folder is None or any(Path(folder).glob(f"*.{dispatcher.__name__}-*.nbi"))


def _warn(cache: Any, error: Exception) -> None:
    found = f"machine code in {cache.cache_path} is damaged ({type(error).__name__})"
    warnings.warn(f"mio-rag: {found}: compiling again", RuntimeWarning, stacklevel=3)


def _digest_of_sources() -> str:
    """Of all files whose functions can be part of one another's machine code, and of how it is made."""
    folder = Path(__file__).parent
    files = sorted([*folder.glob("*kernel*.py"), folder / "compiled.py"])
    texts = [path.read_bytes() for path in files if path.exists()]
    return hashlib.sha256(b"".join([numba.__version__.encode(), *texts])).hexdigest()


_SOURCES = _digest_of_sources()


class _Files(IndexDataCacheFile):  # type: ignore[misc]  # numba has no types
    """The files of one function: an index by signature, and machine code that says what it is of."""

    def save(self, key: Any, data: Any) -> None:
        """Add machine code."""
        super().save(key, (self._source_stamp, key, data))

    def load(self, key: Any) -> Any:
        """Machine code, or None."""
        found = super().load(key)
        return found[2] if found is not None and found[:2] == (self._source_stamp, key) else None


class _Cache(FunctionCache):  # type: ignore[misc]
    _cache_file: Any

    def __init__(self, known: FunctionCache) -> None:
        # Looking once more for a folder that can be written would write to it again.
        self.__dict__.update(vars(known))
        # Of other sources than these, the index is empty.
        stamp = (known._cache_file._source_stamp, _SOURCES)
        self._cache_file = _Files(known._cache_path, known._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for a signature; None where there is none, or the file is damaged."""
        rtsys.initialize(target_context)  # this it does call: memory for arrays
        try:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except Exception as error:  # a file cut short fails in any way there is
            _warn(self, error)
            with suppress(OSError):  # of a folder that cannot be written: the warning comes again
                self.flush()
        return None
