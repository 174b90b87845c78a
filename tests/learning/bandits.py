"""Bandits in tests: synthetic questions whose strategies add what a linear truth says."""

from pathlib import Path
from typing import Any

import numpy as np

from mio_rag.learning.bandit import BanditSettings
from mio_rag.learning.strategist import Choice, Strategist, rate

STRATEGIES = ("raw", "hyde", "query2doc", "grounded")
EMBEDDER = "test:8"
TRUTH = {"hyde": 0.2, "query2doc": 0.01, "grounded": 0.1}  # costs are .05


def strategist(path: Path, possible: tuple[str, ...] = STRATEGIES, **settings: Any) -> Strategist:
    given = {"dimensions": 40, "cold_start": 5, "cold_share": 1.0, "token_price": 0.001} | settings
    return Strategist(path, possible, BanditSettings(**given), EMBEDDER)


def embedding(rng: np.random.Generator) -> np.ndarray:
    vector = rng.standard_normal(8)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def outcome(choice: Choice, own: dict[str, float], tokens: int = 50, seconds: float = 0.1) -> dict[str, Any]:
    """What an event says of strategies that ran: nothing overlaps."""
    ran = [name for name in choice.strategies if name not in choice.base]
    return {
        "own": {name: own[name] for name in ran},
        "overlap": [[a, b, 0.0] for i, a in enumerate(ran) for b in ran[i + 1 :]],
        "base": 0.5,
        "total": 0.5 + sum(own[name] for name in ran),
        "tokens": {name: 0 if name in choice.base else tokens for name in choice.strategies},
        "seconds": dict.fromkeys(choice.strategies, seconds),
        "credit": {name: 1 / len(choice.strategies) for name in choice.strategies},
    }


def asked(
    bandit: Strategist, number: int, text: str = "Who wrote it?", seed: int = 0, price: float | None = None
) -> Choice:
    rng = np.random.default_rng([seed, number])
    return bandit.choose_by(text, embedding(rng), 1, f"q{number}", price)


def lived(
    bandit: Strategist, questions: int, truth: dict[str, float], start: int = 0, **more: Any
) -> list[Choice]:
    """Let a bandit take questions whose strategies add what `truth` says, with a little noise."""
    choices = []
    for number in range(start, start + questions):
        choice = asked(bandit, number, **more)
        rng = np.random.default_rng([1, number])
        own = {name: value + 0.01 * rng.standard_normal() for name, value in truth.items()}
        assert bandit.record(choice, outcome(choice, own))
        choices.append(choice)
    return choices


def rated(bandit: Strategist, identity: str, value: int) -> bool:
    is_new = rate(bandit.log, identity, value, 0.0)
    bandit.refresh()
    return is_new
