"""What one request may ask for, and how many may wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mio_rag.errors import InputError

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Limits of a service; each worker process holds them by itself.

    Parameters
    ----------
    max_body_bytes : int
        Of a request.
    max_question : int
        Characters.
    max_pool : int
        Candidates a question, n.
    max_budget_tokens, max_answer_tokens : int
    max_deadline_seconds : float
        Longest deadline that a request may set, counted from its arrival.
    concurrency : int
        Requests worked on at the same time.
    queue : int
        Requests that may wait for that; one more is answered 503 with Retry-After.
    max_wait_seconds : float
        Longest wait; then 503 with Retry-After, whatever the deadline.
    """

    max_body_bytes: int = 16_384
    max_question: int = 2_000
    max_pool: int = 200
    max_budget_tokens: int = 8_192
    max_answer_tokens: int = 512
    max_deadline_seconds: float = 30.0
    concurrency: int = 2
    queue: int = 64
    max_wait_seconds: float = 10.0

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value!r} must be a finite number > 0"
            for name, value in vars(self).items()
            if name != "queue" and not 0 < value < 1e12
        ]
        if not 0 <= self.queue < 1e6:
            problems.append(f"queue={self.queue!r} must be >= 0")
        if problems:
            raise InputError(problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(vars(self))
