"""Pools of overlapping windows: what is cut, what is shared, what is solved, and who contradicts whom."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed import shared, windows
from benchmarks.speed.entrants import entrants
from benchmarks.speed.runner import Ledger
from benchmarks.speed.windows import OVERLAPS, SharedCell, WindowPool, shared_cells, shared_program
from mio_rag.solvers import solve


class Words:
    """Counts words."""

    def count(self, texts):
        return [len(text.split()) for text in texts]


def cut(length: int, overlap: float, title: str = "A title"):
    return windows._cut(title, [f"w{k}" for k in range(length)], overlap)


def pool(overlap: float = 0.5, n: int = 60) -> WindowPool:
    rng = np.random.default_rng(0)
    costs, needs = windows._segments(cut(90 * n, overlap)[:n], Words())
    vectors = rng.normal(size=(n, 8)) + 1.0
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = np.sort(rng.random(n))[::-1]
    return WindowPool("set/q", overlap, cosine, vectors.astype(np.float32), costs, needs)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("length", [1, 45, 89, 90, 91, 135, 136, 200, 901])
def test_windows_cover_the_document_and_repeat_what_they_should(length: int, overlap: float) -> None:
    made = cut(length, overlap)
    spans = []
    for window in made:
        words = [int(word[1:]) for _, text in window.parts for word in text.split()]
        assert words == list(range(words[0], words[-1] + 1))
        assert len(words) <= windows.WORDS
        spans.append((words[0], words[-1] + 1))
    assert spans[0][0] == 0
    assert spans[-1][1] == length
    assert [b for _, b in spans].count(length) == 1  # none after the one that ends it
    for (_, b), (a, _) in itertools.pairwise(spans):
        assert b - a == round(windows.WORDS * overlap)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_segments_add_up_to_the_windows_and_count_once_together(overlap: float) -> None:
    made = cut(700, overlap)
    costs, needs = windows._segments(made, Words())
    for window, mine in zip(made, needs, strict=True):
        assert costs[mine].sum() == len(window.text.split())
    assert costs[needs.any(axis=0)].sum() == 700 + 2
    users = needs.sum(axis=0)
    assert users.max() == len(made)  # of the title
    assert sorted(users)[-2] == (1 if overlap == 0 else 2)


def test_what_two_windows_hold_in_common_counts_once() -> None:
    given = pool()
    cell = SharedCell(0.5, 50, 0.3, 0.0, 512)
    with_redundancy, without = (shared_program(given, c) for c in (cell, SharedCell(0.5, 50, 0.0, 0.0, 512)))
    assert with_redundancy is not None
    assert without is not None
    assert not without.pairwise.any()
    both = with_redundancy.pairwise[0, 1] - with_redundancy.pairwise[0, 2]
    assert both > 0.3 * float(without.linear[1])  # half of the text, at the lower of two values
    assert np.allclose(with_redundancy.pairwise, with_redundancy.pairwise.T)
    priced = shared_program(given, SharedCell(0.5, 50, 0.0, 0.001, 512))
    x = [1, 1, *[0] * 48]
    assert priced.objective(x) == pytest.approx(without.objective(x) - 0.001 * without.cost(x))
    assert shared_program(given, SharedCell(0.5, 100, 0.0, 0.0, 512)) is None


def test_a_run_is_resumed_and_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [c for c in shared_cells() if c.n == 50 and c.budget == 512 and c.price == 0.0002]
    monkeypatch.setattr(shared, "shared_cells", lambda: few)
    taking_part = [e for e in entrants()[0] if e.name in ("branch_and_bound", "highs")]
    pools = [pool(overlap) for overlap in OVERLAPS]
    limits, done = {"ours": 10.0, "peer": 10.0}, []

    def run() -> list:
        return shared.run(pools, taking_part, 1, 1, limits, Ledger(tmp_path / "ledger.jsonl"), done.append)

    rows = run()
    assert len(rows) == len(done) == 2 * len(few)
    monkeypatch.setattr(shared, "_solved", lambda *_: pytest.fail("solved again"))
    assert run() == rows
    report = shared.summary(rows)
    assert report["contradictions"] == []
    assert report["goals"]["n50"]["p95_milliseconds_below"] == 20
    assert report["overall"]["n50, overlap 50%"]["proven"] == 2
    assert report["peers"]["n50"]["highs"]["programs"] == len(few)
    assert "highs" in shared.table(report)


def test_a_bound_below_what_another_found_is_a_contradiction() -> None:
    program = shared_program(pool(), SharedCell(0.5, 50, 0.0, 0.0, 512))
    found = solve(program, "branch_and_bound")
    row = {
        "cell": "c",
        "question": "q",
        "solver": "ours",
        "status": "optimal",
        "objective": found.objective,
        "bound": found.bound,
        "infeasible": [],
    }
    assert shared.contradictions([row, {**row, "solver": "theirs"}]) == []
    lower = {**row, "solver": "theirs", "objective": None, "bound": found.objective - 0.01}
    assert "theirs bounds c, q" in shared.contradictions([row, lower])[0]
    assert "cost" in shared.contradictions([{**row, "infeasible": ["cost 9 exceeds"]}])[0]
