"""Tokens at matched quality: the interpolation by hand, pairs in every resample, curves that stay below."""

from __future__ import annotations

import numpy as np
import pytest

from mio_rag.errors import InputError
from mio_rag.evaluation.statistics import matched_rows, matched_tokens, tokens_to_reach


def test_interpolation_by_hand() -> None:
    tokens = np.array([[100.0, 200.0, 400.0]] * 5)
    quality = np.array([[0.2, 0.4, 0.8]] * 5)
    found = tokens_to_reach(tokens, quality, np.array([0.3, 0.8, 0.5, 0.1, 0.9]))
    np.testing.assert_allclose(found, [150, 400, 250, 100, np.nan])


def test_a_dip_is_never_needed() -> None:
    tokens, quality = np.array([[100.0, 200.0, 300.0]]), np.array([[0.5, 0.4, 0.9]])
    assert tokens_to_reach(tokens, quality, np.array([0.5]))[0] == 100
    assert tokens_to_reach(tokens, quality, np.array([0.7]))[0] == pytest.approx(250)


def curve(
    recall: list[float], tokens: list[float], count: int = 200, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.tile(tokens, (count, 1)), (rng.random((count, 1)) < np.array(recall)).astype(float)


def test_half_the_tokens() -> None:
    curves = {
        "base": curve([0.3, 0.6, 0.9], [100, 200, 400]),
        "half": curve([0.3, 0.6, 0.9], [50, 100, 200]),
        "worse": curve([0.1, 0.2, 0.3], [100, 200, 400]),
    }
    base, half, worse = matched_tokens(curves, "base", 1)
    assert base["tokens"] == {"mean": 200, "low": 200, "high": 200}
    # The same questions are right at the same budgets: the ratio is exact in every resample.
    assert half["share"]["mean"] == pytest.approx(0.5)
    assert half["share"]["low"] == pytest.approx(0.5)
    assert half["share"]["high"] == pytest.approx(0.5)
    assert worse["tokens"] is None
    assert worse["reached"] < 0.5
    assert matched_tokens(curves, "base", 0)[1]["at_most"]
    with pytest.raises(InputError, match="'none' is not among"):
        matched_tokens(curves, "none", 0)


def test_intervals_cover_noise() -> None:
    curves = {"base": curve([0.5, 0.7], [100, 200], seed=1), "other": curve([0.55, 0.8], [100, 200], seed=2)}
    entry = matched_tokens(curves, "base", 1)[1]
    assert entry["tokens"]["low"] < entry["tokens"]["mean"] < (entry["tokens"]["high"] or np.inf)


@pytest.mark.filterwarnings("error")
def test_shares_of_a_baseline_that_reads_nothing() -> None:
    """At its smallest budget no passage fits, as where budgets are small and passages long."""
    recall = [0.0, 0.5]
    curves = {
        "base": curve(recall, [0, 200]),
        "nothing either": curve(recall, [0, 100]),
        "something": curve(recall, [30, 200]),
    }
    base, same, more = matched_tokens(curves, "base", 0)
    for entry in (base, same):
        assert entry["tokens"] == {"mean": 0, "low": 0, "high": 0}
        assert entry["share"] == {"mean": 1, "low": 1, "high": 1}
    assert more["tokens"]["mean"] == pytest.approx(30)
    assert more["share"] is None
    # One question in 40 reads: a third of the resamples are without it, and there is no upper end.
    tokens, quality = np.zeros((40, 2)), np.zeros((40, 2))
    tokens[0], tokens[:, 1], quality[:, 1] = 200, 200, 1
    rarely = {"base": (tokens, quality), "other": (np.maximum(tokens, 10), quality)}
    entry = matched_tokens(rarely, "base", 0)[1]
    assert entry["tokens"]["high"] is not None
    assert entry["share"]["mean"] == pytest.approx((200 + 390) / 200)
    assert entry["share"]["low"] > 1
    assert entry["share"]["high"] is None


def row(method: str, budget: int, question: str, recall: float | None) -> dict[str, object]:
    return {"method": method, "budget_tokens": budget, "question_id": question, "gold_recall": recall,
            "tokens_used": budget - 10}  # fmt: skip


def test_rows_of_a_ledger() -> None:
    rows = [row(m, b, q, r) for m, shift in (("topk", 0.0), ("exact", 0.2)) for q in "abc"
            for b, r in ((100, 0.3 + shift), (200, 0.5 + shift))]  # fmt: skip
    rows += [row(m, b, "unlabelled", None) for m in ("topk", "exact") for b in (100, 200)]
    found = matched_rows(rows, "topk")
    by_budget = {e["budget_tokens"]: e for e in found if e["method"] == "exact"}
    assert by_budget[200]["n"] == 3
    assert by_budget[200]["tokens"]["mean"] == 90  # .5 at the smallest budget already
    assert by_budget[200]["at_most"]
    assert by_budget[200]["share"]["mean"] == pytest.approx(90 / 190)
    assert matched_rows([r for r in rows if r["budget_tokens"] == 100], "topk") == []
