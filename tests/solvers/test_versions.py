"""Versions of packages: of those that are installed."""

from importlib import metadata

from mio_rag.solvers.capabilities import versions_of


def test_what_is_not_installed_is_left_out() -> None:
    assert versions_of(("numpy", "no-such-package")) == {"numpy": metadata.version("numpy")}
