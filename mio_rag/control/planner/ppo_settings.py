"""Settings of proximal policy optimisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mio_rag.errors import InputError

__all__ = ["STARTS", "PPOSettings"]

#: What training may set out from.
STARTS = ("regression", "nothing")


@dataclass(frozen=True)
class PPOSettings:
    """How a network is trained.

    Parameters
    ----------
    start : {"regression", "nothing"}
        What it sets out from: the regression's decisions, or every workflow alike.
    alphas : tuple of float
        Prices; each episode draws one, and the network sees it.
    updates : int
        Most rounds of collecting and learning.
    episodes : int
        Of a round.
    patience : int
        Rounds without a better held-out reward after which it ends.
    held_out : float
        Share of the questions that rewards are checked on.
    gamma, lam : float
        Discount over a cost of 1, and of advantages.
    """

    alphas: tuple[float, ...] = (0.1,)
    hidden: int = 64
    updates: int = 150
    episodes: int = 512
    epochs: int = 4
    minibatch: int = 256
    rate: float = 3e-3
    clip: float = 0.2
    entropy: float = 0.02
    value: float = 0.5
    gamma: float = 0.995
    lam: float = 0.95
    patience: int = 40
    held_out: float = 0.2
    decay: float = 0.1
    seed: int = 0
    start: str = "regression"

    def __post_init__(self) -> None:
        problems = []
        if self.start not in STARTS:
            problems.append(f"start={self.start!r} is unknown: choose {' or '.join(STARTS)}")
        if not self.alphas or any(not 0 <= alpha < math.inf for alpha in self.alphas):
            problems.append(f"alphas={self.alphas!r}: give at least one price, finite and >= 0")
        for name in ("hidden", "updates", "episodes", "epochs", "minibatch", "patience"):
            if getattr(self, name) < 1:
                problems.append(f"{name}={getattr(self, name)!r} must be >= 1")
        for name in ("rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                problems.append(f"{name}={getattr(self, name)!r} must be > 0")
        for name in ("entropy", "value", "decay"):
            if not 0 <= getattr(self, name) < math.inf:
                problems.append(f"{name}={getattr(self, name)!r} must be >= 0")
        for name in ("gamma", "lam"):
            if not 0 < getattr(self, name) <= 1:
                problems.append(f"{name}={getattr(self, name)!r} must be in (0, 1]")
        if not 0 <= self.held_out < 1:
            problems.append(f"held_out={self.held_out!r} must be in [0, 1)")
        if problems:
            raise InputError(problems)
        object.__setattr__(self, "alphas", tuple(sorted(float(alpha) for alpha in self.alphas)))
