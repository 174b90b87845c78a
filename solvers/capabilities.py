"""What back ends need of other packages: which versions, and one BLAS thread.

A version outside of its range is refused before anything is built. An installer keeps to the same ranges, but
an environment outlives it: another package, or a later upgrade, may put anything in its place.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

from mio_rag.errors import InputError, MissingExtraError


@dataclass(frozen=True)
class Package:
    """A package that back ends stand on.

    Parameters
    ----------
    module : str
        Its name for import and for pip, which are the same for all of these.
    versions : str
        What may be installed, as pip writes it; "" for any.
    extra : str
        The extra of mio-rag that brings it; "" where mio-rag itself does.
    why : str
        What is wrong with other versions.
    """

    module: str
    versions: str = ""
    extra: str = ""
    why: str = ""

    @property
    def requirement(self) -> str:
        """As pip takes it, for instance ``"highspy>=1.12,<1.14"``."""
        return f"{self.module}{self.versions}"


#: By module; `pyproject.toml` has the same ranges.
PACKAGES = {
    package.module: package
    for package in (
        Package(
            "highspy",
            ">=1.12,<1.14",
            why="1.14.0 returns wrong optima, later ones cannot be loaded beside OR-Tools 9.15, and older "
            "ones were never tried",
        ),
        Package("ortools", ">=9.15", "solvers", "older ones were never tried"),
        Package("pyomo", ">=6.9", "solvers", "older ones have another interface to HiGHS"),
        Package("numba"),
    )
}


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Package -> version, for those that are installed, as records name them."""
    return {package: found for package in packages if (found := _installed(package)) is not None}


@cache  # looking in every folder of the path takes a millisecond, and finds the same
def _installed(module: str) -> str | None:
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return None


def _within(version: str, versions: str) -> bool:
    if not versions:
        return True
    # Here, since the exact kernel needs neither: they would add a hundredth of a second to every start.
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except InvalidVersion:  # of somebody's own build
        return False


def refusal(module: str, version: str | None = None) -> str | None:
    """Why the version of a package cannot be used, and what to install; None where it can.

    Parameters
    ----------
    version : str, optional
        By default the one that is installed; of a package that tells none, nothing is refused.
    """
    package = PACKAGES[module]
    found = _installed(module) if version is None else version
    if found is None or _within(found, package.versions):
        return None
    return (
        f"{module} {found} is installed, and {package.versions} is needed ({package.why}): "
        f'pip install "{package.requirement}"'
    )


def is_usable(module: str) -> bool:
    """Whether a package is installed, in a version that can be used."""
    return importlib.util.find_spec(module) is not None and refusal(module) is None


def check_installed(module: str, what: str) -> None:
    """Raise where a package is missing (MissingExtraError) or of another version (InputError).

    Parameters
    ----------
    what : str
        What needs it, for the message.
    """
    package = PACKAGES[module]
    if importlib.util.find_spec(module) is None:
        target = f"mio-rag[{package.extra}]" if package.extra else "mio-rag"
        raise MissingExtraError(f"{what} needs the package '{module}': pip install \"{target}\"")
    problem = refusal(module)
    if problem is not None:
        raise InputError(f"{what} cannot be used: {problem}")


_lock = threading.Lock()
_users = 0
_controller: ThreadpoolController | None = None
_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block."""
    global _controller, _limit, _users
    with _lock:
        if _controller is None:
            _controller = ThreadpoolController()
        if _users == 0:
            _limit = _controller.limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limit.restore_original_limits()
                _limit = None
