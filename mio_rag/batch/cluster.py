"""A Ray cluster: joined where there is one, else started on this machine and ended with the work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mio_rag.errors import require

__all__ = ["joined"]


@contextmanager
def joined(workers: int) -> Iterator[Any]:
    """The module `ray`, in the cluster of RAY_ADDRESS or that was joined before, else in one of its own.

    Parameters
    ----------
    workers : int
        Cores that a cluster of our own must have for actors.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = require("ray", "ray", "engine='ray'")
    started = not ray.is_initialized()
    if started:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
        if "RAY_ADDRESS" not in os.environ:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # one of our own, for this machine alone
            # One core beside the workers', for the pipeline itself.
            settings |= {"num_cpus": workers + 1, "include_dashboard": False}
        ray.init(**settings)
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()
