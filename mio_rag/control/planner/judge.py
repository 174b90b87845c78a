"""Planners on a table of outcomes: their frontier over the price, against whoever looks at no question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mio_rag.control.outcomes import mixtures
from mio_rag.control.planner.experience import Experience
from mio_rag.control.planner.policy import Planner

__all__ = ["Point", "fixed_points", "frontier", "judged"]

IntArray = NDArray[np.intp]
FloatArray = NDArray[np.float64]

_CELLS = 500_000  # of an array of draws by questions


@dataclass(frozen=True)
class Point:
    """A policy at a price, on n questions.

    Parameters
    ----------
    quality, cost, reward : float
        Means; cost in its unit, reward = quality - alpha * cost.
    fixed : float
        Quality of the best mixture of fixed workflows at this cost.
    gain : float
        Quality less that; `low` and `high` are its 95 % interval over questions.
    shares : dict of str to float
        How often each workflow was chosen.
    """

    name: str
    alpha: float
    quality: float
    cost: float
    reward: float
    fixed: float
    gain: float
    low: float
    high: float
    shares: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def judged(
    name: str, experience: Experience, chosen: IntArray, alpha: float, *, draws: int = 2000, seed: int = 0
) -> Point:
    """A choice of a workflow for each question, against the best mixture of fixed ones at equal cost.

    The interval is a bootstrap over questions: each draw has a mixture of its own.
    """
    rows = np.arange(len(experience))
    quality, cost = experience.quality[rows, chosen], experience.cost[rows, chosen]
    means = experience.quality.mean(axis=0), experience.cost.mean(axis=0)
    fixed = float(mixtures(means[0][None], means[1][None], cost.mean(keepdims=True))[0])
    rng = np.random.default_rng(seed)
    gains = np.concatenate(
        [
            _gains(experience, quality, cost, rng.integers(len(rows), size=(some, len(rows))))
            for some in _portions(draws, len(rows))
        ]
    )
    low, high = np.quantile(gains, [0.025, 0.975])
    names = [workflow.name for workflow in experience.tree.workflows]
    shares = {n: float((chosen == k).mean()) for k, n in enumerate(names) if (chosen == k).any()}
    return Point(
        name, alpha, float(quality.mean()), float(cost.mean()), float((quality - alpha * cost).mean()),
        fixed, float(quality.mean()) - fixed, float(low), float(high), shares,
    )  # fmt: skip


def _portions(draws: int, questions: int) -> list[int]:
    """How many draws at a time: as many as some megabytes hold."""
    most = max(1, _CELLS // max(1, questions))
    return [min(most, draws - start) for start in range(0, draws, most)]


def _gains(experience: Experience, quality: FloatArray, cost: FloatArray, at: IntArray) -> FloatArray:
    """Quality less that of the mixture, on every draw of questions; `at` has shape (draws, n)."""
    draws, n = at.shape
    cells = (at + n * np.arange(draws)[:, None]).ravel()
    weights = np.bincount(cells, minlength=draws * n).reshape(draws, n) / n
    mixed = mixtures(weights @ experience.quality, weights @ experience.cost, weights @ cost)
    return np.asarray(weights @ quality - mixed, dtype=np.float64)


def frontier(
    planner: Planner, experience: Experience, alphas: Sequence[float], name: str = "planner"
) -> list[Point]:
    """A planner at every price that it may be asked for."""
    allowed = [a for a in alphas if not planner.alphas or planner.alphas[0] <= a <= planner.alphas[-1]]
    return [judged(name, experience, planner.replay(experience, alpha), alpha) for alpha in allowed]


def fixed_points(experience: Experience, alpha: float) -> list[Point]:
    """Every workflow on every question, and whoever knows each question's best."""
    points = [
        judged(workflow.name, experience, np.full(len(experience), k, dtype=np.intp), alpha, draws=200)
        for k, workflow in enumerate(experience.tree.workflows)
    ]
    oracle = np.argmax(experience.quality - alpha * experience.cost, axis=1).astype(np.intp)
    return [*points, judged("oracle", experience, oracle, alpha, draws=200)]
