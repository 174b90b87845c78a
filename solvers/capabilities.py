"""What back ends need of other packages: which versions, and one BLAS thread.

A version outside of its range is refused before anything is built: a later upgrade may install any.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

from mio_rag.errors import InputError, MissingExtraError, install


class Package(NamedTuple):
    """A package: `versions` that may be used ("": any), the `extra` of mio-rag that installs it ("": none),
    and `why` others may not be used.
    """

    module: str
    versions: str = ""
    extra: str = ""
    why: str = ""


_HIGHS = "1.14.0 is wrong, later ones cannot be loaded with OR-Tools 9.15, older ones were never tried"
#: By module; `pyproject.toml` has the same ranges.
PACKAGES = {
    "highspy": Package("highspy", ">=1.12,<1.14", "", _HIGHS),
    "ortools": Package("ortools", ">=9.15", "solvers", "older ones were never tried"),
    "pyomo": Package("pyomo", ">=6.9", "solvers", "older ones have another interface to HiGHS"),
    "numba": Package("numba"),
}


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Package -> version, for those that are installed, as records name them."""
    return {package: found for package in packages if (found := _installed(package)) is not None}


@cache  # looking in every folder of the path takes a millisecond, and finds the same
def _installed(module: str) -> str | None:
    import importlib.metadata  # here, as below: a selection needs neither, and starts sooner

    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return None


def refusal(module: str, version: str | None = None) -> str | None:
    """Why a version of a package (by default the installed one) cannot be used; None where it can."""
    package = PACKAGES[module]
    found = _installed(module) if version is None else version
    if found is None or not package.versions:
        return None
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    with suppress(InvalidVersion):  # of a build of your own
        if SpecifierSet(package.versions).contains(Version(found), prereleases=True):
            return None
    return (
        f"{module} {found} is installed, and {package.versions} is needed ({package.why}): "
        f'pip install "{module}{package.versions}"'
    )


def is_usable(module: str) -> bool:
    """Whether a package is installed, in a version that can be used."""
    return importlib.util.find_spec(module) is not None and refusal(module) is None


def check_installed(module: str, what: str) -> None:
    """Raise where a package that `what` needs is missing (MissingExtraError) or unusable (InputError)."""
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(f"{what} needs the package '{module}': {install(PACKAGES[module].extra)}")
    if (problem := refusal(module)) is not None:
        raise InputError(f"{what} cannot be used: {problem}")


_lock = threading.Lock()
_users = 0
_limited: list[tuple[Any, int]] = []  # libraries, and how many threads each had


@cache
def _libraries() -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block."""
    global _limited, _users
    with _lock:
        if _users == 0:
            _limited = [(one, had) for one in _libraries() if (had := one.num_threads) != 1]
            for one, _ in _limited:
                one.set_num_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            for one, had in _limited if _users == 0 else ():
                one.set_num_threads(had)
