"""The study of the default: differences, totals and marks are those of the columns, by hand."""

import numpy as np
import pytest

from benchmarks.default.study import BASELINES, BUDGETS, OURS, Columns, head
from benchmarks.default.summary import over_budgets, summarize, table, totals
from mio_rag.candidates import Candidates

RECALL = {"topk": [0.0, 1.0, 0.0, 0.0], "fused": [1.0, 1.0, 0.0, 0.0], "default": [1.0, 1.0, 1.0, 1.0]}


def columns(recall: list[float], tokens: float) -> Columns:
    return {
        str(budget): {"recall": recall, "tokens": [tokens * budget] * 4, "proven": [1.0] * 4}
        for budget in BUDGETS
    }


def test_rows_are_held_against_the_best_ranking_and_summed_by_hand() -> None:
    rows = {name: columns(RECALL.get(name, [0.0] * 4), 1.0) for name in (*BASELINES, *OURS)}
    rows["default"] = columns(RECALL["default"], 0.5)
    rows["bm25"]["256"] = {"recall": [1.0, 1.0, 1.0, 0.0], "tokens": [128.0] * 4, "proven": [1.0] * 4}
    results = {"one, minilm": summarize(rows)}
    assert [results["one, minilm"][str(b)]["best"] for b in BUDGETS] == ["bm25", "fused", "fused"]
    summed = totals(results)
    assert summed["default"]["difference"] == pytest.approx((0.25 + 0.5 + 0.5) / 3)
    assert summed["default"]["token_share"] == pytest.approx((1.0 + 0.5 + 0.5) / 3)
    assert summed["default"]["share_of_all_tokens"] == pytest.approx((128 + 256 + 512) / (128 + 512 + 1024))
    assert summed["raw"]["clearly_below"] == ["one, minilm 256"]
    over = {"one, minilm": over_budgets(rows)}
    # A question counts once: 0, 0, 2/3 and 1 of the budgets are better.
    assert over["one, minilm"]["default"]["mean"] == pytest.approx((0 + 0 + 2 / 3 + 1) / 4)
    assert over["one, minilm"]["default"]["high"] <= 1
    read = {str(budget): {"tokens": 40.0, "before": 100.0, "nothing": 0.25} for budget in BUDGETS}
    outside = {"one, minilm": {**read, "told": {"area": 0.9, "questions": 4.0}}}
    text = table(results, summed, over, outside)
    assert "in the mean at 256: 40 of 100 tokens" in text
    assert "default, mean of a question over the budgets" in text
    assert "bm25 0.750" in text


def test_the_head_of_a_pool_with_near_duplicates_is_cut_as_a_whole() -> None:
    count = 53  # links led to three more
    known = np.zeros((count, count))
    known[0, 52] = known[52, 0] = known[1, 2] = known[2, 1] = 0.9
    pool = Candidates(
        ids=[str(k) for k in range(count)],
        texts=[f"text {k}" for k in range(count)],
        relevance=np.linspace(1, 0, count),
        tokens=[2] * count,
        sources=["a"] * count,
        spans=[(10 * k, 10 * k + len(f"text {k}")) for k in range(count)],
        dates=[""] * count,
        duplicates=known,
    )
    first = head(pool)
    assert len(first) == 50
    assert first.duplicates is not None
    assert first.duplicates.sum() == pytest.approx(1.8)
