"""Intervals, permutation tests, corrections, matched budgets, warnings: by hand and by enumeration."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap

from mio_rag.errors import InputError
from mio_rag.evaluation.rows import reading_column
from mio_rag.evaluation.statistics import (
    RESAMPLES,
    compare,
    compare_rows,
    matched_rows,
    matched_tokens,
    mean_interval,
    proven_yet_behind,
    ratio_interval,
    summarize,
    tokens_to_reach,
    too_few,
)


@pytest.mark.parametrize("n", [2, 12, 1200])
def test_the_interval_is_that_of_scipy(n: int) -> None:
    values = np.random.default_rng(n).lognormal(size=n)
    outcome = bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(3)
    )
    found = mean_interval(values.tolist(), seed=3)
    assert (found["low"], found["high"]) == pytest.approx(tuple(outcome.confidence_interval), rel=1e-12)
    assert mean_interval([0.25] * n) == {"mean": 0.25, "low": 0.25, "high": 0.25}


def test_ratio_of_sums() -> None:
    found = ratio_interval([100, 300, 200], [1, 0, 1])
    assert found is not None
    assert found["mean"] == 300  # 600 tokens, two right answers; not a mean of ratios
    assert found["high"] is None  # one resample in 27 has no right answer
    assert found["low"] is not None
    assert found["low"] < 300
    assert ratio_interval([100, 300], [0, 0]) is None
    assert ratio_interval([10.0, 10.0], [1, 1]) == {"mean": 10, "low": 10, "high": 10}
    # Of 20 questions half are right: one resample in a million misses them all.
    found = ratio_interval([10.0] * 20, [1, 0] * 10)
    assert found is not None
    assert found["high"] is not None
    assert 25 <= found["high"] <= 40


def enumerated(differences: list[float]) -> float:
    """Share of sign patterns whose sum is at least as far from zero, two-sided as twice the smaller tail."""
    observed = sum(differences)
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in product((1, -1), repeat=len(differences))
    ]
    above = sum(s >= observed - 1e-12 for s in sums) / len(sums)
    below = sum(s <= observed + 1e-12 for s in sums) / len(sums)
    return min(1.0, 2 * min(above, below))


@pytest.mark.parametrize(
    "differences",
    [[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, -2.0, 3.0, 0.5, -0.25], [0.5, 0.5, 0.5, 0.5, -0.5], [0.7], []],
)
def test_p_values_equal_enumeration(differences: list[float]) -> None:
    with_ties = [*differences, 0.0, 0.0]  # questions answered alike carry no information
    values = {
        ("topk", 100): {"m": {str(k): 1.0 for k in range(7)}},
        ("exact", 100): {"m": {str(k): 1.0 + d for k, d in enumerate(with_ties)}},
    }
    (row,) = compare(values, "topk")
    assert row["p_value"] == row["q_value"] == pytest.approx(enumerated(differences) if differences else 1)
    assert (row["difference"], row["n"]) == (pytest.approx(sum(differences) / len(with_ties)), len(with_ties))


def test_q_values_by_hand() -> None:
    base = {str(k): 0.0 for k in range(10)}
    # All of 8, 6, 5 differences positive: p = 2 / 2^8, 2 / 2^6, 2 / 2^5.
    values = {("a", 1): {"m": base}}
    for name, n in (("x", 5), ("y", 8), ("z", 6)):
        values[name, 1] = {"m": {q: float(int(q) < n) for q in base}}
    rows = {row["method"]: row for row in compare(values, "a")}
    p = {"x": 2 / 32, "y": 2 / 256, "z": 2 / 64}
    assert {m: row["p_value"] for m, row in rows.items()} == pytest.approx(p)
    # Benjamini and Hochberg: p times 3 / rank, made monotone from the largest down.
    q = {"y": 3 * 2 / 256, "z": 3 / 2 * 2 / 64, "x": 2 / 32}
    assert {m: row["q_value"] for m, row in rows.items()} == pytest.approx(q)


def rows(method: str, values: list[dict[str, Any]], budget: int = 100) -> list[dict[str, Any]]:
    common = {"method": method, "budget_tokens": budget, "status": "optimal", "error": None}
    return [{**common, "question_id": str(k), **v} for k, v in enumerate(values)]


def test_summary_counts_failures_and_leaves_out_what_is_undefined() -> None:
    group = rows("exact", [
        {"exact_match": 1.0, "gold_recall": 1.0, "prompt_tokens": 90, "completion_tokens": 10},
        {"exact_match": 0.0, "prompt_tokens": 50, "completion_tokens": None},
        {"exact_match": 0.0, "gold_recall": 0.0, "status": "error", "error": "broke"},
        {"prompt_tokens": 1000, "status": "feasible"},
    ])  # fmt: skip
    (entry,) = summarize(group)
    assert (entry["n"], entry["failed"], entry["optimal_share"]) == (4, 1, 0.5)
    assert entry["exact_match"]["mean"] == pytest.approx(1 / 3)
    assert entry["gold_recall"]["mean"] == 0.5
    assert entry["tokens_per_correct"]["mean"] == 150  # the fourth has no key to be right or wrong by
    assert "rouge_l" not in entry
    choices = [
        {"accuracy": 1.0, "exact_match": 0.0},
        {"accuracy": 0.0, "exact_match": 1.0},
        {"exact_match": 1.0},
    ]
    (entry,) = summarize(rows("exact", [{**one, "prompt_tokens": 100} for one in choices]))
    assert entry["tokens_per_correct"]["mean"] == 150
    (entry,) = summarize(rows("exact", [{"exact_match": 0.0, "prompt_tokens": 5}]))
    assert entry["tokens_per_correct"] is None
    # The proven share is of questions that something was selected for.
    nothing = {"status": None}
    (entry,) = summarize(rows("mdp", [{}, {"status": "feasible"}, nothing, nothing]))
    assert (entry["n"], entry["optimal_share"]) == (4, 0.5)
    assert summarize(rows("mdp", [nothing, nothing]))[0]["optimal_share"] is None


def test_rows_are_compared_by_question_and_by_what_is_labelled() -> None:
    first = rows("topk", [{"token_f1": 0.5}, {"token_f1": 0.0}, {"token_f1": 0.25}])
    second = rows("exact", [{"token_f1": 1.0}, {"token_f1": 0.5}, {}])
    (row,) = compare_rows([*first, *reversed(second)], "topk")
    found = [row[name] for name in ("measure", "n", "difference", "low", "high")]
    assert found == ["token_f1", 2, 0.5, 0.5, 0.5]
    documents = [*rows("topk", [{"source_recall": 0.0}] * 3), *rows("exact", [{"source_recall": 1.0}] * 3)]
    assert [(r["measure"], r["difference"]) for r in compare_rows(documents, "topk")] == [
        ("source_recall", 1.0)
    ]
    both = {"source_recall": 1.0, "gold_recall": 1.0}
    names = ("topk", "exact", "mio", "exact:auto")
    compared = compare_rows([one for name in names for one in rows(name, [both])], "topk")
    assert [(r["measure"], r["method"]) for r in compared] == [("gold_recall", "exact")]  # no sentences


def test_with_controllers_all_are_counted_by_all_prompts() -> None:
    method = rows("topk", [{"tokens_used": 90, "prompt_tokens": 150, "gold_recall": 1.0}] * 3)
    controller = rows("mdp", [{"tokens_used": 20, "prompt_tokens": 900, "steps": 4, "gold_recall": 1.0}] * 3)
    assert reading_column(method) == "tokens_used"
    assert reading_column([*method, *controller]) == "prompt_tokens"
    found = {row["measure"]: row["difference"] for row in compare_rows([*method, *controller], "topk")}
    assert found == {"gold_recall": 0.0, "prompt_tokens": 750.0}
    larger = [row | {"budget_tokens": 200} for row in (*method, *controller)]
    matched = matched_rows([*method, *controller, *larger], "topk")
    assert {entry["tokens_measure"] for entry in matched} == {"prompt_tokens"}
    assert {entry["tokens"]["mean"] for entry in matched if entry["method"] == "mdp"} == {900.0}


def test_a_proof_is_not_taken_for_evidence() -> None:
    def said(first: list[Any], second: list[Any]) -> tuple[list[str], list[str]]:
        both = [*first, *second]
        summary, comparisons = summarize(both), compare_rows(both, "fused")
        return proven_yet_behind(summary, comparisons), too_few(summary, comparisons)

    low = [{"gold_recall": 0.25 * (k % 2)} for k in range(20)]
    high = [{"gold_recall": 0.5 + 0.25 * (k % 2)} for k in range(20)]
    (behind,), (few,) = said(rows("fused", high), rows("exact", low))
    assert behind.startswith("exact finds clearly less evidence than fused: 50.0 points less")
    assert "at 100 tokens, with 100% of its selections proven optimal" in behind
    assert "about the program, not about the evidence" in behind
    assert few.startswith(
        "with 20 questions methods cannot be told apart: one more that is found moves a mean by 5 "
    )
    assert said(rows("fused", high * 2), rows("exact", low * 2))[1] == []
    # Nothing is said of what is unproven, of rankings, or of differences that may be chance.
    for solver, status in (("topk", "optimal"), ("branch_and_bound", "feasible")):
        other = [row | {"solver": solver, "status": status} for row in rows("exact", low)]
        assert said(rows("fused", high), other)[0] == []
    mixed = rows("exact", [{"gold_recall": 0.5 + (k % 3 - 1) / 2} for k in range(20)])
    assert said(rows("fused", high), mixed)[0] == []


# Tokens at matched quality


def test_interpolation_by_hand() -> None:
    tokens, quality = np.array([[100.0, 200.0, 400.0]] * 5), np.array([[0.2, 0.4, 0.8]] * 5)
    found = tokens_to_reach(tokens, quality, np.array([0.3, 0.8, 0.5, 0.1, 0.9]))
    np.testing.assert_allclose(found, [150, 400, 250, 100, np.nan])
    tokens, quality = (
        np.array([[100.0, 200.0, 300.0]]),
        np.array([[0.5, 0.4, 0.9]]),
    )  # the dip is never needed
    assert tokens_to_reach(tokens, quality, np.array([0.5]))[0] == 100
    assert tokens_to_reach(tokens, quality, np.array([0.7]))[0] == pytest.approx(250)


def curve(recall: list[float], tokens: list[float], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.tile(tokens, (200, 1)), (rng.random((200, 1)) < np.array(recall)).astype(float)


def test_tokens_for_the_quality_of_the_baseline() -> None:
    curves = {
        "base": curve([0.3, 0.6, 0.9], [100, 200, 400]),
        "half": curve([0.3, 0.6, 0.9], [50, 100, 200]),
        "worse": curve([0.1, 0.2, 0.3], [100, 200, 400]),
        "other": curve([0.35, 0.65, 0.95], [100, 200, 400], seed=2),
    }
    base, half, worse, other = matched_tokens(curves, "base", 1)
    assert base["tokens"] == {"mean": 200, "low": 200, "high": 200}
    # The same questions are right at the same budgets: the ratio is exact in every resample.
    assert half["share"] == pytest.approx(dict.fromkeys(("mean", "low", "high"), 0.5))
    assert worse["tokens"] is None
    assert worse["reached"] < 0.5
    assert other["tokens"]["low"] < other["tokens"]["mean"] < (other["tokens"]["high"] or np.inf)
    assert matched_tokens(curves, "base", 0)[1]["at_most"]
    with pytest.raises(InputError, match="'none' is not among"):
        matched_tokens(curves, "none", 0)


@pytest.mark.filterwarnings("error")
def test_shares_of_a_baseline_that_reads_nothing() -> None:
    """At its smallest budget no passage fits, as where budgets are small and passages long."""
    recall = [0.0, 0.5]
    curves = {
        "base": curve(recall, [0, 200]),
        "same": curve(recall, [0, 100]),
        "more": curve(recall, [30, 200]),
    }
    base, same, more = matched_tokens(curves, "base", 0)
    for entry in (base, same):
        assert entry["tokens"] == {"mean": 0, "low": 0, "high": 0}
        assert entry["share"] == {"mean": 1, "low": 1, "high": 1}
    assert (more["tokens"]["mean"], more["share"]) == (pytest.approx(30), None)
    # One question in 40 reads: a third of the resamples are without it, and there is no upper end.
    tokens, quality = np.zeros((40, 2)), np.zeros((40, 2))
    tokens[0], tokens[:, 1], quality[:, 1] = 200, 200, 1
    rarely = {"base": (tokens, quality), "other": (np.maximum(tokens, 10), quality)}
    entry = matched_tokens(rarely, "base", 0)[1]
    assert entry["tokens"]["high"] is not None
    assert (entry["share"]["mean"], entry["share"]["high"]) == (pytest.approx((200 + 390) / 200), None)


def test_matched_rows_of_a_ledger() -> None:
    ledger = []
    for method, shift in (("topk", 0.0), ("exact", 0.2)):
        for budget, recall in ((100, 0.3 + shift), (200, 0.5 + shift)):
            values = [{"gold_recall": one, "tokens_used": budget - 10} for one in (*[recall] * 3, None)]
            ledger += rows(method, values, budget)
    found = {e["budget_tokens"]: e for e in matched_rows(ledger, "topk") if e["method"] == "exact"}
    assert (found[200]["n"], found[200]["tokens"]["mean"]) == (3, 90)  # .5 at the smallest budget already
    assert found[200]["at_most"]
    assert found[200]["share"]["mean"] == pytest.approx(90 / 190)
    assert matched_rows([r for r in ledger if r["budget_tokens"] == 100], "topk") == []
