"""Intervals, permutation tests, corrections, the first table, warnings: by hand and by enumeration."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap

from mio_rag.evaluation.rows import reading_column
from mio_rag.evaluation.statistics import (
    RESAMPLES,
    compare,
    compare_rows,
    lead_table,
    mean_interval,
    part_read,
    proven_yet_behind,
    ratio_interval,
    reading_nothing,
    summarize,
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
    found = [*rows("topk", [{"source_recall": 0.0}] * 3), *rows("mio", [{"source_recall": 1.0}] * 3)]
    assert [r["measure"] for r in compare_rows(found, "topk")] == [
        "source_recall"
    ]  # of these any part counts
    assert not part_read({"methods": ["mio"]}, summarize(found))
    assert part_read({"methods": ["mio"]}, summarize(rows("mio", [both])))


def test_with_controllers_all_are_counted_by_all_prompts() -> None:
    method = rows("topk", [{"tokens_used": 90, "prompt_tokens": 150, "gold_recall": 1.0}] * 3)
    controller = rows("mdp", [{"tokens_used": 20, "prompt_tokens": 900, "steps": 4, "gold_recall": 1.0}] * 3)
    assert reading_column(method) == "tokens_used"
    assert reading_column([*method, *controller]) == "prompt_tokens"
    found = {row["measure"]: row["difference"] for row in compare_rows([*method, *controller], "topk")}
    assert found == {"gold_recall": 0.0, "prompt_tokens": 750.0}


def test_what_is_not_read_is_not_saved() -> None:
    read = {"tokens_used": 90, "evidence_covered": 1.0, "answer_in_context": 1.0}
    blank = {"tokens_used": 0, "evidence_covered": 0.0, "answer_in_context": 0.0}
    nothing = {"tokens_used": 0, "question_type": "unanswerable"}
    short = {"tokens_used": 60, "evidence_covered": 1.0, "answer_in_context": 1.0}
    both = [
        *rows("fused", [read, read, {"tokens_used": 90, "question_type": "unanswerable"}]),
        *rows("mio", [short, blank, nothing]),
    ]
    found = {row["measure"]: row for row in compare_rows(both, "fused")}
    assert (found["tokens_used"]["n"], found["tokens_used"]["difference"]) == (2, -60.0)  # -30 and -90
    assert found["evidence_covered"]["difference"] == -0.5
    assert "mio at 1 (100 tokens). That counts as nothing found" in reading_nothing(both)
    assert reading_nothing(rows("mio", [read, nothing])) == reading_nothing(rows("mio", [blank])) == ""
    table = {one.title: one for one in lead_table(summarize(both), compare_rows(both, "fused"), "fused")}
    assert list(table) == [
        "method", "answer in\ncontext", "against fused\n(points, 95 % interval)",
        "evidence text\ncovered", "tokens\nread", "tokens saved\n(95 % interval)",
    ]  # fmt: skip
    assert table["tokens saved\n(95 % interval)"].cells == ("baseline", "60 (30 to 90)")
    assert table["tokens\nread"].cells == ("90", "20")


def test_a_proof_is_not_taken_for_evidence() -> None:
    def said(first: list[Any], second: list[Any]) -> tuple[list[str], list[str]]:
        both = [*first, *second]
        summary, comparisons = summarize(both), compare_rows(both, "fused")
        return proven_yet_behind(summary, comparisons), too_few(summary, comparisons)

    low = [{"evidence_covered": 0.25 * (k % 2)} for k in range(20)]
    high = [{"evidence_covered": 0.5 + 0.25 * (k % 2)} for k in range(20)]
    (behind,), (few,) = said(rows("fused", high), rows("mio", low))
    assert behind.startswith("mio is clearly below fused in evidence text covered: 50.0 points less")
    assert "at 100 tokens, with 100% of its selections proven optimal" in behind
    assert "about the program, not about the evidence" in behind
    assert few.startswith(
        "with 20 questions methods cannot be told apart: one more that is found moves a mean by 5 "
    )
    assert said(rows("fused", high * 2), rows("exact", low * 2))[1] == []
    # Nothing is said of what is unproven, of rankings, or of differences that may be chance.
    for solver, status in (("topk", "ranked"), ("branch_and_bound", "feasible")):
        other = [row | {"solver": solver, "status": status} for row in rows("exact", low)]
        assert said(rows("fused", high), other)[0] == []
    mixed = rows("exact", [{"evidence_covered": 0.5 + (k % 3 - 1) / 2} for k in range(20)])
    assert said(rows("fused", high), mixed)[0] == []
