"""Two pools of one index as one."""

from __future__ import annotations

from mio_rag.pool import Pool


def merge_pools(one: Pool, other: Pool, size: int, keep: set[str]) -> Pool:
    """See `Pool.merge`."""
    return one.merge(other, size, keep)
