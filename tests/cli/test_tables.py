"""The tables of ``evaluate`` and ``frontier data``: readable on any terminal and in a pipe."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mio_rag.cli.learn import point_lines
from mio_rag.learning.planner_training import Point
from mio_rag.measures import Measure, register, unregister

OWN = Measure(
    "own_measure", "A measure of somebody else's own", "?", "selection", "none", "0 to 1", "this test"
)  # fmt: skip


@pytest.fixture
def own() -> Iterator[list[str]]:
    """The names of six measures that are registered while the test runs."""
    added = [register(replace(OWN, name=f"own_{k}", label=f"Own measure number {k}")) for k in range(6)]
    yield [measure.name for measure in added]
    for measure in added:
        unregister(measure.name)


def difference(method: str, budget: int, mean: float, air: float) -> dict[str, Any]:
    return {
        "method": method, "baseline": "fused", "budget_tokens": budget, "measure": "evidence_covered",
        "n": 40, "difference": mean, "low": mean - air, "high": mean + air, "p_value": 0.01, "q_value": 0.01,
    }  # fmt: skip


def test_the_verdict_on_a_planner_goes_by_the_intervals() -> None:
    def point(name: str, alpha: float, low: float, high: float) -> Point:
        return Point(name, alpha, 0.5, 1.0, 0.4, 0.5, (low + high) / 2, low, high, {})

    fixed = point("plain", 0.0, 0.5, 0.9)  # no planner
    unclear, better = point("planner", 0.0, -1.0, 1.0), point("planner", 0.1, 0.1, 1.0)
    worse = point("planner", 0.5, -1.0, -0.1)
    verdicts = [
        [*point_lines(of)][-1] for of in ([fixed, unclear], [fixed, unclear, better], [unclear, worse])
    ]
    assert verdicts[0].startswith("at no price the planner clearly has more")
    assert verdicts[1].endswith("at its cost for alpha 0.1")
    assert verdicts[2].endswith("; clearly less for alpha 0.5")
