"""Intervals of planners: all draws at once say what one draw after another does."""

from dataclasses import replace

import numpy as np
import pytest

from mio_rag.learning import planner_training as training
from mio_rag.learning.outcomes import Outcomes
from tests.learning.plans import table


def plainly(quality: np.ndarray, cost: np.ndarray, at: np.ndarray, chosen: np.ndarray) -> float:
    """Quality of what was chosen, less that of the best mixture of fixed workflows, on some questions."""
    outcomes = Outcomes(
        tuple(map(str, range(len(at)))),
        tuple(map(str, range(quality.shape[1]))),
        {"quality": quality[at], "cost": cost[at]},
    )
    spent = max(cost[at, chosen[at]].mean(), cost[at].mean(axis=0).min())
    return quality[at, chosen[at]].mean() - outcomes.fixed_at("quality", "cost", spent)


@pytest.mark.parametrize("cells", [1, 1000, 10**6])
def test_the_interval_is_that_of_draws_one_after_another(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_CELLS", cells)
    made = table(37)
    made = replace(made, cost=made.cost * np.random.default_rng(1).uniform(0.5, 1.5, made.cost.shape))
    for choice in (0, 1, None):
        chosen = np.full(37, choice) if choice is not None else np.arange(37) % made.cost.shape[1]
        rng = np.random.default_rng(3)
        gains = [
            plainly(made.quality, made.cost, rng.integers(37, size=37), chosen.astype(int))
            for _ in range(100)
        ]
        found = training.judged("p", made, chosen.astype(np.intp), 0.1, draws=100, seed=3)
        assert (found.low, found.high) == pytest.approx(tuple(np.quantile(gains, [0.025, 0.975])), abs=1e-12)
        alone = plainly(made.quality, made.cost, np.arange(37), chosen.astype(int))
        assert found.gain == pytest.approx(alone, abs=1e-12)
