"""Live traffic shared between two policies: who answers a question, ratings, and a test of the difference.

Questions and ratings are in an SQLite file that all worker processes share. The difference of the shares of
helpful answers has Newcombe's interval (Statistics in Medicine 17, 1998, method 10); the test is Fisher's.
"""

from __future__ import annotations

import random
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.errors import InputError, StateError
from mio_rag.service.settings import Split

_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers (id TEXT PRIMARY KEY, policy TEXT NOT NULL, at REAL DEFAULT "
    "(julianday()), helpful INTEGER)"
)


class Ratings:
    """Who answered which question, and how that was rated. Thread-safe.

    usual: the policy of the service.

    Raises `InputError` if the file is something else.
    """

    def __init__(self, split: Split, usual: str) -> None:
        self.split, self.policies = split, (usual, split.policy)
        if split.policy == usual:
            raise InputError(
                f"--against {split.policy}: the service has this policy already; name another one"
            )
        try:
            with self._open() as file:
                file.execute(_TABLE)
        except StateError as error:
            raise InputError(str(error)) from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(Path(self.split.ratings), timeout=30)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise StateError(f"'{self.split.ratings}' cannot be used for ratings: {error}") from error

    def draw(self) -> str:
        """Return the policy that answers the next question."""
        return self.policies[random.random() < self.split.share]

    def answered(self, policy: str) -> dict[str, Any]:
        """Record an answer; return what its response tells of it."""
        identity = uuid.uuid4().hex
        with self._open() as file:
            file.execute("INSERT INTO answers (id, policy) VALUES (?, ?)", (identity, policy))
        share = self.split.share if policy == self.split.policy else 1 - self.split.share
        return {"id": identity, "policy": policy, "share": share}

    def rate(self, identity: str, helpful: bool) -> bool | None:
        """Record a rating; False if the answer was rated before, None if it is not known here."""
        with self._open() as file:
            done = file.execute(
                "UPDATE answers SET helpful = ? WHERE id = ? AND helpful IS NULL", (int(helpful), identity)
            )
            if done.rowcount:
                return True
            return (
                False if file.execute("SELECT 1 FROM answers WHERE id = ?", (identity,)).fetchone() else None
            )

    def stats(self) -> dict[str, Any]:
        """Return what was asked, rated and helpful by policy, and how the other differs from the usual."""
        with self._open() as file:
            told = file.execute(
                "SELECT policy, COUNT(*), COUNT(helpful), SUM(helpful) FROM answers GROUP BY policy"
            )
            counts = {policy: (asked, rated, helpful or 0) for policy, asked, rated, helpful in told}
        each = {policy: counts.get(policy, (0, 0, 0)) for policy in self.policies}
        names = ("questions", "rated", "helpful")
        policies = {policy: dict(zip(names, count, strict=True)) for policy, count in each.items()}
        return {"policies": policies, **compared(*(count[1:] for count in each.values()))}


def compared(usual: tuple[int, int], other: tuple[int, int]) -> dict[str, float]:
    """Return the difference of two shares with its 95 % interval and p-value.

    usual, other: how many were rated, and how many of these helpful. Nothing without ratings of both.
    """
    if not usual[0] or not other[0]:
        return {}
    from scipy.stats import fisher_exact, norm

    z = float(norm.ppf(0.975))
    share, low, high = (
        np.array(values) for values in zip(*(_wilson(*one, z) for one in (usual, other)), strict=True)
    )
    difference = share[1] - share[0]
    table = np.array([[helpful, rated - helpful] for rated, helpful in (usual, other)])
    return {
        "difference": float(difference),
        "low": max(-1.0, float(difference - np.hypot(share[1] - low[1], high[0] - share[0]))),
        "high": min(1.0, float(difference + np.hypot(high[1] - share[1], share[0] - low[0]))),
        "p_value": float(fisher_exact(table).pvalue),
    }


def _wilson(n: int, k: int, z: float) -> tuple[float, float, float]:
    """A share with Wilson's interval."""
    share, room = k / n, z * z / n
    half = z * np.sqrt(share * (1 - share) / n + room / (4 * n))
    return share, (share + room / 2 - half) / (1 + room), (share + room / 2 + half) / (1 + room)
