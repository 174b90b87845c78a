"""Intervals, permutation tests and their correction, against enumeration."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import bootstrap

from mio_rag.evaluation.rows import reading_column
from mio_rag.evaluation.statistics import (
    RESAMPLES,
    compare,
    compare_rows,
    matched_rows,
    mean_interval,
    proven_yet_behind,
    ratio_interval,
    summarize,
    too_few,
)


def test_the_interval_covers_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for run in range(120):
        entry = mean_interval(rng.normal(5.0, 2.0, size=60).tolist(), seed=run)
        assert entry["low"] < entry["mean"] < entry["high"]
        hits += entry["low"] <= 5.0 <= entry["high"]
    assert 105 <= hits <= 119  # 114 expected


def test_the_interval_is_the_textbook_one_on_many_values() -> None:
    values = np.random.default_rng(2).normal(size=2000)
    entry = mean_interval(values.tolist())
    half = 1.96 * values.std(ddof=1) / np.sqrt(values.size)
    assert entry["mean"] == pytest.approx(values.mean())
    assert entry["high"] - entry["low"] == pytest.approx(2 * half, rel=0.08)
    assert mean_interval(values.tolist()) == entry  # seeded


@pytest.mark.parametrize("n", [2, 3, 12, 150, 1200])
def test_the_interval_is_that_of_scipy(n: int) -> None:
    values = np.random.default_rng(n).lognormal(size=n)
    outcome = bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(3)
    )
    entry = mean_interval(values.tolist(), seed=3)
    assert (entry["low"], entry["high"]) == pytest.approx(tuple(outcome.confidence_interval), rel=1e-12)


def test_degenerate_intervals() -> None:
    assert mean_interval([0.25]) == {"mean": 0.25, "low": 0.25, "high": 0.25}
    assert mean_interval([1.0] * 9) == {"mean": 1.0, "low": 1.0, "high": 1.0}


def test_ratio_of_sums() -> None:
    entry = ratio_interval([100, 300, 200], [1, 0, 1])
    assert entry is not None
    assert entry["mean"] == 300  # 600 tokens, two right answers; not a mean of ratios
    assert entry["low"] is not None
    assert entry["low"] < 300
    assert entry["high"] is None  # one resample in 27 has no right answer
    assert ratio_interval([100, 300], [0, 0]) is None
    assert ratio_interval([10.0, 10.0], [1, 1]) == {"mean": 10, "low": 10, "high": 10}


def test_ratio_is_unbounded_where_resamples_have_no_success() -> None:
    # Of 8 questions one is right: a resample misses it with probability (7/8)^8 = 0.34, far above 2.5 %.
    entry = ratio_interval([10.0] * 8, [1] + [0] * 7)
    assert entry is not None
    assert (entry["mean"], entry["high"]) == (80, None)
    assert entry["low"] is not None
    assert 15 <= entry["low"] <= 30
    # Half of 20 are right: one resample in a million misses them all.
    entry = ratio_interval([10.0] * 20, [1, 0] * 10)
    assert entry is not None
    assert entry["high"] is not None
    assert 25 <= entry["high"] <= 40


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
    "differences", [[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, -2.0, 3.0, 0.5, -0.25], [0.5, 0.5, 0.5, 0.5, -0.5]]
)
def test_p_values_equal_enumeration(differences: list[float]) -> None:
    with_ties = [*differences, 0.0, 0.0]  # questions answered alike carry no information
    values = {
        ("topk", 100): {"m": {str(k): 1.0 for k in range(7)}},
        ("exact", 100): {"m": {str(k): 1.0 + d for k, d in enumerate(with_ties)}},
    }
    (row,) = compare(values, "topk")
    assert row["p_value"] == pytest.approx(enumerated(differences))
    assert row["difference"] == pytest.approx(sum(differences) / 7)
    assert row["n"] == 7


@pytest.mark.parametrize("moved", [[], [0.7]])
def test_one_question_proves_nothing(moved: list[float]) -> None:
    differences = [*moved, *[0.0] * (9 - len(moved))]
    values = {
        ("a", 1): {"m": dict.fromkeys("123456789", 0.0)},
        ("b", 1): {"m": {str(k + 1): d for k, d in enumerate(differences)}},
    }
    (row,) = compare(values, "a")
    assert row["p_value"] == row["q_value"] == 1


def test_q_values_by_hand() -> None:
    base = {str(k): 0.0 for k in range(10)}
    # all of 8, 6, 5 differences positive: p = 2 / 2^8, 2 / 2^6, 2 / 2^5
    values = {
        ("a", 1): {"m": base},
        **{
            (name, 1): {"m": {q: float(int(q) < n) for q in base}}
            for name, n in (("x", 5), ("y", 8), ("z", 6))
        },
    }
    rows = {row["method"]: row for row in compare(values, "a")}
    p = {"x": 2 / 32, "y": 2 / 256, "z": 2 / 64}
    assert {m: row["p_value"] for m, row in rows.items()} == pytest.approx(p)
    # Benjamini and Hochberg: p times 3 / rank, made monotone from the largest down
    assert {m: row["q_value"] for m, row in rows.items()} == pytest.approx(
        {"y": 3 * 2 / 256, "z": 3 / 2 * 2 / 64, "x": 2 / 32}
    )


def test_comparisons_are_paired_and_stay_within_a_budget() -> None:
    values = {
        ("a", 1): {"m": {"p": 0.0, "q": 1.0}},
        ("b", 1): {"m": {"q": 3.0, "r": 100.0}, "other": {"q": 1.0}},
        ("b", 2): {"m": {"q": 3.0}},
    }
    (row,) = compare(values, "a")
    assert (row["budget_tokens"], row["n"], row["difference"]) == (1, 1, 2.0)
    assert compare(values, "absent") == []


def rows(method: str, values: list[dict[str, object]]) -> list[dict[str, object]]:
    common = {"method": method, "budget_tokens": 100, "status": "optimal", "error": None}
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


def test_the_proven_share_is_of_questions_that_something_was_selected_for() -> None:
    nothing = {"status": None}  # an agent that never retrieved
    (entry,) = summarize(rows("mdp", [{}, {"status": "feasible"}, nothing, nothing]))
    assert (entry["n"], entry["optimal_share"]) == (4, 0.5)
    (entry,) = summarize(rows("mdp", [nothing, nothing]))
    assert entry["optimal_share"] is None


def test_tokens_per_correct_over_choices_and_open_questions_together() -> None:
    group = rows("exact", [
        {"accuracy": 1.0, "exact_match": 0.0, "prompt_tokens": 100},
        {"accuracy": 0.0, "exact_match": 1.0, "prompt_tokens": 100},
        {"exact_match": 1.0, "prompt_tokens": 100},
    ])  # fmt: skip
    assert summarize(group)[0]["tokens_per_correct"]["mean"] == 150


def test_nothing_right_has_no_price() -> None:
    assert (
        summarize(rows("exact", [{"exact_match": 0.0, "prompt_tokens": 5}]))[0]["tokens_per_correct"] is None
    )


def test_documents_are_compared_where_only_these_are_labelled() -> None:
    found = compare_rows(
        [*rows("topk", [{"source_recall": 0.0}] * 3), *rows("exact", [{"source_recall": 1.0}] * 3)], "topk"
    )
    assert [(row["measure"], row["difference"]) for row in found] == [("source_recall", 1.0)]
    both = {"source_recall": 1.0, "gold_recall": 1.0}
    found = compare_rows([*rows("topk", [both]), *rows("exact", [both])], "topk")
    assert [row["measure"] for row in found] == ["gold_recall"]


def test_beside_controllers_everybody_is_counted_by_all_prompts() -> None:
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
    low = [{"gold_recall": 0.25 * (k % 2)} for k in range(20)]
    high = [{"gold_recall": 0.5 + 0.25 * (k % 2)} for k in range(20)]
    better, worse = rows("fused", high), rows("exact", low)
    (said,) = proven_yet_behind(summarize([*better, *worse]), compare_rows([*better, *worse], "fused"))
    assert said.startswith("exact finds clearly less evidence than fused: 50.0 points less")
    assert "at 100 tokens, with 100% of its selections proven optimal" in said
    assert "about the program, not about the evidence" in said
    (few,) = too_few(summarize([*better, *worse]), compare_rows([*better, *worse], "fused"))
    assert few.startswith(
        "with 20 questions methods cannot be told apart: one more that is found moves a mean by 5 "
    )
    many = rows("fused", high * 2), rows("exact", low * 2)
    assert too_few(summarize([*many[0], *many[1]]), compare_rows([*many[0], *many[1]], "fused")) == []
    # Nothing is said of what is unproven, of rankings, or of differences that may be chance.
    for solver, status in (("topk", "optimal"), ("branch_and_bound", "feasible")):
        other = [row | {"solver": solver, "status": status} for row in worse]
        assert proven_yet_behind(summarize([*better, *other]), compare_rows([*better, *other], "fused")) == []
    mixed = rows("exact", [{"gold_recall": 0.5 + (k % 3 - 1) / 2} for k in range(20)])
    assert proven_yet_behind(summarize([*better, *mixed]), compare_rows([*better, *mixed], "fused")) == []


def test_rows_are_compared_by_question() -> None:
    first = rows("topk", [{"token_f1": 0.5}, {"token_f1": 0.0}, {"token_f1": 0.25}])
    second = rows("exact", [{"token_f1": 1.0}, {"token_f1": 0.5}, {}])
    (row,) = compare_rows([*first, *reversed(second)], "topk")
    assert (row["measure"], row["n"], row["difference"], row["low"], row["high"]) == (
        "token_f1",
        2,
        0.5,
        0.5,
        0.5,
    )
