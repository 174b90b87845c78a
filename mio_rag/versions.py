"""Versions of installed packages, as records name them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import metadata

__all__ = ["versions_of"]


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Package -> version, for those that are installed."""
    return {package: found for package in packages if (found := _version(package)) is not None}


@functools.cache  # looking in every folder of the path takes a millisecond, and finds the same
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
