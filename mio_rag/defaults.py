"""What every door does where nothing else is said: Python, the command line and the service."""

from __future__ import annotations

from dataclasses import dataclass

__version__ = "0.1.0"


@dataclass(frozen=True)
class Defaults:
    """The defaults that several doors share."""

    budget: int = 1024
    """Largest context, in tokens."""
    answer: int = 64
    """Longest answer, in tokens."""
    units: str = "auto"
    """What is chosen: whole passages, or their sentences where the budget has little room."""
    pool: int = 50
    """Candidates of a search."""
    seconds: float = 2.0
    """Time limit of one program; then the certified gap is reported."""
    gap: float = 0.0
    """Proven relative gap at which a program counts as solved."""
    embedder: str = "minilm"
    """Embeds what is not indexed yet."""
    model: str = "extractive"
    """Answers where no model is named: quotes a span of the context."""
    policy: str = "default"
    """Decides what is searched, read and answered."""


DEFAULTS = Defaults()
