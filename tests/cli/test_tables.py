"""The tables of ``evaluate`` and ``frontier data``: readable on any terminal and in a pipe."""

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mio_rag.cli.evaluate import summary_lines
from mio_rag.cli.lab import frontier_lines
from mio_rag.cli.learn import point_lines
from mio_rag.cli.terminal import Terminal
from mio_rag.learning.planner_training import Point
from mio_rag.measures import Measure, register, unregister

WIDTHS = (80, 180)
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


def spread(mean: float, air: float = 0.1) -> dict[str, float]:
    return {"mean": mean, "low": mean - air, "high": mean + air}


def entry(method: str, budget: int, recall: float, tokens: float, **more: Any) -> dict[str, Any]:
    return {
        "method": method, "budget_tokens": budget, "n": 40, "failed": 0,
        "optimal_share": 1.0 if method == "exact" else None,
        "evidence_covered": spread(recall), "all_gold": spread(recall / 2), "pool_recall": spread(1.0, 0),
        "tokens_used": spread(tokens, 5), "exact_match": spread(0.3), "token_f1": spread(0.4), **more,
    }  # fmt: skip


def difference(method: str, budget: int, mean: float, air: float) -> dict[str, Any]:
    return {
        "method": method, "baseline": "fused", "budget_tokens": budget, "measure": "evidence_covered",
        "n": 40, "difference": mean, "low": mean - air, "high": mean + air, "p_value": 0.01, "q_value": 0.01,
    }  # fmt: skip


def summary(budgets: tuple[int, ...] = (128, 256), **more: Any) -> list[dict[str, Any]]:
    return [
        entry(method, budget, 0.725 - 0.1 * k, budget - 10 * k, **more)
        for k, method in enumerate(("fused", "topk", "bm25", "mmr", "exact"))
        for budget in budgets
    ]


def shown(width: int | None, *given: Any, **named: Any) -> str:
    file = io.StringIO()
    Terminal(file=file, width=width).show(*summary_lines(*given, **named))
    return file.getvalue()


def lines(text: str, first: str) -> list[str]:
    return [line for line in text.split("\n") if line.startswith(first)]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_table_says_what_was_found_and_read(width: int) -> None:
    text = shown(width, summary(), [difference("exact", 256, -0.4, 0.1) | {"n": 37}], "fused")
    said = " ".join(text.split())
    assert said.startswith("Means over 40 questions; the baseline is fused.")
    first = text.split("\n\n")[1]
    # What it takes to read the table is on the first lines of it, and no line is longer than the terminal.
    assert all(len(line) <= width for line in text.split("\n"))
    rows = [line.split() for line in first.split("\n")]
    assert ["fused", "128", "72.5", "%", "baseline", "128", "baseline"] in [row[:7] for row in rows]
    (exact,) = [row for row in rows if row[:2] == ["exact", "256"] and row[3] == "%"]
    assert exact[2:] == ["32.5", "%", "-40.0", "(-50.0", "to", "-30.0)", "216", "\u2013"]
    flat = " ".join(text.split())
    assert (
        "note: exact is clearly below fused in evidence text covered: 40.0 points less (30.0 to 50.0)" in flat
    )
    assert "100%, finds less" in flat


@pytest.mark.parametrize("width", WIDTHS)
def test_measures_of_ones_own_squeeze_nothing(width: int, own: list[str]) -> None:
    text = shown(width, summary(**dict.fromkeys(own, spread(0.5))), [], "fused")
    assert all(len(line.rstrip()) <= width for line in text.split("\n"))
    for k in range(6):
        assert f"number {k}" in text  # the head of a field, in lines of whole words
    rows = lines(text, "exact")
    assert all(line.split()[1] in ("128", "256") for line in rows)  # every table begins with the keys
    assert sum(line.count("0.500") for line in rows) == 12
    assert len(rows) % 2 == 0
    assert "\u2026" not in text


def test_details_show_every_measure_with_its_interval() -> None:
    many = summary((256,), tokens_per_correct={"mean": 900.0, "low": 500.0, "high": None})
    text = shown(80, many, [], "fused", details=True)
    assert "900 (500 to unbounded)" in text
    assert "0.400 (0.300 to 0.500)" in text
    assert "tokens_per" not in shown(80, many, [], "fused")


def test_a_pipe_takes_what_a_table_needs(own: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = shown(None, summary(**dict.fromkeys(own, spread(0.5))), [], "fused", details=True)
    assert len(lines(text, "exact")) == 4  # two tables of two budgets, however wide
    assert max(map(len, text.split("\n"))) > 200
    monkeypatch.setenv("COLUMNS", "90")
    narrow = shown(None, summary(), [], "fused")
    assert max(map(len, narrow.split("\n"))) <= 90


@pytest.mark.parametrize("width", WIDTHS)
def test_a_frontier_keeps_its_keys(width: int, own: list[str]) -> None:
    measures = {
        "tokens_used": spread(100, 5), "gold_recall": spread(0.625), "diversity": spread(0.7),
        "stability": spread(0.9), "guaranteed": spread(1.5), **dict.fromkeys(own, spread(0.5)),
    }  # fmt: skip
    point = {
        "name": "x", "redundancy_weight": 0.1, "radius": 0.05, "passage_penalty": "auto",
        "budget_tokens": 256, "certified": True, "dominated": False, "front": ["gold_recall"],
        "measures": measures,
    }  # fmt: skip
    file = io.StringIO()
    Terminal(file=file, width=width).show(*frontier_lines([point, point | {"dominated": True}], None))
    text = file.getvalue()
    rows = [line.split() for line in text.split("\n") if "256" in line]
    assert all(row[:4] == ["0.1", "0.05", "auto", "256"] for row in rows)
    assert rows[0][4:11] == ["100", "62.5", "%", "*", "52.5", "to", "72.5"]
    assert sum(row.count("0.500") for row in rows) == 6
    assert all(len(line.rstrip()) <= width for line in text.split("\n"))
    assert "1 on the frontier, 1 dominated" in text
    assert "as good in tokens, evidence found, diversity, stability" in " ".join(text.split())


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
