"""A clock that goes when it is told to, and pools to pace."""

from __future__ import annotations

import numpy as np

from mio_rag import Candidates


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self, now: float = 1e6) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def pool(seed: int = 0, n: int = 12) -> Candidates:
    rng = np.random.default_rng(seed)
    return Candidates(
        ids=[f"p{k}" for k in range(n)],
        texts=["text"] * n,
        relevance=np.sort(rng.uniform(0, 1, n))[::-1],
        tokens=rng.integers(40, 160, n),
    )
