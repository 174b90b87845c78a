"""Pictures: no text leaves the picture or its frame, and none runs into other text, whatever is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mio_rag.frontier.page import plot_data, plot_query
from mio_rag.measures import Measure, register, unregister
from mio_rag.relevance import reliability, reliability_plot
from mio_rag.relevance.fitting import share_interval

figures: Any = pytest.importorskip("matplotlib.figure")
texts: Any = pytest.importorskip("matplotlib.text")

LONG = "Which tower is taller, $x^{ or $kerryvore, and who of the two of them built the other one? " * 3


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures that were saved, with everything where it is in the file."""
    seen: list[Any] = []
    save = figures.Figure.savefig

    def saved(figure: Any, *given: Any, **settings: Any) -> None:
        seen.append(figure)
        save(figure, *given, **settings)
        figure.dpi = settings["dpi"]  # axes stay where they were drawn, in pixels of the file

    monkeypatch.setattr(figures.Figure, "savefig", saved)
    return seen


def shown(figure: Any) -> Iterator[tuple[Any, Any]]:
    """Every text that is drawn, with the box that it must stay in."""
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    beside = {label: axes for axes in figure.axes for label in axes.texts}
    for text in figure.findobj(texts.Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden:
            yield text, (beside[text].get_window_extent() if text in beside else figure.bbox)


def problems(figure: Any) -> list[str]:
    """Texts that leave their box or meet."""
    boxes = [(text.get_text(), text.get_window_extent(), frame) for text, frame in shown(figure)]
    assert boxes
    found = [
        f"{name!r} leaves its frame"
        for name, box, frame in boxes
        if box.x0 < frame.x0 - 1 or box.x1 > frame.x1 + 1 or box.y0 < frame.y0 - 1 or box.y1 > frame.y1 + 1
    ]
    return found + [
        f"{name!r} meets {other!r}"
        for k, (name, box, _) in enumerate(boxes)
        for other, second, _ in boxes[k + 1 :]
        if box.padded(-1).overlaps(second.padded(-1))
    ]


def rows(counts: list[int]) -> list[dict[str, float]]:
    """Bins with so many candidates each."""
    rng = np.random.default_rng(0)
    p = np.concatenate([np.full(n, (k + 0.5) / 10) for k, n in enumerate(counts)])
    return reliability(p, rng.random(len(p)) < p)


def query_data(spots: list[tuple[float, float]], question: str) -> dict[str, Any]:
    """What `plot_query` draws: a budget path, a penalty path, and settings at given places."""
    steps = [
        {
            "tokens": 100 * k,
            "until": 100 * k + 100,
            "value": 1.0 * k,
            "bound": 1.0 * k,
            "supported": k % 2 == 0,
        }
        for k in range(5)
    ]
    more = {"radius": 0.05}
    grid = [
        {"redundancy": x, "guaranteed": y, "redundancy_weight": k / 10, "frontier": k % 2 == 0, **more}
        for k, (x, y) in enumerate(spots)
    ]
    return {
        "question": question,
        "budget_tokens": 256,
        "budget": {"steps": steps},
        "penalty": {"pieces": [{"low": 0.0, "passages": 3}, {"low": 0.4, "passages": 1}]},
        "settings": {"passage_penalty": 0.1},
        "grid": grid,
    }


CORNERS = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 1.0)]
CROWD = [(0.5 + k / 200, 0.5 + k / 300) for k in range(12)] + CORNERS


@pytest.mark.parametrize(
    ("spots", "question"),
    [(CORNERS, LONG), (CROWD, "Which?"), ([], "Which?")],
    ids=["corners", "crowd", "none"],
)
def test_a_query_frontier(
    drawn: list[Any], tmp_path: Path, spots: list[tuple[float, float]], question: str
) -> None:
    plot_query(query_data(spots, question), tmp_path / "q.png")
    assert problems(drawn[0]) == []
    below = drawn[0].axes[2]
    unlabelled = len(set(spots)) - len(below.texts)
    assert below.get_xlabel().endswith(f"no room for {unlabelled}" if unlabelled else "(lambda_1, rho)")
    assert (unlabelled > 0) == (spots == CROWD)
    if spots == CORNERS:
        assert "(0.3, 0.05) and 1 more" in {label.get_text() for label in below.texts}


@pytest.mark.parametrize("names", [("gold_recall",), ("gold_recall", "guaranteed", "token_f1")])
def test_a_data_frontier(drawn: list[Any], tmp_path: Path, names: tuple[str, ...]) -> None:
    spread = {"mean": 0.5, "low": 0.2, "high": 0.9}
    points = [
        {
            "measures": {"tokens_used": {"mean": 100.0 * k, "low": 90.0 * k, "high": 120.0 * k}}
            | dict.fromkeys(names, spread),
            "front": [names[0]] if k % 2 else [],
            "certified": k != 3,
        }
        for k in range(1, 6)
    ]
    plot_data({"run": {"dataset": LONG, "questions": 20}, "points": points}, tmp_path / "d.png")
    assert problems(drawn[0]) == []


def test_a_data_frontier_of_a_measure_with_a_long_name(drawn: list[Any], tmp_path: Path) -> None:
    own = Measure("own_long", LONG, "?", "selection", "none", "0 to 1", "this test")
    register(own)
    try:
        same = {"mean": 1.0, "low": 1.0, "high": 1.0}
        points = [
            {"front": [], "certified": True, "measures": {
                "tokens_used": {"mean": 100.0 * k, "low": 90.0 * k, "high": 120.0 * k},
                "gold_recall": same, "own_long": same,
            }}
            for k in (1, 2)
        ]  # fmt: skip
        plot_data({"run": {"dataset": "d", "questions": 20}, "points": points}, tmp_path / "d.png")
    finally:
        unregister("own_long")
    assert problems(drawn[0]) == []
    labels = [axes.get_ylabel() for axes in drawn[0].axes]
    assert labels[0] == "Evidence found"
    assert all(axes.get_ylim() == (-0.05, 1.05) for axes in drawn[0].axes)


@pytest.mark.parametrize(
    "counts", [[1], [2000, 150, 40, 12, 9, 8, 5, 3, 1, 1], [5000] * 10], ids=["one", "falling", "full"]
)
def test_reliability_shows_how_sure_each_share_is(
    drawn: list[Any], tmp_path: Path, counts: list[int]
) -> None:
    before, after = rows(counts), rows(counts[::-1])
    reliability_plot(tmp_path / "r.png", {"cosine": before, "logistic (out of fold)": after}, LONG)
    assert problems(drawn[0]) == []
    upper, lower = drawn[0].axes
    assert [label.get_text() for label in lower.texts] == [str(r["count"]) for r in [*before, *after]]
    bars = [container for container in upper.containers if container.has_yerr]
    for row, bar in zip([*before, *after], bars, strict=True):
        (mark, _, (line,)) = bar.lines
        (low, high) = line.get_segments()[0][:, 1]
        assert (low, high) == pytest.approx(share_interval(row["observed"], int(row["count"])))
        assert low <= row["observed"] <= high
        assert high - low > 0
        assert (mark.get_markerfacecolor() == "white") == (row["count"] < 10)
