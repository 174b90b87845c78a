"""Test the assumptions of the process on logged runs.

It assumes that U alone decides what an action does (Markov), that nothing raises U, and that starting lower
ends lower (monotone). Each is tested as far as the data allow. Violations are reported, not corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads scipy.stats, a second, where it is first used
from numpy.typing import NDArray

__all__ = ["Check", "Transition", "check_assumptions"]

FloatArray = NDArray[np.float64]

_FEWEST = 8  # observations that a test needs
_LEVEL = 0.05
_MARKOV_TESTS = 4  # which share the level
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Transition:
    """One recorded action."""

    question_id: str
    action: str
    step: int
    before: float
    after: float
    seconds: float
    tokens: int
    last_drop: float | None

    @property
    def drop(self) -> float:
        """How far U fell; negative if it rose."""
        return self.before - self.after


@dataclass(frozen=True)
class Check:
    """An assumption, what was measured of it, and whether that speaks against it (None: too few data)."""

    name: str
    value: float | None
    p_value: float | None
    n: int
    violated: bool | None


def check_assumptions(
    retrieved: Sequence[Transition], reasoned: Sequence[Transition], edges: FloatArray, min_drop: float
) -> list[Check]:
    """Test the assumptions by action; a fall of at most `min_drop` counts as none, `edges` are bins of U."""
    checks = []
    for action, group in (("retrieve", retrieved), ("reason", reasoned)):
        later = [t for t in group if t.last_drop is not None]
        checks += [
            _independent(
                f"Markov: {action} does the same at any step", group, [t.step for t in group], edges
            ),
            _independent(
                f"Markov: {action} does the same whatever the last action did",
                later,
                [t.last_drop or 0.0 for t in later],
                edges,
            ),
        ]
        n = len(group)
        rises = sum(t.drop < -min_drop for t in group)
        share = rises / n if n else None
        certain = bool(n) and scipy.stats.binomtest(rises, n, _LEVEL, alternative="greater").pvalue < _LEVEL
        checks.append(
            Check(f"{action} never raises U", share, None, n, None if n < _FEWEST else bool(certain))
        )
        order = _correlation([(t.before, t.after) for t in group])
        falls = order is not None and order[0] < 0 and order[1] < _LEVEL
        value, p_value = order or (None, None)
        violated = None if order is None else falls
        checks.append(Check(f"monotone: {action} from a lower U ends lower", value, p_value, n, violated))
    return checks


def _correlation(pairs: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Spearman's correlation with its p-value; None for too few or constant data."""
    if len(pairs) < _FEWEST:
        return None
    one, other = np.array(pairs).T
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    found = scipy.stats.spearmanr(one, other)
    return float(found.statistic), float(found.pvalue)


def _independent(name: str, group: Sequence[Transition], other: Sequence[float], edges: FloatArray) -> Check:
    """Whether the falls go with something else once U is known: correlation within the bins of U."""
    n, bins = len(group), len(edges) - 1
    place = np.minimum(np.searchsorted(edges, [t.before for t in group], side="right"), bins)
    columns = np.array([[t.drop for t in group], other], dtype=np.float64)
    for b in np.unique(place):
        columns[:, place == b] -= columns[:, place == b].mean(axis=1, keepdims=True)
    columns[np.abs(columns) < _ROUNDING] = 0.0
    if n < _FEWEST + bins or not columns.any(axis=1).all():
        constant = n >= _FEWEST + bins and columns[1].any()  # falls that do not vary depend on nothing
        return Check(name, None, None, n, False if constant else None)
    found = scipy.stats.pearsonr(*columns)
    p_value = float(found.pvalue)
    return Check(name, float(found.statistic), p_value, n, p_value < _LEVEL / _MARKOV_TESTS)
